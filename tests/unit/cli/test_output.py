"""JSON on stdout: the same document whatever the encoding, and nothing in it that a terminal would obey."""

import io
import json
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostile import hidden
from trainstone.cli.output import print_json

TEXT = st.text(st.characters(exclude_categories=[]))
DOCUMENTS = st.recursive(TEXT | st.none() | st.integers() | st.booleans(), lambda inner: st.dictionaries(TEXT, inner))


def print_encoded(document: Any, encoding: str) -> str:
    """Print to a stdout of that encoding, which refuses what it has not; return what arrived."""
    raw = io.BytesIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding, errors="strict", newline="\n"))
        print_json(document)
        sys.stdout.flush()
        return raw.getvalue().decode(encoding)


@settings(deadline=None)
@given(DOCUMENTS, st.sampled_from(["utf-8", "ascii", "latin-1"]))
def test_it_is_the_same_document(document: Any, encoding: str):
    printed = print_encoded(document, encoding)
    assert not hidden(printed)
    # Two lone surrogates side by side are one character in JSON, whoever writes it.
    assert json.loads(printed) == json.loads(json.dumps(document))


def test_readable_characters_stay_where_they_can():
    assert print_encoded({"a": "größer … 日本"}, "utf-8") == '{\n  "a": "größer … 日本"\n}\n'
    assert print_encoded(["µ"], "ascii") == '[\n  "\\u00b5"\n]\n'
