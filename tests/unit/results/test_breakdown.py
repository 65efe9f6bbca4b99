"""Mean parts of a step, the profiler's cost in words, names shortened."""

import pytest

from made_profile import CPU_PARTS, make_steps, make_timeline
from trainstone.results.breakdown import (
    BESIDE,
    PARTS,
    average_parts,
    format_calls,
    mean_step,
    shorten,
    tell_overhead,
)
from trainstone.results.profiled import Overhead, StepParts


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_parts_add_up_to_the_mean_step(kind: str):
    timeline = make_timeline(kind)
    parts = average_parts(timeline)
    assert sum(part.seconds for part in parts) == pytest.approx(mean_step(timeline))
    assert sum(part.share for part in parts) == pytest.approx(1)


def test_parts_without_time_are_left_out():
    assert [part.name for part in average_parts(make_timeline())] == [
        "compute", "optimiser", "copies", "waiting for data", "Python", "unaccounted",
    ]  # fmt: skip


def test_every_field_has_its_name():
    named = {*PARTS.values(), *BESIDE.values()}
    assert set(StepParts.model_fields) - named == {"step", "seconds", "kernel_running_seconds"}
    assert len(PARTS) == len(CPU_PARTS) == 9


def test_without_steps_there_is_nothing():
    timeline = make_timeline(steps=[])
    assert mean_step(timeline) == 0
    assert average_parts(timeline) == []
    steps = make_steps((0.0,) * 9, 2, 1.0)
    assert average_parts(make_timeline(steps=steps)) == []


def overhead(share: float, noise: float) -> Overhead:
    return Overhead(
        plain_step_seconds=0.244,
        profiled_step_seconds=0.252,
        plain_steps=20,
        profiled_steps=5,
        share=share,
        noise=noise,
    )


def test_the_cost_of_profiling_is_told_with_its_noise():
    told = tell_overhead(overhead(0.031, 0.012))
    assert told == "+3.1 % a step (244 ms without it, 252 ms with it; steps scatter by 1.2 %)"


@pytest.mark.parametrize("share", [0.012, 0.004, -0.02])
def test_a_cost_below_the_noise_is_none(share: float):
    told = tell_overhead(overhead(share, 0.012))
    assert told.startswith(f"no cost seen: {100 * share:+.1f} % a step, steps scatter by 1.2 %")


def test_calls_are_told_a_step():
    assert format_calls(265, 5) == "53"
    assert format_calls(10, 4) == "2.5"
    assert format_calls(12_345_678, 10) == "1,234,568"
    assert format_calls(3, 0) == "3"


@pytest.mark.parametrize("most", [12, 13, 36])
def test_long_names_lose_their_middle(most: int):
    name = "void cutlass::Kernel2<" + "x" * 2000 + ">(Params)"
    short = shorten(name, most)
    assert len(short) == most
    assert short.startswith("void ")
    assert short.endswith("rams)")
    assert shorten("short", most) == "short"
