"""Test error messages, JSON output, Ctrl-C and the progress line; hostile text is escaped."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from support.builders.hostile_text import HOSTILE, HOSTILE_ESCAPED, HOSTILE_NAME, hidden
from trainstone.cli import doctor, recipes
from trainstone.cli.execute import print_error
from trainstone.cli.main import main
from trainstone.cli.render.output import exit_on_interrupt, print_json
from trainstone.cli.render.progress import ProgressLine, describe_progress, describe_work
from trainstone.errors import RunError
from trainstone.results.progress import Progress

RECIPE = """
name = "mine"
version = 1
\t# a comment with a tab
summary = "%s"
"""


def test_print_error_indents_further_lines(capsys):
    print_error(RunError("the child said:\nTraceback\n\thint: rm -rf", hint="one\r\ntwo"))
    lines = ["error: the child said:", "       Traceback", "           hint: rm -rf", "hint:  one", "       two"]
    assert capsys.readouterr().err.splitlines() == lines


def test_main_escapes_hostile_path_in_error(capsys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(sys, "argv", ["trainstone", "recipes", str(tmp_path / f"{HOSTILE_NAME}.toml")])
    with pytest.raises(SystemExit) as exited:
        main()
    assert exited.value.code == 2
    err = capsys.readouterr().err
    assert "recipe file not found" in err
    assert r"\x1b[31m" in err
    assert not hidden(err)


def test_show_recipe_keeps_lines_and_escapes_hostile_text(capsys, tmp_path: Path):
    path = tmp_path / f"{HOSTILE_NAME}.toml"
    text = RECIPE % r"\u001b[31m [red] \u202e" + "# raw \u202e [red]\n"
    path.write_text(text, encoding="utf-8")
    recipes.show_recipe(str(path), as_json=False)
    out = capsys.readouterr().out
    assert not hidden(out)
    assert out.startswith('\nname = "mine"\nversion = 1\n    # a comment with a tab\n')
    assert r"# raw \u202e [red]" in out
    assert r"summary = \x1b[31m [red] \u202e" in out


def test_print_checks_escapes_hostile_text(capsys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from trainstone.flows import doctor as checkup

    monkeypatch.setattr(checkup, "examine", lambda facts, out: [checkup.Check("device", "missing", HOSTILE, HOSTILE)])
    doctor.print_checks(tmp_path, as_json=False)
    out = capsys.readouterr().out
    assert not hidden(out)
    assert out.count(HOSTILE_ESCAPED) == 2


def test_exit_on_interrupt_prints_message_and_exits_with_130(capsys):
    with pytest.raises(typer.Exit) as exited, exit_on_interrupt():
        raise KeyboardInterrupt
    assert exited.value.exit_code == 130
    assert "run the same command again to resume" in capsys.readouterr().err


TEXT = st.text(st.characters(exclude_categories=[]))
DOCUMENTS = st.recursive(TEXT | st.none() | st.integers() | st.booleans(), lambda inner: st.dictionaries(TEXT, inner))


def print_encoded(document: Any, encoding: str) -> str:
    """Print to a strict stdout with this encoding; return the decoded output."""
    raw = io.BytesIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding, errors="strict", newline="\n"))
        print_json(document)
        sys.stdout.flush()
        return raw.getvalue().decode(encoding)


@settings(deadline=None)
@given(DOCUMENTS, st.sampled_from(["utf-8", "ascii", "latin-1"]))
def test_print_json_in_any_encoding_keeps_document(document: Any, encoding: str):
    printed = print_encoded(document, encoding)
    assert not hidden(printed)
    # Two adjacent lone surrogates are one character in JSON.
    assert json.loads(printed) == json.loads(json.dumps(document))


def test_print_json_keeps_characters_of_the_encoding():
    assert print_encoded({"a": "größer … 日本"}, "utf-8") == '{\n  "a": "größer … 日本"\n}\n'
    assert print_encoded(["µ"], "ascii") == '[\n  "\\u00b5"\n]\n'


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (Progress("fitting"), "fitting"),
        (Progress("steps", 57, 4.91, 0.013, 12.3), "steps · step 57 · 4.91 images/s ± 1.3 % · at most 12.3 s left"),
        (Progress("steps", 57, 4.91, None, -1.0), "steps · step 57 · 4.91 images/s · at most 0 µs left"),
        (Progress(HOSTILE), HOSTILE_ESCAPED),
        (
            Progress("training", 1250, 143.2, seconds_left=250.0, epoch=3.21, epochs=12.0, loss=1.834, accuracy=0.612),
            "training · epoch 3.2 of 12 · step 1,250 · 143 images/s · loss 1.83 · top-1 61.2 % · 4 min 10 s left",
        ),
        (Progress("training", 3, epoch=0.0, loss=float("nan")), "training · epoch 0.0 · step 3 · loss nan"),
        (Progress("evaluating", images=400, total_images=1000), "evaluating · 400 of 1,000 images"),
        (Progress("training", metric=HOSTILE, accuracy=0.5), f"training · {HOSTILE_ESCAPED} 0.500"),
    ],
)
def test_describe_progress_formats_known_fields(progress: Progress, expected: str):
    assert describe_progress(progress) == expected


def test_progress_line_without_terminal_prints_plain_lines(capsys):
    with ProgressLine(quiet=False) as line:
        line.show(Progress("a"))
        line.show(Progress("a", 1))  # too soon for another line of the same phase
        line.show(Progress(HOSTILE))
    assert capsys.readouterr().err == f"a\n{HOSTILE_ESCAPED}\n"


def test_progress_line_on_terminal_escapes_markup(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with ProgressLine(quiet=False) as line:
        line.show(Progress(HOSTILE))
        assert line._status is not None
    shown = capsys.readouterr().err
    assert HOSTILE_ESCAPED in shown
    assert "\x1b[31m" not in shown
    assert not hidden(shown) & {"\0", "\x07", "\u202e"}


@pytest.mark.parametrize(
    ("work", "expected"),
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
        ((HOSTILE, 3, None, "files", 0, 1.0, 0), f"{HOSTILE_ESCAPED} · 3 files"),
    ],
)
def test_describe_work_formats_count_rate_and_time_left(work: tuple, expected: str):
    assert describe_work(*work) == expected


def test_show_work_prints_new_phase_at_once_and_restarts_rate(capsys, monkeypatch: pytest.MonkeyPatch):
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with ProgressLine(quiet=False) as line:
        line.show_work("first", 500, 1000, "images")
        now += 2
        line.show_work("first", 600, 1000, "images")  # too soon for another line of the same phase
        now += 8
        line.show_work("first", 700, 1000, "images")
        line.show_work("second", 1, None, "files")
    assert capsys.readouterr().err.splitlines() == [
        "first · 500 of 1,000 images (50 %)",
        "first · 700 of 1,000 (70 %) · 20 images/s · 15 s left",
        "second · 1 files",
    ]
