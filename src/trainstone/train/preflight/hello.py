"""What a rank says of itself when it comes, and what the first rank makes of all that was said."""

import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainstone import __version__
from trainstone.config.schema import Config
from trainstone.errors import ConfigError, DataError, LaunchError, MachineError, TrainstoneError, error_of_child
from trainstone.machine.interfaces import Interface, name_network
from trainstone.machine.launched import name_host
from trainstone.machine.ranks import Rank
from trainstone.measure.devices import list_devices
from trainstone.train.preflight.deadline import call_within
from trainstone.units import format_count

Document = dict[str, Any]
MUST_BE_SAME = ("trainstone", "torch", "nccl")
# Each host may have its own.
OWN_KEYS = ("device", "data.root", "parallel.interface")
SHOWN_KEYS = 3


def read_versions() -> dict[str, str]:
    """Return what this rank runs on."""
    found = {
        "trainstone": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    if torch.cuda.is_available() and torch.distributed.is_nccl_available():
        version = torch.cuda.nccl.version()
        found["nccl"] = ".".join(map(str, version)) if isinstance(version, tuple) else str(version)
    return found


def flatten(config: Config) -> dict[str, Any]:
    """Return the keys that must be the same on all ranks, with their dots."""
    flat: dict[str, Any] = {}

    def walk(table: dict[str, Any], prefix: str) -> None:
        for name, value in table.items():
            if isinstance(value, dict):
                walk(value, f"{prefix}{name}.")
            elif f"{prefix}{name}" not in OWN_KEYS:
                flat[f"{prefix}{name}"] = value

    walk(config.model_dump(mode="json"), "")
    return flat


def hash_flat(flat: dict[str, Any]) -> str:
    """Return a short name of a configuration."""
    return hashlib.sha256(json.dumps(flat, sort_keys=True).encode()).hexdigest()[:16]


def say_hello(rank: Rank, config_hash: str, interface: Interface | None, trouble: TrainstoneError | None) -> Document:
    """Return this rank's document."""
    return {
        "rank": rank.number,
        "host": name_host(),
        "network": name_network(),
        "pid": os.getpid(),
        "local": rank.local,
        "devices": sum(not name.startswith("cpu") for name in list_devices()),
        "versions": read_versions(),
        "interface": interface.name if interface else None,
        "address": interface.address if interface else None,
        "config": config_hash,
        "trouble": describe_trouble(trouble),
    }


def describe_trouble(trouble: TrainstoneError | None) -> Document | None:
    """Return an error as a document."""
    if trouble is None:
        return None
    return {"exit_code": trouble.exit_code, "message": trouble.message, "hint": trouble.hint}


def check_data(config: Config, seconds: float) -> None:
    """Refuse where this host does not have the pictures. Those that are drawn are made when they are missing."""
    if config.data.source != "files" or config.data.root is None:
        return
    root = Path(config.data.root)

    def look() -> None:
        if root.is_dir():
            next(root.iterdir(), None)
        else:
            root.open("rb").close()

    try:
        call_within(seconds, look)
    except OSError as err:
        reason = err.strerror or f"the file system does not answer within {seconds:g} s"
        raise DataError(
            f"cannot read the data set {root}: {reason}", hint="every host needs the data at the same place: --data DIR"
        ) from err


def find_trouble(said: dict[int, Document], hosts: dict[int, str] | None = None) -> TrainstoneError | None:
    """Return the first trouble that a rank told of, by its name and its host's; None: all is well."""
    troubled = {number: one for number, one in sorted(said.items()) if one.get("trouble")}
    if not troubled:
        return None
    hosts = hosts or {number: one["host"] for number, one in said.items()}
    first, *others = troubled
    trouble = troubled[first]["trouble"]
    also = f" (and {format_count(len(others), 'more rank')}: {group_ranks(others, hosts)})" if others else ""
    return error_of_child(
        trouble["exit_code"], f"rank {first} on {hosts[first]}: {trouble['message']}{also}", trouble["hint"]
    )


def find_absent(came: dict[int, str], world: int, place: str, seconds: float, listed: list[str]) -> LaunchError | None:
    """Return who did not come; `came`: hosts of the others. `listed`: hosts that the scheduler gave, if it tells."""
    absent = [number for number in range(world) if number not in came]
    if not absent:
        return None
    word = "rank" if len(absent) == 1 else "ranks"
    lacking = [host for host in listed if host not in came.values()]
    where = f"; nobody came from {', '.join(lacking)}" if lacking else ""
    return LaunchError(
        f"{word} {join_ranks(absent)} did not come to {place} within {seconds:g} s; "
        f"came: {group_ranks(came, came)}{where}",
        hint="look what they say themselves, and whether their hosts can reach this place; parallel.meeting_seconds "
        "is how long to wait",
    )


def find_difference(hellos: dict[int, Document]) -> MachineError | None:
    """Return which program has another version where; None: none that must not."""
    for name in MUST_BE_SAME:
        seen: dict[str, list[str]] = {}
        for _, one in sorted(hellos.items()):
            hosts = seen.setdefault(one["versions"].get(name, "none"), [])
            if one["host"] not in hosts:
                hosts.append(one["host"])
        if len(seen) > 1:
            told = "; ".join(f"{version} on {shorten(hosts)}" for version, hosts in seen.items())
            return MachineError(
                f"ranks have different versions of {name}: {told}", hint="install the same on all hosts"
            )
    return None


def find_other_config(first: Document, other: Document, mine: dict[str, Any], theirs: dict[str, Any]) -> ConfigError:
    """Say in which keys the configuration of another rank differs."""
    keys = [key for key in sorted(mine.keys() | theirs.keys()) if mine.get(key) != theirs.get(key)]
    told = ", ".join(f"{key} = {theirs.get(key)} ({mine.get(key)})" for key in keys[:SHOWN_KEYS])
    more = f" and {len(keys) - SHOWN_KEYS} more" if len(keys) > SHOWN_KEYS else ""
    return ConfigError(
        f"rank {other['rank']} on {other['host']} is asked for something else than rank {first['rank']} on "
        f"{first['host']}: {told}{more}",
        hint="start all ranks with the same command",
    )


def join_ranks(numbers: list[int]) -> str:
    """Return 3, 5-9, 12."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = []
    for run in runs:
        parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(number) for number in run]
    return ", ".join(parts)


def group_ranks(numbers: Any, hosts: dict[int, str]) -> str:
    """Return n1 (0, 1), n2 (2)."""
    by_host: dict[str, list[int]] = {}
    for number in sorted(numbers):
        by_host.setdefault(hosts[number], []).append(number)
    return shorten([f"{host} ({join_ranks(ranks)})" for host, ranks in by_host.items()]) or "nobody"


def shorten(names: list[str], most: int = 8) -> str:
    """Return the first few of many."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
