"""printable: whatever a file or a machine says, one harmless line comes out, and what can be read stays as it is."""

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
def test_nothing_hidden_comes_out(text: str):
    message = printable(text)
    assert not hidden(message)
    assert printable(message) == message
    assert message.encode("utf-8").decode("utf-8") == message
    assert set(hidden(printable_lines(text))) <= {"\n"}


def test_every_character_of_the_first_plane_and_some_of_the_others():
    every = "".join(map(chr, (*range(0x10000), *range(0x10000, 0x110000, 61))))
    concealed = "".join(hidden(every))
    seen = every.translate(dict.fromkeys(map(ord, concealed)))
    assert printable(seen) == seen
    assert printable(concealed) == concealed.encode("unicode_escape").decode("ascii")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("größer, 日本語, हिन्दी, עברית, 🚀, e\u0301, a\u00a0b", "größer, 日本語, हिन्दी, עברית, 🚀, e\u0301, a\u00a0b"),
        ("\x1b[31mred\x9b", r"\x1b[31mred\x9b"),
        ("two\nlines\tand\r more", r"two\nlines\tand\r more"),
        ("exe.\u202egpj\u202c", r"exe.\u202egpj\u202c"),
        (r"C:\new <script>'[red]", r"C:\new <script>'[red]"),
    ],
)
def test_examples(text: str, message: str):
    assert printable(text) == message


def test_lines_keep_their_ends():
    assert printable_lines("a\tb\r\nc\x1b\n") == "a   b\nc\\x1b\n"
    assert printable_lines("a\x0bb\u2028c") == r"a\x0bb\u2028c"
