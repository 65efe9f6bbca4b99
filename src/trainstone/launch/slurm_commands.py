"""Slurm's own commands, run to their end, and what sinfo says of partitions and nodes."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from trainstone.errors import MachineError

USABLE = ("idle", "mix", "alloc", "comp", "plnd")
RESERVED = ("resv", "maint")
RETURNING = (*USABLE, *RESERVED, "boot", "reboot", "pow_up", "pow_dn", "unk")
FLAGS = "~#!%@^$-"
"""That sinfo writes after a state; a star, for a node that does not answer, is none of them."""


def require_slurm(program: str = "sbatch") -> None:
    """Without Slurm there is nothing to do."""
    if shutil.which(program) is None:
        raise MachineError(
            f"{program} is not on this machine ({os.uname().nodename}): launch slurm needs Slurm's commands",
            hint="run it on a login node of the cluster; trainstone launch local starts ranks here",
        )


def run_slurm(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands to its end, whatever that is."""
    require_slurm(command[0])
    return subprocess.run(command, capture_output=True, text=True, check=False)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait until the end of what must not be left half done, and come then."""
    asked: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _frame: asked.append(number))
    # What is started meanwhile does not hear it either; it would inherit no handler.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if asked:
        raise KeyboardInterrupt


def list_partitions() -> list[str]:
    """Return the names of all partitions; the default one is marked by a star."""
    done = run_slurm(["sinfo", "-h", "-o", "%P"])
    return done.stdout.split() if done.returncode == 0 else []


def read_states(partition: str) -> dict[str, str]:
    """Return the nodes of a partition with their states as sinfo writes them; empty: it does not say."""
    lines = run_slurm(["sinfo", "-h", "-N", "-p", partition, "-o", "%N %t"]).stdout.splitlines()
    return dict(line.split(maxsplit=1) for line in lines if len(line.split()) == 2)


def read_reservation(name: str) -> list[str]:
    """Return the nodes of a reservation; empty: Slurm does not say."""
    told = re.search(r"\bNodes=(\S+)", run_slurm(["scontrol", "show", "reservation", "-o", name]).stdout)
    return run_slurm(["scontrol", "show", "hostnames", told[1]]).stdout.split() if told else []


def is_usable(state: str, *, reserved: bool = False) -> bool:
    """Whether a node works or may soon. `reserved`: for a job of the reservation, which a dollar sign stands for."""
    if reserved:
        return state.rstrip(FLAGS) in (*USABLE, *RESERVED)
    return state.rstrip("~#!%@-") in USABLE


def may_return(state: str) -> bool:
    """Whether a node works, or comes back without anybody's help: it boots, or a reservation ends."""
    return state.rstrip(FLAGS) in RETURNING or state.endswith(("@", "^"))
