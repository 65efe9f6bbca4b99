"""Whether the kernel killed a process for lack of memory: its counters before and after."""

from pathlib import Path

from trainstone.machine.cpus import cgroup_folders, read_keyed_int

Kills = dict[str, int]
# cgroup v2 and v1.
FILES = ("memory.events", "memory.oom_control")


def count_kills(root: Path = Path("/")) -> Kills:
    """Return the counters of processes killed for memory that can be read: the machine's, our cgroups'."""
    files = [root / "proc/vmstat"]
    files += [folder / name for folder in cgroup_folders("memory", root) for name in FILES]
    counted = {str(file): read_keyed_int(file, "oom_kill") for file in files}
    return {name: number for name, number in counted.items() if number is not None}


def may_be_memory(before: Kills, after: Kills) -> bool:
    """Say whether a SIGKILL in between may have been for memory: a counter rose, or none can be read."""
    known = before.keys() & after.keys()
    return not known or any(after[name] > before[name] for name in known)
