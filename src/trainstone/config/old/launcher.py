"""How many devices the words before a program ask for: mpirun, ddlrun, horovodrun, srun, sbatch, torch's launcher."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from trainstone.config.old.line import VALUES_HINT, Line

RANKS = ("-n", "-np", "--np", "--ntasks", "--num-proc")
NODES = ("-N", "--nodes", "--nnodes")
EACH = (
    *("--nproc_per_node", "--nproc-per-node", "--ntasks-per-node", "--gpus-per-node"),
    *("-npernode", "--npernode", "--gres"),
)
KINDS = dict.fromkeys(RANKS, "ranks") | dict.fromkeys(NODES, "nodes") | dict.fromkeys(EACH, "each")
HOSTS = ("-H", "-host", "--host", "--hosts")
DDL_MODE = re.compile(r".*\bp:(\d+)x(\d+)x1x1\s*")  # GPUs a node x nodes
DDL_GPUS = 4
"""GPUs of a host of ddlrun, which starts one process for each: an AC922 has four."""
MOST_DEVICES = 100_000
MOST_SHOWN = 200
INTERPRETER = re.compile(r"(.*/)?(python[\d.]*|sh|bash|source|\.)|-u")
"""Words that start a program and ask for nothing."""


class Geometry(NamedTuple):
    """Devices; None where the line does not say."""

    nodes: int | None = None
    each: int | None = None
    """Devices a node."""
    ranks: int | None = None

    def devices(self) -> int | None:
        """Return the number of all devices."""
        if self.each is not None:
            return self.each * (self.nodes or 1)
        return self.ranks


def read_launcher(words: Sequence[str]) -> Geometry:
    """Return what the words say; of contradictions the last counts."""
    found: dict[str, int] = {}
    under_mpi = any(word.endswith("mpirun") for word in words)
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if mode := DDL_MODE.fullmatch(word):
            found |= {"each": int(mode[1][:12]), "nodes": int(mode[2][:12])}
            continue
        name, text = split_option(word, following)
        if name in HOSTS and text:
            found |= read_hosts(text)
            continue
        kind = "each" if name == "-N" and under_mpi else KINDS.get(name)
        number = text.rpartition(":")[2]  # --gres=gpu:v100:4
        if kind and number.isdecimal() and int(number[:12]) > 0:
            found[kind] = int(number[:12])
    if "nodes" in found and not {"each", "ranks"} & set(found) and any(word.endswith("ddlrun") for word in words):
        found["each"] = DDL_GPUS
    return settle(Geometry(**found))


def split_option(word: str, following: str) -> tuple[str, str]:
    """Return name and value of -N4, -N 4, --nodes=4 and --nodes 4."""
    if attached := re.fullmatch(r"(-[nN])(\d+)", word):
        return attached[1], attached[2]
    name, equals, text = word.partition("=")
    return (name, text) if equals else (word, following)


def read_hosts(text: str) -> dict[str, int]:
    """Read host:4,host:4."""
    hosts = [host for host in text.split(",") if host]
    slots = {host.rpartition(":")[2] for host in hosts if ":" in host}
    found = {"nodes": len(hosts)} if hosts else {}
    if len(slots) == 1 and (slot := slots.pop()).isdecimal() and int(slot[:12]) > 0:
        found["each"] = int(slot[:12])
    return found


def settle(seen: Geometry) -> Geometry:
    """Fill in what the rest says."""
    nodes, each, ranks = seen
    if each is None and nodes and ranks and ranks % nodes == 0:
        each = ranks // nodes
    if nodes is None and each and ranks and ranks % each == 0:
        nodes = ranks // each
    return Geometry(nodes, each, ranks)


def describe_launcher(line: Line) -> tuple[str, ...]:
    """Say what becomes of the words before a program."""
    words = line.launcher
    if all(INTERPRETER.fullmatch(word) for word in words):
        return ()
    shown = " ".join(words)
    if len(shown) > MOST_SHOWN:
        shown = f"{shown[:MOST_SHOWN]}…"
    notes = [f"{shown}: left out but for the number of devices; `trainstone launch` starts ranks here"]
    if any(word.endswith(("nvprof", "ncu", "nsys")) for word in words):
        notes.append("the profiler: `trainstone profile` records steps, telemetry is in every run")
    for word, following in zip(words, [*words[1:], ""], strict=False):
        name, text = split_option(word, following)
        if name in KINDS and "$" in text:
            notes.append(f"{word if '=' in word else f'{word} {text}'}: {VALUES_HINT}")
    return tuple(notes)
