"""Start ranks on this host with torchrun."""

import os
import shlex
import sys
from pathlib import Path

from trainstone.errors import ConfigError, MachineError
from trainstone.launch.verb import Verb, build_rank_environment
from trainstone.machine.cpus import available_cores, memory_available_bytes
from trainstone.machine.facts import read_facts
from trainstone.machine.launch_protocol import get_host_name
from trainstone.machine.supervisor import LaunchPlan
from trainstone.units import format_bytes, format_count

# Minimum memory per rank: peak unique set size of each of two ranks that train demo-classify with 8 images of
# 32 x 32 pixels per step and model.width 16 on the CPU (1304 and 1352 MiB; torch 2.13, Linux x86-64, one thread).
RANK_MEMORY_BYTES = 1300 * 2**20


def count_cuda_devices() -> int:
    found: int = sum(device.get("kind") == "cuda" for device in read_facts()["devices"])
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is None:
        return found
    names = [name.strip() for name in shown.split(",")]
    # CUDA stops at the first invalid entry.
    valid = next((index for index, name in enumerate(names) if name in ("", "-1")), len(names))
    return min(found, valid)


def count_used_devices(verb: Verb) -> int:
    """Return how many CUDA devices the ranks can use, one per rank; 0: they run on the CPU."""
    return count_cuda_devices() if verb.config.device in ("auto", "cuda") else 0


def choose_ranks(requested: int | None) -> int:
    ranks = requested or count_cuda_devices()
    if not ranks:
        raise ConfigError(
            f"unknown number of ranks: {get_host_name()} has no CUDA devices",
            hint="--ranks 2 starts two ranks on the CPU, which share its cores",
        )
    return ranks


def plan_local(verb: Verb, run: Path, launch: str, *, ranks: int, max_restarts: int = 0) -> LaunchPlan:
    on_cuda, cores = bool(count_used_devices(verb)), available_cores().threads
    settings = verb.system.launch if verb.system else None
    environment = build_rank_environment(run, launch, ranks=ranks)
    if "OMP_NUM_THREADS" not in os.environ:  # torchrun's default is 1
        environment["OMP_NUM_THREADS"] = str(max(1, cores // ranks))
    environment |= settings.environment if settings else {}
    counts = ["--nproc-per-node", str(ranks), "--max-restarts", str(max_restarts)]
    # --standalone uses a free port of this host, so that several launches can run.
    torchrun = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", *counts, "--no-python", "--"]
    notes = () if on_cuda or ranks <= cores else (f"{ranks} ranks share {cores} cores of {get_host_name()}",)
    return LaunchPlan(
        engine="local",
        command=(*torchrun, *verb.command()),
        environment=environment,
        prologue=settings.prologue if settings else (),
        notes=notes,
    )


def check_capacity(verb: Verb, ranks: int, max_restarts: int = 0, *, oversubscribe: bool = False) -> None:
    """Raise for more ranks than this machine has CUDA devices or CPUs, or memory for."""
    devices, memory = count_used_devices(verb), memory_available_bytes()
    cores = available_cores()
    # Hyper-threads count: `nproc` ranks are allowed.
    cpus = cores.logical if cores.quota_cores is None else min(cores.logical, max(1, int(cores.quota_cores)))
    slots = devices or cpus
    fitting = min(slots, memory // RANK_MEMORY_BYTES)
    lacks_devices = 0 < devices < ranks  # a rank cannot share the device of another
    if ranks <= fitting or (oversubscribe and not lacks_devices):
        return
    kind = "CUDA device" if devices else "CPU"
    restarts = ["--max-restarts", str(max_restarts)] if max_restarts else []
    command = ["trainstone", "launch", "local", "--ranks", str(fitting), *restarts, "--", verb.name, *verb.arguments]
    hints = [shlex.join(command)] if fitting else []
    hints += [] if lacks_devices else ["--oversubscribe starts them anyway"]
    raise MachineError(
        f"cannot start {format_count(ranks, 'rank')} on {get_host_name()}: it has {format_count(slots, kind)} and "
        f"{format_bytes(memory)} of available memory; at most {fitting} fit, "
        f"with one {kind} and at least {format_bytes(RANK_MEMORY_BYTES)} each",
        hint="\n".join(hints),
    )
