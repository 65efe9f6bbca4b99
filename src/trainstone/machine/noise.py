"""Grade how quiet the machine was during a run, from a snapshot before and one after it.

Reads /proc and /sys twice per run; changes no setting and times no step. Facts about the machine are in facts.py.
"""

import math
import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from trainstone.machine import cpus as kernel
from trainstone.machine.cpus import read_affinity, read_int, read_text
from trainstone.text import printable

Grade = Literal["A", "B", "C"]

# Limits in percent: B from the first, C from the second. Below the first, a 1 % interval does not change visibly.
STEAL_PERCENT = (0.5, 5.0)  # of the CPU time; a dedicated core shows 0.0 to 0.2, a crowded host 5 and more
OTHERS_PERCENT = (3.0, 15.0)  # of the CPUs this process may use; an idle desktop or a monitoring agent uses 1 to 2
VARIATION_PERCENT = (2.0, 10.0)  # robust spread of steps; pyperf calls 10 unstable, TorchBench 7
MEMORY_PERCENT = (1.0, 10.0)  # of the time a task waited for memory: swap, or a cgroup at its limit
QUOTA_PERCENT = (1.0, 10.0)  # of the time, the cgroup was stopped because its CPU quota was used up
MIN_WINDOW_SECONDS = 0.5  # /proc/stat counts in hundredths of a second: a shorter window is too coarse


@dataclass(frozen=True)
class Pressure:
    """A snapshot of the machine's load."""

    monotonic_seconds: float
    num_cpus: int | None = None
    loadavg_1min: float | None = None
    counters: Mapping[str, float] = field(default_factory=dict)
    """Counters that only grow; a missing one was not measured. total, process, steal, own: CPU seconds since boot,
    summed over CPUs of the run; cpu, memory, io: seconds tasks waited; quota: seconds stopped; throttles: events."""
    governor: str | None = None
    others: Mapping[tuple[int, int], tuple[str, float]] = field(default_factory=dict, repr=False)
    """CPU seconds of each process outside the run: (pid, start time) -> (name, seconds)."""


@dataclass(frozen=True)
class Noise:
    """How quiet the machine was. A: quiet; B: usable with care; C: do not publish the result. None: not measured."""

    grade: Grade
    reasons: tuple[str, ...]
    steal_percent: float | None = None
    others_percent: float | None = None  # of one core
    pressure_percent: float | None = None  # of the time a task waited for a CPU, this run's tasks included
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
    ticks: int
    ended_children_ticks: int
    start: int


def read_pressure(
    root: Path = Path("/"),
    *,
    pids: Collection[int] | None = None,
    cpus: Collection[int] | None = None,
    now: Callable[[], float] = time.monotonic,
) -> Pressure:
    """Take a snapshot. `pids` and their descendants belong to the run: pass all ranks, or the launcher."""
    pids = {os.getpid()} if pids is None else pids
    if cpus is None:
        cpus = frozenset[int]().union(*(read_affinity(pid) for pid in pids))
    ticks = kernel.parse_cpu_ticks(read_text(root / "proc/stat"), cpus)
    processes = _read_processes(root)
    own_pids = set(pids)
    while children := {process.pid for process in processes.values() if process.parent in own_pids} - own_pids:
        own_pids |= children
    own = {process for process in processes.values() if process.pid in own_pids}
    paths = root.glob(f"{kernel.CPU_FOLDER}/cpu[0-9]*/thermal_throttle/*_throttle_count")
    throttles = [count for path in paths if (count := read_int(path)) is not None]
    load = re.match(r"\d+\.\d+", read_text(root / "proc/loadavg") or "", re.ASCII)
    spent = {"total": ticks.total, "process": ticks.process, "steal": ticks.steal} if ticks else {}
    spent |= {"own": sum(process.ticks + process.ended_children_ticks for process in own)} if own else {}
    counters = {name: _to_seconds(count) for name, count in spent.items()}
    for kind in ("cpu", "memory", "io"):  # the "some ... total=" of a pressure file counts microseconds
        text = read_text(root / "proc/pressure" / kind) or ""
        if match := re.search(r"^some .*total=(\d{1,18})$", text, re.ASCII | re.MULTILINE):
            counters[kind] = int(match[1]) / 1e6
    stops = [  # seconds, of this cgroup and its ancestors; the highest counts
        stopped / units_per_second
        for folder in kernel.cgroup_folders("cpu", root)
        for key, units_per_second in (("throttled_usec", 1e6), ("throttled_time", 1e9))  # v2, v1
        if (stopped := kernel.read_keyed_int(folder / "cpu.stat", key)) is not None
    ]
    counters |= {"quota": max(stops)} if stops else {}
    counters |= {"throttles": sum(throttles)} if throttles else {}
    return Pressure(
        monotonic_seconds=now(),
        num_cpus=ticks.num_cpus if ticks else None,
        loadavg_1min=float(load[0]) if load else None,
        counters=counters,
        governor=kernel.read_governor(root),
        others={(p.pid, p.start): (p.name, _to_seconds(p.ticks)) for p in processes.values() if p not in own},
    )


def busiest_others(before: Pressure, after: Pressure) -> tuple[str, ...]:
    """Return the names of the three other processes that used the most CPU, at least 1 % of a core each."""
    used: dict[str, float] = {}
    for key, (name, seconds) in after.others.items():
        used[name] = used.get(name, 0.0) + seconds - before.others.get(key, (name, 0.0))[1]
    floor = 0.01 * (after.monotonic_seconds - before.monotonic_seconds)
    return tuple(name for name in sorted(used, key=lambda name: -used[name])[:3] if used[name] > floor)


def grade_noise(
    before: Pressure,
    after: Pressure,
    *,
    step_variation_percent: float | None = None,
    drifting: bool = False,
    throttled: bool = False,
) -> Noise:
    """Grade the noise between two snapshots.

    `step_variation_percent`: robust spread (1.4826 MAD / median) of the steady steps. `drifting`: no steady state was
    reached. `throttled`: telemetry shows that heat or a power brake limited a device.
    """
    elapsed_seconds = after.monotonic_seconds - before.monotonic_seconds
    grown = {
        name: count - before.counters[name]
        for name, count in after.counters.items()
        if count >= before.counters.get(name, math.inf)  # smaller: a CPU or a file disappeared
    }

    def share(name: str, of_seconds: float = elapsed_seconds) -> float | None:
        if name not in grown or of_seconds < MIN_WINDOW_SECONDS:
            return None
        return min(100.0, 100 * grown[name] / of_seconds)

    others_percent = None
    measured = elapsed_seconds >= MIN_WINDOW_SECONDS and {"process", "own"} <= grown.keys()
    if measured and before.num_cpus == after.num_cpus:
        # A PID namespace hides other processes, but not their time in /proc/stat. Interrupts are not counted. The
        # kernel rounds the two sources differently, so the difference may be below zero.
        others_percent = max(0.0, 100 * (grown["process"] - grown["own"]) / elapsed_seconds)
    noise = Noise(
        grade="A",
        reasons=(),
        steal_percent=share("steal", grown.get("total", 0.0)),
        others_percent=others_percent,
        pressure_percent=share("cpu"),
        memory_pressure_percent=share("memory"),
        io_pressure_percent=share("io"),
        quota_percent=share("quota"),
        step_variation_percent=step_variation_percent,
        throttle_events=int(grown["throttles"]) if "throttles" in grown else None,
        load_before=before.loadavg_1min,
        governor=after.governor,
    )
    warnings = _find_warnings(noise, before.num_cpus or 1, busiest_others(before, after))
    if drifting:
        warnings.append(("C", "the speed was still drifting at the end"))
    if throttled:
        warnings.append(("B", "a device was throttled"))
    worst: Grade = max((grade for grade, _ in warnings), default="A")
    return replace(noise, grade=worst, reasons=tuple(reason for _, reason in warnings))


def _find_warnings(noise: Noise, num_cpus: int, busiest: tuple[str, ...]) -> list[tuple[Grade, str]]:
    others, variation = noise.others_percent, noise.step_variation_percent
    others_per_cpu = None if others is None else others / num_cpus
    names = f" ({', '.join(busiest)})" if busiest else ""
    steal, quota, memory = noise.steal_percent, noise.quota_percent, noise.memory_pressure_percent
    warnings: list[tuple[Grade, str]] = []
    for percent, (limit_b, limit_c), reason in (
        (steal, STEAL_PERCENT, f"{steal or 0:.1f} % of CPU time was stolen by the hypervisor"),
        (others_per_cpu, OTHERS_PERCENT, f"other processes used {others or 0:.0f} % of one core{names}"),
        (quota, QUOTA_PERCENT, f"the cgroup's CPU quota stopped the run {quota or 0:.1f} % of the time"),
        (memory, MEMORY_PERCENT, f"tasks waited for memory {memory or 0:.1f} % of the time"),
        (variation, VARIATION_PERCENT, f"the step time varies by {variation or 0:.1f} %"),
    ):
        if percent is not None and percent >= limit_b:
            warnings.append(("C" if percent >= limit_c else "B", reason))
    if noise.throttle_events:
        warnings.append(("B", f"the CPU was throttled by heat {noise.throttle_events} times"))
    if others is None:  # unmeasured noise never gets an A
        load = "" if noise.load_before is None else f"; the load average before the run was {noise.load_before:.2f}"
        warnings.append(("B", f"the CPU time of other processes was not measured{load}"))
    if variation is not None and variation >= VARIATION_PERCENT[0] and noise.governor not in (None, "performance"):
        warnings.append(("B", f"the CPU governor is {noise.governor}, which varies the clock rate"))
    return warnings


def _to_seconds(ticks: int) -> float:
    return ticks / os.sysconf("SC_CLK_TCK")


def _read_processes(root: Path) -> dict[int, _Process]:
    processes = {}
    for path in root.glob("proc/[0-9]*/stat"):
        # The name in brackets may contain brackets, spaces and control characters.
        before, _, after = (read_text(path) or "").rpartition(") ")
        pid, _, name = before.partition(" (")
        try:
            numbers = [int(field) for field in after.split()[1:20]]  # fields from the parent on: man 5 proc_pid_stat
            ticks, ended = sum(numbers[10:12]), sum(numbers[12:14])  # user + system; the same of ended children
            processes[int(pid)] = _Process(int(pid), numbers[0], printable(name), ticks, ended, numbers[18])
        except (ValueError, IndexError):
            continue
    return processes
