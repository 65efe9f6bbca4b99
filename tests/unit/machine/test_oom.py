"""The kernel's counters of processes killed for memory."""

from pathlib import Path

import pytest

from trainstone.machine.oom import count_kills, may_be_memory


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_counters_of_cgroup_v2_are_read(tmp_path: Path):
    write(tmp_path, "proc/vmstat", "pgfault 1\noom_kill 5\n")
    write(tmp_path, "proc/self/cgroup", "0::/job\n")
    write(tmp_path, "proc/self/mountinfo", "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    write(tmp_path, "sys/fs/cgroup/job/memory.events", "low 0\noom 2\noom_kill 3\n")
    assert sorted(count_kills(tmp_path).values()) == [3, 5]


def test_counters_of_cgroup_v1_are_read(tmp_path: Path):
    write(tmp_path, "proc/self/cgroup", "4:memory:/job\n")
    write(tmp_path, "proc/self/mountinfo", "30 25 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n")
    write(tmp_path, "sys/fs/cgroup/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    assert list(count_kills(tmp_path).values()) == [4]


def test_nothing_to_read(tmp_path: Path):
    write(tmp_path, "proc/vmstat", "oom_kill x\n")
    assert count_kills(tmp_path) == {}


@pytest.mark.parametrize(
    ("before", "after", "memory"),
    [
        ({"a": 1}, {"a": 1}, False),
        ({"a": 1}, {"a": 2}, True),
        ({"a": 1, "b": 1}, {"a": 1, "b": 2}, True),
        ({}, {}, True),
        ({"a": 1}, {"b": 2}, True),
        ({"a": 1, "b": 1}, {"a": 1}, False),
    ],
)
def test_a_kill_is_for_memory_where_a_counter_rose_or_none_can_be_read(before, after, memory):
    assert may_be_memory(before, after) is memory
