"""Text from files and machines made harmless and visible, for terminal and page alike.

A host name may hold an escape sequence, a label a bidirectional override. HTML is escaped by who writes HTML.
"""

import unicodedata


def printable(text: str) -> str:
    r"""Return the text on one line, with what cannot be seen written out: \x1b, \n, \u202e, \U000e0001.

    Written out are control, format (bidi, zero-width), surrogate, private and unassigned characters and line and
    paragraph separators. Letters and marks of all scripts, symbols, emoji and spaces stay; a backslash does, too.
    """
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable() or unicodedata.category(char) == "Zs"
        else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def printable_lines(text: str) -> str:
    """Return the text with its line ends kept and each line made printable; tabs become spaces."""
    return "\n".join(printable(line.expandtabs(4)) for line in text.replace("\r\n", "\n").split("\n"))


def format_error(message: str, hint: str | None) -> str:
    """Return message and hint as lines; further lines of each are indented, so that none can pass for our own."""
    parts = [name + printable_lines(text) for name, text in (("error: ", message), ("hint:  ", hint)) if text]
    return "\n".join(part.replace("\n", "\n       ") for part in parts)
