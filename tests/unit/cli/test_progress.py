"""The progress line: what it says, and that neither markup nor control characters of a phase are obeyed."""

import sys

import pytest

from hostile import EVIL, EVIL_SHOWN, hidden
from trainstone.cli.progress import ProgressLine, describe_progress
from trainstone.results.progress import Progress


@pytest.mark.parametrize(
    ("progress", "told"),
    [
        (Progress("fitting"), "fitting"),
        (Progress("measuring", 57), "measuring · step 57"),
        (Progress("steps", 57, 4.91, 0.013, 12.3), "steps · step 57 · 4.91 images/s ± 1.3 % · at most 12.3 s left"),
        (Progress("steps", 57, 4.91, None, -1.0), "steps · step 57 · 4.91 images/s · at most 0 µs left"),
        (Progress(EVIL), EVIL_SHOWN),
    ],
)
def test_what_is_told(progress: Progress, told: str):
    assert describe_progress(progress) == told


def test_plain_lines_where_there_is_no_terminal(capsys):
    with ProgressLine(quiet=False) as line:
        line.show(Progress("a"))
        line.show(Progress("a", 1))  # too soon for another of the same phase
        line.show(Progress(EVIL))
    assert capsys.readouterr().err == f"a\n{EVIL_SHOWN}\n"


def test_quiet_is_quiet(capsys):
    with ProgressLine(quiet=True) as line:
        line.show(Progress("a"))
    assert capsys.readouterr() == ("", "")


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
