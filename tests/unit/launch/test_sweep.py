"""A sweep with real child processes that need no torch: rows, failures, memory, profiles."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from command import ROOT
from made_sweep import count_points, plan_small, run_fake, statuses
from trainstone.errors import ConfigError, DataError, LaunchError, MachineError, RunError
from trainstone.formats.timehistory import format_line, parse_lines, read_timehistory
from trainstone.launch import sweep as launch_sweep
from trainstone.launch.sweep import find_due, is_own_fault, make_command
from trainstone.results.store import read_result


def test_a_whole_sweep(monkeypatch, tmp_path: Path):
    plan = plan_small("1,2,4")
    run = run_fake(monkeypatch, plan, tmp_path)
    result = read_result(run.path)
    assert result.status == "ok"
    assert statuses(result) == {1: "ok", 2: "ok", 4: "ok"}
    assert sorted(row.order for row in result.sweep.rows) == [1, 2, 3]
    assert [row.order for row in result.sweep.rows] == [
        next(p.order for p in plan.points if p.value == value) for value in (1, 2, 4)
    ]
    assert result.verdict.startswith("ResNet-18: no knee up to batch 4: the speed still rises there (66.7 ± 1.0 %")
    assert [point.label for point in result.points] == ["batch 1", "batch 2", "batch 4"]
    assert all((run.path / point.run / "result.json").is_file() for point in result.points)
    assert result.devices[0].images_per_second is None
    assert result.sweep.fits[0].fixed_seconds == pytest.approx(0.02)
    # The first settled the precision for all
    assert result.config["train"]["precision"] == "fp32"
    log = read_timehistory(run.path / "original/throughput_data/batch_4.log")
    assert [(one.first_step, one.last_step) for one in log] == [(0, 10), (10, 20), (20, 30), (30, 40)]
    assert log[0].examples_per_second == pytest.approx(66.67, abs=0.01)
    assert log[0].stamp is not None


def test_out_of_memory_is_a_result_and_larger_ones_are_not_tried(monkeypatch, tmp_path: Path):
    plan = plan_small("1,2,64,128,256")
    full = next(point.value for point in plan.points if point.value >= 64)
    larger = {point.value for point in plan.points if point.value > full}
    run = run_fake(monkeypatch, plan, tmp_path, **{f"batch_{size}": "memory" for size in (64, 128, 256)})
    result = read_result(run.path)
    assert result.status == "ok"
    found = statuses(result)
    assert (found[1], found[2], found[full]) == ("ok", "ok", "out_of_memory")
    assert {value for value, status in found.items() if status == "not_tried"} == larger
    assert count_points(run.path) == 5 - len(larger)
    if larger:
        row = next(row for row in result.sweep.rows if row.status == "not_tried")
        assert row.note == f"batch {full} was out of memory"
    assert [f.code for f in result.findings] == ["out-of-memory"]


def test_memory_ends_each_curve_by_itself(monkeypatch, tmp_path: Path):
    plan = plan_small("1,64", "engine.channels_last=true,false")
    run = run_fake(monkeypatch, plan, tmp_path, batch_64="memory")
    rows = read_result(run.path).sweep.rows
    assert [(row.curve, row.value, row.status) for row in rows] == [
        (True, 1, "ok"),
        (True, 64, "out_of_memory"),
        (False, 1, "ok"),
        (False, 64, "out_of_memory"),
    ]


@pytest.mark.parametrize(("rises", "status"), [(True, "out_of_memory"), (False, "failed"), (None, "out_of_memory")])
def test_a_sigkill_is_memory_where_the_kernel_says_so_or_cannot_be_asked(monkeypatch, tmp_path, rises, status):
    counted = iter(range(100))
    counters = {True: lambda: {"vmstat": next(counted)}, False: lambda: {"vmstat": 7}, None: dict}
    monkeypatch.setattr(launch_sweep, "count_kills", counters[rises])
    run = run_fake(monkeypatch, plan_small("1,2"), tmp_path, batch_2="kill")
    row = read_result(run.path).sweep.rows[1]
    assert row.status == status
    assert "ended by SIGKILL" in row.note
    assert ("not by the kernel for lack of memory" in row.note) is (rises is False)


def test_the_real_counters_clear_the_kernel(monkeypatch, tmp_path: Path):
    from trainstone.machine.oom import count_kills

    if not count_kills():
        pytest.skip("needs readable oom_kill counters")
    run = run_fake(monkeypatch, plan_small("1,2"), tmp_path, batch_2="kill")
    assert statuses(read_result(run.path)) == {1: "ok", 2: "failed"}


def test_another_failure_is_a_row_and_the_sweep_goes_on(monkeypatch, tmp_path: Path):
    run = run_fake(monkeypatch, plan_small("1,2,4"), tmp_path, batch_2="loss")
    result = read_result(run.path)
    assert result.status == "ok"
    assert statuses(result) == {1: "ok", 2: "failed", 4: "ok"}
    assert result.sweep.rows[1].note == "the loss of step 3 is nan"
    assert result.sweep.rows[1].exit_code == 6
    failed = next(f for f in result.findings if f.code == "child-failed")
    assert failed.message == "1 of 3 points failed: batch 2: the loss of step 3 is nan"


def test_a_wrong_recipe_ends_the_sweep_at_its_first_point(monkeypatch, tmp_path: Path):
    plan = plan_small("1,2,4")
    with pytest.raises(ConfigError, match="the recipe is nonsense"):
        run_fake(monkeypatch, plan, tmp_path, **{f"batch_{size}": "config" for size in (1, 2, 4)})
    (path,) = tmp_path.iterdir()
    assert read_result(path).status == "failed"
    assert count_points(path) == 1


def test_a_value_that_the_recipe_cannot_have_is_its_points_fault(monkeypatch, tmp_path: Path):
    plan = plan_small("1,2")
    first = plan.points[0].value
    run = run_fake(monkeypatch, plan, tmp_path, **{f"batch_{first}": "own"})
    assert statuses(read_result(run.path)) == {first: "failed", 3 - first: "ok"}


@pytest.mark.parametrize(("happens", "error"), [("memory", RunError), ("loss", RunError), ("kill", LaunchError)])
def test_without_any_number_the_sweep_fails_as_its_points_did(monkeypatch, tmp_path, happens, error):
    monkeypatch.setattr(launch_sweep, "count_kills", lambda: {"vmstat": 7})
    with pytest.raises(error, match="no point has a number"):
        run_fake(monkeypatch, plan_small("1,2"), tmp_path, batch_1=happens, batch_2=happens)
    (path,) = tmp_path.iterdir()
    result = read_result(path)
    assert result.status == "failed"
    assert result.verdict is None


def test_a_fault_of_all_points_ends_a_sweep_over_any_key_at_its_first_point(monkeypatch, tmp_path: Path):
    plan = plan_small(None, "seed=1,2,3")
    with pytest.raises(DataError, match="no data set in /nowhere/seed of any seed"):
        run_fake(monkeypatch, plan, tmp_path, batch_auto="data")
    (path,) = tmp_path.iterdir()
    assert read_result(path).status == "failed"
    assert count_points(path) == 1


@pytest.mark.parametrize("key", ["train.precision=bf16,fp32", "train.precision=fp32,bf16"])
def test_a_precision_that_this_machine_lacks_is_its_points_fault(monkeypatch, tmp_path: Path, key: str):
    run = run_fake(monkeypatch, plan_small(None, key), tmp_path, bf16="machine")
    assert statuses(read_result(run.path)) == {"fp32": "ok", "bf16": "failed"}


@pytest.mark.parametrize(
    ("over", "exit_code", "message", "own"),
    [
        ("seed=1,2", 2, "seed = 1 is odd", True),
        ("seed=1,2", 3, "no picture in /data/seed = x", False),
        ("seed=1,2", 4, "there is no GPU", False),
        ("model.depth=18,34", 2, "the weights do not fit to model.depth 18", True),
        ("model.depth=18,34", 2, "model.depth_of = 3", False),
        ("engine.compile=true,false", 4, "there is no compiler", True),
        ("engine.compile=true,false", 3, "there are no pictures", False),
        ("device=cpu,cuda", 4, "there is no GPU", True),
    ],
)
def test_whose_fault_it_is(over: str, exit_code: int, message: str, own: bool):
    assert is_own_fault(plan_small(None, over).sweep, exit_code, message) is own
    # As the second key, too
    assert is_own_fault(plan_small("1,2", over).sweep, exit_code, message) is own


@pytest.mark.parametrize(
    ("over", "found"),
    [
        ("data.image_size=64,96", {64: "out_of_memory", 96: "not_tried"}),
        ("train.accumulate=1,2", {1: "out_of_memory", 2: "out_of_memory"}),  # more of it is no more at once
        ("seed=1,2", {1: "out_of_memory", 2: "out_of_memory"}),
    ],
)
def test_memory_skips_what_is_larger_only_where_larger_takes_memory(
    monkeypatch, tmp_path: Path, over: str, found: dict
):
    plan = plan_small(None, over)
    rising = replace(plan, points=tuple(sorted(plan.points, key=lambda point: point.value)))
    with pytest.raises(RunError, match="no point has a number"):
        run_fake(monkeypatch, rising, tmp_path, batch_auto="memory")
    (path,) = tmp_path.iterdir()
    assert statuses(read_result(path)) == found


def test_a_real_time_signal_has_a_number_only(monkeypatch, tmp_path: Path):
    run = run_fake(monkeypatch, plan_small("1,2"), tmp_path, batch_2="real-time")
    row = read_result(run.path).sweep.rows[1]
    assert (row.status, row.note) == ("failed", "ended by signal 40")


def test_core_counters_that_could_not_be_read_leave_a_word(monkeypatch, tmp_path: Path):
    run = run_fake(monkeypatch, plan_small("1,2", cores=True), tmp_path, profile_2="no counters")
    result = read_result(run.path)
    assert [(row.note, row.cores_percent) for row in result.sweep.rows] == [
        ("", {"fma": 17.5}),
        ("no core counters: forbidden", {}),
    ]
    assert [(f.code, f.message) for f in result.findings] == [
        ("not-measured", "1 of 2 profiles: core utilisation: forbidden")
    ]


def test_profiles_are_taken_right_after_their_bench(monkeypatch, tmp_path: Path):
    run = run_fake(monkeypatch, plan_small("1,2,4", profile=True), tmp_path, profile_2="loss")
    result = read_result(run.path)
    rows = {row.value: row for row in result.sweep.rows}
    assert rows[1].compute_utilisation == rows[4].compute_utilisation == 0.9
    assert (rows[2].status, rows[2].profile, rows[2].compute_utilisation) == ("ok", "failed", None)
    assert [f.code for f in result.findings] == ["profile-failed"]
    assert "no profile of batch 2: the loss of step 3 is nan" in result.findings[0].message
    kinds = [
        read_result(path).kind for path in sorted((run.path / "points").iterdir(), key=lambda p: p.stat().st_mtime)
    ]
    assert kinds == ["bench", "profile"] * 3
    assert "batch 4, profile" in [point.label for point in result.points]


def test_core_use_is_taken_over_and_its_file_put_where_the_original_had_it(monkeypatch, tmp_path: Path):
    run = run_fake(monkeypatch, plan_small("1,2", cores=True), tmp_path)
    assert [row.cores_percent for row in read_result(run.path).sweep.rows] == [{"fma": 17.5}] * 2
    for size in (1, 2):
        assert (run.path / f"original/profiled_data_ncu/batch_{size}.csv").read_text() == "of ncu"


def test_a_machine_that_cannot_be_profiled_ends_the_sweep_at_once(monkeypatch, tmp_path: Path):
    plan = plan_small("1,2", cores=True)
    first, second = (point.value for point in plan.points)
    with pytest.raises(MachineError, match="there is no ncu"):
        run_fake(monkeypatch, plan, tmp_path, **{f"profile_{first}": "machine"})
    (path,) = tmp_path.iterdir()
    result = read_result(path)
    assert (result.status, statuses(result)) == ("failed", {first: "ok"})
    assert find_due(path, result, plan) == {f"batch {first}": ["profile"], f"batch {second}": ["bench", "profile"]}
    # Later it is one profile less
    other = run_fake(monkeypatch, plan, tmp_path / "other", **{f"profile_{second}": "machine"})
    assert read_result(other.path).status == "ok"


def test_the_line_in_the_docs_is_as_the_code_writes_it():
    page = (ROOT / "docs/from/tbd.md").read_text()
    (line,) = [line for line in page.splitlines() if "TimeHistory: " in line]
    (interval,) = parse_lines([line])
    when = datetime.strptime(f"2026{interval.stamp}", "%Y%m%d %H:%M:%S.%f")
    assert line == format_line(interval, when, 4711)


def test_commands_argv_for_argv():
    plan = plan_small(cores=True, strict=True)
    tail = ["x.toml", "--out", "points", "--strict"]
    assert make_command("bench", Path("x.toml"), Path("points"), plan)[-5:] == ["bench", *tail]
    assert make_command("profile", Path("x.toml"), Path("points"), plan)[-6:] == ["profile", *tail, "--cores"]
