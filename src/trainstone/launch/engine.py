"""Runs an engine that starts ranks (torchrun, mpirun): relays progress and signals, leaves nobody behind."""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from trainstone.files import write_atomically
from trainstone.launch.following import Tail
from trainstone.machine.interrupt import Interrupt
from trainstone.machine.launched import FOLDER, LAUNCH, PROGRESS, end_with_parent

POLL_SECONDS = 0.2
END_SECONDS = 5.0
LOG, SCRIPT = "engine.log", "start.sh"


@dataclass(frozen=True)
class Plan:
    """What a launcher runs."""

    engine: str
    """local or mpi."""
    command: tuple[str, ...]
    environment: Mapping[str, str]
    """What is added to that of the launcher."""
    prologue: tuple[str, ...] = ()
    """Shell lines before."""
    attempts: int = 1
    """How often the launcher itself may start it."""
    notes: tuple[str, ...] = field(default=())
    """For the user, before the start."""


def write_script(plan: Plan) -> str:
    """Return what is run as a shell script that can be read, kept and run again."""
    lines = [
        "#!/bin/bash",
        f"# What `trainstone launch {plan.engine}` runs here.",
        f"cd {shlex.quote(str(Path.cwd()))}",
    ]
    exported = {name: shlex.quote(value) for name, value in plan.environment.items()}
    # Run again by hand it is another launch, which a run that is still under way refuses.
    exported[LAUNCH] = f'"${{{LAUNCH}:-{plan.engine}-$$}}"'
    lines += [f"export {name}={value}" for name, value in exported.items()]
    lines += [*plan.prologue, f"exec {shlex.join(plan.command)}"]
    return "\n".join(lines) + "\n"


def read_since(path: Path, place: int) -> str:
    """Return the text of a file from a place on."""
    try:
        with path.open("rb") as file:
            file.seek(place)
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def run_plan(plan: Plan, run: Path, interrupt: Interrupt) -> Generator[str, None, tuple[int, str]]:
    """Run an engine to its end and yield the lines of progress of its ranks; return its code and what it printed."""
    folder = run / FOLDER
    script = folder / SCRIPT
    write_atomically(script, write_script(plan))
    # A prologue is for a login shell: that is where `module` is known.
    command = ["bash", "-l", str(script)] if plan.prologue else list(plan.command)
    progress = Tail(folder / PROGRESS, from_end=True)
    with (folder / LOG).open("ab") as log:
        begin = log.tell()
        with start_engine(command, plan.environment, log.fileno()) as engine:
            told: set[int] = set()
            while engine.poll() is None:
                time.sleep(POLL_SECONDS)
                yield from progress.read()
                if interrupt.asked:
                    STOPS[plan.engine](engine.pid, told)
    yield from progress.read()
    return engine.returncode, read_since(folder / LOG, begin)


@contextmanager
def start_engine(
    command: Sequence[str], environment: Mapping[str, str], output: int
) -> Iterator[subprocess.Popen[bytes]]:
    """Start an engine in a session of its own: a terminal's Ctrl-C is ours alone. Nobody outlives the `with`."""
    engine = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        preexec_fn=end_with_parent,  # safe: no other thread has been started yet
    )
    try:
        yield engine
    finally:
        end_all(engine, environment[LAUNCH])


def end_all(engine: subprocess.Popen[bytes], launch: str) -> None:
    """End what is left here of a launch: the engine first, in order, then ranks that outlive it."""
    if engine.poll() is None:
        engine.terminate()
        with suppress(subprocess.TimeoutExpired):
            engine.wait(END_SECONDS)
    _, left = psutil.wait_procs(find_processes(launch), END_SECONDS)
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    if engine.poll() is None:
        engine.kill()
        engine.wait()


def find_processes(launch: str) -> list[psutil.Process]:
    """Return the processes here that belong to a launch, by their environment: engines change sessions and parents."""
    return [process for process in psutil.process_iter() if _belongs(process, launch)]


def _belongs(process: psutil.Process, launch: str) -> bool:
    try:
        return process.environ().get(LAUNCH) == launch
    except (OSError, psutil.Error):  # gone meanwhile, or of somebody else
        return False


def stop_local(engine: int, told: set[int]) -> None:
    """Send SIGTERM to each rank once: torchrun itself would give them 30 seconds, then kill them while they write."""
    with suppress(psutil.Error):
        for rank in psutil.Process(engine).children():
            if rank.pid not in told and _is_rank(rank):
                told.add(rank.pid)
                rank.send_signal(signal.SIGTERM)


def _is_rank(process: psutil.Process) -> bool:
    try:
        return "LOCAL_RANK" in process.environ()
    except psutil.Error:
        return False


def stop_mpi(engine: int, told: set[int]) -> None:
    """Send SIGUSR1 to mpirun once, which passes it on to ranks on all hosts; a SIGTERM would kill them."""
    if engine not in told:
        told.add(engine)
        with suppress(ProcessLookupError):
            os.kill(engine, signal.SIGUSR1)


STOPS: dict[str, Callable[[int, set[int]], None]] = {"local": stop_local, "mpi": stop_mpi}
