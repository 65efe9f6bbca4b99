"""How many devices the words before a program request: mpirun, ddlrun, horovodrun, srun, sbatch, torch's launcher."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from trainstone.config.old.line import VALUES_HINT

RANKS = r"-np?|--np|--ntasks|--num-proc"
NODES = r"--nodes|--nnodes"
EACH = r"--nproc[_-]per[_-]node|--ntasks-per-node|--gpus-per-node|--?npernode|--gres"
HOSTS = re.compile(r"(?<!\S)-(?:H|-?hosts?)[ =](\S+)")
DDL_MODE = re.compile(r"\bp:(\d{1,9})x(\d{1,9})x1x1\b")  # GPUs per node x nodes
DDL_GPUS = 4
"""GPUs of a host of ddlrun, which starts one process for each: an AC922 has four."""
MOST_DEVICES = 100_000


class Geometry(NamedTuple):
    """Devices; None where the line does not say."""

    nodes: int | None = None
    each: int | None = None
    """Devices per node."""
    ranks: int | None = None

    def devices(self) -> int | None:
        """Return the number of all devices."""
        if self.each is not None:
            return self.each * (self.nodes or 1)
        return self.ranks


def settle(nodes: int | None, each: int | None, ranks: int | None = None) -> Geometry:
    """Fill in what the rest says."""
    if each is None and nodes and ranks and ranks % nodes == 0:
        each = ranks // nodes
    if nodes is None and each and ranks and ranks % each == 0:
        nodes = ranks // each
    return Geometry(nodes, each, ranks)


def read_launcher(words: Sequence[str]) -> Geometry:
    """Return what the words say; of contradictions the last counts."""
    text = " ".join(words)
    per_node, of_nodes = (f"{EACH}|-N", NODES) if "mpirun" in text else (EACH, f"{NODES}|-N")
    nodes, each, ranks = (find_number(text, names) for names in (of_nodes, per_node, RANKS))
    if mode := DDL_MODE.search(text):
        each, nodes = int(mode[1]), int(mode[2])
    if hosts := HOSTS.search(text):
        names = [name for name in hosts[1].split(",") if name]
        nodes, slots = len(names) or nodes, hosts[1].rpartition(":")[2]
        each = int(slots) if slots.isdecimal() else each
    if nodes and not each and not ranks and "ddlrun" in text:
        each = DDL_GPUS
    return settle(nodes, each, ranks)


def find_number(text: str, names: str) -> int | None:
    """Return the last number above 0 of -N4, -N 4, --nodes=4, --nodes 4 or --gres=gpu:v100:4."""
    found = re.findall(rf"(?<!\S)(?:{names})[ =]?(?:\S*:)?0*([1-9]\d{{0,999}})(?!\S)", text)
    return int(found[-1]) if found else None


def describe_launcher(words: Sequence[str]) -> list[str]:
    """Return a note where a variable hides how many devices there are."""
    text = " ".join(words)
    return [f"{text[:200]}: {VALUES_HINT}"] if "$" in text else []
