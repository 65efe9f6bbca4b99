"""Escape hidden characters in text from files and machines, for the terminal and the HTML report.

A host name may contain an escape sequence, a label a bidirectional override. The report escapes HTML itself.
"""

import unicodedata


def printable(text: str) -> str:
    r"""Return the text on one line, with hidden characters escaped: \x1b, \n, \u202e, \U000e0001.

    Escaped are control, format (bidi, zero-width), surrogate, private and unassigned characters and line and paragraph
    separators. Letters and marks of all scripts, symbols, emoji, spaces and backslashes do not change.
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
    """Return the text with each line made printable; line ends are kept, tabs become spaces."""
    return "\n".join(printable(line.expandtabs(4)) for line in text.replace("\r\n", "\n").split("\n"))


def format_error(message: str, hint: str | None) -> str:
    """Return message and hint as lines; continuation lines are indented, so that none looks like an error or hint."""
    parts = [name + printable_lines(text) for name, text in (("error: ", message), ("hint:  ", hint)) if text]
    return "\n".join(part.replace("\n", "\n       ") for part in parts)
