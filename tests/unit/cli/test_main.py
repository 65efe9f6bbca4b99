"""Errors, JSON, Ctrl-C, the progress line; names from files and machines are shown, never obeyed."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from support.builders.hostile_text import EVIL, EVIL_NAME, EVIL_SHOWN, hidden
from trainstone.cli import doctor, recipes
from trainstone.cli.execute import print_error
from trainstone.cli.main import main
from trainstone.cli.render.output import interruptible, print_json
from trainstone.cli.render.progress import ProgressLine, describe_progress, describe_work
from trainstone.errors import RunError
from trainstone.results.progress import Progress

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
    from trainstone.flows import doctor as checkup

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


@pytest.mark.parametrize(
    ("progress", "message"),
    [
        (Progress("fitting"), "fitting"),
        (Progress("steps", 57, 4.91, 0.013, 12.3), "steps · step 57 · 4.91 images/s ± 1.3 % · at most 12.3 s left"),
        (Progress("steps", 57, 4.91, None, -1.0), "steps · step 57 · 4.91 images/s · at most 0 µs left"),
        (Progress(EVIL), EVIL_SHOWN),
        (
            Progress("training", 1250, 143.2, seconds_left=250.0, epoch=3.21, epochs=12.0, loss=1.834, accuracy=0.612),
            "training · epoch 3.2 of 12 · step 1,250 · 143 images/s · loss 1.83 · top-1 61.2 % · 4 min 10 s left",
        ),
        (Progress("training", 3, epoch=0.0, loss=float("nan")), "training · epoch 0.0 · step 3 · loss nan"),
        (Progress("evaluating", images=400, total_images=1000), "evaluating · 400 of 1,000 images"),
        (Progress("training", metric=EVIL, accuracy=0.5), f"training · {EVIL_SHOWN} 0.500"),
    ],
)
def test_what_is_told(progress: Progress, message: str):
    assert describe_progress(progress) == message


def test_plain_lines_where_there_is_no_terminal(capsys):
    with ProgressLine(quiet=False) as line:
        line.show(Progress("a"))
        line.show(Progress("a", 1))  # too soon for another of the same phase
        line.show(Progress(EVIL))
    assert capsys.readouterr().err == f"a\n{EVIL_SHOWN}\n"


def test_markup_is_not_obeyed_on_a_terminal(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with ProgressLine(quiet=False) as line:
        line.show(Progress(EVIL))
        assert line._status is not None
    shown = capsys.readouterr().err
    assert EVIL_SHOWN in shown
    assert "\x1b[31m" not in shown
    assert not hidden(shown) & {"\0", "\x07", "\u202e"}


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (("writing x", 0, 20_000, "images", 0, 0.0, 0), "writing x · 0 of 20,000 images (0 %)"),
        (
            ("writing x", 1200, 20_000, "images", 1000, 2.0, 1 << 21),
            "writing x · 1,200 of 20,000 (6 %) · 500 images/s · 1 MiB/s · 37.6 s left",
        ),
        (("checking", 1200, None, "images", 1000, 2.0, 0), "checking · 1,200 images · 500 images/s"),
        (
            ("fetching", 1 << 20, 1 << 22, "bytes", 1 << 20, 1.0, 0),
            "fetching · 1 MiB of 4 MiB (25 %) · 1 MiB/s · 3 s left",
        ),
        (("unpacking", 3, 0, "files", 3, 1.0, 0), "unpacking · 3 files · 3 files/s"),
        ((EVIL, 3, None, "files", 0, 1.0, 0), f"{EVIL_SHOWN} · 3 files"),
    ],
)
def test_what_is_told_of_a_job(work: tuple, message: str):
    assert describe_work(*work) == message


def test_a_job_is_told_when_its_phase_changes_and_its_rate_begins_there(capsys, monkeypatch: pytest.MonkeyPatch):
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with ProgressLine(quiet=False) as line:
        line.show_work("first", 500, 1000, "images")
        now += 2
        line.show_work("first", 600, 1000, "images")  # too soon for another of the same phase
        now += 8
        line.show_work("first", 700, 1000, "images")
        line.show_work("second", 1, None, "files")
    assert capsys.readouterr().err.splitlines() == [
        "first · 500 of 1,000 images (50 %)",
        "first · 700 of 1,000 (70 %) · 20 images/s · 15 s left",
        "second · 1 files",
    ]
