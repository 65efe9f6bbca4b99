"""Usable cores and memory on fake machines (bare metal, cgroup v1 and v2, broken files); glibc settings; page cache."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from support.builders.machines import make_tree
from trainstone.machine import allocator, cpus, page_cache
from trainstone.machine.allocator import KEEP_TUNABLES, add_tunables, describe_allocator, keeps_memory
from trainstone.machine.cpus import (
    Cores,
    CpuTicks,
    available_cores,
    count_oom_kills,
    may_be_out_of_memory,
    memory_available_bytes,
    memory_limit_bytes,
    parse_cpu_list,
    parse_cpu_ticks,
    read_affinity,
)

GIB = 1 << 30
V1_NONE = "9223372036854771712"  # "no limit"
STAT = """cpu  400 0 100 1500 0 20 30 50 0 0
cpu0 300 0 50 500 0 10 20 20 0 0
cpu1 100 0 50 1000 0 10 10 30 0 0
intr 12345 0 0
procs_running 3
"""
SMT_8 = ["0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"]


def make_topology(root: Path, siblings: list[str], name: str = "core_cpus_list") -> Path:
    files = {f"sys/devices/system/cpu/cpu{i}/topology/{name}": f"{text}\n" for i, text in enumerate(siblings)}
    return make_tree(root, files)


@pytest.mark.parametrize(
    ("siblings", "name", "affinity", "expected"),
    [
        (SMT_8, "core_cpus_list", range(8), Cores(8, 4, None, 4)),
        (SMT_8, "core_cpus_list", {0, 4}, Cores(2, 1, None, 1)),
        (SMT_8, "core_cpus_list", {0, 1, 4}, Cores(3, 2, None, 2)),
        (["0-1", "0-1"], "thread_siblings_list", {0, 1}, Cores(2, 1, None, 1)),  # kernels before 5.4
        ([], "", {0, 1, 2}, Cores(3, None, None, 3)),  # unknown without topology
        (["0", "garbage"], "core_cpus_list", {0, 1}, Cores(2, None, None, 2)),
    ],
)
def test_available_cores_counts_physical_cores_of_the_affinity(tmp_path, siblings, name, affinity, expected):
    assert available_cores(make_topology(tmp_path, siblings, name), affinity) == expected


def make_group(root: Path, line: str, files: dict[str, str]) -> Path:
    """Create a machine whose process is in the cgroup of a line of /proc/self/cgroup."""
    return make_tree(root, {"proc/self/cgroup": line, **{f"sys/fs/cgroup/{name}": files[name] for name in files}})


PERIOD = "cpu.cfs_period_us"
JOB = "cpu/slurm/job_9"


@pytest.mark.parametrize(
    ("line", "files", "quota", "threads"),
    [
        (  # v2: an ancestor sets the quota; other groups do not count
            "0::/user.slice/job/step\n",
            {
                "user.slice/job/step/cpu.max": "max 100000\n",
                **{"user.slice/job/cpu.max": "275000 100000\n", "user.slice/cpu.max": "800000 100000\n"},
                "other/cpu.max": "1000 100000\n",
            },
            *(2.75, 2),
        ),
        # v2: a container with its own namespace; at least one thread
        ("0::/\n", {"cpu.max": "50000 100000"}, 0.5, 1),
        # v2: a process outside its namespace
        ("0::/../../else\n", {"cpu.max": "300000 100000", "../../else/cpu.max": "1 100000"}, 3.0, 3),
        (  # v1: docker mounts only its own group
            "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n",
            {"cpu,cpuacct/cpu.cfs_quota_us": "150000\n", f"cpu,cpuacct/{PERIOD}": "50000\n"},
            *(3.0, 3),
        ),
        (  # v1: a Slurm job on CentOS 7; -1 means no limit
            "3:cpuacct,cpu:/slurm/job_9/step_0\n",
            {
                **{f"{JOB}/step_0/cpu.cfs_quota_us": "-1\n", f"{JOB}/step_0/{PERIOD}": "100000\n"},
                **{f"{JOB}/cpu.cfs_quota_us": "400000\n", f"{JOB}/{PERIOD}": "100000\n"},
            },
            *(4.0, 4),
        ),
    ],
)
def test_available_cores_uses_the_lowest_cpu_quota(tmp_path, line, files, quota, threads):
    assert available_cores(make_group(tmp_path, line, files), range(8)) == Cores(8, None, quota, threads)


V1 = "memory/docker/abc/memory"


@pytest.mark.parametrize(
    ("line", "files", "limit", "available"),
    [
        ("", {}, None, 8 * GIB),
        (  # v2: inactive page cache counts as free
            "0::/job/step\n",
            {
                **{"job/step/memory.max": "max\n", "job/memory.max": f"{4 * GIB}\n"},
                **{"job/memory.current": f"{3 * GIB}\n", "job/memory.stat": f"anon 5\ninactive_file {GIB}\n"},
            },
            *(4 * GIB, 2 * GIB),
        ),
        (  # v1: usage may exceed the limit for a moment
            "4:memory:/docker/abc\n",
            {
                **{f"{V1}.limit_in_bytes": f"{2 * GIB}", f"{V1}.usage_in_bytes": f"{3 * GIB}"},
                **{"memory/memory.limit_in_bytes": V1_NONE, "memory/memory.usage_in_bytes": "5"},
            },
            *(2 * GIB, 0),
        ),
    ],
)
def test_memory_limit_and_available_use_the_lowest_cgroup_limit(tmp_path, monkeypatch, line, files, limit, available):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=8 * GIB))
    root = make_group(tmp_path, line, files)
    assert memory_limit_bytes(root) == limit
    assert memory_available_bytes(root) == available


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", {0}), ("0-2,8", {0, 1, 2, 8}), ("0-1\n", {0, 1}), ("", set()), (None, set()), ("3-1", set())]
    + [(text, set()) for text in ("a", "1,", "0-", "-1", "0-99999999999", "1,x")],
)
def test_parse_cpu_list_returns_cpus_or_an_empty_set(text, expected):
    assert parse_cpu_list(text) == expected


WHOLE = CpuTicks(process=500, interrupt=50, idle=1500, steal=50, num_cpus=2)


@pytest.mark.parametrize(
    ("text", "cpu_set", "expected"),
    [
        (STAT, {1}, CpuTicks(process=150, interrupt=20, idle=1000, steal=30, num_cpus=1)),
        (STAT, {0, 1}, WHOLE),
        (STAT, {0, 7}, WHOLE),  # lxcfs renumbers the CPUs: then the whole machine
        (STAT, (), WHOLE),
        *((text, {0}, None) for text in (None, "", "cpu", "cpu  1 2 3\ncpu0 1 2 3", "cpu0 1 2 3 -4 5 6 7 8", "intr 5")),
    ],
)
def test_parse_cpu_ticks_sums_given_cpus_or_the_whole_machine(text, cpu_set, expected):
    assert parse_cpu_ticks(text, cpu_set) == expected
    assert WHOLE.total == 2100


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no CPU affinity")
def test_read_affinity_returns_the_stored_cpus_and_restore_affinity_sets_them(monkeypatch: pytest.MonkeyPatch):
    given = os.sched_getaffinity(0)
    assert read_affinity() == given  # nothing stored
    monkeypatch.setenv(cpus.GIVEN_CPUS, "77")
    assert read_affinity() == {77}
    assert read_affinity(os.getppid()) == os.sched_getaffinity(os.getppid())  # the variable is only for this process
    monkeypatch.setenv(cpus.GIVEN_CPUS, "")
    cpus.remember_affinity()
    try:
        os.sched_setaffinity(0, {min(given)})  # what OpenMP does to the main thread
        assert read_affinity() == given
        cpus.restore_affinity()
        assert os.sched_getaffinity(0) == given
    finally:
        os.sched_setaffinity(0, given)


@pytest.mark.parametrize(
    ("line", "files", "kills"),
    [
        (
            "0::/job\n",
            {"../../../proc/vmstat": "pgfault 1\noom_kill 5\n", "job/memory.events": "low 0\noom 2\noom_kill 3\n"},
            [3, 5],
        ),
        ("4:memory:/job\n", {"memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"}, [4]),
        ("", {"../../../proc/vmstat": "oom_kill x\n"}, []),
    ],
)
def test_count_oom_kills_reads_vmstat_and_cgroups(tmp_path, line, files, kills):
    assert sorted(count_oom_kills(make_group(tmp_path, line, files)).values()) == kills
    assert not may_be_out_of_memory({"a": 1, "b": 1}, {"a": 1})
    assert may_be_out_of_memory({"a": 1, "b": 1}, {"a": 1, "b": 2})
    assert may_be_out_of_memory({"a": 1}, {"b": 2})  # no counter is in both


def test_add_tunables_keeps_tunables_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    setting = tmp_path / "enabled"
    monkeypatch.setattr(allocator, "PAGE_SETTING", setting)
    environment = add_tunables({"A": "1"})
    assert (environment["GLIBC_TUNABLES"], environment["A"]) == (":".join(KEEP_TUNABLES), "1")
    assert keeps_memory(environment)
    assert "keeps freed memory" in describe_allocator(environment)
    user_set = add_tunables({"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1:glibc.malloc.check=3"})
    tunables = ["glibc.malloc.mmap_threshold=1", "glibc.malloc.check=3", KEEP_TUNABLES[1]]
    assert user_set["GLIBC_TUNABLES"].split(":") == tunables
    assert not keeps_memory(user_set)  # the user's value is too small
    assert not keeps_memory({})
    for text, requested in (("always [madvise] never", True), ("[always] madvise never", False)):
        setting.write_text(f"{text}\n")
        assert ("glibc.malloc.hugetlb=1" in add_tunables({})["GLIBC_TUNABLES"]) == requested
    assert "default, LD_PRELOAD=libjemalloc.so" in describe_allocator({"LD_PRELOAD": "libjemalloc.so"})


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_restart_keeping_memory_restarts_once_and_keeps_arguments():
    code = (
        "import os, sys\nfrom trainstone.machine.allocator import restart_keeping_memory, keeps_memory\n"
        "print('start', flush=True)\nrestart_keeping_memory()\nprint(os.getpid(), keeps_memory(), sys.argv[1:])"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("GLIBC_TUNABLES", "TRAINSTONE_RESTARTED")}
    child = subprocess.Popen(
        [sys.executable, "-c", code, "x y", "--z"], stdout=subprocess.PIPE, text=True, env=environment
    )
    out, _ = child.communicate()
    assert out.splitlines() == ["start", "start", f"{child.pid} True ['x y', '--z']"]


def test_keep_small_memory_keeps_a_freed_block():
    """The process keeps a freed block of 30 MB, which glibc returns to the kernel by default."""
    code = (
        "import psutil\nfrom trainstone.machine.allocator import keep_small_memory\nkeep_small_memory()\n"
        "before = psutil.Process().memory_info().rss\nblock = b'x' * (30 << 20)\ndel block\n"
        "print(psutil.Process().memory_info().rss - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    if platform.libc_ver()[0] == "glibc":
        assert int(done.stdout) > 25 << 20


def test_clear_page_cache_writes_the_switch_and_describes_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    switch = tmp_path / "drop_caches"
    monkeypatch.setattr(page_cache, "SWITCH", switch)
    monkeypatch.setattr(page_cache.os, "sync", lambda: None)
    done, message, at_seconds = page_cache.clear_page_cache()
    assert (done, message, switch.read_text()) == (True, "page cache cleared", "3")
    assert at_seconds is not None
    switch.unlink()
    switch.mkdir()
    cleared = page_cache.clear_page_cache()
    assert not cleared.done
    assert cleared.message.endswith(f"{switch}: Is a directory")
