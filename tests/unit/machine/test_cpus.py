"""Cores and memory this process may use, on made-up machines: bare metal, cgroup v1 and v2, and broken ones."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_up import make_tree
from trainstone.machine.affinity import read_affinity
from trainstone.machine.cpus import (
    Cores,
    CpuTicks,
    OpenFile,
    available_cores,
    cgroup_folders,
    memory_available_bytes,
    memory_limit_bytes,
    memory_total_bytes,
    parse_cpu_list,
    parse_cpu_ticks,
    read_governor,
    read_text,
)

GIB = 1 << 30
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
STAT = """cpu  400 0 100 1500 0 20 30 50 0 0
cpu0 300 0 50 500 0 10 20 20 0 0
cpu1 100 0 50 1000 0 10 10 30 0 0
intr 12345 0 0
procs_running 3
"""


def make_topology(root: Path, siblings: list[str], name: str = "core_cpus_list") -> Path:
    files = {f"sys/devices/system/cpu/cpu{i}/topology/{name}": f"{text}\n" for i, text in enumerate(siblings)}
    return make_tree(root, files)


SMT_8 = ["0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"]


@pytest.mark.parametrize(
    ("affinity", "logical", "physical"),
    [(range(8), 8, 4), ({0, 4}, 2, 1), ({0, 1, 4}, 3, 2), ({5}, 1, 1)],
)
def test_affinity_is_counted_by_core(tmp_path, affinity, logical, physical):
    root = make_topology(tmp_path, SMT_8)
    assert available_cores(root, affinity) == Cores(logical, physical, None, physical)


def test_kernels_before_5_4_name_the_siblings_otherwise(tmp_path):
    root = make_topology(tmp_path, ["0-1", "0-1"], name="thread_siblings_list")
    assert available_cores(root, {0, 1}).physical == 1


def test_without_topology_physical_is_not_guessed(tmp_path):
    assert available_cores(tmp_path, {0, 1, 2}) == Cores(3, None, None, 3)


def test_one_core_without_topology_leaves_the_count_open(tmp_path):
    root = make_topology(tmp_path, ["0", "garbage"])
    assert available_cores(root, {0, 1}).physical is None


def test_system_without_affinity_asks_psutil(tmp_path):
    cores = available_cores(tmp_path, affinity=())
    assert cores.logical >= 1
    assert 1 <= cores.threads <= cores.logical


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no CPU affinity")
def test_this_machine():
    cores = available_cores()
    assert cores.logical == len(read_affinity()) == len(os.sched_getaffinity(0))
    assert 1 <= cores.threads <= cores.logical


def test_v2_ancestor_sets_the_quota(tmp_path):
    root = make_topology(tmp_path, ["0", "1", "2", "3"])
    make_tree(
        root,
        {
            "proc/self/cgroup": "0::/user.slice/job/step\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/user.slice/job/step/cpu.max": "max 100000\n",
            "sys/fs/cgroup/user.slice/job/cpu.max": "275000 100000\n",
            "sys/fs/cgroup/user.slice/cpu.max": "800000 100000\n",
            "sys/fs/cgroup/other/cpu.max": "1000 100000\n",  # not above us
        },
    )
    assert available_cores(root, range(4)) == Cores(4, 4, 2.75, 2)


def test_v2_container_with_its_own_namespace(tmp_path):
    files = {
        "proc/self/cgroup": "0::/\n",
        "proc/self/mountinfo": V2_MOUNT,
        "sys/fs/cgroup/cpu.max": "50000 100000",
    }
    root = make_tree(make_topology(tmp_path, ["0", "1"]), files)
    assert available_cores(root, {0, 1}) == Cores(2, 2, 0.5, 1)  # never less than one thread


def test_v2_process_outside_its_namespace(tmp_path):
    files = {"proc/self/cgroup": "0::/../../else\n", "sys/fs/cgroup/cpu.max": "300000 100000"}
    root = make_tree(tmp_path, {**files, "sys/else/cpu.max": "1 100000"})
    assert available_cores(root, range(8)).quota_cores == 3.0


def test_v1_docker_mount_shows_only_its_own_group(tmp_path):
    mount = "35 30 0:30 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
    files = {
        "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n",
        "proc/self/mountinfo": mount,
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "50000\n",
    }
    assert available_cores(make_tree(tmp_path, files), range(8)).quota_cores == 3.0


def test_v1_slurm_job_without_mountinfo(tmp_path):
    base = "sys/fs/cgroup/cpu/slurm/uid_7/job_9"
    files = {
        "proc/self/cgroup": "3:cpu:/slurm/uid_7/job_9/step_0\n",
        f"{base}/step_0/cpu.cfs_quota_us": "-1\n",  # no limit
        f"{base}/step_0/cpu.cfs_period_us": "100000\n",
        f"{base}/cpu.cfs_quota_us": "400000\n",
        f"{base}/cpu.cfs_period_us": "100000\n",
    }
    assert available_cores(make_tree(tmp_path, files), range(8)).threads == 4


def test_hybrid_machine_lists_both_hierarchies(tmp_path):
    mounts = (
        "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    )
    files = {"proc/self/cgroup": "4:memory:/api/x\n1:cpu:/\n0::/\n", "proc/self/mountinfo": mounts}
    root = make_tree(tmp_path, files)
    expected = ["memory/api/x", "memory/api", "memory", "unified"]
    assert cgroup_folders("memory", root) == [root / "sys/fs/cgroup" / name for name in expected]


MEMINFO = f"MemTotal: {16 * GIB // 1024} kB\nMemFree: 1 kB\nMemAvailable: {8 * GIB // 1024} kB\n"


def test_memory_of_a_machine_without_cgroups(tmp_path):
    root = make_tree(tmp_path, {"proc/meminfo": MEMINFO})
    assert memory_total_bytes(root) == 16 * GIB
    assert memory_available_bytes(root) == 8 * GIB
    assert memory_limit_bytes(root) is None


def test_v2_memory_counts_droppable_cache_as_free(tmp_path):
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/job/step\n",
        "sys/fs/cgroup/job/step/memory.max": "max\n",
        "sys/fs/cgroup/job/memory.max": f"{4 * GIB}\n",
        "sys/fs/cgroup/job/memory.current": f"{3 * GIB}\n",
        "sys/fs/cgroup/job/memory.stat": f"anon 5\ninactive_file {GIB}\n",
    }
    root = make_tree(tmp_path, files)
    assert memory_limit_bytes(root) == 4 * GIB
    assert memory_available_bytes(root) == 2 * GIB


def test_v1_memory_limit_and_the_number_that_means_none(tmp_path):
    base = "sys/fs/cgroup/memory"
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "4:memory:/docker/abc\n",
        f"{base}/docker/abc/memory.limit_in_bytes": f"{2 * GIB}",
        f"{base}/docker/abc/memory.usage_in_bytes": f"{3 * GIB}",  # may be above for a moment
        f"{base}/memory.limit_in_bytes": "9223372036854771712",
        f"{base}/memory.usage_in_bytes": "5",
    }
    root = make_tree(tmp_path, files)
    assert memory_limit_bytes(root) == 2 * GIB
    assert memory_available_bytes(root) == 0
    (root / base / "docker/abc/memory.limit_in_bytes").write_text("9223372036854771712")
    assert memory_limit_bytes(root) is None
    assert memory_available_bytes(root) == 8 * GIB


@pytest.mark.parametrize(
    "content", ["", "\n", "garbage", "-5", "-5 -5", "max", "1e9", "0 0", "9" * 5000, "\0\0", ":::"]
)
def test_broken_files_mean_not_measured(tmp_path, content):
    names = [
        "cpu.max",
        "cpu.cfs_quota_us",
        "cpu.cfs_period_us",
        "memory.max",
        "memory.current",
        "memory.stat",
    ]
    files = {f"sys/fs/cgroup/{name}": content for name in names}
    files |= {
        "proc/self/cgroup": "0::/\n",
        "proc/self/mountinfo": content,
        "proc/meminfo": f"MemAvailable: {content}",
    }
    root = make_tree(make_topology(tmp_path, [content, content]), files)
    cores = available_cores(root, {0, 1})
    assert (cores.quota_cores, cores.threads, cores.logical) == (None, cores.physical or 2, 2)
    assert memory_available_bytes(root) is None
    make_tree(root, {"proc/self/cgroup": content})
    assert available_cores(root, {0, 1}).quota_cores is None


def test_a_folder_in_place_of_a_file_means_not_measured(tmp_path):
    for name in ("proc/meminfo", "proc/self/cgroup", "sys/devices/system/cpu/cpu0/topology/core_cpus_list"):
        (tmp_path / name).mkdir(parents=True)
    assert available_cores(tmp_path, {0}) == Cores(1, None, None, 1)
    assert memory_available_bytes(tmp_path) is None
    assert read_text(tmp_path / "proc/\0") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", {0}), ("0-2,8", {0, 1, 2, 8}), ("0-1\n", {0, 1}), ("", set()), (None, set()), ("3-1", set())]
    + [(text, set()) for text in ("a", "1,", "0-", "-1", "0-99999999999", "1,x")],
)
def test_cpu_list(text, expected):
    assert parse_cpu_list(text) == expected


@given(st.text())
def test_no_text_breaks_the_parsers(text):
    assert isinstance(parse_cpu_list(text), frozenset)
    assert parse_cpu_ticks(f"cpu {text}", {0}) is None or "cpu" in text


def test_ticks_of_our_cpus_and_of_the_machine():
    assert parse_cpu_ticks(STAT, {1}) == CpuTicks(process=150, interrupt=20, idle=1000, steal=30, num_cpus=1)
    whole = CpuTicks(process=500, interrupt=50, idle=1500, steal=50, num_cpus=2)
    assert parse_cpu_ticks(STAT, {0, 1}) == whole
    assert parse_cpu_ticks(STAT, {0, 7}) == whole  # lxcfs renumbers the CPUs: then the whole machine
    assert parse_cpu_ticks(STAT, ()) == whole
    assert whole.total == 2100


@pytest.mark.parametrize("text", [None, "", "cpu", "cpu  1 2 3\ncpu0 1 2 3", "cpu0 1 2 3 -4 5 6 7 8", "intr 5"])
def test_broken_ticks(text):
    assert parse_cpu_ticks(text, {0}) is None


def test_governors_that_differ_are_all_named(tmp_path):
    names = ("powersave", "performance", "powersave", "")
    files = {f"sys/devices/system/cpu/cpu{i}/cpufreq/scaling_governor": f"{n}\n" for i, n in enumerate(names)}
    assert read_governor(make_tree(tmp_path, files)) == "performance,powersave"
    assert read_governor(tmp_path / "nowhere") is None


def test_open_file_is_read_anew_each_time(tmp_path):
    path = tmp_path / "count"
    path.write_text("5\n")
    file = OpenFile(path)
    assert file.read_int() == 5
    path.write_text("7\n")
    assert file.read_int() == 7
    path.write_text("")
    assert file.read_int() is None
    file.close()
    assert file.read_int() is None  # as after a device that went away
