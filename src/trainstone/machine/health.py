"""How quiet the machine was: two snapshots, before and after, become a grade with its reasons.

Only reads /proc and /sys, twice a run; changes no setting and times no step. What the machine is: facts.py.
"""

import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from trainstone.machine.affinity import read_affinity
from trainstone.machine.cpus import (
    CPU_FOLDER,
    cgroup_folders,
    parse_cpu_ticks,
    read_governor,
    read_int,
    read_keyed_int,
    read_text,
)

Grade = Literal["A", "B", "C"]

# (from here on not A, from here on C), in percent. Below the first a 1 % interval is not moved visibly.
STEAL_PERCENT = (0.5, 5.0)  # of the CPU time; an own core shows 0.0 to 0.2, a crowded host 5 and more
OTHERS_PERCENT = (3.0, 15.0)  # of the CPUs we may use; an idle desktop or a monitoring agent takes 1 to 2
VARIATION_PERCENT = (2.0, 10.0)  # robust spread of steps; pyperf calls 10 unstable, TorchBench 7
MEMORY_PERCENT = (1.0, 10.0)  # of the time a task waited for memory: swap, or a cgroup at its limit
QUOTA_PERCENT = (1.0, 10.0)  # of the time our cgroup was stopped because its CPU quota was used up
MIN_WINDOW_SECONDS = 0.5  # /proc/stat counts in hundredths of a second: a shorter window says nothing


@dataclass(frozen=True)
class Pressure:
    """The counters of one moment. CPU times are sums over the CPUs we may use, since boot."""

    monotonic_seconds: float
    num_cpus: int | None = None
    loadavg_1min: float | None = None
    total_cpu_seconds: float | None = None
    process_cpu_seconds: float | None = None
    steal_cpu_seconds: float | None = None
    own_cpu_seconds: float | None = None
    cpu_pressure_seconds: float | None = None
    memory_pressure_seconds: float | None = None
    io_pressure_seconds: float | None = None
    quota_stopped_seconds: float | None = None
    throttle_count: int | None = None
    governor: str | None = None
    others: Mapping[tuple[int, int], tuple[str, float]] = field(default_factory=dict, repr=False)
    """CPU seconds of each process that is not ours: (pid, start time) -> (name, seconds)."""


@dataclass(frozen=True)
class Noise:
    """How quiet it was. A: quiet; B: usable, with care; C: do not quote. None: not measured."""

    grade: Grade
    reasons: tuple[str, ...]
    steal_percent: float | None = None
    others_percent: float | None = None  # of one core
    pressure_percent: float | None = None  # of the time a task waited for a CPU, ours included
    memory_pressure_percent: float | None = None
    io_pressure_percent: float | None = None
    quota_percent: float | None = None
    step_variation_percent: float | None = None
    throttle_events: int | None = None
    load_before: float | None = None
    governor: str | None = None


class _Process(NamedTuple):
    pid: int
    parent: int
    name: str
    state: str
    ticks: int
    ended_children_ticks: int
    start: int


# /proc/PID/stat; the name in brackets may itself hold brackets, spaces and control characters.
_PROCESS = re.compile(
    r"(\d{1,9}) \((.*)\) (\S) (\d{1,9}) (?:\S+ ){9}(\d{1,18}) (\d{1,18}) (\d{1,18}) (\d{1,18}) "
    r"(?:\S+ ){4}(\d{1,18})",
    re.DOTALL | re.ASCII,
)


def read_pressure(
    root: Path = Path("/"),
    *,
    pids: Collection[int] | None = None,
    cpus: Collection[int] | None = None,
    now: Callable[[], float] = time.monotonic,
) -> Pressure:
    """Take a snapshot. `pids` with their descendants are ours: name all ranks here, or the launcher."""
    pids = {os.getpid()} if pids is None else pids
    if cpus is None:
        cpus = frozenset[int]().union(*(read_affinity(pid) for pid in pids))
    ticks = parse_cpu_ticks(read_text(root / "proc/stat"), cpus)
    processes = _read_processes(root)
    ours = {process for process in processes.values() if _is_ours(process, processes, pids)}
    own_ticks = sum(process.ticks + process.ended_children_ticks for process in ours)
    return Pressure(
        monotonic_seconds=now(),
        num_cpus=ticks.num_cpus if ticks else None,
        loadavg_1min=_read_load(root),
        total_cpu_seconds=_to_seconds(ticks.total) if ticks else None,
        process_cpu_seconds=_to_seconds(ticks.process) if ticks else None,
        steal_cpu_seconds=_to_seconds(ticks.steal) if ticks else None,
        own_cpu_seconds=_to_seconds(own_ticks) if ours else None,
        cpu_pressure_seconds=_read_stall_seconds(root / "proc/pressure/cpu"),
        memory_pressure_seconds=_read_stall_seconds(root / "proc/pressure/memory"),
        io_pressure_seconds=_read_stall_seconds(root / "proc/pressure/io"),
        quota_stopped_seconds=_read_quota_stops(root),
        throttle_count=read_throttle_count(root),
        governor=read_governor(root),
        others={(p.pid, p.start): (p.name, _to_seconds(p.ticks)) for p in processes.values() if p not in ours},
    )


def read_throttle_count(root: Path = Path("/")) -> int | None:
    """Sum all CPUs' counters of thermal throttling; only its growth means something."""
    paths = root.glob(f"{CPU_FOLDER}/cpu[0-9]*/thermal_throttle/*_throttle_count")
    counts = [count for path in paths if (count := read_int(path)) is not None]
    return sum(counts) if counts else None


def busiest_others(before: Pressure, after: Pressure, n: int = 3) -> tuple[str, ...]:
    """Name the other processes that used most CPU between two snapshots, at least 1 % of a core each."""
    used: dict[str, float] = {}
    for key, (name, seconds) in after.others.items():
        used[name] = used.get(name, 0.0) + seconds - before.others.get(key, (name, 0.0))[1]
    floor = 0.01 * (after.monotonic_seconds - before.monotonic_seconds)
    return tuple(name for name in sorted(used, key=lambda name: -used[name])[:n] if used[name] > floor)


def grade_noise(
    before: Pressure,
    after: Pressure,
    *,
    step_variation_percent: float | None = None,
    drifting: bool = False,
    throttled: bool = False,
) -> Noise:
    """Judge what happened between two snapshots.

    `step_variation_percent`: robust spread (1.4826 MAD / median) of the steady steps; `drifting`: they never
    became steady; `throttled`: a device's telemetry shows it held back by heat or a power brake.
    """
    noise = Noise(
        grade="A",
        reasons=(),
        steal_percent=_share(before.steal_cpu_seconds, after.steal_cpu_seconds, _total_grown(before, after)),
        others_percent=_share_of_others(before, after),
        pressure_percent=_share_of_time("cpu_pressure_seconds", before, after),
        memory_pressure_percent=_share_of_time("memory_pressure_seconds", before, after),
        io_pressure_percent=_share_of_time("io_pressure_seconds", before, after),
        quota_percent=_share_of_time("quota_stopped_seconds", before, after),
        step_variation_percent=step_variation_percent,
        throttle_events=_grown(before.throttle_count, after.throttle_count),
        load_before=before.loadavg_1min,
        governor=after.governor,
    )
    doubts = _find_doubts(noise, before.num_cpus or 1, busiest_others(before, after))
    if drifting:
        doubts.append(("C", "the speed was still drifting at the end"))
    if throttled:
        doubts.append(("B", "a device was throttled"))
    worst: Grade = max((grade for grade, _ in doubts), default="A")
    return replace(noise, grade=worst, reasons=tuple(reason for _, reason in doubts))


def _find_doubts(noise: Noise, num_cpus: int, busiest: tuple[str, ...]) -> list[tuple[Grade, str]]:
    others, variation = noise.others_percent, noise.step_variation_percent
    others_per_cpu = None if others is None else others / num_cpus
    blame = f" ({', '.join(busiest)})" if busiest else ""
    steal, quota, memory = noise.steal_percent, noise.quota_percent, noise.memory_pressure_percent
    doubts: list[tuple[Grade, str]] = []
    for percent, (limit_b, limit_c), reason in (
        (steal, STEAL_PERCENT, f"{steal or 0:.1f} % of CPU time was stolen by the hypervisor"),
        (others_per_cpu, OTHERS_PERCENT, f"other processes used {others or 0:.0f} % of one core{blame}"),
        (quota, QUOTA_PERCENT, f"our cgroup's CPU quota stopped us {quota or 0:.1f} % of the time"),
        (memory, MEMORY_PERCENT, f"tasks waited for memory {memory or 0:.1f} % of the time"),
        (variation, VARIATION_PERCENT, f"the step time varies by {variation or 0:.1f} %"),
    ):
        if percent is not None and percent >= limit_b:
            doubts.append(("C" if percent >= limit_c else "B", reason))
    if noise.throttle_events:
        doubts.append(("B", f"the CPU was throttled by heat {noise.throttle_events} times"))
    if others is None:  # an A must be earned
        load = "" if noise.load_before is None else f"; the load before the run was {noise.load_before:.2f}"
        doubts.append(("B", f"the CPU time of other processes was not measured{load}"))
    if variation is not None and variation >= VARIATION_PERCENT[0] and noise.governor not in (None, "performance"):
        doubts.append(("B", f"the CPU governor is {noise.governor}, which varies the clock"))
    return doubts


def _grown(before: int | None, after: int | None) -> int | None:
    """Return a counter's growth; None if unmeasured or if it went backwards (a CPU or a file vanished)."""
    return None if before is None or after is None or after < before else after - before


def _share(before: float | None, after: float | None, whole_seconds: float) -> float | None:
    if before is None or after is None or after < before or whole_seconds < MIN_WINDOW_SECONDS:
        return None
    return min(100.0, 100 * (after - before) / whole_seconds)


def _share_of_time(name: str, before: Pressure, after: Pressure) -> float | None:
    elapsed_seconds = after.monotonic_seconds - before.monotonic_seconds
    return _share(getattr(before, name), getattr(after, name), elapsed_seconds)


def _total_grown(before: Pressure, after: Pressure) -> float:
    return (after.total_cpu_seconds or 0.0) - (before.total_cpu_seconds or 0.0)


def _share_of_others(before: Pressure, after: Pressure) -> float | None:
    """Return the CPU time of processes that are not ours, in percent of one core.

    A PID namespace hides other processes but not their time in /proc/stat. Interrupts belong to nobody: they
    are left out. The kernel rounds the two sources differently, hence never below zero.
    """
    counters = (
        before.process_cpu_seconds,
        after.process_cpu_seconds,
        before.own_cpu_seconds,
        after.own_cpu_seconds,
    )
    elapsed_seconds = after.monotonic_seconds - before.monotonic_seconds
    if elapsed_seconds < MIN_WINDOW_SECONDS or before.num_cpus != after.num_cpus:
        return None
    busy_before, busy_after, own_before, own_after = counters
    if busy_before is None or busy_after is None or own_before is None or own_after is None:
        return None
    if busy_after < busy_before or own_after < own_before:
        return None
    return max(0.0, 100 * (busy_after - busy_before - own_after + own_before) / elapsed_seconds)


def _to_seconds(ticks: int) -> float:
    return ticks / os.sysconf("SC_CLK_TCK")


def _read_load(root: Path) -> float | None:
    match = re.match(r"\d+\.\d+", read_text(root / "proc/loadavg") or "", re.ASCII)
    return float(match[0]) if match else None


def _read_stall_seconds(path: Path) -> float | None:
    """Return the "some ... total=" of a pressure file, which counts microseconds."""
    match = re.search(r"^some .*total=(\d{1,18})$", read_text(path) or "", re.ASCII | re.MULTILINE)
    return int(match[1]) / 1e6 if match else None


def _read_quota_stops(root: Path) -> float | None:
    """Return how long our cgroup, or the ancestor worst off, was stopped for want of CPU quota."""
    stops = []
    for folder in cgroup_folders("cpu", root):
        for key, units_per_second in (("throttled_usec", 1e6), ("throttled_time", 1e9)):  # v2, v1
            stopped = read_keyed_int(folder / "cpu.stat", key)
            stops += [] if stopped is None else [stopped / units_per_second]
    return max(stops, default=None)


def _read_processes(root: Path) -> dict[int, _Process]:
    processes = {}
    for path in root.glob("proc/[0-9]*/stat"):
        match = _PROCESS.match(read_text(path) or "")
        if match:
            pid, parent, user, system, ended_user, ended_system, start = map(int, match.group(1, *range(4, 10)))
            name = "".join(letter if letter.isprintable() else "?" for letter in match[2])
            ticks, ended = user + system, ended_user + ended_system
            processes[pid] = _Process(pid, parent, name, match[3], ticks, ended, start)
    return processes


def _is_ours(process: _Process, processes: Mapping[int, _Process], pids: Collection[int]) -> bool:
    seen = set()
    while process.pid not in pids and process.pid not in seen and process.parent in processes:
        seen.add(process.pid)  # a snapshot of moving things may hold a ring
        process = processes[process.parent]
    return process.pid in pids
