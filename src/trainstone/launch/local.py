"""trainstone launch local: the ranks of this host, started by torchrun."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from trainstone.errors import ConfigError, MachineError
from trainstone.launch.engine import Plan
from trainstone.launch.folder import rank_environment
from trainstone.launch.verb import Verb
from trainstone.machine.cpus import available_cores
from trainstone.machine.facts import read_facts
from trainstone.machine.launched import name_host

CUDA = ("auto", "cuda")
"""config.device that each rank takes as the CUDA device of its number."""


def count_cuda_devices(environ: Mapping[str, str] | None = None) -> int:
    """Return how many CUDA devices ranks started here would see."""
    found: int = sum(device.get("kind") == "cuda" for device in read_facts()["devices"])
    shown = (os.environ if environ is None else environ).get("CUDA_VISIBLE_DEVICES")
    if shown is None:
        return found
    names = [name.strip() for name in shown.split(",")]
    # CUDA stops at the first that is none.
    valid = next((place for place, name in enumerate(names) if name in ("", "-1")), len(names))
    return min(found, valid)


def choose_ranks(asked: int | None) -> int:
    """Return how many ranks to start: as asked, else one for each CUDA device."""
    ranks = asked or count_cuda_devices()
    if not ranks:
        raise ConfigError(
            f"{name_host()} shows no CUDA devices that could tell how many ranks to start",
            hint="say --ranks N; N ranks on the CPU divide its cores",
        )
    return ranks


def plan_local(verb: Verb, run: Path, launch: str, *, ranks: int, max_restarts: int = 0) -> Plan:
    """Return what starts the ranks; refuse more of them than there are devices."""
    devices = count_cuda_devices()
    on_cuda = bool(devices) and verb.config.device in CUDA
    if on_cuda and ranks > devices:
        raise MachineError(
            f"{name_host()} has {devices} CUDA devices: too few for {ranks} ranks",
            hint=f"--ranks {devices}, or a verb with --device cpu",
        )
    cores = available_cores().threads
    settings = verb.system.launch if verb.system else None
    environment = rank_environment(run, launch, ranks=ranks, bind=not on_cuda)
    if "OMP_NUM_THREADS" not in os.environ:  # torchrun would take 1
        environment["OMP_NUM_THREADS"] = str(max(1, cores // ranks))
    environment |= settings.environment if settings else {}
    notes = () if on_cuda or ranks <= cores else (f"{ranks} ranks share {cores} cores of {name_host()}",)
    return Plan(
        engine="local",
        command=(*torchrun(ranks, max_restarts), *verb.command()),
        environment=environment,
        prologue=settings.prologue if settings else (),
        notes=notes,
    )


def torchrun(ranks: int, max_restarts: int) -> list[str]:
    """Return torchrun's words; --standalone meets at a free port of this host, so that several may run."""
    counts = ["--nproc-per-node", str(ranks), "--max-restarts", str(max_restarts)]
    return [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", *counts, "--no-python", "--"]
