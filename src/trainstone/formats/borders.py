"""Where one object of a long JSON list ends and the next begins, in a piece of its text."""

import re
from collections.abc import Iterator

import msgspec

BORDER = re.compile(rb"\}[ \t\r\n]*+,[ \t\r\n]*+(?=\{)")
NEAR_BYTES = 1 << 16
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\]"]', re.DOTALL)
# Kineto has printed these where JSON knows no number; a zero of the same width keeps all bytes in their places.
_NO_NUMBER = re.compile(rb"(?<=[:\[,\s])-?(?:inf|nan|NaN|Infinity)(?=\s*[,}\]])")


def likely_borders(text: bytes) -> Iterator[re.Match[bytes]]:
    """Yield what looks like a border, from the back, ever further apart: a string full of them is soon passed."""
    near = list(BORDER.finditer(text, max(0, len(text) - NEAR_BYTES)))
    back = 1
    while back <= len(near):
        yield near[-back]
        back *= 2
    window = NEAR_BYTES
    while window < len(text):
        window *= 4
        far = BORDER.search(text, max(0, len(text) - window))
        if far is not None:
            yield far


def find_last_border(text: bytes) -> re.Match[bytes] | None:
    """Return the last border of a list's inside, found by counting brackets; None if there is none."""
    depth = 0
    last = None
    for token in _TOKEN.finditer(text):
        what = token[0]
        if what in (b"{", b"["):
            depth += 1
        elif what == b'"' or depth == 0:  # a string that is not closed here, or the end of the list
            break
        elif what in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                last = BORDER.match(text, token.start()) or last
    return last


def locate(text: bytes, number: int) -> int:
    """Return the byte behind the opening bracket where an item of the list begins."""
    start = end = 1
    try:
        for raw in msgspec.json.decode(text, type=list[msgspec.Raw])[: number + 1]:
            start = text.index(bytes(raw), end)
            end = start + len(bytes(raw))
    except (msgspec.DecodeError, RecursionError):  # damaged further on as well: tell where the batch begins
        start = 1
    return start - 1


def mend(text: bytes) -> bytes:
    """Replace what Kineto is known to write against the rules: bytes that are no UTF-8, inf and nan."""
    text = text.decode("utf-8", "surrogateescape").encode("utf-8", "replace")
    return _NO_NUMBER.sub(lambda found: b"0".rjust(len(found[0])), text)
