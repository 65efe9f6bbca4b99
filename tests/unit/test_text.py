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
    told = printable(text)
    assert not hidden(told)
    assert printable(told) == told
    assert told.encode("utf-8").decode("utf-8") == told
    assert set(hidden(printable_lines(text))) <= {"\n"}


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=sorted(HIDDEN))))
def test_what_can_be_seen_stays(text: str):
    assert printable(text) == text


def test_every_character_of_the_first_plane_and_some_of_the_others():
    every = "".join(map(chr, (*range(0x10000), *range(0x10000, 0x110000, 61))))
    concealed = "".join(hidden(every))
    seen = every.translate(dict.fromkeys(map(ord, concealed)))
    assert printable(seen) == seen
    assert printable(concealed) == concealed.encode("unicode_escape").decode("ascii")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ""),
        ("node-7 ± 1.3 % · 12 µs …", "node-7 ± 1.3 % · 12 µs …"),
        ("größer, Ελλάδα, 日本語, हिन्दी, עברית, 🚀, e\u0301", "größer, Ελλάδα, 日本語, हिन्दी, עברית, 🚀, e\u0301"),
        ("a\u00a0b\u3000c", "a\u00a0b\u3000c"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b31m", r"\x9b31m"),
        ("two\nlines\tand\r more", r"two\nlines\tand\r more"),
        ("NUL\0DEL\x7fNEL\x85", r"NUL\x00DEL\x7fNEL\x85"),
        ("exe.\u202egpj\u202c", r"exe.\u202egpj\u202c"),
        (
            "\u2066\u2069\u200e\u200f\u061c\u200b\u200d\ufeff\u00ad",
            r"\u2066\u2069\u200e\u200f\u061c\u200b\u200d\ufeff\xad",
        ),
        ("\u2028\u2029", r"\u2028\u2029"),
        ("\udc80", r"\udc80"),
        ("\ue000\U000f0000\U000e0041\ufdd0", r"\ue000\U000f0000\U000e0041\ufdd0"),
        (r"C:\new", r"C:\new"),
        ("<script>'\"[red]", "<script>'\"[red]"),
    ],
)
def test_examples(text: str, told: str):
    assert printable(text) == told


def test_lines_keep_their_ends():
    assert printable_lines("a\tb\r\nc\x1b\n") == "a   b\nc\\x1b\n"
    assert printable_lines("a\x0bb\u2028c") == r"a\x0bb\u2028c"
