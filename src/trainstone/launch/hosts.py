"""Hosts and slots as mpirun takes them: --host a:4,b:4, or a hostfile."""

import re
from pathlib import Path
from typing import NamedTuple

from trainstone.errors import ConfigError


class Host(NamedTuple):
    """A host and how many ranks it has room for."""

    name: str
    slots: int | None
    """None: not said."""


def read_hosts(text: str) -> list[Host]:
    """Read a:4,b:4."""
    hosts = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([^\s:,-][^\s:,]*)(?::(\d+))?\s*", part)
        if match is None:
            raise ConfigError(f"--host {text} is no list of hosts", hint="for example --host n1:4,n2:4")
        hosts.append(Host(match[1], int(match[2]) if match[2] else None))
    return hosts


def read_hostfile(path: Path) -> list[Host]:
    """Read Open MPI's hostfile: a host a line, with slots=4 or :4 behind; # begins a remark."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"cannot read --hostfile {path}: {err}") from err
    hosts = []
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if words:
            slots = re.search(r"\bslots\s*=\s*(\d+)", " ".join(words[1:]))
            name, _, number = words[0].rpartition(":") if re.search(r":\d+$", words[0]) else (words[0], "", "")
            hosts.append(Host(name.rpartition("@")[2], int(slots[1] if slots else number) if slots or number else None))
    if not hosts:
        raise ConfigError(f"--hostfile {path} names no host", hint="a line for each: n1 slots=4")
    return hosts


def count_slots(hosts: list[Host]) -> int | None:
    """Return how many ranks all hosts have room for; None where one does not say."""
    slots = [host.slots for host in hosts]
    return sum(slot for slot in slots if slot) if slots and None not in slots else None
