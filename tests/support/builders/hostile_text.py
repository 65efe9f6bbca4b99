"""Hostile text from files or machines that terminals and HTML pages must escape."""

import unicodedata

# HTML, quotes, a colour, a window title, a right-to-left override, rich's markup, NUL, a line break, a backslash
HOSTILE = "<script>'\"&\x1b[31m\x1b]0;title\x07\u202e[red][/]\0\n\\x"
HOSTILE_ESCAPED = "<script>'\"&\\x1b[31m\\x1b]0;title\\x07\\u202e[red][/]\\x00\\n\\x"
# The same text without the characters that are invalid in a folder name
HOSTILE_NAME = HOSTILE.replace("\0", "").replace("/", "")


def hidden(text: str) -> set[str]:
    return {char for char in text if not char.isprintable() and unicodedata.category(char) != "Zs"} - {"\n"}
