"""Sweep: flags become checked points in shuffled order; rows, failures, memory and profiles of real child processes.

The child processes do not import torch.
"""

import json
import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from support.builders.results import change_result
from support.builders.sweeps import count_points, plan_small, run_fake, statuses
from support.processes.command import ROOT
from trainstone.cli.sweep import check_resumable
from trainstone.config.load import load_config
from trainstone.errors import ConfigError, DataError, LaunchError, ResultError, RunError
from trainstone.flows.sweep import run as launch_sweep
from trainstone.flows.sweep.plan import (
    BATCH_SIZES,
    SweepPlan,
    apply_resolved,
    configure_point,
    name_files,
    parse_over,
    plan_from_flags,
    resume_plan,
)
from trainstone.flows.sweep.run import find_due
from trainstone.formats.timehistory import format_line, parse_lines, read_timehistory
from trainstone.results.run_folder import RunFolder, read_result, reopen_run
from trainstone.results.schema.run import Result

CONFIG = load_config("resnet50")


@pytest.mark.parametrize(
    ("rest", "values"),
    [
        ("1,2,4", [1, 2, 4]),
        ("[0.1,1],[0.5,1]", [[0.1, 1], [0.5, 1]]),
        ("'a,b',\"c,d\"", ["a,b", "c,d"]),
        (" fp32 , bf16 ", ["fp32", "bf16"]),
    ],
)
def test_parse_over_accepts_toml_or_words(rest: str, values: list):
    assert parse_over(f"augment.area={rest}") == ("augment.area", values)


BAD_SIZES = ("", ",", "1,", "a", "0", "-1", "1.5", "auto", "1;2", "9" * 5000, "1" + "0" * 9)


@pytest.mark.parametrize(
    ("sizes", "over", "words"),
    [
        *((sizes, None, "expected whole numbers above 0 and below 1,000,000,000") for sizes in BAD_SIZES),
        ("1,2,2", None, "batch 2 and batch 2 are the same point"),
        ("1,2", "train.batch_size=4,8", "set the same key"),
        (None, "train.precision", "expected KEY=VALUE,VALUE"),
        (None, "=1,2", "expected KEY=VALUE,VALUE"),
        (None, "train.precision=", "expected KEY=VALUE,VALUE"),
        (None, "train.precision=fp32,", "expected KEY=VALUE"),
        (None, "train.precision=fp32,fp32", "the same point"),
        (None, "train.precison=fp32,bf16", "did you mean train.precision?"),
        (None, "train=1,2", "invalid --over train: this is a section"),
        (None, "train.precision=fp32,fp33", "train.precision = 'fp33'"),
        (None, "optimizer.learning_rate=1,1.0", "are the same point"),
        (None, "data.image_size=2026-01-01,32", "data.image_size"),
        (None, "optimizer.learning_rate=0.1,nan", "optimizer.learning_rate = nan"),
        (None, "train.precision=[", "is not a TOML value"),
        (None, f"seed=1,{'9' * 5000}", "seed"),
        (None, f"seed=1,{'[' * 5000}", "seed"),
    ],
)
def test_plan_from_flags_refuses_invalid_lists(sizes: str | None, over: str | None, words: str):
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        plan_from_flags(CONFIG, sizes, over)
    assert len(caught.value.message) < (300 if sizes is not None else 6000)


def test_plan_from_flags_default_sizes_are_shuffled_by_seed():
    plans = [plan_from_flags(CONFIG.model_copy(update={"seed": seed}), None, None) for seed in (0, 0, 1)]
    assert plans[0].sweep.key == "train.batch_size"
    assert tuple(plans[0].sweep.values) == BATCH_SIZES == (1, 2, 4, 8, 16, 32, 64, 96, 128)
    orders = [[point.value for point in plan.points] for plan in plans]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(BATCH_SIZES) != orders[0]
    assert [point.order for point in plans[0].points] == list(range(1, 10))


def test_plan_from_flags_with_two_lists_is_product():
    plan = plan_small("1,2", "train.precision=fp32,bf16")
    assert plan.sweep.num_points == len(plan.points) == 4
    assert plan.labels[0] == "batch 1, train.precision fp32"
    assert {point.name for point in plan.points} >= {"batch_1_train.precision_bf16"}
    point = next(p for p in plan.points if p.label == "batch 2, train.precision bf16")
    config = configure_point(plan.config, plan.sweep, point)
    assert (config.train.batch_size, config.train.precision) == (2, "bf16")


def test_name_files_returns_safe_unique_names():
    assert name_files(["batch 1", "a/b ../c", "a b ..c", "x", "X"]) == ["batch_1", "a_b_.._c", "a_b_..c", "x", "X-4"]
    assert name_files(["/", "..", "é"]) == ["point", "point-1", "point-2"]


def test_apply_resolved_copies_autos_of_first_point():
    plan = plan_small("1,2")
    resolved = load_config("resnet50", settings=["device=cpu", "train.precision=bf16", "engine.threads=3"])
    settled = apply_resolved(plan.config, plan.sweep, resolved)
    assert (settled.train.precision, settled.engine.threads) == ("bf16", 3)
    assert settled.train.batch_size == plan.config.train.batch_size  # the swept key
    assert settled.seed == plan.config.seed


def test_sweep_writes_complete_result(monkeypatch, tmp_path: Path):
    plan = plan_small("1,2,4")
    run = run_fake(monkeypatch, plan, tmp_path)
    result = read_result(run.path)
    assert result.status == "ok"
    assert statuses(result) == {1: "ok", 2: "ok", 4: "ok"}
    assert {row.value: row.order for row in result.sweep.rows} == {point.value: point.order for point in plan.points}
    assert result.verdict.startswith("ResNet-18: no knee up to batch 4: 66.7 ± 1.0 %")
    assert [point.label for point in result.points] == ["batch 1", "batch 2", "batch 4"]
    assert all((run.path / point.run / "result.json").is_file() for point in result.points)
    assert result.devices[0].images_per_second is None
    assert result.sweep.fits[0].fixed_seconds == pytest.approx(0.02)
    # The first point resolved the precision for all
    assert result.config["train"]["precision"] == "fp32"
    log = read_timehistory(run.path / "original/throughput_data/batch_4.log")
    assert [(one.first_step, one.last_step) for one in log] == [(0, 10), (10, 20), (20, 30), (30, 40)]
    assert log[0].examples_per_second == pytest.approx(66.67, abs=0.01)
    assert log[0].stamp is not None


def test_sweep_skips_larger_points_after_out_of_memory(monkeypatch, tmp_path: Path):
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
    notes = {row.note for row in result.sweep.rows if row.status == "not_tried"}
    assert notes <= {f"batch {full} was out of memory"}
    assert [f.code for f in result.findings] == ["out-of-memory"]


@pytest.mark.parametrize(("rises", "status"), [(True, "out_of_memory"), (False, "failed"), (None, "out_of_memory")])
def test_sigkill_counts_as_out_of_memory_unless_kernel_counters_deny_it(monkeypatch, tmp_path, rises, status):
    counted = iter(range(100))
    counters = {True: lambda: {"vmstat": next(counted)}, False: lambda: {"vmstat": 7}, None: dict}
    monkeypatch.setattr(launch_sweep, "count_oom_kills", counters[rises])
    run = run_fake(monkeypatch, plan_small("1,2"), tmp_path, batch_2="kill")
    row = read_result(run.path).sweep.rows[1]
    assert row.status == status
    assert "ended by SIGKILL" in row.note


@pytest.mark.parametrize(
    ("happens", "code", "note"),
    [("loss", 6, "the loss of step 3 is nan"), ("own", 2, "train.batch_size = 1 is too small")],
)
def test_sweep_records_failed_point_and_continues(monkeypatch, tmp_path: Path, happens, code, note):
    plan = plan_small("1,2,4")
    first = plan.points[0].value
    run = run_fake(monkeypatch, plan, tmp_path, **{f"batch_{first}": happens})
    result = read_result(run.path)
    assert result.status == "ok"
    assert statuses(result) == {1: "ok", 2: "ok", 4: "ok"} | {first: "failed"}
    row = next(row for row in result.sweep.rows if row.value == first)
    assert (row.note, row.exit_code) == (note, code)
    failed = next(f for f in result.findings if f.code == "child-failed")
    assert failed.message == f"1 of 3 points failed: batch {first}: {note}"


def test_sweep_ends_after_same_error_in_two_points(monkeypatch, tmp_path: Path):
    with pytest.raises(DataError, match="no data set"):
        run_fake(monkeypatch, plan_small(None, "seed=1,2,3"), tmp_path, batch_auto="data")
    (path,) = tmp_path.iterdir()
    assert read_result(path).status == "failed"
    assert count_points(path) == 2


def test_sweep_continues_after_same_error_in_points_with_common_value(monkeypatch, tmp_path: Path):
    plan = plan_small("1,2", "seed=1,2")
    plan = replace(plan, points=sorted(plan.points, key=lambda point: point.value))
    run = run_fake(monkeypatch, plan, tmp_path, batch_1="data")
    assert statuses(read_result(run.path)) == {1: "failed", 2: "ok"}


@pytest.mark.parametrize(("happens", "error"), [("memory", RunError), ("loss", RunError), ("kill", LaunchError)])
def test_sweep_without_measured_point_fails_with_error_of_points(monkeypatch, tmp_path, happens, error):
    monkeypatch.setattr(launch_sweep, "count_oom_kills", lambda: {"vmstat": 7})
    with pytest.raises(error, match="no point was measured"):
        run_fake(monkeypatch, plan_small("1,2"), tmp_path, batch_1=happens, batch_2=happens)
    (path,) = tmp_path.iterdir()
    result = read_result(path)
    assert result.status == "failed"
    assert result.verdict is None


@pytest.mark.parametrize(
    ("over", "found"),
    [
        ("data.image_size=64,96", {64: "out_of_memory", 96: "not_tried"}),
        ("train.accumulate=1,2", {1: "out_of_memory", 2: "out_of_memory"}),  # accumulation does not need more memory
        ("seed=1,2", {1: "out_of_memory", 2: "out_of_memory"}),
    ],
)
def test_sweep_skips_larger_values_only_for_keys_that_need_memory(monkeypatch, tmp_path: Path, over: str, found: dict):
    plan = plan_small(None, over)
    rising = replace(plan, points=tuple(sorted(plan.points, key=lambda point: point.value)))
    with pytest.raises(RunError, match="no point was measured"):
        run_fake(monkeypatch, rising, tmp_path, batch_auto="memory")
    (path,) = tmp_path.iterdir()
    assert statuses(read_result(path)) == found


def test_sweep_profiles_point_right_after_its_bench(monkeypatch, tmp_path: Path):
    run = run_fake(monkeypatch, plan_small("1,2,4", profile=True), tmp_path, profile_2="loss")
    result = read_result(run.path)
    rows = {row.value: row for row in result.sweep.rows}
    assert rows[1].compute_utilisation == rows[4].compute_utilisation == 0.9
    assert (rows[2].status, rows[2].profile, rows[2].compute_utilisation) == ("ok", "failed", None)
    assert [f.code for f in result.findings] == ["profile-failed"]
    assert "no profile for batch 2: the loss of step 3 is nan" in result.findings[0].message
    begun = sorted((run.path / "points").iterdir(), key=lambda path: path.stat().st_mtime)
    assert [read_result(path).kind for path in begun] == ["bench", "profile"] * 3
    assert "batch 4, profile" in [point.label for point in result.points]


def test_sweep_copies_core_use_to_place_of_original(monkeypatch, tmp_path: Path):
    run = run_fake(monkeypatch, plan_small("1,2", cores=True), tmp_path)
    assert [row.cores_percent for row in read_result(run.path).sweep.rows] == [{"fma": 17.5}] * 2
    for size in (1, 2):
        assert (run.path / f"original/profiled_data_ncu/batch_{size}.csv").read_text() == "of ncu"


def test_timehistory_line_in_docs_matches_code():
    page = (ROOT / "docs/how-to/move-from-tbd.md").read_text()
    (line,) = [line for line in page.splitlines() if "TimeHistory: " in line]
    (interval,) = parse_lines([line])
    when = datetime.strptime(f"2026{interval.stamp}", "%Y%m%d %H:%M:%S.%f")
    assert line == format_line(interval, when, 4711)


def change_sweep(path: Path, **changes: object) -> None:
    change_result(path, sweep=json.loads((path / "result.json").read_text())["sweep"] | changes)


def stop(run: RunFolder, keep: int = 1) -> Result:
    rows = json.loads((run.path / "result.json").read_text())["sweep"]["rows"]
    change_sweep(run.path, rows=sorted(rows, key=lambda row: row["order"])[:keep])
    change_result(run.path, status="interrupted")
    return read_result(run.path)


def plan_resumed(path: Path) -> SweepPlan:
    check_resumable(path, [])
    return resume_plan(path, read_result(path))


def test_resumed_sweep_runs_only_what_is_due(monkeypatch, tmp_path: Path):
    plan = plan_small("1,2,4", profile=True)
    run = run_fake(monkeypatch, plan, tmp_path)
    # The state after a kill following the bench of the second point.
    second, third = plan.points[1].value, plan.points[2].value
    rows = json.loads((run.path / "result.json").read_text())["sweep"]["rows"]
    rows = [row for row in rows if row["value"] != third]
    row = next(row for row in rows if row["value"] == second)
    for key in ("profile", "profile_run", "compute_utilisation"):
        del row[key]
    change_sweep(run.path, rows=rows)
    change_result(run.path, status="interrupted")
    left = read_result(run.path)
    assert find_due(run.path, left, plan) == {f"batch {second}": ["profile"], f"batch {third}": ["bench", "profile"]}
    again = plan_resumed(run.path)
    assert [point.label for point in again.points] == [point.label for point in plan.points]
    before = {path.name for path in (run.path / "points").iterdir()}
    run_fake(monkeypatch, again, tmp_path, reopen_run(run.path, "sweep", "x"))
    result = read_result(run.path)
    assert result.status == "ok"
    assert len(result.sweep.rows) == 3
    assert all(row.compute_utilisation for row in result.sweep.rows)
    new = [path for path in (run.path / "points").iterdir() if path.name not in before]
    assert sorted(read_result(path).kind for path in new) == ["bench", "profile", "profile"]
    assert result.process.starts == 2


def test_resumed_sweep_runs_failed_and_lost_points_again(monkeypatch, tmp_path: Path):
    plan = plan_small("1,2,4")
    run = run_fake(monkeypatch, plan, tmp_path, batch_2="loss")
    gone = next(row.run for row in read_result(run.path).sweep.rows if row.value == 4)
    (run.path / gone / "result.json").unlink()
    change_result(run.path, status="interrupted")
    assert find_due(run.path, read_result(run.path), plan) == {"batch 2": ["bench"], "batch 4": ["bench"]}
    run_fake(monkeypatch, plan, tmp_path, reopen_run(run.path, "sweep", "x"))
    assert statuses(read_result(run.path)) == {1: "ok", 2: "ok", 4: "ok"}
    assert count_points(run.path) == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "is complete: its status is ok"),
        ({"status": "running"}, "is still running: process"),
        ({"status": "interrupted", "kind": "bench"}, "is a bench run, not a sweep"),
        ({"status": "interrupted", "sweep": None}, "ended before its points were written"),
        (
            {"status": "interrupted", "software": {"trainstone": "0.0.1", "torch": "1.0"}},
            r"cannot resume .*: trainstone 0\.0\.1 there, .*; torch 1\.0 there",
        ),
    ],
)
def test_resume_refuses_runs_that_are_not_unfinished_local_sweeps(monkeypatch, tmp_path: Path, changes: dict, message):
    run = run_fake(monkeypatch, plan_small("1,2"), tmp_path)
    change_result(run.path, **changes)
    with pytest.raises(ResultError, match=message):
        plan_resumed(run.path)


def test_resume_refuses_a_changed_configuration(monkeypatch, tmp_path: Path):
    plan = plan_small("1,2")
    run = run_fake(monkeypatch, plan, tmp_path)
    stop(run)
    assert plan_resumed(run.path).points == plan.points
    file = run.path / "config.toml"
    before = file.read_text()
    for old, new, message in (
        ("image_size = 224", "image_size = 64", "data.image_size was 224, is 64"),
        ("seed = 0", "seed = 7", "seed was 0, is 7"),
        ('precision = "fp32"', 'precision = "auto"', "train.precision was fp32, is auto"),
    ):
        assert old in before
        file.write_text(before.replace(old, new))
        with pytest.raises(ResultError, match="was changed since this sweep was started") as caught:
            plan_resumed(run.path)
        assert message in caught.value.message
        assert caught.value.hint.startswith("restore it, or start again: ")


def test_resume_after_kill_between_writing_config_and_result(monkeypatch, tmp_path: Path):
    plan = plan_small("1,2")
    run = run_fake(monkeypatch, plan, tmp_path)
    # config.toml is written before result.json, which then has no machine
    change_result(run.path, config=plan.config.model_dump(mode="json", exclude_none=True), machine={})
    stop(run, keep=0)
    assert plan_resumed(run.path).config.train.precision == "fp32"
