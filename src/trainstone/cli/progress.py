"""The progress line on stderr: live on a terminal, a plain line every few seconds elsewhere, nothing with -q."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status
from rich.text import Text

from trainstone.results.progress import Progress
from trainstone.text import printable
from trainstone.units import format_percent, format_rate, format_seconds

PLAIN_SECONDS = 5.0
LIVE_SECONDS = 0.2


class ProgressLine:
    """Shows where a run is; `with` makes and clears the line."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._console = Console(file=sys.stderr)
        self._status: Status | None = None
        self._shown_at = float("-inf")
        self._phase = ""

    def __enter__(self) -> Self:
        if not self._quiet and self._console.is_terminal:
            self._status = self._console.status("starting")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, progress: Progress) -> None:
        """Draw, if it is time to."""
        if self._quiet:
            return
        now = time.monotonic()
        interval = LIVE_SECONDS if self._status is not None else PLAIN_SECONDS
        if progress.phase == self._phase and now - self._shown_at < interval:
            return
        self._shown_at, self._phase = now, progress.phase
        text = describe_progress(progress)
        if self._status is not None:
            self._status.update(Text(text))
        else:
            print(text, file=sys.stderr, flush=True)


def describe_progress(progress: Progress) -> str:
    """Return e.g. measuring · step 57 · 4.9 images/s ± 1.3 % · 12 s left."""
    parts = [progress.phase]
    if progress.step is not None:
        parts.append(f"step {progress.step}")
    if progress.images_per_second is not None:
        narrow = "" if progress.half_width is None else f" ± {format_percent(progress.half_width)}"
        parts.append(f"{format_rate(progress.images_per_second)} images/s{narrow}")
    if progress.seconds_left is not None:
        parts.append(f"at most {format_seconds(max(0.0, progress.seconds_left))} left")
    return printable(" · ".join(parts))
