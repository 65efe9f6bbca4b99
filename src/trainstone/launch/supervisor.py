"""Supervise a process: it cannot outlive us, its ranks' progress is relayed, stop signals are passed on to it."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

from trainstone.launch.following import Tail
from trainstone.machine.launched import FOLDER, LAUNCH, PROGRESS, end_with_parent, without_launch
from trainstone.machine.signals import StopSignals

POLL_SECONDS = 0.2
END_SECONDS = 5.0
"""For a process to end by itself when it cannot be waited for any longer."""

Stop = Callable[[int, set[int]], None]
"""Passes a stop signal on to process `pid`; the set holds the processes that were notified before."""


class Ended(NamedTuple):
    """How a process ended."""

    code: int
    """Exit code, or minus the signal that ended it."""
    output: str


def terminate_once(pid: int, notified: set[int]) -> None:
    """Send SIGTERM once: a second one could end the process before it has written its results."""
    if pid not in notified:
        notified.add(pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def supervise(
    command: Sequence[str],
    environment: Mapping[str, str],
    run: Path,
    log_name: str,
    signals: StopSignals,
    *,
    label: str = "",
    stop: Stop = terminate_once,
    grace_seconds: float | None = None,
) -> Generator[str, None, Ended]:
    """Run a command for a run folder to its end; yield the progress lines of its ranks, return how it ended.

    Its output goes to launch/`log_name`. `grace_seconds` after a stop signal it is killed; None: it has all the time.
    """
    folder = run / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    progress, prefix = Tail(folder / PROGRESS, from_end=True), f"{label} · " if label else ""
    notified: set[int] = set()
    patience = grace_seconds
    with (folder / log_name).open("ab") as log:
        begin = log.tell()
        with start_process(command, environment, log.fileno()) as process:
            while process.poll() is None and (patience is None or patience > 0):
                time.sleep(POLL_SECONDS)
                yield from (prefix + line for line in progress.read())
                if signals.received:
                    stop(process.pid, notified)
                    patience = None if patience is None else patience - POLL_SECONDS
    yield from (prefix + line for line in progress.read())
    return Ended(process.returncode, read_since(folder / log_name, begin))


@contextmanager
def start_process(
    command: Sequence[str], environment: Mapping[str, str], output: int
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in a session of its own: a terminal's Ctrl-C is ours alone. It does not outlive the `with`."""
    process = subprocess.Popen(
        command,
        env={**without_launch(os.environ), **environment},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        preexec_fn=partial(end_with_parent, os.getpid()),
    )
    try:
        yield process
    finally:
        end_all(process, environment.get(LAUNCH))


def end_all(process: subprocess.Popen[bytes], launch: str | None) -> None:
    """End what is left: the process first, in order, then its group and the ranks of its launch."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
    if launch:
        _, left = psutil.wait_procs(find_processes(launch), END_SECONDS)
        for one in left:
            with suppress(psutil.Error):
                one.kill()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def find_processes(launch: str) -> list[psutil.Process]:
    """Return the processes here that belong to a launch, by their environment: engines change sessions and parents."""
    return [process for process in psutil.process_iter() if _belongs(process, launch)]


def _belongs(process: psutil.Process, launch: str) -> bool:
    try:
        return process.environ().get(LAUNCH) == launch
    except (OSError, psutil.Error):  # gone meanwhile, or another user's
        return False


def read_since(path: Path, place: int) -> str:
    """Return the text of a file from a place on."""
    try:
        with path.open("rb") as file:
            file.seek(place)
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
