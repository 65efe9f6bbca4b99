"""Counted work joined with traced times: what belongs together is divided, nothing else is; and what is told of it."""

from dataclasses import replace
from typing import Any

import pytest

from hostile import EVIL
from made_profile import MadeCalls, make_calls, make_timeline, make_work
from trainstone.results.profiled import RooflineChart, RooflinePoint
from trainstone.results.roofline import (
    WorkedOp,
    judge_roofline,
    name_in_trace,
    name_plainly,
    tell_roofline,
    write_shapes,
)

PICTURE, WEIGHT = (8, 64, 56, 56), (64, 64, 3, 3)
PEAK, BANDWIDTH = 1e12, 1e11
CONVOLUTION = WorkedOp("aten.convolution.default", (PICTURE, WEIGHT), 3, 6e9, 3e8)


def judge(ops: list[WorkedOp], calls: list[MadeCalls], **changes: Any) -> RooflineChart | None:
    given = {
        "steps": 2,
        "step_seconds": 0.1,
        "peak_flops": PEAK,
        "peak_source": "measured",
        "peak_bytes_per_second": BANDWIDTH,
    }
    return judge_roofline(ops, calls, **(given | changes))


def judged(ops: list[WorkedOp], calls: list[MadeCalls], **changes: Any) -> RooflineChart:
    chart = judge(ops, calls, **changes)
    assert chart is not None
    return chart


def point(name: str, seconds: float, share: float, bound: str = "compute") -> RooflinePoint:
    return RooflinePoint(
        operator=name, calls=1, seconds=seconds, flops=1, bytes_moved=1, bound=bound, share_of_bound=share
    )


def test_an_operator_is_held_against_the_longer_of_its_bounds():
    chart = judged([CONVOLUTION], [MadeCalls("aten::convolution", (PICTURE, WEIGHT, (), ()), 6, 0.04)])
    (found,) = chart.points
    assert (found.operator, found.calls, found.seconds) == ("aten::convolution", 3, 0.02)
    assert found.shapes == "8×64×56×56, 64×64×3×3"
    assert found.bound == "compute"
    assert found.share_of_bound == pytest.approx(6e9 / PEAK / 0.02)
    (whole,) = chart.operators
    assert whole == found.model_copy(update={"shapes": ""})
    assert chart.covered_share == pytest.approx(0.2)
    assert (chart.peak_flops, chart.peak_source, chart.peak_bytes_per_second) == (PEAK, "measured", BANDWIDTH)


def test_traffic_is_the_bound_where_it_takes_longer():
    moved = replace(CONVOLUTION, bytes_moved=1e9)
    (found,) = judged([moved], [MadeCalls("aten::convolution", (PICTURE, WEIGHT), 6, 0.04)]).operators
    assert (found.bound, found.share_of_bound) == ("memory", pytest.approx(0.5))


def test_time_on_the_device_counts_where_there_is_any():
    calls = [MadeCalls("aten::convolution", (PICTURE, WEIGHT), 6, 0.4, 0.02)]
    assert judged([CONVOLUTION], calls).operators[0].seconds == 0.01


def test_host_and_device_are_not_mixed_within_a_name():
    ops = [CONVOLUTION, replace(CONVOLUTION, shapes=((1,),))]
    calls = [
        MadeCalls("aten::convolution", (PICTURE, WEIGHT), 6, 0.4, 0.02),
        MadeCalls("aten::convolution", ((1,),), 6, 0.4),
    ]
    chart = judged(ops, calls)
    assert chart.operators[0].seconds == 0.01
    assert len(chart.points) == 1


def test_overloads_of_a_name_come_together():
    ops = [
        WorkedOp("aten.add_.Tensor", (PICTURE, PICTURE), 4, 0, 4e8),
        WorkedOp("aten.add_.Scalar", (PICTURE,), 1, 0, 1e8),
        WorkedOp("aten.add_.Tensor", ((),), 5, 0, 80),
    ]
    calls = [
        MadeCalls("aten::add_", (PICTURE, PICTURE, ()), 8, 0.02),
        MadeCalls("aten::add_", (PICTURE, (), ()), 2, 0.004),
        MadeCalls("aten::add_", ((), (), ()), 10, 0.002),
    ]
    chart = judged(ops, calls)
    assert [(found.operator, found.calls) for found in chart.operators] == [("aten::add_", 10)]
    assert chart.operators[0].bytes_moved == 5e8 + 80
    assert chart.operators[0].seconds == pytest.approx(0.013)
    assert [found.shapes for found in chart.points] == ["8×64×56×56, 8×64×56×56", "8×64×56×56", ""]


def test_calls_alike_in_shapes_and_unlike_in_strides_are_one_point():
    ops = [CONVOLUTION, replace(CONVOLUTION, count=1, flops=5e8, bytes_moved=2e7)]
    (found,) = judged(ops, [MadeCalls("aten::convolution", (PICTURE, WEIGHT, ()), 8, 0.04)]).points
    assert (found.calls, found.flops) == (4, 6.5e9)


def test_lists_of_tensors_that_a_trace_omits_are_joined_by_name():
    weights = tuple((64,) for _ in range(321))
    op = WorkedOp("aten._fused_sgd_.default", weights, 1, 0, 1e8)
    chart = judged([op, replace(op, shapes=(WEIGHT,))], [MadeCalls("aten::_fused_sgd_", ((), ()), 4, 0.01)])
    assert chart.points == chart.operators
    assert (chart.points[0].shapes, chart.points[0].calls, chart.points[0].bytes_moved) == ("", 2, 2e8)


def test_a_name_with_other_calls_in_the_trace_is_left_out():
    ops = [CONVOLUTION, WorkedOp("aten.add.Tensor", (PICTURE, PICTURE), 18, 0, 1e8)]
    calls = [
        MadeCalls("aten::convolution", (PICTURE, WEIGHT), 6, 0.04),
        MadeCalls("aten::add", (PICTURE, PICTURE), 4, 0.05),
    ]
    chart = judged(ops, calls)
    assert [found.operator for found in chart.operators + chart.points] == ["aten::convolution"] * 2
    assert chart.covered_share == pytest.approx(0.2)


@pytest.mark.parametrize(("calls", "kept"), [(200, True), (198, True), (202, True), (197, False), (203, False)])
def test_calls_may_differ_by_a_hundredth(calls: int, kept: bool):
    ops = [replace(CONVOLUTION, count=100)]
    chart = judge(ops, [MadeCalls("aten::convolution", (PICTURE, WEIGHT), calls, 0.04)])
    assert (chart is not None) is kept


def test_shapes_whose_calls_differ_are_no_points_though_the_name_is_judged():
    ops = [CONVOLUTION, replace(CONVOLUTION, shapes=(PICTURE, (64, 64, 1, 1)))]
    calls = [
        MadeCalls("aten::convolution", (PICTURE, WEIGHT), 4, 0.02),
        MadeCalls("aten::convolution", (PICTURE, (64, 64, 1, 1)), 8, 0.02),
    ]
    chart = judged(ops, calls)
    assert chart.operators[0].calls == 6
    assert chart.points == chart.operators


@pytest.mark.parametrize(
    "calls",
    [
        [],
        [MadeCalls("aten::mm", (PICTURE, WEIGHT), 6, 0.04)],
        [MadeCalls("aten::convolution", (PICTURE, WEIGHT), 6, 0.0)],
        [MadeCalls("aten::convolution", (PICTURE, WEIGHT), 6, 0.04, 0.0)],
    ],
    ids=["nothing traced", "another operator", "no time on the host", "no time on the device"],
)
def test_without_time_there_is_no_roofline(calls: list[MadeCalls]):
    assert judge([CONVOLUTION], calls) is None
    assert judge([], calls) is None


@pytest.mark.parametrize("name", ["steps", "step_seconds", "peak_flops", "peak_bytes_per_second"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_without_a_peak_or_a_step_there_is_no_roofline(name: str, value: float):
    if name == "steps" and value not in (0, -1):
        return
    calls = [MadeCalls("aten::convolution", (PICTURE, WEIGHT), 6, 0.04)]
    assert judge([CONVOLUTION], calls, **{name: value}) is None


def test_work_of_nothing_is_no_point():
    calls = [MadeCalls("aten::convolution", (PICTURE, WEIGHT), 6, 0.04)]
    assert judge([replace(CONVOLUTION, flops=0, bytes_moved=0)], calls) is None


def test_the_order_of_what_is_given_does_not_matter():
    calls = make_calls(5, PEAK, BANDWIDTH, on_device=False)
    once = judged(make_work(), calls, steps=5)
    again = judged(make_work()[::-1], calls[::-1], steps=5)
    assert once.operators == again.operators
    assert once.points == again.points
    seconds = [found.seconds for found in once.points]
    assert seconds == sorted(seconds, reverse=True)


def test_operators_and_points_of_one_name_agree():
    chart = make_timeline("cuda").roofline
    assert chart is not None
    for whole in chart.operators:
        parts = [found for found in chart.points if found.operator == whole.operator]
        assert sum(found.seconds for found in parts) == pytest.approx(whole.seconds)
        assert sum(found.flops for found in parts) == pytest.approx(whole.flops)
        assert sum(found.calls for found in parts) == whole.calls


@pytest.mark.parametrize(
    ("name", "traced", "plain"),
    [
        ("aten.convolution_backward.default", "aten::convolution_backward", "convolution backward"),
        ("aten.native_batch_norm.default", "aten::native_batch_norm", "batch norm"),
        ("aten._fused_sgd_.default", "aten::_fused_sgd_", "optimiser (fused SGD)"),
        ("aten.mm.default", "aten::mm", "matrix multiplication"),
        ("aten.relu_.default", "aten::relu_", "ReLU"),
        ("torchvision.nms.default", "torchvision::nms", "torchvision::nms"),
        ("mine.relu.default", "mine::relu", "mine::relu"),
        ("odd", "odd", "odd"),
        ("", "", ""),
    ],
)
def test_names_are_translated(name: str, traced: str, plain: str):
    assert name_in_trace(name) == traced
    assert name_plainly(traced) == plain


def test_sentences_tell_the_longest_operators_and_the_ideal():
    operators = [
        point("aten::convolution_backward", 0.048, 0.61),
        point("aten::native_batch_norm", 0.02, 0.88, "memory"),
        point("aten::relu_", 0.01, 1.4, "memory"),
        point("aten::mm", 0.006, 1.1),
        point("x::y", 0.0052, 0.0421),
        point("aten::add", 0.0049, 0.5),
    ]
    assert tell_roofline(operators, 0.1) == [
        "Convolution backward takes 48 % of the step and reaches 61 % of the measured peak.",
        "Batch norm takes 20 % of the step and is memory-bound at 88 % of the measured bandwidth.",
        "ReLU takes 10 % of the step and moves its data at 1.4 times the measured memory bandwidth: much of it comes "
        "from the caches, or the bandwidth was measured too low.",
        "Matrix multiplication takes 6.0 % of the step and does its counted work at 1.1 times the measured peak: its "
        "algorithm needs less arithmetic than is counted, or the peak was measured too low.",
        "x::y takes 5.2 % of the step and reaches only 4.2 % of the measured peak.",
        "At their roofs the operators judged here, 94 % of the step, would take 70 % of their time.",
    ]


def test_at_most_five_operators_are_told():
    assert len(tell_roofline([point(f"x::{n}", 0.1, 0.5) for n in range(9)], 1.0)) == 6
    assert len(tell_roofline([point("x::y", 0.01, 0.5)], 1.0)) == 1


def test_shapes_are_written_short():
    assert write_shapes((PICTURE, WEIGHT)) == "8×64×56×56, 64×64×3×3"
    assert write_shapes(((1,), (2,), (3,), (4,))) == "1, 2, 3, …"
    assert write_shapes(()) == ""


def test_hostile_names_are_only_names():
    calls = [MadeCalls(name_in_trace(f"{EVIL}.x.y"), (), 2, 0.04)]
    chart = judged([WorkedOp(f"{EVIL}.x.y", (), 1, 1e9, 1e6)], calls)
    assert chart.operators[0].operator == f"{EVIL}::x"


def test_shapes_at_their_own_roofs_make_an_operator_at_its_roof():
    """One choice of shapes is bound by arithmetic, the other by memory, and both reach it."""
    computes = WorkedOp("aten.convolution.default", ((8, 3),), 1, 20e9, 1e8)  # 20 ms of arithmetic, 1 ms of traffic
    moves = WorkedOp("aten.convolution.default", ((8, 4),), 1, 1e9, 1e9)  # 1 ms and 10 ms
    calls = [
        MadeCalls("aten::convolution", ((8, 3),), 2, 0.040, None),
        MadeCalls("aten::convolution", ((8, 4),), 2, 0.020, None),
    ]
    chart = judged([computes, moves], calls)
    (whole,) = chart.operators
    assert whole.share_of_bound == pytest.approx(1.0)
    assert whole.bound == "compute"
    assert [point.bound for point in chart.points] == ["compute", "memory"]
    assert chart.told[-1].endswith("would take 100 % of their time.")


def test_what_is_far_from_both_roofs_is_not_called_memory_bound():
    told = tell_roofline([point("aten::native_batch_norm", 0.05, 0.035, "memory")], 0.1)[0]
    assert told == (
        "Batch norm takes 50 % of the step at 3.5 % of the measured bandwidth, its roof: something else holds it back."
    )
