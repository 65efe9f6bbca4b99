"""Mean parts of a step, the profiler's cost in words, names shortened."""

import pytest

from made_results import make_timeline
from trainstone.results.breakdown import PARTS, average_parts, format_calls, mean_step, shorten, tell_overhead
from trainstone.results.profiled import Overhead


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_parts_add_up_to_the_mean_step(kind: str):
    timeline = make_timeline(kind)
    parts = average_parts(timeline)
    assert sum(part.seconds for part in parts) == pytest.approx(mean_step(timeline))
    assert sum(part.share for part in parts) == pytest.approx(1)
    skipped = {"communication", "synchronising", "launching"} if kind == "cpu" else set()
    assert [part.name for part in parts] == [name for name in PARTS if name not in skipped]


def test_without_steps_there_is_nothing():
    timeline = make_timeline(steps=[])
    assert mean_step(timeline) == 0
    assert average_parts(timeline) == []


@pytest.mark.parametrize(
    ("share", "message"),
    [
        (0.031, "+3.1 % a step (244 ms without it, 252 ms with it; steps scatter by 1.2 %)"),
        (0.012, "no cost seen: +1.2 % a step, steps scatter by 1.2 % (244 ms without it, 252 ms with it)"),
        (-0.02, "no cost seen: -2.0 % a step, steps scatter by 1.2 % (244 ms without it, 252 ms with it)"),
    ],
)
def test_the_cost_of_profiling_is_told_with_its_noise(share: float, message: str):
    seconds = {"plain_step_seconds": 0.244, "profiled_step_seconds": 0.252}
    assert tell_overhead(Overhead(**seconds, plain_steps=20, profiled_steps=5, share=share, noise=0.012)) == message


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
