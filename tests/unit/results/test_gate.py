import pytest

from made_results import make_result, write_run, write_runs
from trainstone.results.compare import check_gate, compare
from trainstone.results.schema import Comparison, ComparisonRow, Side


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
    gate = check_gate(make_comparison(ratio, ci95, judgement), limit)
    assert (len(gate.failed), len(gate.doubtful)) == {"failed": (1, 0), "doubtful": (0, 1), "passed": (0, 0)}[outcome]


def test_the_gate_at_a_published_figure():
    gate = check_gate(make_comparison(0.71, (0.6, 1.1), "not judged", published=True), 0.8)
    assert gate.failed == ["what: 71 % (60 … 110 %) is below 0.800"]


def test_what_is_lost_says_no_whatever_the_rows_say():
    comparison = make_comparison(1.2, (1.1, 1.3), "faster")
    gate = check_gate(comparison, 0.95, ["a/broken: no throughput, its status is failed", "x: only in B, 1 run"])
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
    comparison, lost = compare([a, f"{a}/a-both0"], [b])
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
