"""The progress line on stderr: live on a terminal, else a plain line every few seconds; hidden by -q.

Under `trainstone launch` it is written to a file that the launcher reads and shows.
"""

import sys
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Self, TypeVar

from rich.console import Console
from rich.status import Status
from rich.text import Text

from trainstone.cli.render.output import print_stderr, redirect_to_null
from trainstone.machine.launch_protocol import FOLDER, PROGRESS, get_run_folder
from trainstone.results.progress import Progress
from trainstone.results.training import format_epoch, format_metric, name_metric
from trainstone.text import printable
from trainstone.units import format_bytes, format_percent, format_rate, format_seconds

End = TypeVar("End")
PLAIN_SECONDS = 5.0
LIVE_SECONDS = 0.2
RELAY_SECONDS = 2.0
"""Interval under a launcher: its file may be on a network file system."""


class ProgressLine:
    """Context manager that shows progress on stderr; a closed terminal or a full disk stops only the display."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._console = Console(file=sys.stderr)
        self._status: Status | None = None
        self._shown_at = float("-inf")
        self._phase = ""
        self._work_began = (0.0, 0)
        run = get_run_folder() if not quiet else None
        self._relay = run / FOLDER / PROGRESS if run is not None else None

    def __enter__(self) -> Self:
        if not self._quiet and self._console.is_terminal:
            self._status = self._console.status("starting")
            with self._ignore_write_errors():
                self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            with self._ignore_write_errors():
                self._status.stop()

    def follow(self, flow: Generator[Progress | str, None, End]) -> End:
        """Run a flow and show its progress; return its result."""
        with closing(flow):
            while True:
                try:
                    self.show(next(flow))
                except StopIteration as end:
                    value: End = end.value
                    return value

    def show(self, progress: Progress | str) -> None:
        """Show progress if the last update is old enough. Progress of another process is text."""
        # Without a terminal each new phase prints a line; the part after ":" alternates (comparing: A), so ignore it.
        phase = progress.partition(" · ")[0] if isinstance(progress, str) else progress.phase.partition(":")[0]
        if self._is_time(phase):
            self._draw(printable(progress) if isinstance(progress, str) else describe_progress(progress))

    def show_work(self, phase: str, done: int, total: int | None, unit: str, num_bytes: int = 0) -> None:
        """Show how much of a job is done, its rate and the time left, if the last update is old enough."""
        now = time.monotonic()
        if phase != self._phase:
            self._work_began = (now, done)
        if self._is_time(phase):
            began, before = self._work_began
            self._draw(describe_work(phase, done, total, unit, done - before, now - began, num_bytes))

    def _is_time(self, phase: str) -> bool:
        now = time.monotonic()
        interval = RELAY_SECONDS if self._relay else PLAIN_SECONDS if self._status is None else LIVE_SECONDS
        if self._quiet or (phase == self._phase and now - self._shown_at < interval):
            return False
        self._shown_at, self._phase = now, phase
        return True

    def _draw(self, text: str) -> None:
        if self._relay is not None:
            with suppress(OSError), self._relay.open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")
        elif self._status is None:
            self._quiet = not print_stderr(text)
        else:
            with self._ignore_write_errors():
                self._status.update(Text(text))

    @contextmanager
    def _ignore_write_errors(self) -> Iterator[None]:
        """Stop showing progress if stderr cannot be written."""
        try:
            yield
        except OSError:
            self._quiet = True
            redirect_to_null(2)


def describe_progress(progress: Progress) -> str:
    """Return e.g. measuring · step 57 · 4.9 images/s ± 1.3 % · at most 12 s left.

    Or training · epoch 3.2 of 12 · step 1,250 · 143 images/s · loss 1.83 · top-1 61.2 % · 4 min 10 s left.
    """
    parts = [progress.phase]
    if progress.epoch is not None:
        end = "" if progress.epochs is None else f" of {format_epoch(progress.epochs)}"
        parts.append(f"epoch {progress.epoch:.1f}{end}")
    if progress.step is not None:
        parts.append(f"step {progress.step:,}")
    if progress.images is not None:
        total = "" if progress.total_images is None else f" of {progress.total_images:,}"
        parts.append(f"{progress.images:,}{total} images")
    if progress.images_per_second is not None:
        narrow = "" if progress.half_width is None else f" ± {format_percent(progress.half_width)}"
        parts.append(f"{format_rate(progress.images_per_second)} images/s{narrow}")
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.3g}")
    if progress.accuracy is not None:
        parts.append(f"{name_metric(progress.metric)} {format_metric(progress.metric, progress.accuracy)}")
    if progress.seconds_left is not None:
        # With epochs it is an estimate, else a limit
        limit = "at most " if progress.epochs is None else ""
        parts.append(f"{limit}{format_seconds(max(0.0, progress.seconds_left))} left")
    return printable(" · ".join(parts))


def describe_work(
    phase: str, done: int, total: int | None, unit: str, since: int, seconds: float, num_bytes: int
) -> str:
    """Return e.g. writing train.rec · 1,200 of 20,000 (6 %) · 3,100 images/s · 212 MiB/s · 6.1 s left."""
    count = format_bytes if unit == "bytes" else "{:,}".format
    noun = "" if unit == "bytes" else f" {unit}"
    parts = [phase, f"{count(done)}{noun}"]
    if total:
        parts[-1] = f"{count(done)} of {count(total)}{noun if since <= 0 else ''} ({format_percent(done / total, 0)})"
    if since > 0 and seconds > 0:
        rate = since / seconds
        parts.append(f"{format_bytes(rate)}/s" if unit == "bytes" else f"{format_rate(rate)} {unit}/s")
        if num_bytes and unit != "bytes":
            parts.append(f"{format_bytes(num_bytes / seconds)}/s")
        if total:
            parts.append(f"{format_seconds((total - done) / rate)} left")
    return printable(" · ".join(parts))
