"""The progress line: what it says, and that neither markup nor control characters of a phase are obeyed."""

import sys

import pytest

from hostile import EVIL, EVIL_SHOWN, hidden
from trainstone.cli.progress import ProgressLine, describe_progress, describe_work
from trainstone.results.progress import Progress


@pytest.mark.parametrize(
    ("progress", "told"),
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
def test_what_is_told(progress: Progress, told: str):
    assert describe_progress(progress) == told


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
    ("work", "told"),
    [
        (("writing x", 0, 20_000, "pictures", 0, 0.0, 0), "writing x · 0 of 20,000 pictures (0 %)"),
        (
            ("writing x", 1200, 20_000, "pictures", 1000, 2.0, 1 << 21),
            "writing x · 1,200 of 20,000 (6 %) · 500 pictures/s · 1 MiB/s · 37.6 s left",
        ),
        (("checking", 1200, None, "pictures", 1000, 2.0, 0), "checking · 1,200 pictures · 500 pictures/s"),
        (
            ("fetching", 1 << 20, 1 << 22, "bytes", 1 << 20, 1.0, 0),
            "fetching · 1 MiB of 4 MiB (25 %) · 1 MiB/s · 3 s left",
        ),
        (("unpacking", 3, 0, "files", 3, 1.0, 0), "unpacking · 3 files · 3 files/s"),
        ((EVIL, 3, None, "files", 0, 1.0, 0), f"{EVIL_SHOWN} · 3 files"),
    ],
)
def test_what_is_told_of_a_job(work: tuple, told: str):
    assert describe_work(*work) == told


def test_a_job_is_told_when_its_phase_changes_and_its_rate_begins_there(capsys, monkeypatch: pytest.MonkeyPatch):
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with ProgressLine(quiet=False) as line:
        line.show_work("first", 500, 1000, "pictures")
        now += 2
        line.show_work("first", 600, 1000, "pictures")  # too soon for another of the same phase
        now += 8
        line.show_work("first", 700, 1000, "pictures")
        line.show_work("second", 1, None, "files")
    assert capsys.readouterr().err.splitlines() == [
        "first · 500 of 1,000 pictures (50 %)",
        "first · 700 of 1,000 (70 %) · 20 pictures/s · 15 s left",
        "second · 1 files",
    ]
