"""Tests of the roofline (counted work and traced times), of mean step parts, profiling overhead and sentences."""

import math
from dataclasses import replace
from typing import Any

import pytest

from support.builders.hostile_text import HOSTILE
from support.builders.results import make_timeline
from trainstone.results import step_parts
from trainstone.results.schema.timeline import Overhead, RooflineChart
from trainstone.trace.operators import OperatorCalls
from trainstone.trace.roofline import OperatorWork, compute_roofline, name_in_trace

IMAGE, WEIGHT = (8, 64, 56, 56), (64, 64, 3, 3)
PEAK, BANDWIDTH = 1e12, 1e11
CONVOLUTION = OperatorWork("aten.convolution.default", (IMAGE, WEIGHT), 3, 6e9, 3e8)
OTHER_SHAPES = replace(CONVOLUTION, shapes=(IMAGE, (64, 64, 1, 1)))
TIMED = OperatorCalls("aten::convolution", (IMAGE, WEIGHT, (), ()), 6, 0.04, None)


def calls(name: str, dims: tuple, count: int, host: float, device: float | None = None) -> OperatorCalls:
    return OperatorCalls(f"aten::{name}", dims, count, host, device)


def try_chart(ops: list[OperatorWork], timed: list[OperatorCalls], **changes: Any) -> RooflineChart | None:
    given = {"steps": 2, "step_seconds": 0.1, "peak_flops": PEAK, "peak_source": "measured"}
    return compute_roofline(ops, timed, **(given | {"peak_bytes_per_second": BANDWIDTH} | changes))


def build_chart(ops: list[OperatorWork], timed: list[OperatorCalls], **changes: Any) -> RooflineChart:
    chart = try_chart(ops, timed, **changes)
    assert chart is not None
    return chart


def test_compute_roofline_uses_the_longer_bound():
    chart = build_chart([CONVOLUTION], [TIMED])
    (found,) = chart.points
    assert (found.operator, found.calls, found.seconds) == ("aten::convolution", 3, 0.02)
    assert found.shapes == "8×64×56×56, 64×64×3×3"
    assert found.bound == "compute"
    assert found.share_of_bound == pytest.approx(6e9 / PEAK / 0.02)
    assert chart.operators == [found.model_copy(update={"shapes": ""})]
    assert chart.covered_share == pytest.approx(0.2)
    assert (chart.peak_flops, chart.peak_source, chart.peak_bytes_per_second) == (PEAK, "measured", BANDWIDTH)
    (moved,) = build_chart([replace(CONVOLUTION, bytes_moved=1e9)], [TIMED]).operators
    assert (moved.bound, moved.share_of_bound) == ("memory", pytest.approx(0.5))


def test_compute_roofline_uses_device_time_if_present():
    timed = [calls("convolution", (IMAGE, WEIGHT), 6, 0.4, 0.02), calls("convolution", ((1,),), 6, 0.4)]
    chart = build_chart([CONVOLUTION, replace(CONVOLUTION, shapes=((1,),))], timed)
    assert chart.operators[0].seconds == 0.01
    assert len(chart.points) == 1


def test_compute_roofline_merges_overloads_and_strides():
    add = OperatorWork("aten.add_.Tensor", (IMAGE, IMAGE), 3, 0, 3e8)
    ops = [
        *(add, replace(add, count=1, bytes_moved=1e8), OperatorWork("aten.add_.Scalar", (IMAGE,), 1, 0, 1e8)),
        OperatorWork("aten.add_.Tensor", ((),), 5, 0, 80),
    ]
    timed = [calls("add_", (IMAGE, IMAGE, ()), 8, 0.02), calls("add_", (IMAGE, (), ()), 2, 0.004)]
    timed += [calls("add_", ((), (), ()), 10, 0.002)]
    chart = build_chart(ops, timed)
    assert [(found.operator, found.calls) for found in chart.operators] == [("aten::add_", 10)]
    assert chart.operators[0].bytes_moved == 5e8 + 80
    assert chart.operators[0].seconds == pytest.approx(0.013)
    shapes = [(found.shapes, found.calls) for found in chart.points]
    assert shapes == [("8×64×56×56, 8×64×56×56", 4), ("8×64×56×56", 1), ("", 5)]


def test_compute_roofline_joins_tensor_lists_by_name():
    op = OperatorWork("aten._fused_sgd_.default", tuple((64,) for _ in range(321)), 1, 0, 1e8)
    chart = build_chart([op, replace(op, shapes=(WEIGHT,))], [calls("_fused_sgd_", ((), ()), 4, 0.01)])
    assert chart.points == chart.operators
    assert (chart.points[0].shapes, chart.points[0].calls, chart.points[0].bytes_moved) == ("", 2, 2e8)


@pytest.mark.parametrize(("count", "kept"), [(200, True), (198, True), (202, True), (197, False), (203, False)])
def test_compute_roofline_allows_one_percent_difference_in_calls(count: int, kept: bool):
    chart = try_chart([replace(CONVOLUTION, count=100)], [TIMED._replace(calls=count)])
    assert (chart is not None) is kept


def test_compute_roofline_skips_points_of_shapes_with_different_calls():
    timed = [TIMED._replace(calls=4), TIMED._replace(dims=OTHER_SHAPES.shapes, calls=8)]
    chart = build_chart([CONVOLUTION, OTHER_SHAPES], timed)
    assert chart.operators[0].calls == 6
    assert chart.points == chart.operators


@pytest.mark.parametrize(
    ("op", "timed", "changes"),
    [
        (CONVOLUTION, [], {}),
        (CONVOLUTION, [calls("mm", (IMAGE, WEIGHT), 6, 0.04)], {}),
        (CONVOLUTION, [TIMED._replace(host_seconds=0.0)], {}),
        (CONVOLUTION, [TIMED._replace(device_seconds=0.0)], {}),
        (replace(CONVOLUTION, flops=0, bytes_moved=0), [TIMED], {}),
        (CONVOLUTION, [TIMED], {"steps": 0}),
        *(
            (CONVOLUTION, [TIMED], {name: value})
            for name in ("step_seconds", "peak_flops", "peak_bytes_per_second")
            for value in (0, -1, math.nan, math.inf)
        ),
    ],
)
def test_compute_roofline_without_work_time_or_peak_returns_none(
    op: OperatorWork, timed: list[OperatorCalls], changes: dict
):
    assert try_chart([op], timed, **changes) is None


@pytest.mark.parametrize(
    ("name", "traced", "plain"),
    [
        ("aten.convolution_backward.default", "aten::convolution_backward", "convolution backward"),
        ("aten._fused_sgd_.default", "aten::_fused_sgd_", "optimiser (fused SGD)"),
        ("aten.relu_.default", "aten::relu_", "ReLU"),
        ("mine.relu.default", "mine::relu", "mine::relu"),
        (f"{HOSTILE}.x.y", f"{HOSTILE}::x", f"{HOSTILE}::x"),
        ("odd", "odd", "odd"),
        ("", "", ""),
    ],
)
def test_operator_names_are_translated(name: str, traced: str, plain: str):
    assert name_in_trace(name) == traced
    assert step_parts.describe_operator(traced) == plain


def describe(*made: tuple[str, float, float, str]) -> list[str]:
    """Return sentences on operators that take `seconds` of a 0.1 s step at `share` of their bound."""
    ops, timed = [], []
    for name, seconds, share, bound in made:
        peak = PEAK if bound == "compute" else 0
        ops.append(OperatorWork(name, (), 1, share * seconds * peak, 0 if peak else share * seconds * BANDWIDTH))
        timed.append(OperatorCalls(name_in_trace(name), (), 2, 2 * seconds, None))
    return build_chart(ops, timed).sentences


def test_compute_roofline_sentences_describe_longest_operators_and_ideal_time():
    sentences = describe(
        ("aten.convolution_backward.default", 0.048, 0.61, "compute"),
        ("aten.native_batch_norm.default", 0.02, 0.88, "memory"),
        ("aten.relu_.default", 0.01, 1.4, "memory"),
        ("aten.mm.default", 0.006, 1.1, "compute"),
        ("x.y.default", 0.0052, 0.0421, "compute"),
        ("aten.add.Tensor", 0.0049, 0.5, "compute"),
    )
    expected = ("48 61", "20 88", "10 1.4 times", "6.0 1.1 times", "5.2 only 4.2", "94 70")
    for sentence, values in zip(sentences, expected, strict=True):
        assert all(value in sentence for value in values.split()), sentence
    assert "3.5 %" in describe(("aten.native_batch_norm.default", 0.05, 0.035, "memory"))[0]
    assert len(describe(*((f"x.{number}.y", 0.01, 0.5, "compute") for number in range(9)))) == 6


def test_compute_roofline_sums_bounds_over_shapes():
    """One shape is compute-bound, the other memory-bound, and both reach their bound."""
    computes = OperatorWork("aten.convolution.default", ((8, 3), *[(1,)] * 3), 1, 20e9, 1e8)  # 20 ms of arithmetic
    moves = OperatorWork("aten.convolution.default", ((8, 4),), 1, 1e9, 1e9)  # 10 ms of traffic
    pairs = ((computes, 0.04), (moves, 0.02))
    timed = [TIMED._replace(dims=op.shapes, calls=2, host_seconds=seconds) for op, seconds in pairs]
    chart = build_chart([computes, moves], timed)
    (whole,) = chart.operators
    assert whole.share_of_bound == pytest.approx(1.0)
    assert whole.bound == "compute"
    assert [(point.bound, point.shapes) for point in chart.points] == [("compute", "8×3, 1, 1, …"), ("memory", "8×4")]
    assert chart.sentences[-1].endswith("would take 100 % of their time.")


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_average_parts_add_up_to_mean_step(kind: str):
    timeline = make_timeline(kind)
    parts = step_parts.average_parts(timeline)
    assert sum(part.seconds for part in parts) == pytest.approx(step_parts.mean_step(timeline))
    assert sum(part.share for part in parts) == pytest.approx(1)
    skipped = {"communication", "synchronising", "launching"} if kind == "cpu" else set()
    assert [part.name for part in parts] == [name for name in step_parts.PARTS if name not in skipped]


def test_average_parts_without_steps_is_empty():
    timeline = make_timeline(steps=[])
    assert step_parts.mean_step(timeline) == 0
    assert step_parts.average_parts(timeline) == []


@pytest.mark.parametrize(
    ("share", "message"),
    [
        (0.031, "+3.1 % per step (244 ms without profiling, 252 ms with; steps vary by 1.2 %)"),
        (0.012, "no measurable cost: +1.2 % per step, steps vary by 1.2 % (244 ms without profiling, 252 ms with)"),
        (-0.02, "no measurable cost: -2.0 % per step, steps vary by 1.2 % (244 ms without profiling, 252 ms with)"),
    ],
)
def test_describe_overhead_includes_noise(share: float, message: str):
    seconds = {"plain_step_seconds": 0.244, "profiled_step_seconds": 0.252}
    assert (
        step_parts.describe_overhead(Overhead(**seconds, plain_steps=20, profiled_steps=5, share=share, noise=0.012))
        == message
    )


def test_format_calls_is_per_step():
    assert step_parts.format_calls(265, 5) == "53"
    assert step_parts.format_calls(10, 4) == "2.5"
    assert step_parts.format_calls(12_345_678, 10) == "1,234,568"
    assert step_parts.format_calls(3, 0) == "3"


@pytest.mark.parametrize("most", [12, 13, 36])
def test_shorten_removes_the_middle(most: int):
    name = "void cutlass::Kernel2<" + "x" * 2000 + ">(Params)"
    short = step_parts.shorten(name, most)
    assert len(short) == most
    assert short.startswith("void ")
    assert short.endswith("rams)")
    assert step_parts.shorten("short", most) == "short"
