"""Interface of `trainstone launch` and its ranks: environment variables, and small files in RUN/launch/.

Both work through torchrun, mpirun, srun and containers.
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
LAUNCH = (
    "TRAINSTONE_LAUNCH"  # name of this launch, the same for all attempts; it shows that an earlier attempt has ended
)
RANKS = "TRAINSTONE_RANKS"  # world size; a rank that reads another world size does not see the engine's variables
LAUNCH_VARIABLES = (RUN, LAUNCH, BIND, RANKS)

VERBS = ("bench", "train", "profile", "eval")  # verbs whose ranks form one process group
RESUMABLE_VERBS = ("train", "sweep")
SINGLE_RANK_VERBS = ("sweep",)  # further verbs that can be launched with world size 1

FOLDER = "launch"
PROGRESS = "progress.txt"
CODE = "code"
CAUSE = "cause.txt"
FAILED = "failed-rank{:04d}.json"
SECONDARY_DELAY_SECONDS = 1.0  # lets the engine see the first death before that of a rank that only noticed it
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)  # loaded here, because end_with_parent runs between fork and exec
# Codes that are not failures. Ranks exit with 0 instead: on other codes an engine restarts the run, or kills ranks that
# are still writing.
NORMAL_EXIT_CODES = (0, EXIT_TARGET, EXIT_RESUMABLE, EXIT_INTERRUPTED)


class Failure(NamedTuple):
    rank: int
    host: str
    exit_code: int
    message: str
    hint: str | None
    time_seconds: float  # of the Unix epoch
    secondary: bool  # the rank failed only because another rank failed


def get_run_folder() -> Path | None:
    path = os.environ.get(RUN)
    return Path(path) if path else None


def get_launch_name() -> str | None:
    return os.environ.get(LAUNCH) or None


def get_host_name() -> str:
    """Return the name of this host; with several slurmd on one host, Slurm's name of the node."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def remove_launch_variables(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in LAUNCH_VARIABLES}


def begin_attempt(verb: str) -> None:
    """Prepare a rank: remove the files of its earlier attempt, and receive SIGTERM when the launcher dies.

    A verb that is not launched, such as `report` in the same batch script, ignores the launch variables.
    """
    if verb not in VERBS + SINGLE_RANK_VERBS:
        for name in LAUNCH_VARIABLES:
            os.environ.pop(name, None)
    run = get_run_folder()
    if run is None:
        return
    end_with_parent(os.getppid())
    rank, world, _ = read_rank()
    ranks = os.environ.get(RANKS)
    if ranks and ranks != str(world):  # usually each rank sees itself as a single process
        raise LaunchError(
            f"wrong world size on {get_host_name()}: {world}; the launcher starts {ranks} ranks",
            hint="the launcher's variables do not reach the ranks: in a container, use the MPI version of the host",
        )
    with suppress(OSError):  # the pre-flight check reports a folder that cannot be written, with the host's name
        remove_attempt_files(run, rank)


def end_with_parent(parent: int) -> None:
    """Let the kernel send SIGTERM to this process when its parent dies, also if it has died already."""
    if sys.platform == "linux":
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)


def report_exit_code(code: int, verb: str = "train") -> int:
    """Return the exit code for the engine, 0 for a normal end; rank 0 writes the real one for the launcher."""
    run = get_run_folder()
    if run is None or code not in NORMAL_EXIT_CODES:
        return code
    if read_rank().number == 0:
        # A rank cannot know whether a SIGINT was the user's Ctrl-C; the launcher does.
        reported = EXIT_RESUMABLE if code == EXIT_INTERRUPTED and verb in RESUMABLE_VERBS else code
        write_atomically(run / FOLDER / CODE, f"{reported}\n")
    return 0


def read_exit_code(run: Path) -> int | None:
    try:
        return int((run / FOLDER / CODE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_failure(err: Exception) -> None:
    run = get_run_folder()
    if run is None:
        return
    error = err if isinstance(err, TrainstoneError) else TrainstoneError(f"{type(err).__name__}: {err}")
    failure = Failure(
        rank=read_rank().number,
        host=get_host_name(),
        exit_code=error.exit_code,
        message=error.message,
        hint=error.hint,
        time_seconds=time.time(),
        secondary=isinstance(err, PeerLostError),
    )
    try:
        write_atomically(run / FOLDER / FAILED.format(failure.rank), dump_json(failure._asdict()))
    except (OSError, TrainstoneError):
        return  # the engine's output also has the error
    if failure.secondary:
        time.sleep(SECONDARY_DELAY_SECONDS)


def read_failures(run: Path) -> list[Failure]:
    """Return the failures that ranks wrote: causes before secondary failures, the earliest first."""
    found = []
    for path in sorted((run / FOLDER).glob("failed-rank*.json")):
        try:
            found.append(Failure(**json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError):
            continue  # a rank that was killed while it wrote
    return sorted(found, key=lambda failure: (failure.secondary, failure.time_seconds))


def remove_attempt_files(run: Path, rank: int | None = None) -> None:
    """Remove the files of an attempt. `rank`: only its failure; of rank 0 also exit code and cause."""
    failures = (run / FOLDER).glob("failed-rank*.json") if rank is None else [run / FOLDER / FAILED.format(rank)]
    for path in [*failures, *([] if rank else [run / FOLDER / CODE, run / FOLDER / CAUSE])]:
        path.unlink(missing_ok=True)
