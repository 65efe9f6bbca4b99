"""Lists of hosts as Slurm writes them: n[01-03,7],gpu5."""

import os
import re


def expand_hosts(text: str) -> list[str]:
    """Return every host of a list: n01, n02, n03, n7, gpu5."""
    found = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        names = [""]
        for plain, ranges in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", part):
            names = [name + piece for name in names for piece in ([plain] if plain else expand_ranges(ranges))]
        found += names
    return found


def expand_ranges(text: str) -> list[str]:
    """Return 01, 02, 03, 7 of 01-03,7."""
    found = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and last.isdecimal():
            found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
        else:
            found.append(part)
    return found


def list_step_hosts() -> list[str]:
    """Return the hosts of the Slurm step or job that this process belongs to; empty: there is none."""
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"):
        if os.environ.get(name):
            return expand_hosts(os.environ[name])
    return []
