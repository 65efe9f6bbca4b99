"""A profile's numbers as people read them, for terminal and page alike: mean parts of a step, the profiler's cost."""

import math
from typing import NamedTuple

from trainstone.results.profiled import Overhead, StepParts, Timeline
from trainstone.text import printable
from trainstone.units import format_percent, format_seconds

PARTS = {
    "compute": "compute_seconds",
    "optimiser": "optimizer_seconds",
    "communication": "communication_seconds",
    "copies": "copy_seconds",
    "waiting for data": "data_wait_seconds",
    "synchronising": "synchronisation_seconds",
    "launching": "launch_seconds",
    "Python": "host_seconds",
    "unaccounted": "unaccounted_seconds",
}
"""Name of each part that adds up -> its field of StepParts, in the order in which a moment is judged."""

ADDED_UP = "kernels, added up"
"""More than the step where streams run side by side; of a CPU's one stream of operators it says nothing new."""

BESIDE = {
    "anything runs": "busy_seconds",
    ADDED_UP: "kernel_seconds",
    "communication, hidden or not": "communication_total_seconds",
    "communication hidden behind compute": "overlap_seconds",
    "copies, hidden or not": "copy_total_seconds",
    "host waits for data": "data_wait_total_seconds",
    "host is in the optimiser": "optimizer_total_seconds",
}
"""What lies across the parts."""


class Part(NamedTuple):
    """A part of the mean profiled step."""

    name: str
    seconds: float
    share: float


def mean_step(timeline: Timeline) -> float:
    """Return the mean length of the profiled steps; 0 where there are none."""
    return _mean(timeline.steps, "seconds")


def average_parts(timeline: Timeline, names: dict[str, str] = PARTS) -> list[Part]:
    """Return the parts that hold any time, in order."""
    whole = mean_step(timeline)
    found = [(name, _mean(timeline.steps, field)) for name, field in names.items()]
    return [Part(name, seconds, seconds / whole) for name, seconds in found if seconds > 0 and whole > 0]


def tell_overhead(overhead: Overhead) -> str:
    """Return +3.1 % a step (244 ms without it, 252 ms with it; steps scatter by 1.2 %), or that none is seen."""
    plain, profiled = format_seconds(overhead.plain_step_seconds), format_seconds(overhead.profiled_step_seconds)
    scatter = f"steps scatter by {format_percent(overhead.noise)}"
    share = f"{100 * overhead.share:+.1f} %"
    if overhead.share <= overhead.noise:
        return f"no cost seen: {share} a step, {scatter} ({plain} without it, {profiled} with it)"
    return f"{share} a step ({plain} without it, {profiled} with it; {scatter})"


def format_calls(calls: int, num_steps: int) -> str:
    """Return the calls a step."""
    a_step = calls / max(1, num_steps)
    return f"{a_step:,.0f}" if a_step == round(a_step) or a_step >= 1000 else f"{a_step:.3g}"


def shorten(text: str, most: int) -> str:
    """Return the text made printable, without its middle where it is longer: both ends of a C++ name tell something."""
    text = printable(text)
    if len(text) <= most:
        return text
    head = math.ceil((most - 1) / 2)
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def _mean(steps: list[StepParts], field: str) -> float:
    return sum(getattr(step, field) for step in steps) / len(steps) if steps else 0.0
