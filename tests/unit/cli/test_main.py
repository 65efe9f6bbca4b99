"""Errors, JSON, Ctrl-C; names from files and machines in what verbs print are shown, never obeyed."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from hostile import EVIL, EVIL_NAME, EVIL_SHOWN, hidden
from trainstone.cli import doctor, recipes
from trainstone.cli.execute import print_error
from trainstone.cli.main import main
from trainstone.cli.output import interruptible, print_json
from trainstone.errors import RunError

RECIPE = """
name = "mine"
version = 1
\t# a comment with a tab
summary = "%s"
"""


def test_further_lines_are_kept_and_cannot_pass_for_ours(capsys):
    print_error(RunError("the child said:\nTraceback\n\thint: rm -rf", hint="one\r\ntwo"))
    lines = ["error: the child said:", "       Traceback", "           hint: rm -rf", "hint:  one", "       two"]
    assert capsys.readouterr().err.splitlines() == lines


def test_a_path_in_an_error_is_not_obeyed(capsys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(sys, "argv", ["trainstone", "recipes", str(tmp_path / f"{EVIL_NAME}.toml")])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    err = capsys.readouterr().err
    assert "no recipe file" in err
    assert r"\x1b[31m" in err
    assert not hidden(err)


def test_a_recipe_is_shown_with_its_lines_and_not_obeyed(capsys, tmp_path: Path):
    path = tmp_path / f"{EVIL_NAME}.toml"
    text = RECIPE % r"\u001b[31m [red] \u202e" + "# raw \u202e [red]\n"
    path.write_text(text, encoding="utf-8")
    recipes.show_recipe(str(path), as_json=False)
    out = capsys.readouterr().out
    assert not hidden(out)
    assert out.startswith('\nname = "mine"\nversion = 1\n    # a comment with a tab\n')
    assert r"# raw \u202e [red]" in out
    assert r"summary = \x1b[31m [red] \u202e" in out


def test_the_doctor_shows_what_machines_say_and_does_not_obey(capsys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from trainstone.train import checkup

    monkeypatch.setattr(checkup, "examine", lambda facts, out: [checkup.Check("device", "missing", EVIL, EVIL)])
    doctor.print_checks(tmp_path, as_json=False)
    out = capsys.readouterr().out
    assert not hidden(out)
    assert out.count(EVIL_SHOWN) == 2


def test_ctrl_c_ends_without_a_traceback(capsys):
    with pytest.raises(typer.Exit) as left, interruptible():
        raise KeyboardInterrupt
    assert left.value.exit_code == 130
    assert "give the same command again to resume" in capsys.readouterr().err


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
