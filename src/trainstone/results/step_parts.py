"""What a profile says: mean parts of a step, names of operators."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from trainstone.results.schema.timeline import Overhead, StepParts, Timeline
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
MIN_SHARE = 0.0005  # a smaller part of a step is not worth a word
PLAIN_NAMES = {
    "convolution": "convolution",
    "convolution_backward": "convolution backward",
    **{f"{library}_batch_norm": "batch norm" for library in ("native", "cudnn", "miopen")},
    **{f"{library}_batch_norm_backward": "batch norm backward" for library in ("native", "cudnn", "miopen")},
    **dict.fromkeys(("relu", "relu_"), "ReLU"),
    "threshold_backward": "ReLU backward",
    "mm": "matrix multiplication",
    "addmm": "matrix multiplication with bias",
    "bmm": "batched matrix multiplication",
    "add": "addition",
    "add_": "addition in place",
    "max_pool2d_with_indices": "max pooling",
    "max_pool2d_with_indices_backward": "max pooling backward",
    "_log_softmax": "log-softmax",
    "_log_softmax_backward_data": "log-softmax backward",
    "_fused_sgd_": "optimiser (fused SGD)",
    "_fused_adam_": "optimiser (fused Adam)",
    "_fused_adamw_": "optimiser (fused AdamW)",
}


class StepPart(NamedTuple):
    name: str
    seconds: float
    share: float


def mean_step(timeline: Timeline) -> float:
    return _mean(timeline.steps, "seconds")


def average_parts(timeline: Timeline, names: dict[str, str] = PARTS) -> list[StepPart]:
    whole = mean_step(timeline)
    found = [(name, _mean(timeline.steps, field)) for name, field in names.items()]
    return [StepPart(name, seconds, seconds / whole) for name, seconds in found if seconds > 0 and whole > 0]


def describe_overhead(overhead: Overhead) -> str:
    """Return +3.1 % a step (244 ms without it, 252 ms with it; steps scatter by 1.2 %), or that none is seen."""
    plain, profiled = format_seconds(overhead.plain_step_seconds), format_seconds(overhead.profiled_step_seconds)
    scatter = f"steps scatter by {format_percent(overhead.noise)}"
    share = f"{100 * overhead.share:+.1f} %"
    if overhead.share <= overhead.noise:
        return f"no cost seen: {share} a step, {scatter} ({plain} without it, {profiled} with it)"
    return f"{share} a step ({plain} without it, {profiled} with it; {scatter})"


def format_calls(calls: int, num_steps: int) -> str:
    a_step = calls / max(1, num_steps)
    return f"{a_step:,.0f}" if a_step == round(a_step) or a_step >= 1000 else f"{a_step:.3g}"


def shorten(text: str, most: int) -> str:
    """Return the text made printable, without its middle where it is longer: both ends of a C++ name tell something."""
    text = printable(text)
    if len(text) <= most:
        return text
    head = math.ceil((most - 1) / 2)
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def share_of(steps: Sequence[StepParts], part: str) -> float:
    taken = sum(getattr(step, f"{part}_seconds") for step in steps)
    return float(taken / sum(step.seconds for step in steps))


def name_plainly(name: str) -> str:
    space, _, bare = name.partition("::")
    return PLAIN_NAMES.get(bare, name) if space == "aten" else name


def _mean(steps: list[StepParts], field: str) -> float:
    return sum(getattr(step, field) for step in steps) / len(steps) if steps else 0.0
