"""Options of sbatch: read from the command line and the system file, refused where they are ours, written as lines."""

import re
from collections.abc import Sequence

from trainstone.errors import ConfigError

LEAD_SECONDS = 90
"""From the signal to the end of the time limit: a checkpoint of a large network on a slow disk fits in."""
# Of a short job the signal must not come at once: Slurm may send it up to a minute early.
LEAD_SHARE = 4
OWN = {
    "array": "--fleet makes an array; --sbatch array=%4 lets 4 of its tasks run at once",
    "output": "what the job prints is in launch/ of the run folder; --out DIR chooses where that lies",
    "error": "what the job prints is in launch/ of the run folder; --out DIR chooses where that lies",
    "open-mode": "leave it out: what the job prints is appended",
    "chdir": "start trainstone in that folder",
    "wrap": "--prologue LINE adds shell lines",
    "hold": "scontrol hold JOB after --detach",
    "requeue": "--requeue of launch slurm",
    "no-requeue": "leave --requeue out",
    "nodes": "--nodes of launch slurm",
    "ntasks": "--ranks-per-node of launch slurm",
    "ntasks-per-node": "--ranks-per-node of launch slurm",
    "wait": "leave it out; --detach does not wait",
    "test-only": "--dry-run shows the script",
}
"""Options that the launcher sets itself or that would undo its work, and what to do instead."""
KEY = re.compile(r"[a-z][a-z0-9-]*")
TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?")


def count_devices(gres: str | None) -> int:
    """Return one rank for each GPU of gpu:4, gpu:v100:4 or gpu:2080ti:4; without any, one."""
    counts = re.findall(r"\bgpu(?::[\w.-]+)?[:=](\d+)(?=$|[,(])", gres or "")
    return max(1, sum(map(int, counts)))


def find_lead(time: str | None) -> int:
    """Return how many seconds ahead of its end a job is told; of a short one a quarter of its time."""
    limit = read_time(time) if time else None
    return LEAD_SECONDS if limit is None else max(1, min(LEAD_SECONDS, limit // LEAD_SHARE))


def read_time(time: str) -> int | None:
    """Return seconds of minutes, M:S, H:M:S, D-H, D-H:M and D-H:M:S; None: unlimited, or for sbatch to refuse."""
    found = TIME.fullmatch(time)
    if found is None:
        return None
    first, *rest = [int(found[name] or 0) for name in ("first", "second", "third")]
    if found["days"]:
        return int(found["days"]) * 86_400 + first * 3600 + rest[0] * 60 + rest[1]
    if found["third"]:
        return first * 3600 + rest[0] * 60 + rest[1]
    return first * 60 + rest[0]


def read_directives(words: Sequence[str], *, fleet: bool = False) -> dict[str, str | None]:
    """Read KEY and KEY=VALUE as sbatch has them, with or without their dashes; the last of a name counts.

    A fleet may say how many of its tasks run at once: array=%4.
    """
    found: dict[str, str | None] = {}
    for word in words:
        name, given, value = word.partition("=")
        name = name.removeprefix("--")
        if not KEY.fullmatch(name):
            raise ConfigError(
                f"--sbatch {word}: {name!r} is no option of sbatch",
                hint="KEY or KEY=VALUE with the long name: --sbatch exclusive --sbatch mem=0",
            )
        if not (fleet and name == "array" and re.fullmatch(r"%\d+", value)):
            refuse_own(word, name)
        found[name] = value if given else None
    return found


def refuse_own(word: str, name: str) -> None:
    """Refuse what the launcher says itself, also where it is cut short: sbatch understands that."""
    own = next((own for own in OWN if own.startswith(name)), None)
    if own is not None:
        raise ConfigError(f"sbatch option {word}: --{own} is for trainstone launch slurm to say", hint=OWN[own])


def write_directive(name: str, value: str | None) -> str:
    """Return an option as a line of #SBATCH has it: in double quotes, where it is not plain."""
    if value is None:
        return f"--{name}"
    refuse_lines(f"--{name}", value)
    if re.fullmatch(r"[\w@%+=:,./-]+", value, re.ASCII):
        return f"--{name}={value}"
    return f"--{name}=" + '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def refuse_lines(name: str, value: str) -> str:
    """Return the value; one with a line break cannot stand in a script of lines."""
    if any(character in value for character in "\n\r\0"):
        raise ConfigError(f"{name}: {value!r} has a line break", hint="Slurm takes one line")
    return value
