"""CPU cores (affinity, topology, cgroup quota) and memory (cgroup limit) of this process; out-of-memory kills.

A missing, unreadable or invalid file of /proc or /sys never raises; its value is None.
"""

import math
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# CPUs of this process at its start. With OMP_PROC_BIND set, importing torch binds the main thread to one core, and the
# system then reports only that core. So the command line stores the CPUs in this variable, for child processes too.
GIVEN_CPUS = "TRAINSTONE_CPUS"
CPU_FOLDER = "sys/devices/system/cpu"
MAX_CPU_NUMBER = 65_535  # Linux builds for at most 8192 CPUs
UNLIMITED_BYTES = 1 << 60  # cgroup v1 says "no limit" with a number just below 2**63


@dataclass(frozen=True)
class Cores:
    """CPU cores this process may use; `threads`: number of compute threads to start."""

    logical: int
    physical: int | None
    quota_cores: float | None
    threads: int


@dataclass(frozen=True)
class CpuTicks:
    """CPU time since boot, summed over `num_cpus` CPUs, in clock ticks (see os.sysconf("SC_CLK_TCK"))."""

    process: int  # user + nice + system
    interrupt: int
    idle: int  # idle + waiting for I/O
    steal: int  # time the hypervisor gave to another virtual machine
    num_cpus: int

    @property
    def total(self) -> int:
        return self.process + self.interrupt + self.idle + self.steal


def read_text(path: Path) -> str | None:
    """Return a small file's text without surrounding space, or None if it cannot be read or is empty."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip("\0 \t\r\n") or None
    except (OSError, ValueError):
        return None


def parse_int(text: str | None) -> int | None:
    """Return a count (zero or more), or None; kernel counters are never negative."""
    try:
        value = int(text or "")
    except ValueError:
        return None
    return value if value >= 0 else None


def read_int(path: Path) -> int | None:
    return parse_int(read_text(path))


def read_cpuinfo(root: Path = Path("/")) -> dict[str, str]:
    """Return /proc/cpuinfo's keys with their first value; the values used are the same for all CPUs."""
    info: dict[str, str] = {}
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            info.setdefault(key.strip(), value.strip())
    return info


def parse_cpu_list(text: str | None) -> frozenset[int]:
    """Parse the kernel's "0-3,8" notation; return an empty set for malformed text."""
    cpus: set[int] = set()
    for part in (text or "").split(","):
        first_text, dash, last_text = part.strip().partition("-")
        first = parse_int(first_text)
        last = parse_int(last_text) if dash else first
        if first is None or last is None or last > MAX_CPU_NUMBER:
            return frozenset()
        cpus.update(range(first, last + 1))
    return frozenset(cpus)


def read_siblings(cpu: int, root: Path = Path("/")) -> frozenset[int]:
    """Return the logical CPUs that share a core with `cpu`; empty if unknown."""
    folder = root / CPU_FOLDER / f"cpu{cpu}" / "topology"
    older = folder / "thread_siblings_list"  # before Linux 5.4
    return parse_cpu_list(read_text(folder / "core_cpus_list")) or parse_cpu_list(read_text(older))


def read_governor(root: Path = Path("/")) -> str | None:
    """Return the frequency governor; if CPUs differ, all governors joined by commas."""
    paths = root.glob(f"{CPU_FOLDER}/cpu[0-9]*/cpufreq/scaling_governor")
    return ",".join(sorted({name for path in paths if (name := read_text(path))})) or None


def parse_cpu_ticks(stat_text: str | None, cpus: Collection[int]) -> CpuTicks | None:
    """Sum /proc/stat over `cpus`; over the whole machine if `cpus` is empty or one of them is not listed."""
    rows: dict[str, list[int]] = {}
    for line in (stat_text or "").splitlines():
        if not line.startswith("cpu"):
            break  # the CPU lines come first; the interrupt line after them is long
        name, *fields = line.split()
        ticks = [tick for field in fields[:8] if (tick := parse_int(field)) is not None]
        if len(ticks) == 8:
            rows[name] = ticks
    whole = rows.pop("cpu", None)
    names = {f"cpu{cpu}" for cpu in cpus}
    chosen = [rows[name] for name in names if name in rows]
    if not chosen or len(chosen) < len(names):
        chosen, names = ([whole] if whole else []), set(rows)
    if not chosen or not names:
        return None
    user, nice, system, idle, iowait, irq, softirq, steal = (sum(column) for column in zip(*chosen, strict=True))
    return CpuTicks(user + nice + system, irq + softirq, idle + iowait, steal, len(names))


class OpenFile:
    """A kernel text file that stays open and is read again from its start: no path lookup per sample."""

    def __init__(self, path: Path, size_bytes: int = 4096) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        self._size_bytes = size_bytes

    def read(self) -> str:
        try:
            return os.pread(self._descriptor, self._size_bytes, 0).decode("ascii", "replace")
        except OSError:  # the core was taken offline, or the driver unloaded
            return ""

    def read_int(self) -> int | None:
        return parse_int(self.read())

    def close(self) -> None:
        os.close(self._descriptor)


def remember_affinity() -> None:
    """Store the CPUs this process may use; call it before torch is imported."""
    if hasattr(os, "sched_getaffinity"):
        os.environ[GIVEN_CPUS] = ",".join(str(cpu) for cpu in sorted(os.sched_getaffinity(0)))


def read_affinity(pid: int = 0) -> frozenset[int]:
    """Return the CPUs a process may run on, its cpuset included; empty if the system has no affinity."""
    try:
        if pid in (0, os.getpid()) and GIVEN_CPUS in os.environ:
            return frozenset(int(cpu) for cpu in os.environ[GIVEN_CPUS].split(","))
        return frozenset(os.sched_getaffinity(pid))
    except (AttributeError, OSError, ValueError):
        return frozenset()


def restore_affinity() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, read_affinity())


def available_cores(root: Path = Path("/"), affinity: Collection[int] | None = None) -> Cores:
    """Count the cores this process may use: physical cores of its affinity, limited by its cgroup's CPU quota."""
    cpus = read_affinity() if affinity is None else frozenset(affinity)
    siblings = [read_siblings(cpu, root) for cpu in cpus]
    logical, physical = len(cpus), len(set(siblings)) if all(siblings) else None
    if not cpus:  # macOS, Windows
        import psutil

        logical = psutil.cpu_count() or os.cpu_count() or 1
        physical = psutil.cpu_count(logical=False)
    quotas = []  # in cores, of this cgroup and its ancestors; the lowest counts
    for folder in cgroup_folders("cpu", root):
        quota_text, _, period_text = (read_text(folder / "cpu.max") or "").partition(" ")  # v2: "50000 100000"
        v1 = read_int(folder / "cpu.cfs_quota_us"), read_int(folder / "cpu.cfs_period_us")
        # "max" and -1 mean no limit.
        pairs = ((parse_int(quota_text), parse_int(period_text)), v1)
        quotas += [quota / period for quota, period in pairs if quota and period]
    quota, threads = min(quotas, default=None), physical or logical
    return Cores(logical, physical, quota, max(1, threads if quota is None else min(threads, math.floor(quota))))


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """Return the lowest memory limit that a cgroup sets for this process, or None without one."""
    return min((limit for limit, _ in _read_memory_groups(root)), default=None)


def memory_available_bytes(root: Path = Path("/")) -> int:
    """Return how much memory this process can still allocate without swapping or exceeding its cgroup's limit."""
    import psutil  # not needed for --help

    free = int(psutil.virtual_memory().available)
    return min([free, *(max(0, limit - used) for limit, used in _read_memory_groups(root) if used is not None)])


def _read_memory_groups(root: Path) -> Iterator[tuple[int, int | None]]:
    """Yield (limit, bytes in use) of each cgroup of this process that has a limit.

    Inactive page cache does not count as used, as in the kubelet's "working set"; otherwise a container that has read
    its data set once would look full.
    """
    for folder in cgroup_folders("memory", root):
        for limit_name, usage_name, cache_key in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit = read_int(folder / limit_name)
            if limit is None or limit >= UNLIMITED_BYTES:
                continue
            used = read_int(folder / usage_name)
            cache = read_keyed_int(folder / "memory.stat", cache_key) or 0
            yield limit, None if used is None else max(0, used - cache)


def read_keyed_int(path: Path, key: str) -> int | None:
    found = re.search(rf"^{key} (\d+)$", read_text(path) or "", re.ASCII | re.MULTILINE)
    return int(found[1]) if found else None


def cgroup_folders(controller: str, root: Path = Path("/")) -> list[Path]:
    """Return the folders of this process's cgroup and all ancestors, for v1 and v2; some may not exist.

    The root of the hierarchy is included, because a container may see its own cgroup there.
    """
    folders: list[Path] = []
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if path.startswith("/") and (not controllers or controller in controllers.split(",")):
            group = PurePosixPath("." if ".." in path else path.lstrip("/"))
            # CentOS 7 lists cpuacct,cpu, but its folder is cpu,cpuacct with a link cpu.
            for name in {controllers, controllers and controller}:
                base = root / "sys/fs/cgroup" / name
                folders += [base / group, *(base / parent for parent in group.parents)]
    return folders


def count_oom_kills(root: Path = Path("/")) -> dict[str, int]:
    """Return the readable counters of out-of-memory kills: of the machine and of this process's cgroups."""
    names, groups = ("memory.events", "memory.oom_control"), cgroup_folders("memory", root)
    files = [root / "proc/vmstat", *(folder / name for folder in groups for name in names)]
    counted = {str(file): read_keyed_int(file, "oom_kill") for file in files}
    return {name: number for name, number in counted.items() if number is not None}


def may_be_out_of_memory(before: dict[str, int], after: dict[str, int]) -> bool:
    """Return whether a SIGKILL between two counts may be an out-of-memory kill: a counter rose, or none is readable."""
    known = before.keys() & after.keys()
    return not known or any(after[name] > before[name] for name in known)
