"""What a launcher runs to start ranks (torchrun, mpirun): its command, its script, how it passes on a stop signal."""

import os
import shlex
import signal
from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from trainstone.files import write_atomically
from trainstone.launch.supervisor import Ended, Stop, supervise
from trainstone.machine.launched import FOLDER, LAUNCH
from trainstone.machine.signals import StopSignals

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


def run_plan(plan: Plan, run: Path, signals: StopSignals) -> Generator[str, None, Ended]:
    """Run an engine to its end and yield the lines of progress of its ranks; return its code and what it printed."""
    script = run / FOLDER / SCRIPT
    write_atomically(script, write_script(plan))
    # A prologue is for a login shell: that is where `module` is known.
    command = ["bash", "-l", str(script)] if plan.prologue else list(plan.command)
    return (yield from supervise(command, plan.environment, run, LOG, signals, stop=STOPS[plan.engine]))


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


STOPS: dict[str, Stop] = {"local": stop_local, "mpi": stop_mpi}
