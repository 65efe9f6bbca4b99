import pytest

from made_results import make_result, write_repeated, write_run, write_runs
from trainstone.errors import ResultError
from trainstone.results import compare as module
from trainstone.results.schema import Comparison, ComparisonRow, Device, Result, Side

FAST, SLOW = [110.0, 111.0, 109.0, 110.5, 109.5], [100.0, 101.0, 99.0, 100.5, 99.5]


def compare(runs, to, **options) -> Comparison:
    return module.compare(runs, to, **options).comparison


def words(paths) -> list[str]:
    return [str(path) for path in paths]


def test_five_runs_a_side_ten_percent_apart(tmp_path):
    a = write_repeated(tmp_path, "fast", FAST, device="New")
    b = write_runs(tmp_path / "old", "slow", SLOW, device="Old")
    got = compare([str(a)], words(b))
    (row,) = got.rows
    assert row.judgement == "faster"
    assert (row.label, row.a.label, row.b.label) == ("resnet50 v2 · fp32 · batch 8", "New", "Old")
    assert row.ratio == pytest.approx(row.a.images_per_second / row.b.images_per_second)
    assert len(row.a.runs) == len(row.b.runs) == 5
    assert row.p_holm == row.p_value < 0.001
    assert (row.noise_floor, got.geometric_mean, got.left_out) == (0.02, None, [])
    assert "device: New | Old" in row.differences
    assert got.verdict == "A (New) is 1.100 times as fast as B (Old) (1.088 … 1.112; 95 %, between runs): faster"


def test_the_same_is_not_told_apart(tmp_path):
    a, b = write_runs(tmp_path, "a", SLOW), write_runs(tmp_path, "b", [100.2, 100.9, 99.3, 100.4, 99.2])
    got = compare(words(a), words(b))
    assert got.rows[0].judgement == "no difference shown"
    assert got.rows[0].a.label == "a0 and 4 more"
    assert got.rows[0].differences == []


def test_single_runs_are_judged_within_each(tmp_path):
    a, b = write_runs(tmp_path, "x", [110.0, 100.0], half_width=0.01)
    (row,) = compare([str(a)], [str(b)]).rows
    assert (row.judgement, row.ci_covers) == ("faster", "within each run")
    c = write_run(tmp_path, make_result("c", 100.0, half_width=None))
    got = compare([str(a)], [str(c)])
    assert (got.rows[0].judgement, got.rows[0].p_holm) == ("not judged", None)
    assert got.verdict.endswith("(interval not established: B: 13 steady steps, 50 needed): not judged")


def test_unlike_runs_are_refused_with_every_difference(tmp_path):
    a = write_run(tmp_path, make_result("a"))
    other = make_result("b", settings=("train.precision=bf16", "train.batch_size=16"), software={"torch": "2.14.0"})
    b = write_run(tmp_path, other)
    with pytest.raises(ResultError) as caught:
        compare([str(a)], [str(b)])
    for told in ("train.batch_size: 8 | 16", "train.precision: fp32 | bf16", "torch: 2.13.0 | 2.14.0"):
        assert told in caught.value.message.splitlines()
    assert caught.value.hint.startswith("--force compares anyway; or give both the same batch")
    (row,) = compare([str(a)], [str(b)], force=True).rows
    assert row.label == "resnet50 v2 · fp32 | bf16 · batch 8 | batch 16"
    assert row.differences[:3] == ["train.batch_size: 8 | 16", "train.precision: fp32 | bf16", "torch: 2.13.0 | 2.14.0"]
    assert (row.a.label, row.judgement) == ("train.batch_size 8", "no difference shown")


def write_grid(folder, name, rates, **features):
    """Three precisions, three runs each."""
    for precision, rate in zip(("fp32", "bf16", "fp16"), rates, strict=True):
        write_runs(
            folder,
            f"{name}-{precision}",
            [rate, rate * 1.002, rate * 0.998],
            settings=(f"train.precision={precision}",),
            **features,
        )
    return [str(folder)]


def test_many_rows_are_corrected_and_summed_up(tmp_path):
    a = write_grid(tmp_path / "a", "a", [110.0, 200.0, 190.0])
    b = write_grid(tmp_path / "b", "b", [100.0, 200.1, 200.0])
    got = compare(a, b)
    assert sorted(row.label for row in got.rows) == [
        f"resnet50 v2 · {precision} · batch 8" for precision in ("bf16", "fp16", "fp32")
    ]
    by_label = {row.label.split(" · ")[1]: row.judgement for row in got.rows}
    assert by_label == {"fp32": "faster", "bf16": "no difference shown", "fp16": "slower"}
    assert all(row.p_holm >= row.p_value for row in got.rows)
    assert got.geometric_mean == pytest.approx((1.1 * 200 / 200.1 * 0.95) ** (1 / 3), rel=1e-3)
    assert got.verdict == "3 rows: 1 faster, 1 slower, 1 no difference shown; geometric mean 1.015"


def test_nothing_in_common_is_refused_by_the_nearest_and_forced_to_it(tmp_path):
    a = write_grid(tmp_path / "a", "a", [110.0, 200.0, 190.0])
    far = ("train.precision=fp32", "model.depth=18", "train.batch_size=16")
    b = [*write_runs(tmp_path, "far", [100.0], settings=far)]
    b += write_runs(tmp_path, "near", [100.0], settings=("train.precision=tf32",))
    with pytest.raises(ResultError, match=r"of the nearest \(A \| B\):\ntrain\.precision: \w+ \| tf32$"):
        compare(a, words(b))
    got = compare(a, words(b), force=True)
    assert [row.b.runs for row in got.rows] == [[str(b[1])]] * 3
    assert got.left_out == ["resnet50 v2 · fp32 · batch 16: only in B, 1 run"]


def test_rows_that_look_alike_are_told_apart_by_their_keys(tmp_path):
    for side in "ab":
        for depth in (18, 50):
            write_runs(tmp_path / side, f"{side}{depth}-", [100.0, 101.0], settings=(f"model.depth={depth}",))
    got = compare([str(tmp_path / "a")], [str(tmp_path / "b")])
    assert [row.label for row in got.rows] == [
        f"resnet50 v2 · fp32 · batch 8 · model.depth={depth}" for depth in (18, 50)
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
def test_sides_are_named_by_what_tells_them_apart(tmp_path, of_b, labels):
    a, b = write_run(tmp_path, make_result("a")), write_run(tmp_path, make_result("b", **of_b))
    (row,) = compare([str(a)], [str(b)]).rows
    assert (row.a.label, row.b.label) == labels


def gpu_run(folder, name="gpu", rate=2421.0, device="NVIDIA A100-SXM4-80GB", **features):
    devices = [Device(host="h", name=device, label="cuda:0")]
    return write_run(folder, make_result(name, rate, devices=devices, **features))


def test_one_published_figure(tmp_path):
    got = compare([str(gpu_run(tmp_path))], ["a100-80-mxnet-amp"])
    (row,) = got.rows
    assert row.ratio == pytest.approx(2421 / 3410)
    assert row.ci95 == pytest.approx((2421 * 0.99 / 3410, 2421 * 1.01 / 3410))
    assert row.ci_covers == "the run's own; the published figure has none"
    assert (row.judgement, row.p_value, row.b.runs, row.label) == ("not judged", None, [], "a100-80-mxnet-amp")
    assert row.b.source.endswith("MxNet/Classification/RN50v1.5/README.md")
    assert {"precision: fp32 | AMP", "batch a device: 8 | 512"} <= set(row.differences)
    assert "71.0 % (70.3 … 71.7 %)" in got.verdict


def test_published_figures_are_compared_device_by_device(tmp_path):
    run = gpu_run(tmp_path, rate=16000.0, ranks=4)
    (row,) = compare([str(run)], ["h100-mlperf-v4.0-8"]).rows
    assert row.a.images_per_second == pytest.approx(4000)
    assert row.b.images_per_second == pytest.approx(56300 / 8)
    assert row.ratio == pytest.approx(4000 * 8 / 56300)
    assert {"devices: 4 | 8", "counted: the steady window | the whole run, evaluation included"} <= set(row.differences)


def test_all_published_figures(tmp_path):
    got = compare([str(gpu_run(tmp_path))], ["published"])
    assert len(got.rows) == 39
    assert got.geometric_mean is None
    assert "31 % to 660 % of 39 published figures" in got.verdict


def test_other_models_are_left_out_or_refused(tmp_path):
    small = write_run(tmp_path, make_result("small", settings=("model.depth=18",)))
    with pytest.raises(ResultError, match="no published figures for resnet50"):
        compare([str(small)], ["published"])
    got = compare([str(small), str(gpu_run(tmp_path))], ["a10-lambda-amp"])
    assert len(got.rows) == 1
    assert got.left_out == ["resnet50 v2 · fp32 · batch 8: no published figures"]


def test_words_that_are_nothing(tmp_path):
    run = str(gpu_run(tmp_path))
    with pytest.raises(ResultError, match=r"'a100-80-mxnet-am', did you mean"):
        compare([run], ["a100-80-mxnet-am"])
    for runs, to in ((["published"], [run]), ([run], ["runs/nothing"]), ([run], [run])):
        with pytest.raises(ResultError):
            compare(runs, to)


def unsteady(run_id: str, rate: float = 100.0, **features) -> Result:
    """A run whose step time changed by 8 % over its window."""
    result = make_result(run_id, rate, **features)
    measured = result.throughput.model_copy(update={"steady": False, "trend_percent": 8.0})
    return result.model_copy(update={"throughput": measured})


def test_two_drifting_runs_are_not_judged_unless_forced(tmp_path):
    a, b = write_run(tmp_path, unsteady("a", 110.0)), write_run(tmp_path, unsteady("b"))
    got = compare([str(a)], [str(b)])
    (row,) = got.rows
    assert (row.judgement, row.ci95, row.p_value) == ("not judged", None, None)
    assert row.ci_covers == "not established: 1 of 1 run of A and 1 of 1 run of B never became steady"
    assert row.differences == ["steady: no on both sides"]
    (forced,) = compare([str(a)], [str(b)], force=True).rows
    assert (forced.judgement, forced.ci_covers) == ("faster", "within each run")
    assert forced.differences == row.differences


def test_doubts_are_told_at_a_published_figure(tmp_path):
    run = write_run(tmp_path, unsteady("run", status="interrupted"))
    (row,) = compare([str(run)], ["a10-lambda-amp"]).rows
    assert {"steady: no | unknown", "status: interrupted | unknown"} <= set(row.differences)


def make_comparison(ratio, ci95, judgement, *, published=False) -> Comparison:
    a = Side(label="a", runs=["a"], images_per_second=1.0)
    b = Side(label="b", runs=[] if published else ["b"], images_per_second=1.0)
    row = ComparisonRow(label="what", a=a, b=b, ratio=ratio, ci95=ci95, ci_covers="between runs", judgement=judgement)
    return Comparison(rows=[row], verdict="")


@pytest.mark.parametrize(
    ("ratio", "ci95", "judgement", "limit", "outcome"),
    [
        (0.90, (0.88, 0.92), "slower", 0.95, "failed"),
        (0.94, (0.90, 0.98), "slower", 0.95, "failed"),
        (0.96, (0.95, 0.97), "slower", 0.95, "passed"),
        (0.90, (0.79, 1.02), "no difference shown", 0.95, "doubtful"),
        (0.99, (0.985, 0.995), "no difference shown", 0.999, "doubtful"),  # below the noise floor
        (0.90, None, "not judged", 0.95, "failed"),
        (1.00, None, "not judged", 0.95, "passed"),
        (1.02, (1.01, 1.03), "faster", 1.05, "failed"),
        (1.02, (0.97, 1.07), "no difference shown", 1.05, "doubtful"),
        (1.06, (1.01, 1.11), "faster", 1.05, "passed"),
    ],
)
def test_the_gate(ratio, ci95, judgement, limit, outcome):
    gate = module.check_gate(make_comparison(ratio, ci95, judgement), limit)
    assert (len(gate.failed), len(gate.doubtful)) == {"failed": (1, 0), "doubtful": (0, 1), "passed": (0, 0)}[outcome]


def test_the_gate_at_a_published_figure():
    gate = module.check_gate(make_comparison(0.71, (0.6, 1.1), "not judged", published=True), 0.8)
    assert gate.failed == ["what: 71 % (60 … 110 %) is below 0.800"]


def test_what_is_lost_says_no_whatever_the_rows_say():
    comparison = make_comparison(1.2, (1.1, 1.3), "faster")
    gate = module.check_gate(comparison, 0.95, ["a/broken: no throughput, its status is failed", "x: only in B, 1 run"])
    assert gate.failed == [
        "a/broken: no throughput, its status is failed; the gate cannot pass without it",
        "x: only in B, 1 run; the gate cannot pass without it",
    ]
    assert gate.doubtful == []


def test_what_is_lost_is_told_apart_from_what_is_left_out(tmp_path):
    """Lost: a run of A without a number, a group only in B. Not lost: a group only in A, a run of B without one."""
    for side, only in (("a", "bf16"), ("b", "fp16")):
        write_runs(tmp_path / side, f"{side}-both", [100.0])
        write_runs(tmp_path / side, f"{side}-only", [100.0], settings=(f"train.precision={only}",))
        write_run(tmp_path / side, make_result(f"{side}-broken", None, status="failed"))
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    comparison, lost = module.compare([a, f"{a}/a-both0"], [b])
    assert len(comparison.rows) == 1
    assert lost == [
        f"{a}/a-broken: no throughput, its status is failed",
        "resnet50 v2 · fp16 · batch 8: only in B, 1 run",
    ]
    assert [told for told in comparison.left_out if told not in lost] == [
        f"{a}/a-both0: given twice, counted once",
        f"{b}/b-broken: no throughput, its status is failed",
        "resnet50 v2 · bf16 · batch 8: only in A, 1 run",
    ]
