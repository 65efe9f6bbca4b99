"""Supervise a process: it cannot outlive us, its ranks' progress is relayed, stop signals are passed on to it."""

import math
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

from trainstone.files import write_atomically
from trainstone.machine.launch_protocol import FOLDER, LAUNCH, PROGRESS, end_with_parent, without_launch
from trainstone.machine.signals import StopSignals

POLL_SECONDS = 0.2
END_SECONDS = 5.0  # for a process to end by itself when it cannot be waited for any longer
LOG, SCRIPT = "engine.log", "start.sh"

Stop = Callable[[int, set[int]], None]
"""Passes a stop signal on to process `pid`; the set holds the processes that were notified before."""


class Ended(NamedTuple):
    code: int  # exit code, or minus the signal that ended the process
    output: str


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # real-time signals have numbers only
        return f"was ended by signal {-code}"


def hint_at_memory(code: int) -> str | None:
    hint = "SIGKILL mostly means that memory ran out: take a smaller train.batch_size"
    return hint if code == -signal.SIGKILL else None


def send_once(
    pid: int, notified: set[int], number: int = signal.SIGTERM, send: Callable[[int, int], None] = os.kill
) -> None:
    """Send a signal once: a second one could end the process before it has written its results."""
    if pid not in notified:
        notified.add(pid)
        with suppress(ProcessLookupError, PermissionError):
            send(pid, number)


def supervise(
    command: Sequence[str],
    environment: Mapping[str, str],
    log_file: Path,
    signals: StopSignals,
    *,
    label: str = "",
    stop: Stop = send_once,
    grace_seconds: float = math.inf,
) -> Generator[str, None, Ended]:
    """Run a command for a run folder to its end; yield the progress lines of its ranks, return how it ended.

    Its output goes to `log_file`; the ranks write their progress beside it. `grace_seconds` after a stop signal it is
    killed.
    """
    log_file.parent.mkdir(parents=True, exist_ok=True)
    progress, prefix = Tail(log_file.with_name(PROGRESS)), f"{label} · " if label else ""
    notified: set[int] = set()
    with log_file.open("ab") as log:
        begin = log.tell()
        process = subprocess.Popen(
            command,
            env={**without_launch(os.environ), **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # a terminal's Ctrl-C is ours alone
            preexec_fn=partial(end_with_parent, os.getpid()),
        )
        try:
            while process.poll() is None and grace_seconds > 0:
                time.sleep(POLL_SECONDS)
                yield from (prefix + line for line in progress.read())
                if signals.received:
                    stop(process.pid, notified)
                    grace_seconds -= POLL_SECONDS
        finally:
            end_all(process, environment.get(LAUNCH))
    yield from (prefix + line for line in progress.read())
    return Ended(process.returncode, read_since(log_file, begin).decode("utf-8", "replace"))


def end_all(process: subprocess.Popen[bytes], launch: str | None) -> None:
    """End what is left: the process first, in order, then its group and the ranks of its launch."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
    if launch:  # found by their environment: engines change sessions and parents
        ranks = [one for one in psutil.process_iter() if read_environment(one).get(LAUNCH) == launch]
        for one in psutil.wait_procs(ranks, END_SECONDS)[1]:
            with suppress(psutil.Error):
                one.kill()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def read_environment(process: psutil.Process) -> dict[str, str]:
    """Return the environment of a process; of one that is gone meanwhile, or another user's, nothing."""
    try:
        return dict(process.environ())
    except (OSError, psutil.Error):
        return {}


def read_since(path: Path, place: int) -> bytes:
    """Return what a file holds from a place on; nothing if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(place)
            return file.read()
    except OSError:  # not there yet, or a network file system that does not answer
        return b""


@dataclass(frozen=True)
class LaunchPlan:
    engine: str  # local or mpi
    command: tuple[str, ...]
    environment: Mapping[str, str]  # what is added to that of the launcher
    prologue: tuple[str, ...] = ()  # shell lines before
    attempts: int = 1  # how often the launcher itself may start it
    notes: tuple[str, ...] = ()  # for the user, before the start


def write_script(plan: LaunchPlan) -> str:
    """Return what is run as a shell script that can be read, kept and run again."""
    lines = ["#!/bin/bash", f"# What `trainstone launch {plan.engine}` runs here."]
    lines += [f"cd {shlex.quote(str(Path.cwd()))}"]
    exported = {name: shlex.quote(value) for name, value in plan.environment.items()}
    # Run again by hand it is another launch, which a run that is still under way refuses.
    exported[LAUNCH] = f'"${{{LAUNCH}:-{plan.engine}-$$}}"'
    lines += [f"export {name}={value}" for name, value in exported.items()]
    lines += [*plan.prologue, f"exec {shlex.join(plan.command)}"]
    return "\n".join(lines) + "\n"


def run_plan(plan: LaunchPlan, run: Path, signals: StopSignals) -> Generator[str, None, Ended]:
    script = run / FOLDER / SCRIPT
    write_atomically(script, write_script(plan))
    # A prologue is for a login shell: that is where `module` is known.
    command = ["bash", "-l", str(script)] if plan.prologue else list(plan.command)
    return (yield from supervise(command, plan.environment, run / FOLDER / LOG, signals, stop=STOPS[plan.engine]))


def stop_local(engine: int, notified: set[int]) -> None:
    """Send SIGTERM to each rank: torchrun itself would give them 30 seconds, then kill them while they write."""
    with suppress(psutil.Error):
        for rank in psutil.Process(engine).children():
            if "LOCAL_RANK" in read_environment(rank):
                send_once(rank.pid, notified)


# mpirun passes SIGUSR1 on to ranks on all hosts; a SIGTERM would kill them.
STOPS: dict[str, Stop] = {"local": stop_local, "mpi": partial(send_once, number=signal.SIGUSR1)}


class Tail:
    """Reads the lines that are added to a file from now on; the file may be created later."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = path.stat().st_size if path.exists() else 0

    def read(self) -> list[str]:
        added = read_since(self._path, self._place)
        complete = added[: added.rfind(b"\n") + 1]
        self._place += len(complete)
        return complete.decode("utf-8", "replace").splitlines()
