"""Escaping of hidden characters: the result is one harmless line, and readable text does not change."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainstone.text import printable, printable_lines

HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
ANY_TEXT = st.text(st.characters(categories=None, exclude_categories=[]))


def hidden(text: str) -> list[str]:
    return [char for char in text if unicodedata.category(char) in HIDDEN]


@settings(deadline=None)
@given(ANY_TEXT)
def test_printable_escapes_all_hidden_characters(text: str):
    escaped = printable(text)
    assert not hidden(escaped)
    assert printable(escaped) == escaped
    assert escaped.encode("utf-8").decode("utf-8") == escaped
    assert set(hidden(printable_lines(text))) <= {"\n"}


def test_printable_changes_exactly_the_hidden_characters():
    every = "".join(map(chr, (*range(0x10000), *range(0x10000, 0x110000, 61))))
    invisible = "".join(hidden(every))
    visible = every.translate(dict.fromkeys(map(ord, invisible)))
    assert printable(visible) == visible
    assert printable(invisible) == invisible.encode("unicode_escape").decode("ascii")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("größer, 日本語, हिन्दी, עברית, 🚀, e\u0301, a\u00a0b", "größer, 日本語, हिन्दी, עברית, 🚀, e\u0301, a\u00a0b"),
        ("\x1b[31mred\x9b", r"\x1b[31mred\x9b"),
        ("two\nlines\tand\r more", r"two\nlines\tand\r more"),
        ("exe.\u202egpj\u202c", r"exe.\u202egpj\u202c"),
        (r"C:\new <script>'[red]", r"C:\new <script>'[red]"),
    ],
)
def test_printable_examples(text: str, expected: str):
    assert printable(text) == expected


def test_printable_lines_keeps_line_ends():
    assert printable_lines("a\tb\r\nc\x1b\n") == "a   b\nc\\x1b\n"
    assert printable_lines("a\x0bb\u2028c") == r"a\x0bb\u2028c"
