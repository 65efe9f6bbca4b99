"""What torchrun, mpirun and srun print of ranks that died, read from their output."""

import re
import signal
from typing import NamedTuple

from trainstone.text import printable_lines

# torchrun: a block for each rank that failed; the one that it saw first stands last, under this line.
ROOT = "Root Cause (first observed failure)"
TORCHRUN = re.compile(r"^\s*rank\s*: (\d+) \(local_rank: \d+\)\n\s*exitcode\s*: (-?\d+)", re.MULTILINE)
# Open MPI 4 (mpirun) and 5 (prterun).
MPIRUN = re.compile(r"process rank (\d+) with PID \d+ on node (\S+)\s+exited\s+on\s+signal\s+(\d+)")
MPIRUN_CODE = re.compile(r"^\s*Process name:\s*\[\[?[^\n]*?,\s*(\d+)\]\s+Exit code:\s*(\d+)", re.MULTILINE)
SRUN = re.compile(r"^srun: error: (\S+): tasks? (\d+)[\d,-]*: (.+)$", re.MULTILINE)
LAST_LINES, LAST_CHARACTERS = 5, 600
RULE = re.compile(r"^-{20,}$", re.MULTILINE)
SLOTS_HINT = "name hosts with enough slots (--host a:4,b:4), or share cores: --mpirun --oversubscribe"


class Death(NamedTuple):
    """A rank that ended badly."""

    rank: int
    host: str | None
    """None: this one."""
    code: int
    """Exit code, or minus the signal that ended it."""


def find_deaths(text: str, engine: str) -> list[Death]:
    """Return the deaths of the last attempt, the likely cause first; those by SIGTERM, which engines send, last."""
    readers = {"local": _read_torchrun, "mpi": _read_mpirun, "slurm": _read_srun}
    found = readers[engine](text) if engine in readers else []
    return sorted(found, key=lambda death: death.code == -signal.SIGTERM)


def _read_torchrun(text: str) -> list[Death]:
    before, _, root = text.rpartition(ROOT)
    others = before[before.rfind(" FAILED\n") :] if " FAILED\n" in before else ""
    return [Death(int(rank), None, int(code)) for part in (root, others) for rank, code in TORCHRUN.findall(part)]


def _read_mpirun(text: str) -> list[Death]:
    killed = [Death(int(rank), host, -int(number)) for rank, host, number in MPIRUN.findall(text)]
    return killed or [Death(int(rank), None, int(code)) for rank, code in MPIRUN_CODE.findall(text)]


def _read_srun(text: str) -> list[Death]:
    return [Death(int(rank), host, _read_end(words)) for host, rank, words in SRUN.findall(text)]


def _read_end(words: str) -> int:
    """Exited with exit code 3; Killed; Segmentation fault (core dumped); Out Of Memory."""
    code = re.search(r"exit code (\d+)", words)
    if code:
        return int(code[1])
    names = {signal.strsignal(number): number for number in signal.valid_signals()}
    found = next((number for name, number in names.items() if name and words.startswith(name)), None)
    return -(found or signal.SIGKILL)


def find_told(text: str) -> tuple[str | None, str | None]:
    """Return the first error and hint that a rank printed; further lines of them are indented."""
    found = {}
    for name in ("error", "hint"):
        # Of many ranks a line may begin with [1,0]<stderr> or 0:
        match = re.search(rf"^(?:\[[\d,]+\]<\w+>:?\s?|\d+: )?{name}: +(.+(?:\n {{7}}.+)*)", text, re.MULTILINE)
        found[name] = re.sub(r"\n {7}", "\n", match[1]) if match else None
    return found["error"], found["hint"]


def find_engine_words(text: str) -> tuple[str, str | None]:
    """Return what an engine says of itself: the first paragraph of mpirun's box, else the last lines; and a hint."""
    boxes = [box.strip() for box in RULE.split(text)[1::2]]
    if boxes and boxes[0]:
        words = " ".join(boxes[0].split("\n\n")[0].split())
        before = [line for line in RULE.split(text)[0].splitlines() if line.strip()][-1:]
        told = printable_lines("; ".join([*before, words])[:LAST_CHARACTERS])
        return told, SLOTS_HINT if "not enough slots" in words else None
    lines = [line for line in text.splitlines() if line.strip()][-LAST_LINES:]
    return printable_lines("\n".join(lines)[-LAST_CHARACTERS:]), "the whole of it is in launch/ of the run folder"
