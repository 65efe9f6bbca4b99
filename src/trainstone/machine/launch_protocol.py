"""What `trainstone launch` tells the ranks that it starts, and what they leave for it in launch/ of the run folder.

Environment variables and small files: they pass through torchrun, mpirun, srun and a container alike.
"""

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from trainstone.errors import EXIT_INTERRUPTED, EXIT_RESUMABLE, EXIT_TARGET, LaunchError, PeerLostError, TrainstoneError
from trainstone.files import dump_json, write_atomically
from trainstone.machine.ranks import BIND, read_rank

RUN = "TRAINSTONE_RUN"  # absolute path of the run folder, the same for all ranks and all attempts
LAUNCH = "TRAINSTONE_LAUNCH"  # name of this launch; a later attempt with the same knows that the one before is over
RANKS = "TRAINSTONE_RANKS"  # ranks of the world; one that finds another number does not see the engine's variables
OWN = (RUN, LAUNCH, BIND, RANKS)

VERBS = ("bench", "train", "profile", "eval")  # those whose ranks form one world
RESUMABLE_VERBS = ("train", "sweep")
ALONE_VERBS = ("sweep",)  # further ones that can be launched where each world has one rank

FOLDER = "launch"
PROGRESS = "progress.txt"
CODE = "code"
CAUSE = "cause.txt"
FAILED = "failed-rank{:04d}.json"
ECHO_SECONDS = 1.0  # for the engine to see the first death before that of a rank which only heard of it
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)  # loaded here, because end_with_parent runs between fork and exec
# Ends that are no failures: an engine that took them for one would start the run again, or kill ranks that still write.
ORDERLY = (0, EXIT_TARGET, EXIT_RESUMABLE, EXIT_INTERRUPTED)


class Failure(NamedTuple):
    rank: int
    host: str
    exit_code: int
    message: str
    hint: str | None
    time_seconds: float  # of the Unix epoch
    echo: bool  # it failed only because another rank did


def launched_run() -> Path | None:
    path = os.environ.get(RUN)
    return Path(path) if path else None


def launch_name() -> str | None:
    return os.environ.get(LAUNCH) or None


def name_host() -> str:
    """Return this host's name; Slurm's where it has another, as several slurmd on one host have."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def without_launch(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in OWN}


def begin_attempt(verb: str) -> None:
    """As a rank: remove what it left in an earlier attempt; from now on, end in order when the launcher dies.

    Another verb, in a batch script beside the ranks, has no part in the launch.
    """
    if verb not in VERBS + ALONE_VERBS:
        for name in OWN:
            os.environ.pop(name, None)
    run = launched_run()
    if run is None:
        return
    end_with_parent(os.getppid())
    rank, world, _ = read_rank()
    ranks = os.environ.get(RANKS)
    if ranks and ranks != str(world):  # mostly ranks that each find themselves a single process
        raise LaunchError(
            f"on {name_host()} the launcher starts {ranks} ranks, and this one finds a world of {world}",
            hint="the engine's variables do not reach the ranks: in a container, is its MPI the one of the host?",
        )
    with suppress(OSError):  # the pre-flight says that the folder cannot be written, by host name
        forget_attempt(run, rank)


def end_with_parent(parent: int) -> None:
    """Let the kernel send SIGTERM to this process when its parent dies; the parent may have died before."""
    if sys.platform == "linux":
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)


def settle_code(code: int, verb: str = "train") -> int:
    """Return what this process leaves with: an orderly end is 0 for the engine, its code is for the launcher."""
    run = launched_run()
    if run is None or code not in ORDERLY:
        return code
    if read_rank().number == 0:
        # Ranks are stopped by schedulers and launchers; whose Ctrl-C it was the launcher knows.
        message = EXIT_RESUMABLE if code == EXIT_INTERRUPTED and verb in RESUMABLE_VERBS else code
        write_atomically(run / FOLDER / CODE, f"{message}\n")
    return 0


def read_code(run: Path) -> int | None:
    try:
        return int((run / FOLDER / CODE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def leave_failure(err: Exception) -> None:
    run = launched_run()
    if run is None:
        return
    text = err if isinstance(err, TrainstoneError) else TrainstoneError(f"{type(err).__name__}: {err}")
    failure = Failure(
        rank=read_rank().number,
        host=name_host(),
        exit_code=text.exit_code,
        message=text.message,
        hint=text.hint,
        time_seconds=time.time(),
        echo=isinstance(err, PeerLostError),
    )
    try:
        write_atomically(run / FOLDER / FAILED.format(failure.rank), dump_json(failure._asdict()))
    except (OSError, TrainstoneError):
        return  # the engine's output has it as well
    if failure.echo:
        time.sleep(ECHO_SECONDS)


def read_failures(run: Path) -> list[Failure]:
    """Return what ranks left, causes before echoes, the earliest first."""
    found = []
    for path in sorted((run / FOLDER).glob("failed-rank*.json")):
        try:
            found.append(Failure(**json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError):
            continue  # a rank that was killed while it wrote
    return sorted(found, key=lambda one: (one.echo, one.time_seconds))


def forget_attempt(run: Path, rank: int | None = None) -> None:
    """Remove what an attempt left; of a rank its failure, of rank 0 also how the run ended."""
    failures = (run / FOLDER).glob("failed-rank*.json") if rank is None else [run / FOLDER / FAILED.format(rank)]
    for path in [*failures, *([] if rank else [run / FOLDER / CODE, run / FOLDER / CAUSE])]:
        path.unlink(missing_ok=True)
