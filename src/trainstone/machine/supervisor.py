"""Run a child process to its end: relay its ranks' progress, forward stop signals, never leave it running."""

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
from trainstone.machine.launch_protocol import FOLDER, LAUNCH, PROGRESS, end_with_parent, remove_launch_variables
from trainstone.machine.signals import StopSignals

POLL_SECONDS = 0.2
END_SECONDS = 5.0  # for a process to end after SIGTERM, before it is killed
LOG, SCRIPT = "engine.log", "start.sh"

Stop = Callable[[int, set[int]], None]
"""Forwards a stop signal to process `pid`; the set holds the processes that have been notified."""


class ProcessExit(NamedTuple):
    code: int  # exit code, or minus the signal that ended the process
    output: str


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # real-time signals have numbers only
        return f"was ended by signal {-code}"


def format_memory_hint(code: int) -> str | None:
    hint = "SIGKILL usually means out of memory; reduce the batch size with --set train.batch_size=8"
    return hint if code == -signal.SIGKILL else None


def send_once(
    pid: int, notified: set[int], number: int = signal.SIGTERM, send: Callable[[int, int], None] = os.kill
) -> None:
    """Send a signal once per process: a second one could end it before it has written its results."""
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
) -> Generator[str, None, ProcessExit]:
    """Run a command to its end; yield the progress lines of its ranks, return exit code and output.

    The output goes to `log_file`; ranks write their progress to the same folder. The process is killed
    `grace_seconds` after a stop signal.
    """
    log_file.parent.mkdir(parents=True, exist_ok=True)
    progress, prefix = Tail(log_file.with_name(PROGRESS)), f"{label} · " if label else ""
    notified: set[int] = set()
    with log_file.open("ab") as log:
        begin = log.tell()
        process = subprocess.Popen(
            command,
            env={**remove_launch_variables(os.environ), **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # a terminal's Ctrl-C goes only to this process
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
            stop_all(process, environment.get(LAUNCH))
    yield from (prefix + line for line in progress.read())
    return ProcessExit(process.returncode, read_since(log_file, begin).decode("utf-8", "replace"))


def stop_all(process: subprocess.Popen[bytes], launch: str | None) -> None:
    """End the process if it still runs, then the ranks of its launch and its process group."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
    if launch:  # found by their environment, because engines change sessions and parents
        ranks = [one for one in psutil.process_iter() if read_environment(one).get(LAUNCH) == launch]
        for one in psutil.wait_procs(ranks, END_SECONDS)[1]:
            with suppress(psutil.Error):
                one.kill()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def read_environment(process: psutil.Process) -> dict[str, str]:
    """Return the environment of a process; empty if it has ended or belongs to another user."""
    try:
        return dict(process.environ())
    except (OSError, psutil.Error):
        return {}


def read_since(path: Path, offset: int) -> bytes:
    """Return the content of a file from an offset; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read()
    except OSError:  # it does not exist yet, or a network file system does not answer
        return b""


@dataclass(frozen=True)
class LaunchPlan:
    """A command that starts the ranks, and its environment."""

    engine: str  # local or mpi
    command: tuple[str, ...]
    environment: Mapping[str, str]  # added to that of the launcher
    prologue: tuple[str, ...] = ()  # shell lines to run first
    attempts: int = 1  # how often the launcher may start it
    notes: tuple[str, ...] = ()  # shown to the user before the start


def format_script(plan: LaunchPlan) -> str:
    """Return the command as a shell script, to read or to run again."""
    lines = ["#!/bin/bash", f"# Command of `trainstone launch {plan.engine}`."]
    lines += [f"cd {shlex.quote(str(Path.cwd()))}"]
    exported = {name: shlex.quote(value) for name, value in plan.environment.items()}
    # Run by hand, the script is a new launch, which a run folder in use refuses.
    exported[LAUNCH] = f'"${{{LAUNCH}:-{plan.engine}-$$}}"'
    lines += [f"export {name}={value}" for name, value in exported.items()]
    lines += [*plan.prologue, f"exec {shlex.join(plan.command)}"]
    return "\n".join(lines) + "\n"


def run_plan(plan: LaunchPlan, run: Path, signals: StopSignals) -> Generator[str, None, ProcessExit]:
    script = run / FOLDER / SCRIPT
    write_atomically(script, format_script(plan))
    # A prologue needs a login shell, which defines `module`.
    command = ["bash", "-l", str(script)] if plan.prologue else list(plan.command)
    return (yield from supervise(command, plan.environment, run / FOLDER / LOG, signals, stop=STOPS[plan.engine]))


def stop_local(engine: int, notified: set[int]) -> None:
    """Send SIGTERM to each rank: torchrun would kill them after 30 seconds, while they are still writing."""
    with suppress(psutil.Error):
        for rank in psutil.Process(engine).children():
            if "LOCAL_RANK" in read_environment(rank):
                send_once(rank.pid, notified)


# mpirun forwards SIGUSR1 to ranks on all hosts; SIGTERM would kill them.
STOPS: dict[str, Stop] = {"local": stop_local, "mpi": partial(send_once, number=signal.SIGUSR1)}


class Tail:
    """Reads lines that are appended to a file from now on; the file may be created later."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def read(self) -> list[str]:
        added = read_since(self._path, self._offset)
        complete = added[: added.rfind(b"\n") + 1]
        self._offset += len(complete)
        return complete.decode("utf-8", "replace").splitlines()
