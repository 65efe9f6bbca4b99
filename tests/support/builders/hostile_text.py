"""Text that a file or a machine may hold and a terminal or page must not obey."""

import unicodedata

# HTML, quotes, a colour, a window title, a right-to-left override, rich's markup, NUL, a line break, a backslash
EVIL = "<script>'\"&\x1b[31m\x1b]0;title\x07\u202e[red][/]\0\n\\x"
EVIL_SHOWN = "<script>'\"&\\x1b[31m\\x1b]0;title\\x07\\u202e[red][/]\\x00\\n\\x"
# The same as far as a folder's name can hold it
EVIL_NAME = EVIL.replace("\0", "").replace("/", "")


def hidden(text: str) -> set[str]:
    return {char for char in text if not char.isprintable() and unicodedata.category(char) != "Zs"} - {"\n"}
