"""Noise before and during a run, from made-up /proc trees: who used the CPU, and what grade that gives."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_up import make_tree
from trainstone.machine.health import (
    Noise,
    Pressure,
    busiest_others,
    grade_noise,
    read_pressure,
    read_throttle_count,
)


def make_process(pid: int, parent: int, ticks: int, name: str = "python", state: str = "S", ended: int = 0) -> str:
    """Return /proc/PID/stat with its CPU time as user time; `ended` is that of children that are gone."""
    return f"{pid} ({name}) {state} {parent} 1 1 0 -1 0 1 2 3 4 {ticks} 0 {ended} 0 20 0 1 0 {pid * 10} 99 1\n"


def make_machine(root: Path, *, user: int, steal: int, processes: list[str], stall: int = 0) -> Path:
    stat = f"cpu  {user} 0 0 9000 0 5 5 {steal} 0 0\ncpu0 {user} 0 0 9000 0 5 5 {steal} 0 0\n"
    files = {
        "proc/stat": stat,
        "proc/loadavg": "0.75 0.50 0.25 1/84 123\n",
        **{f"proc/pressure/{kind}": f"some avg10=0.00 total={stall}\n" for kind in ("cpu", "memory", "io")},
        **{f"proc/{text.split()[0]}/stat": text for text in processes},
    }
    return make_tree(root, files)


def test_snapshot_tells_ours_from_others(tmp_path):
    processes = [
        make_process(1, 0, 500, "init"),
        make_process(100, 1, 200, state="R", ended=50),  # ours
        make_process(101, 100, 30),  # our loader
        make_process(102, 101, 20),  # and its child
        make_process(200, 1, 70, "backup", state="R"),
    ]
    root = make_machine(tmp_path, user=1000, steal=20, processes=processes, stall=2_000_000)
    pressure = read_pressure(root, pids={100}, cpus={0}, now=lambda: 5.0)
    assert pressure.monotonic_seconds == 5.0
    assert pressure.own_cpu_seconds == pytest.approx(3.0)  # 200 + 50 + 30 + 20 ticks
    assert pressure.process_cpu_seconds == pytest.approx(10.0)
    assert pressure.steal_cpu_seconds == pytest.approx(0.2)
    assert pressure.total_cpu_seconds == pytest.approx(100.3)
    assert (pressure.loadavg_1min, pressure.num_cpus, pressure.memory_pressure_seconds) == (0.75, 1, 2.0)
    assert pressure.others == {(1, 10): ("init", 5.0), (200, 2000): ("backup", 0.7)}


def test_all_ranks_of_a_node_can_be_named_ours(tmp_path):
    processes = [make_process(100, 1, 100), make_process(300, 1, 100)]
    root = make_machine(tmp_path, user=200, steal=0, processes=processes)
    assert read_pressure(root, pids={100, 300}, cpus={0}).own_cpu_seconds == pytest.approx(2.0)


def run_between(tmp_path: Path, *, ours: int, theirs: int, steal: int, seconds: float = 10.0) -> Noise:
    """Grade a run of `seconds` on one CPU, in which so many ticks went to us, to others and to the hypervisor."""
    common = {"cpus": {0}, "pids": {100}}
    processes = [make_process(100, 1, 0), make_process(200, 1, 0, "indexer")]
    before = read_pressure(make_machine(tmp_path, user=1000, steal=7, processes=processes), now=lambda: 0.0, **common)
    processes = [make_process(100, 1, ours), make_process(200, 1, theirs, "indexer")]
    root = make_machine(tmp_path, user=1000 + ours + theirs, steal=7 + steal, processes=processes)
    return grade_noise(before, read_pressure(root, now=lambda: seconds, **common), step_variation_percent=0.5)


def test_quiet_machine_is_an_a(tmp_path):
    noise = run_between(tmp_path, ours=960, theirs=1, steal=0)
    assert (noise.grade, noise.reasons) == ("A", ())
    assert noise.others_percent == pytest.approx(0.1)
    assert noise.steal_percent == 0.0
    assert noise.throttle_events is None  # no counters here: not measured, not zero


def test_busy_neighbour_is_named(tmp_path):
    noise = run_between(tmp_path, ours=900, theirs=41, steal=0)
    assert (noise.grade, noise.reasons) == ("B", ("other processes used 4 % of one core (indexer)",))


def test_stolen_time_is_told_with_its_number(tmp_path):
    noise = run_between(tmp_path, ours=949, theirs=0, steal=51)
    assert noise.grade == "C"
    assert noise.reasons == ("5.1 % of CPU time was stolen by the hypervisor",)


def test_too_short_a_run_measures_nothing(tmp_path):
    noise = run_between(tmp_path, ours=9, theirs=0, steal=1, seconds=0.1)
    assert (noise.grade, noise.others_percent, noise.steal_percent) == ("B", None, None)
    assert noise.reasons == ("the CPU time of other processes was not measured; the load before the run was 0.75",)


QUIET = Pressure(
    monotonic_seconds=0.0,
    num_cpus=4,
    total_cpu_seconds=0.0,
    process_cpu_seconds=0.0,
    steal_cpu_seconds=0.0,
    own_cpu_seconds=0.0,
    cpu_pressure_seconds=0.0,
    memory_pressure_seconds=0.0,
    quota_stopped_seconds=0.0,
    throttle_count=3,
    governor="powersave",
)
LATER = replace(
    QUIET, monotonic_seconds=100.0, total_cpu_seconds=400.0, process_cpu_seconds=390.0, own_cpu_seconds=390.0
)


@pytest.mark.parametrize(
    ("change", "grade"),
    [
        ({}, "A"),
        ({"steal_cpu_seconds": 1.9}, "A"),
        ({"steal_cpu_seconds": 2.0}, "B"),
        ({"steal_cpu_seconds": 20.0}, "C"),
        ({"process_cpu_seconds": 401.0}, "A"),  # 11 % of one core is 2.75 % of four
        ({"process_cpu_seconds": 402.1}, "B"),
        ({"process_cpu_seconds": 451.0}, "C"),
        ({"memory_pressure_seconds": 1.0}, "B"),
        ({"memory_pressure_seconds": 10.0}, "C"),
        ({"quota_stopped_seconds": 1.0}, "B"),
        ({"quota_stopped_seconds": 30.0}, "C"),
        ({"cpu_pressure_seconds": 90.0}, "A"),  # our own loader threads cause it as well
        ({"throttle_count": 5}, "B"),
        ({"throttle_count": 2}, "A"),  # a CPU went offline: not measured
        ({"own_cpu_seconds": None}, "B"),  # an A must be earned
        ({"process_cpu_seconds": 380.0}, "A"),  # rounding: ours seems to be more than all
        ({"process_cpu_seconds": -5.0}, "B"),  # a counter that went backwards
    ],
)
def test_thresholds(change, grade):
    noise = grade_noise(QUIET, replace(LATER, **change), step_variation_percent=1.9)
    assert noise.grade == grade
    assert bool(noise.reasons) == (grade != "A")
    assert noise.others_percent is None or noise.others_percent >= 0


@pytest.mark.parametrize(
    ("flags", "grade", "words"),
    [
        ({"step_variation_percent": 2.5}, "B", ["varies by 2.5 %", "governor is powersave"]),
        ({"step_variation_percent": 12.0}, "C", ["varies by 12.0 %"]),
        ({"step_variation_percent": None}, "A", []),
        ({"drifting": True}, "C", ["still drifting"]),
        ({"throttled": True}, "B", ["a device was throttled"]),
        ({"throttled": True, "drifting": True}, "C", ["drifting", "throttled"]),
    ],
)
def test_what_the_run_itself_showed(flags, grade, words):
    noise = grade_noise(QUIET, LATER, **flags)
    assert noise.grade == grade
    assert bool(noise.reasons) == bool(words)
    for word in words:
        assert any(word in reason for reason in noise.reasons), noise.reasons


def test_unmeasured_stays_none():
    noise = grade_noise(Pressure(0.0), Pressure(50.0))
    assert noise == Noise("B", ("the CPU time of other processes was not measured",))


def test_busiest_others_adds_processes_of_one_name():
    before = replace(QUIET, others={(1, 1): ("idle", 100.0), (2, 2): ("cc", 1.0), (4, 4): ("old", 50.0)})
    after = replace(
        LATER,
        others={
            (1, 1): ("idle", 100.5),
            (2, 2): ("cc", 11.0),
            (3, 3): ("cc", 5.0),
            (4, 9): ("new", 20.0),  # same pid, another process
        },
    )
    assert busiest_others(before, after) == ("new", "cc")
    assert busiest_others(before, after, n=1) == ("new",)


@pytest.mark.parametrize("name", ["a) R 1 (b", "{0} {x}", "\x1b[31mred", "new\nline", ""])
def test_hostile_process_names(tmp_path, name):
    processes = [make_process(100, 1, 0), make_process(200, 1, 0, name)]
    root = make_machine(tmp_path, user=0, steal=0, processes=processes)
    before = read_pressure(root, pids={100}, cpus={0}, now=lambda: 0.0)
    processes = [make_process(100, 1, 0), make_process(200, 1, 500, name)]
    root = make_machine(tmp_path, user=500, steal=0, processes=processes)
    after = read_pressure(root, pids={100}, cpus={0}, now=lambda: 10.0)
    noise = grade_noise(before, after)
    assert noise.others_percent == pytest.approx(50.0)
    assert noise.reasons[0].startswith("other processes used 50 % of one core")
    assert noise.reasons[0].isprintable()


def test_ring_of_parents_ends(tmp_path):
    root = make_machine(tmp_path, user=0, steal=0, processes=[make_process(5, 6, 1), make_process(6, 5, 1)])
    assert read_pressure(root, pids={100}, cpus={0}).own_cpu_seconds is None


@pytest.mark.parametrize(
    "content", ["", "garbage", "-1 -1", "some avg10=x total=-5", "cpu0 1 2", "5 (x", "\0", "9" * 5000]
)
def test_broken_files_mean_not_measured(tmp_path, content):
    names = ["stat", "loadavg", "pressure/cpu", "pressure/memory", "pressure/io", "100/stat", "self/cgroup"]
    files = {f"proc/{name}": content for name in names}
    throttle = "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count"
    root = make_tree(tmp_path, {**files, throttle: content})
    assert read_pressure(root, pids={100}, cpus={0}, now=lambda: 1.0) == Pressure(1.0)


def test_missing_files_mean_not_measured(tmp_path):
    assert read_pressure(tmp_path, pids={100}, cpus=(), now=lambda: 1.0) == Pressure(1.0)


@pytest.mark.parametrize(
    ("line", "text"),
    [("0::/job", "nr_periods 5\nthrottled_usec 3000000"), ("1:cpu:/job", "throttled_time 3000000000")],
)
def test_quota_stops(tmp_path, line, text):
    folder = "sys/fs/cgroup/job" if line.startswith("0") else "sys/fs/cgroup/cpu/job"
    root = make_tree(tmp_path, {"proc/self/cgroup": line, f"{folder}/cpu.stat": text})
    assert read_pressure(root, pids={1}, cpus={0}).quota_stopped_seconds == 3.0


def test_throttle_counters_are_summed(tmp_path):
    folder = "sys/devices/system/cpu/cpu{}/thermal_throttle/{}_throttle_count"
    files = {folder.format(0, "core"): "2", folder.format(0, "package"): "3", folder.format(1, "core"): "-1"}
    assert read_throttle_count(make_tree(tmp_path, files)) == 5


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="this system has no /proc")
def test_this_machine():
    before = read_pressure()
    assert before.own_cpu_seconds is not None
    assert before.own_cpu_seconds > 0
    assert before.total_cpu_seconds is not None
    noise = grade_noise(before, replace(read_pressure(), monotonic_seconds=before.monotonic_seconds + 1))
    assert noise.grade in ("A", "B", "C")


counts = st.none() | st.floats(min_value=0, max_value=1e9)


@given(st.lists(counts, min_size=12, max_size=12), st.floats(min_value=-10, max_value=1e6), counts)
def test_grades_hold_for_any_counters(values, elapsed, variation):
    names = ("total_cpu", "process_cpu", "steal_cpu", "own_cpu", "memory_pressure", "quota_stopped")
    before = Pressure(0.0, **{f"{n}_seconds": v for n, v in zip(names, values[:6], strict=True)})
    after = Pressure(elapsed, **{f"{n}_seconds": v for n, v in zip(names, values[6:], strict=True)})
    noise = grade_noise(before, after, step_variation_percent=variation)
    assert (noise.grade == "A") == (not noise.reasons)
    for percent in (noise.steal_percent, noise.memory_pressure_percent, noise.quota_percent):
        assert percent is None or 0 <= percent <= 100
    assert noise.others_percent is None or noise.others_percent >= 0
