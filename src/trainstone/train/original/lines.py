"""A text file that grows while a run goes on: buffered, on disk a second later, cut where a resumed run begins."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from trainstone.measure.sink import Sink
from trainstone.results.schema import Status

FLUSH_SECONDS = 1.0


class LineFile:
    """Appends text; `keep_bytes`: behind so many of an earlier start. Nothing is touched before the first text."""

    def __init__(self, path: Path, *, keep_bytes: int = 0, now: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self.keep_bytes = keep_bytes
        self._now = now
        self._flushed_at = now()
        self._file: TextIO | None = None

    def write(self, text: str) -> None:
        """Take text, with its line end."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a", encoding="utf-8", newline="")
            self._file.truncate(self.keep_bytes)
        self._file.write(text)

    def tick(self) -> None:
        """Call after each step: at most FLUSH_SECONDS of text are ever unwritten."""
        if self._now() - self._flushed_at >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Let nothing be unwritten."""
        if self._file is not None:
            self._file.flush()
        self._flushed_at = self._now()

    def empty(self) -> None:
        """Forget all that was written."""
        if self._file is not None:
            self._file.truncate(0)

    def close(self) -> None:
        """Write what is left."""
        if self._file is not None:
            self._file.close()


class FileSink(Sink):
    """A sink that writes into one file."""

    _file: Any
    """A LineFile, or anything else that can flush and close."""

    def flush(self) -> None:
        """Write everything received so far."""
        self._file.flush()

    def finish(self, status: Status) -> None:  # noqa: ARG002  the same at every end
        """Write everything received so far."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_kept(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each line of an earlier start with the byte behind it; not the last where it is torn, none of no file."""
    end = 0
    with suppress(FileNotFoundError), path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            end += len(line)
            yield end, line.decode("utf-8", "replace")
