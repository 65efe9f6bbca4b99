"""MLPerf's score of several runs: the mean time to the target without the fastest and the slowest (olympic)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

NUM_RUNS = {"resnet": 5, "ssd": 5, "retinanet": 5, "maskrcnn": 5}
"""Runs that a result of the benchmark needs."""


class Score(NamedTuple):
    """What several runs come to."""

    minutes: float | None
    """The score; None where the rules give none."""
    note: str
    """How it came about, or why there is none."""
    mean_minutes: float | None
    """Plain mean over the runs that reached their target."""
    dropped: tuple[int, ...] = ()
    """Positions of the runs that the score leaves out."""


def score_runs(benchmark: str | None, minutes: Sequence[float | None]) -> Score:
    """Score runs by the minutes each took to its target; None: it did not reach it, which counts as slowest."""
    reached = [value for value in minutes if value is not None]
    mean = sum(reached) / len(reached) if reached else None
    needed, missed = NUM_RUNS.get(benchmark or ""), len(minutes) - len(reached)
    if needed is None:
        return Score(None, f"how many runs a score of {benchmark or 'this'} needs is not known here", mean)
    if len(minutes) != needed:
        return Score(None, f"{benchmark} needs {needed} runs, not {len(minutes)}", mean)
    if missed > 1:
        return Score(None, f"{missed} of {needed} runs missed the target, one may", mean)
    ranked = rank_times(minutes)
    kept = [value for at in ranked[1:-1] if (value := minutes[at]) is not None]
    note = f"mean of {len(kept)} of {needed} runs: the fastest and the slowest are left out"
    return Score(sum(kept) / len(kept), note, mean, (ranked[0], ranked[-1]))


def rank_times(times: Sequence[float | None]) -> list[int]:
    """Return the positions of times, the fastest first; None, which did not reach its target, is the slowest."""
    return sorted(range(len(times)), key=lambda at: math.inf if (value := times[at]) is None else value)


def olympic_mean(values: Sequence[float]) -> float:
    """Return the mean without the smallest and the largest; of one or two values their mean."""
    ranked = sorted(values)
    kept = ranked[1:-1] or ranked
    return sum(kept) / len(kept)
