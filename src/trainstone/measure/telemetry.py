"""Samples one device while a run goes on, into telemetry-<host>-<device>.csv (results/samples.py).

The file grows by a whole line at each sample and so is the run's heart-beat too. What is read of a device:
meters.py; nothing here knows a device, and no failure of the sampler ends the run.
"""

import contextlib
import logging
import platform
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from trainstone.results.samples import HEADER, NAMES, Reading, Sample, format_sample

log = logging.getLogger(__name__)

JOIN_SECONDS = 5.0  # a driver that hangs must not keep the run from ending


class Reader:
    """What can be sampled: a device that trainstone cannot read, unless a subclass can."""

    meter: str | None = None
    """What counts energy."""

    def __init__(self, *unsupported: str) -> None:
        self.unsupported = list(unsupported)
        """What cannot be read, and why."""

    def read(self) -> Reading:
        """Read all values once; those that cannot be read are None."""
        return Reading()

    def close(self) -> None:
        """Close what is open."""


class Telemetry:
    """Owns sampler thread, file and reader. Use it by `with`; the last sample is taken on leaving."""

    def __init__(
        self,
        folder: Path,
        device_label: str,
        reader: Reader,
        current_step: Callable[[], int],
        interval_seconds: float = 0.5,
        now: Callable[[], float] = time.perf_counter,
        started: float | None = None,
    ) -> None:
        host, device = (re.sub(r"[^\w.-]", "_", part) for part in (platform.node() or "host", device_label))
        self.path = folder / f"telemetry-{host}-{device}.csv"
        self.reader = reader
        self._current_step = current_step
        self._interval_seconds = interval_seconds
        self._now = now
        self._started = now() if started is None else started
        self._complaints: set[str] = set()
        self._file: BinaryIO | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"telemetry-{device}", daemon=True)

    def __enter__(self) -> "Telemetry":
        with self._complain_once(f"cannot write {self.path}"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: one write a line, nothing held back when killed, nothing doubled by a fork.
            self._file = _open_for_append(self.path)
        with self._complain_once("cannot start the sampler"):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(JOIN_SECONDS)
        if self._thread.is_alive():
            log.warning("telemetry of %s hangs in its driver; left behind", self.path.stem)
            return
        self.sample()
        with self._complain_once("cannot close the reader"):
            self.reader.close()
        if self._file:
            self._file.close()

    def sample(self) -> None:
        """Take and write one sample. A failed reading still gives a line: time and step are known."""
        reading, step = Reading(), None
        with self._complain_once("cannot read the device"):
            step = self._current_step()
            reading = self.reader.read()
        values = {name: getattr(reading, name) for name in NAMES}
        sample = Sample(time_seconds=self._now() - self._started, step=step, **values)
        with self._complain_once(f"cannot write {self.path}"):
            if self._file:
                self._file.write(format_sample(sample).encode())

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            self.sample()
            due = max(due + self._interval_seconds, time.monotonic())  # never catch up after a pause
            self._stop.wait(due - time.monotonic())

    @contextlib.contextmanager
    def _complain_once(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001  a driver may throw anything; the run is worth more
            if what not in self._complaints:
                self._complaints.add(what)
                log.warning("telemetry: %s: %s: %s", what, type(error).__name__, error)


def _open_for_append(path: Path) -> BinaryIO:
    """Open a new file with its header, or a resumed run's file after its last whole line."""
    old = path.read_bytes() if path.exists() else b""
    file = path.open("ab", buffering=0)
    file.truncate(old.rfind(b"\n") + 1)
    if b"\n" not in old:
        file.write(f"{HEADER}\n".encode())
    return file
