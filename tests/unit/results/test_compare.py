"""Comparison of runs with runs and with published figures: find, group, compare, gate."""

import math
import shutil
from pathlib import Path

import pytest

from support.builders.results import change_result, make_result, write_repeated, write_run, write_runs
from trainstone.config.load import load_config
from trainstone.errors import ResultError
from trainstone.results import compare as module
from trainstone.results.compare import Run, check_gate, describe_unsteady, find_differences, find_runs, group_runs
from trainstone.results.published import choose_figures, find_device_figures, find_figures, load_figures
from trainstone.results.schema.run import Comparison, ComparisonRow, Device, Point, Result, Side

FAST, SLOW = [110.0, 111.0, 109.0, 110.5, 109.5], [100.0, 101.0, 99.0, 100.5, 99.5]


def compare(runs, to, **options) -> Comparison:
    return module.compare(runs, to, **options)[0]


def as_arguments(paths) -> list[str]:
    return [str(path) for path in paths]


def test_compare_five_runs_ten_percent_apart_is_faster(tmp_path):
    a = write_repeated(tmp_path, "fast", FAST, device="New")
    b = write_runs(tmp_path / "old", "slow", SLOW, device="Old")
    got = compare([str(a)], as_arguments(b))
    (row,) = got.rows
    assert row.outcome == "faster"
    assert (row.label, row.a.label, row.b.label) == ("resnet50 v3 · fp32 · batch 8", "New", "Old")
    assert row.ratio == pytest.approx(row.a.images_per_second / row.b.images_per_second)
    assert len(row.a.runs) == len(row.b.runs) == 5
    assert row.p_holm == row.p_value < 0.001
    assert (row.noise_floor, got.geometric_mean, got.skipped) == (0.02, None, [])
    assert "device: New | Old" in row.differences
    assert got.verdict == "A (New) is 1.100 times as fast as B (Old) (1.088 … 1.112; 95 %, between runs): faster"


def test_compare_equal_runs_shows_no_difference(tmp_path):
    a, b = write_runs(tmp_path, "a", SLOW), write_runs(tmp_path, "b", [100.2, 100.9, 99.3, 100.4, 99.2])
    got = compare(as_arguments(a), as_arguments(b))
    assert got.rows[0].outcome == "no difference shown"
    assert got.rows[0].a.label == "a0 and 4 more"
    assert got.rows[0].differences == []


def test_compare_single_runs_uses_intervals_within_runs(tmp_path):
    a, b = write_runs(tmp_path, "x", [110.0, 100.0], half_width=0.01)
    (row,) = compare([str(a)], [str(b)]).rows
    assert (row.outcome, row.ci_covers) == ("faster", "within each run")
    c = write_run(tmp_path, make_result("c", 100.0, half_width=None))
    got = compare([str(a)], [str(c)])
    assert (got.rows[0].outcome, got.rows[0].p_holm) == ("not assessed", None)
    assert got.verdict.endswith("(interval not established: B: 13 steady steps, 20 needed): not assessed")


def test_compare_unlike_runs_raises_with_all_differences(tmp_path):
    a = write_run(tmp_path, make_result("a"))
    other = make_result("b", settings=("train.precision=bf16", "train.batch_size=16"), software={"torch": "2.14.0"})
    b = write_run(tmp_path, other)
    with pytest.raises(ResultError) as caught:
        compare([str(a)], [str(b)])
    for message in ("train.batch_size: 8 | 16", "train.precision: fp32 | bf16", "torch: 2.13.0 | 2.14.0"):
        assert message in caught.value.message.splitlines()
    assert caught.value.hint.startswith("compare anyway: --force; or measure both with the same batch")
    (row,) = compare([str(a)], [str(b)], force=True).rows
    assert row.label == "resnet50 v3 · fp32 | bf16 · batch 8 | batch 16"
    assert row.differences[:3] == ["train.batch_size: 8 | 16", "train.precision: fp32 | bf16", "torch: 2.13.0 | 2.14.0"]
    assert (row.a.label, row.outcome) == ("train.batch_size 8", "no difference shown")


def write_grid(folder, name, rates, **features):
    """Write runs of three precisions, three runs each."""
    for precision, rate in zip(("fp32", "bf16", "fp16"), rates, strict=True):
        three, settings = [rate, rate * 1.002, rate * 0.998], (f"train.precision={precision}",)
        write_runs(folder, f"{name}-{precision}", three, settings=settings, **features)
    return [str(folder)]


def test_compare_many_rows_corrects_p_values_and_counts_outcomes(tmp_path):
    a = write_grid(tmp_path / "a", "a", [110.0, 200.0, 190.0])
    b = write_grid(tmp_path / "b", "b", [100.0, 200.1, 200.0])
    got = compare(a, b)
    outcomes = {"fp32": "faster", "bf16": "no difference shown", "fp16": "slower"}
    expected = {f"resnet50 v3 · {precision} · batch 8": outcome for precision, outcome in outcomes.items()}
    assert {row.label: row.outcome for row in got.rows} == expected
    assert all(row.p_holm >= row.p_value for row in got.rows)
    assert got.geometric_mean == pytest.approx((1.1 * 200 / 200.1 * 0.95) ** (1 / 3), rel=1e-3)
    assert got.verdict == "3 rows: 1 faster, 1 slower, 1 no difference shown; geometric mean 1.015"


def test_compare_without_common_group_names_closest_pair(tmp_path):
    a = write_grid(tmp_path / "a", "a", [110.0, 200.0, 190.0])
    far = ("train.precision=fp32", "model.depth=18", "train.batch_size=16")
    b = [*write_runs(tmp_path, "far", [100.0], settings=far)]
    b += write_runs(tmp_path, "near", [100.0], settings=("train.precision=tf32",))
    with pytest.raises(ResultError, match=r"closest pair \(A \| B\):\ntrain\.precision: \w+ \| tf32$"):
        compare(a, as_arguments(b))
    got = compare(a, as_arguments(b), force=True)
    assert [row.b.runs for row in got.rows] == [[str(b[1])]] * 3
    assert got.skipped == ["resnet50 v3 · fp32 · batch 16: only in B, 1 run"]


def test_compare_adds_settings_to_equal_row_labels(tmp_path):
    for side in "ab":
        for depth in (18, 50):
            write_runs(tmp_path / side, f"{side}{depth}-", [100.0, 101.0], settings=(f"model.depth={depth}",))
    got = compare([str(tmp_path / "a")], [str(tmp_path / "b")])
    assert [row.label for row in got.rows] == [
        f"resnet50 v3 · fp32 · batch 8 · model.depth={depth}" for depth in (18, 50)
    ]


@pytest.mark.parametrize(
    ("of_b", "labels"),
    [
        ({"device": "Zen", "host": "there"}, ("Intel Xeon", "Zen")),
        ({"host": "there"}, ("here", "there")),
        ({"settings": ("engine.threads=4",)}, ("engine.threads 2", "engine.threads 4")),
        ({}, ("a", "b")),
    ],
)
def test_compare_labels_sides_by_first_difference(tmp_path, of_b, labels):
    a, b = write_run(tmp_path, make_result("a")), write_run(tmp_path, make_result("b", **of_b))
    (row,) = compare([str(a)], [str(b)]).rows
    assert (row.a.label, row.b.label) == labels


def gpu_run(folder, name="gpu", rate=2421.0, device="NVIDIA A100-SXM4-80GB", **features):
    devices = [Device(host="h", name=device, label="cuda:0")]
    return write_run(folder, make_result(name, rate, devices=devices, **features))


def test_compare_with_one_published_figure_returns_share(tmp_path):
    got = compare([str(gpu_run(tmp_path))], ["a100-80-mxnet-amp"])
    (row,) = got.rows
    assert row.ratio == pytest.approx(2421 / 3410)
    assert row.ci95 == pytest.approx((2421 * 0.99 / 3410, 2421 * 1.01 / 3410))
    assert row.ci_covers == "of the run; the published figure has none"
    assert (row.outcome, row.p_value, row.b.runs, row.label) == ("not assessed", None, [], "a100-80-mxnet-amp")
    assert row.b.source.endswith("MxNet/Classification/RN50v1.5/README.md")
    assert {"precision: fp32 | AMP", "batch per device: 8 | 512"} <= set(row.differences)
    assert "71.0 % (70.3 … 71.7 %)" in got.verdict


def test_compare_with_published_figure_is_per_device(tmp_path):
    run = gpu_run(tmp_path, rate=16000.0, ranks=4)
    (row,) = compare([str(run)], ["h100-mlperf-v4.0-8"]).rows
    assert row.a.images_per_second == pytest.approx(4000)
    assert row.b.images_per_second == pytest.approx(56300 / 8)
    assert row.ratio == pytest.approx(4000 * 8 / 56300)
    assert {"devices: 4 | 8", "counted: the steady window | the whole run, evaluation included"} <= set(row.differences)


def test_compare_with_all_published_figures_has_row_for_each(tmp_path):
    got = compare([str(gpu_run(tmp_path))], ["published"])
    assert len(got.rows) == 39
    assert got.geometric_mean is None
    assert "31 % to 660 % of 39 published figures" in got.verdict


def test_compare_with_published_skips_or_rejects_other_models(tmp_path):
    small = write_run(tmp_path, make_result("small", settings=("model.depth=18",)))
    with pytest.raises(ResultError, match="no published figures for resnet50"):
        compare([str(small)], ["published"])
    got = compare([str(small), str(gpu_run(tmp_path))], ["a10-lambda-amp"])
    assert len(got.rows) == 1
    assert got.skipped == ["resnet50 v3 · fp32 · batch 8: no published figures"]


def test_compare_rejects_unknown_arguments(tmp_path):
    run = str(gpu_run(tmp_path))
    with pytest.raises(ResultError, match=r"'a100-80-mxnt-amp', did you mean a100-80-mxnet-amp\?") as caught:
        compare([run], ["a100-80-mxnt-amp"])
    assert "h200-lambda-amp" in caught.value.hint
    for runs, to in ((["published"], [run]), ([run], ["runs/nothing"]), ([run], [run])):
        with pytest.raises(ResultError):
            compare(runs, to)


def unsteady(run_id: str, rate: float = 100.0, **features) -> Result:
    """Make a run whose step time changed by 8 % over its window."""
    result = make_result(run_id, rate, **features)
    measured = result.throughput.model_copy(update={"steady": False, "trend_percent": 8.0})
    return result.model_copy(update={"throughput": measured})


def test_compare_drifting_runs_has_no_outcome_unless_forced(tmp_path):
    a, b = write_run(tmp_path, unsteady("a", 110.0)), write_run(tmp_path, unsteady("b"))
    got = compare([str(a)], [str(b)])
    (row,) = got.rows
    assert (row.outcome, row.ci95, row.p_value) == ("not assessed", None, None)
    assert row.ci_covers == "not established: 1 of 1 run of A and 1 of 1 run of B never became steady"
    assert row.differences == ["steady: no on both sides"]
    (forced,) = compare([str(a)], [str(b)], force=True).rows
    assert (forced.outcome, forced.ci_covers) == ("faster", "within each run")
    assert forced.differences == row.differences


def test_compare_with_published_figure_lists_warnings(tmp_path):
    run = str(write_run(tmp_path, unsteady("run", status="interrupted")))
    steady = str(write_run(tmp_path, make_result("steady")))
    (row,) = compare([run], ["a10-lambda-amp"]).rows
    assert {"steady: no | unknown", "status: interrupted | unknown"} <= set(row.differences)
    (row,) = compare([run, steady], ["a10-lambda-amp"]).rows
    assert {"steady: no, yes | unknown", "status: interrupted, ok | unknown"} <= set(row.differences)
    (row,) = compare([steady], ["a10-lambda-amp"]).rows
    assert not [message for message in row.differences if message.startswith(("steady", "status"))]


def make_comparison(ratio, ci95, outcome, *, published=False) -> Comparison:
    a = Side(label="a", runs=["a"], images_per_second=1.0)
    b = Side(label="b", runs=[] if published else ["b"], images_per_second=1.0)
    row = ComparisonRow(label="what", a=a, b=b, ratio=ratio, ci95=ci95, ci_covers="between runs", outcome=outcome)
    return Comparison(rows=[row], verdict="")


@pytest.mark.parametrize(
    ("ratio", "ci95", "outcome", "limit", "gate"),
    [
        (0.90, (0.88, 0.92), "slower", 0.95, "failed"),
        (0.94, (0.90, 0.98), "slower", 0.95, "failed"),
        (0.96, (0.95, 0.97), "slower", 0.95, "passed"),
        (0.90, (0.79, 1.02), "no difference shown", 0.95, "uncertain"),
        (0.99, (0.985, 0.995), "no difference shown", 0.999, "uncertain"),  # below the noise floor
        (0.90, None, "not assessed", 0.95, "failed"),
        (1.00, None, "not assessed", 0.95, "passed"),
        (1.02, (1.01, 1.03), "faster", 1.05, "failed"),
        (1.02, (0.97, 1.07), "no difference shown", 1.05, "uncertain"),
        (1.06, (1.01, 1.11), "faster", 1.05, "passed"),
    ],
)
def test_check_gate_fails_or_passes_row_below_limit(ratio, ci95, outcome, limit, gate):
    failed, uncertain = check_gate(make_comparison(ratio, ci95, outcome), limit)
    assert (len(failed), len(uncertain)) == {"failed": (1, 0), "uncertain": (0, 1), "passed": (0, 0)}[gate]


def test_check_gate_fails_below_published_figure_and_with_lost_runs():
    failed, _ = check_gate(make_comparison(0.71, (0.6, 1.1), "not assessed", published=True), 0.8)
    assert failed == ["what: 71 % (60 … 110 %) is below 0.800"]
    lost = ["a/broken: no throughput; the run has status failed", "x: only in B, 1 run"]
    passing = make_comparison(1.2, (1.1, 1.3), "faster")
    assert check_gate(passing, 0.95, lost) == ([f"{message}; the gate cannot pass without it" for message in lost], [])


def test_compare_separates_lost_runs_from_skipped_ones(tmp_path):
    """Lost: a run of A without a number, a group only in B. Not lost: a group only in A, a run of B without one."""
    for side, only in (("a", "bf16"), ("b", "fp16")):
        write_runs(tmp_path / side, f"{side}-both", [100.0])
        write_runs(tmp_path / side, f"{side}-only", [100.0], settings=(f"train.precision={only}",))
        write_run(tmp_path / side, make_result(f"{side}-broken", None, status="failed"))
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    comparison, lost = module.compare([a, f"{a}/a-both0"], [b])
    assert len(comparison.rows) == 1
    broken = "broken: no throughput; the run has status failed"
    assert lost == [f"{a}/a-{broken}", "resnet50 v3 · fp16 · batch 8: only in B, 1 run"]
    assert [message for message in comparison.skipped if message not in lost] == [
        f"{a}/a-both0: given twice, counted once",
        f"{b}/b-{broken}",
        "resnet50 v3 · bf16 · batch 8: only in A, 1 run",
    ]


def runs_of(*results):
    return [Run(Path(), result, result.throughput) for result in results]


def unlike(a, b):
    return [str(found) for found in find_differences(runs_of(a), runs_of(b)) if found.unlike]


def alike(a, b):
    return [str(found) for found in find_differences(runs_of(a), runs_of(b)) if not found.unlike]


def test_find_runs_accepts_run_folder_file_and_parent(tmp_path):
    one, two = write_runs(tmp_path, "run", [100.0, 101.0])
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes.txt").write_text("")
    assert [run.folder for run in find_runs([one])[0]] == [one]
    assert [run.folder for run in find_runs([two / "result.json"])[0]] == [two]
    assert [run.folder for run in find_runs([tmp_path])[0]] == [one, two]
    whole = write_repeated(tmp_path / "repeated", "five", [100.0, 101.0, 102.0])
    for path in (whole, whole / "result.json", tmp_path / "repeated"):  # each child counts
        assert [run.throughput.images_per_second for run in find_runs([path])[0]] == [100.0, 101.0, 102.0]


@pytest.mark.parametrize(("kind", "hint"), [("sweep", "compare points"), ("profile", "measure it again")])
def test_find_runs_rejects_sweep_and_profile_and_skips_them_in_folder(tmp_path, kind, hint):
    (run,) = write_runs(tmp_path, "run", [100.0])
    points = [Point(label="batch 1", run="points/x")] if kind == "sweep" else []
    rate = None if kind == "sweep" else 50.0
    other = write_run(tmp_path, make_result("other", rate, kind=kind, points=points))
    with pytest.raises(ResultError) as caught:
        find_runs([other])
    assert caught.value.hint.startswith(hint)
    runs, skipped = find_runs([tmp_path])
    assert [one.folder for one in runs] == [run]
    assert [run.lost for run in skipped] == [False]  # it has no throughput to lose


def test_find_runs_rejects_failed_run_and_skips_it_in_folder(tmp_path):
    write_run(tmp_path, make_result("good"))
    bad = write_run(tmp_path, make_result("bad", None, status="failed"))
    with pytest.raises(ResultError, match="bad: no throughput; the run has status failed"):
        find_runs([bad])
    runs, skipped = find_runs([tmp_path])
    assert [run.result.run_id for run in runs] == ["good"]
    assert skipped == [(f"{bad}: no throughput; the run has status failed", True)]
    shutil.rmtree(tmp_path / "good")
    with pytest.raises(ResultError, match=r"no runs to compare in .*has status failed"):
        find_runs([tmp_path])


def test_find_runs_skips_unreadable_run_in_folder_and_names_it(tmp_path):
    good, torn = write_runs(tmp_path, "run", [100.0, 100.0])
    (torn / "result.json").write_text('{"format": 1, "ki')
    odd = write_run(tmp_path, make_result("odd", 1e300))
    runs, skipped = find_runs([tmp_path])
    assert [run.folder for run in runs] == [good]
    assert [run.lost for run in skipped] == [True] * 2
    assert str(odd) in skipped[0].message
    assert str(torn) in skipped[1].message


def test_find_runs_skips_missing_child_of_repeated_run(tmp_path):
    whole = write_repeated(tmp_path, "five", [100.0, 101.0, 102.0])
    shutil.rmtree(whole / "points/five-child1")
    runs, skipped = find_runs([whole])
    assert [run.throughput.images_per_second for run in runs] == [100.0, 102.0]
    assert [(run.message.partition(":")[0], run.lost) for run in skipped] == [("no such run folder or file", True)]


@pytest.mark.parametrize("point", ["../elsewhere", "/etc", ".", "points/../..", "points/x\0y"])
def test_find_runs_rejects_point_outside_run_folder(tmp_path, point):
    result = make_result("whole").model_copy(update={"points": [Point(label="x", run=point)]})
    with pytest.raises(ResultError, match="is outside the folder"):
        find_runs([write_run(tmp_path, result)])


def test_find_runs_rejects_missing_empty_and_circular_paths(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "circle").symlink_to("circle")
    for name in ("nothing", "empty", "circle", "x" * 5000):
        with pytest.raises(ResultError):
            find_runs([tmp_path / name])


@pytest.mark.parametrize(
    "throughput",
    [
        {"images_per_second": math.nan},
        {"images_per_second": 0.0},
        {"images_per_second": 1e300},
        {"ci95": [0.0, 101.0]},
        {"ci95": [101.0, 102.0]},
    ],
)
def test_find_runs_rejects_implausible_throughput(tmp_path, throughput):
    result = make_result("odd")
    path = write_run(tmp_path, result)
    change_result(path, throughput=result.throughput.model_dump(mode="json") | throughput)
    with pytest.raises(ResultError, match=r"odd.* is damaged|cannot read .*odd"):
        find_runs([path])


def test_compare_rejects_run_or_its_copy_on_both_sides(tmp_path):
    (path,) = write_runs(tmp_path / "a", "run", [100.0])
    copy = shutil.copytree(path, tmp_path / "b" / "renamed")
    with pytest.raises(ResultError, match="the same run is on both sides"):
        compare([str(path)], [str(copy)])


def test_group_runs_groups_by_settings():
    results = [
        make_result("1"),
        make_result("2", settings=("seed=7", "engine.threads=4", "measure.seconds=5"), host="there", device="Zen"),
        make_result("3", settings=("train.precision=bf16",)),
        make_result("4", ranks=2),
        make_result("5"),
    ]
    groups = [[run.result.run_id for run in group] for group in group_runs(runs_of(*results)).values()]
    assert groups == [["1", "2", "5"], ["3"], ["4"]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": ("train.precision=bf16",)}, "train.precision: fp32 | bf16"),
        ({"settings": ("model.depth=18",)}, "model.depth: 50 | 18"),
        ({"settings": ("version=4",)}, "recipe.version: 3 | 4"),
        ({"ranks": 4}, "world.ranks: 1 | 4"),
        ({"software": {"torch": "2.14.0+cpu"}}, "torch: 2.13.0 | 2.14.0"),
        ({"software": {"trainstone": "0.2.0"}}, "trainstone: 0.1.0 | 0.2.0"),
        ({"source": "nvprof"}, "source: trainstone | nvprof"),
    ],
)
def test_find_differences_marks_settings_and_software_as_unlike(changes, message):
    assert unlike(make_result("a"), make_result("b", **changes)) == [message]


def test_find_differences_marks_cuda_and_driver_as_unlike_if_on_both_sides():
    def on_gpu(name: str, build: str, driver: str):
        return make_result(name, machine={"devices": [{"driver": driver}]}, software={"torch": f"2.13.0+{build}"})

    a, b = on_gpu("a", "cu126", "560"), on_gpu("b", "cu128", "570")
    assert unlike(a, b) == ["torch build: cu126 | cu128", "driver: 560 | 570"]
    cpu = make_result("c")
    assert unlike(a, cpu) == []
    assert {"torch build: cu126 | absent", "driver: 560 | absent", "torch build: absent | cpu"} <= set(alike(a, cpu))


def test_find_differences_lists_machine_without_marking_it_unlike():
    a = make_result("a", settings=("engine.threads=2",))
    b = make_result("b", host="there", device="Zen", settings=("engine.threads=8",), grade="C", status="interrupted")
    assert unlike(a, b) == []
    named = {"host: here | there", "device: Intel Xeon | Zen", "engine.threads: 2 | 8", "cpu.model: Intel Xeon | Zen"}
    assert set(alike(a, b)) == named | {"noise grade: B | C", "status: ok | interrupted"}


def test_find_differences_lists_warnings_even_if_equal():
    a, b = unsteady("a", status="interrupted"), unsteady("b", status="interrupted")
    assert alike(a, b) == ["status: interrupted on both sides", "steady: no on both sides"]
    assert alike(a, make_result("b")) == ["status: interrupted | ok", "steady: no | yes"]
    assert alike(make_result("a"), make_result("b")) == []


def test_describe_unsteady_needs_half_of_the_runs():
    steady, drifting = make_result("s"), unsteady("d")
    assert describe_unsteady(runs_of(steady), runs_of(steady)) is None
    assert describe_unsteady(runs_of(drifting), runs_of(steady)) == "1 of 1 run of A never became steady"
    assert describe_unsteady(runs_of(steady), runs_of(drifting, steady)) == "1 of 2 runs of B never became steady"
    assert describe_unsteady(runs_of(steady), runs_of(drifting, steady, steady)) is None


def test_compare_pair_takes_noise_floor_of_noisiest_run():
    quiet, middle, noisy = (runs_of(make_result(grade, grade=grade)) for grade in "ABC")
    unknown = runs_of(make_result("x").model_copy(update={"noise": None}))
    floors = {0.01: quiet, 0.02: unknown, 0.05: [*noisy, *middle]}
    for floor, others in floors.items():
        assert module.compare_pair("x", quiet, others, force=True).noise_floor == floor


def test_find_differences_requires_equal_software_within_side():
    mixed = runs_of(make_result("1"), make_result("2", software={"torch": "2.14.0+cpu"}))
    (found,) = find_differences(mixed, mixed)
    assert (str(found), found.unlike) == ("torch: 2.13.0, 2.14.0 on both sides", True)
    both_hosts = runs_of(make_result("1"), make_result("2", host="there"))
    assert find_differences(both_hosts, both_hosts) == []


def test_find_differences_accepts_unexpected_value_types():
    odd = make_result(
        "odd",
        config={"device": [1], "engine": {}, "model": {"depth": None, "x": {"y": True}}},
        machine={"cpu": "a string", "devices": {"not": "a list"}, "memory": []},
        software={"torch": 2.13, "environment": {"A": 1}},
    )
    assert "model.x.y: absent | true" in unlike(make_result("a"), odd)


FIGURES = {figure.id: figure for figure in load_figures()}


def test_load_figures_returns_unique_figures_with_sources():
    assert len(FIGURES) == len(load_figures()) == 56
    assert sum(figure.model == "resnet50" for figure in FIGURES.values()) == 39
    for figure in FIGURES.values():
        assert (figure.workload, figure.model) in (("classify", "resnet50"), ("detect", "ssd300"))
        assert len(figure.source) > 10
        assert "http" not in figure.source
        assert figure.id.endswith(f"-{figure.devices}") == (figure.devices > 1)
        assert figure.whole_run == ("MLPerf" in figure.stack)
        assert 20 < figure.per_device < 10_000


def test_published_figure_has_speed_per_device_and_title():
    figure = FIGURES["a100-80-mxnet-amp-8"]
    assert figure.per_device == pytest.approx(26674 / 8)
    assert (figure.kind, figure.title) == ("8 × A100-80", "8 × A100-80, AMP, MXNet, container 22.10")


RESNET, SSD = load_config("resnet50").model_dump(mode="json"), load_config("ssd300-mlperf").model_dump(mode="json")


@pytest.mark.parametrize(
    ("config", "device", "kinds"),
    [
        (RESNET, "NVIDIA A100-SXM4-80GB", {"A100-80", "A100-80 SXM", "A100"}),
        (RESNET, "NVIDIA A100-SXM4-40GB", {"A100"}),
        (RESNET, "NVIDIA A100 80GB PCIe", {"A100-80 PCIe"}),
        (RESNET, "NVIDIA H100 80GB HBM3", {"H100 SXM5", "H100"}),
        (RESNET, "NVIDIA H100 PCIe", set()),
        (RESNET, "Tesla V100-SXM2-16GB", {"V100-16", "V100"}),
        (RESNET, "NVIDIA GeForce RTX 3090", {"RTX 3090"}),
        (RESNET, "NVIDIA GeForce RTX 3090 Ti", set()),
        (RESNET, "NVIDIA A10", {"A10"}),
        (RESNET, "NVIDIA RTX A6000", {"RTX A6000"}),
        (RESNET, "NVIDIA RTX 6000 Ada Generation", set()),
        (RESNET, "NVIDIA GH200 480GB", {"GH200"}),
        (RESNET, "Intel(R) Xeon(R) Platinum 8380H CPU @ 2.90GHz", {"Xeon Platinum 8380H"}),
        (RESNET, "Intel(R) Xeon(R) Processor", set()),
        (RESNET, "", set()),
        (SSD, "Tesla V100-SXM2-32GB", {"V100-32", "V100"}),
        (SSD, "Tesla V100S-PCIE-32GB", {"V100S-PCIe-32"}),
        (SSD, "NVIDIA A100-SXM4-40GB", {"A100"}),
    ],
)
def test_find_device_figures_matches_device_names(config, device, kinds):
    result = make_result("x", devices=[Device(host="h", name=device, label="cuda:0")], config=config)
    assert {figure.device for figure in find_device_figures(result)} == kinds
    assert len(find_figures(result)) == (39 if config is RESNET else 17)


@pytest.mark.parametrize(
    ("recipe", "setting"),
    [
        ("resnet50", "model.depth=18"),
        ("resnet50", "data.image_size=128"),
        ("ssd300-mlperf", "model.depth=18"),
        ("ssd300-mlperf", "model.width=32"),
        ("ssd300-mlperf", "data.image_size=160"),
    ],
)
def test_find_figures_returns_none_for_other_models(recipe, setting):
    result = make_result("x", config=load_config(recipe, settings=[setting]).model_dump(mode="json"))
    assert find_figures(result) == []
    with pytest.raises(ResultError, match="no published figures for "):
        choose_figures("published", result)


def test_choose_figures_selects_all_or_by_id():
    result = make_result("x")
    assert len(choose_figures("published", result)) == 39
    assert [figure.id for figure in choose_figures("a10-lambda-amp", result)] == ["a10-lambda-amp"]
    with pytest.raises(ResultError, match="for another model"):
        choose_figures("ssd300-a100-lambda", result)
    with pytest.raises(ResultError):
        choose_figures("published", make_result("x", config={"data": {}}))
    assert find_device_figures(make_result("x", devices=[])) == []
