"""Mean parts of a profiled step, and readable names of operators."""

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
"""Exclusive part of a step -> its field of StepParts; a moment belongs to the first part that applies."""
ADDED_UP = "kernels, added up"
"""Longer than the step if streams overlap; redundant on a CPU, which has one stream of operators."""
BESIDE = {
    "anything runs": "busy_seconds",
    ADDED_UP: "kernel_seconds",
    "communication, hidden or not": "communication_total_seconds",
    "communication hidden behind compute": "overlap_seconds",
    "copies, hidden or not": "copy_total_seconds",
    "host waits for data": "data_wait_total_seconds",
    "host is in the optimiser": "optimizer_total_seconds",
}
"""Times that overlap the exclusive parts -> their fields of StepParts."""
MIN_SHARE = 0.0005  # smaller parts of a step are not mentioned
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
    total = mean_step(timeline)
    found = [(name, _mean(timeline.steps, field)) for name, field in names.items()]
    return [StepPart(name, seconds, seconds / total) for name, seconds in found if seconds > 0 and total > 0]


def describe_overhead(overhead: Overhead) -> str:
    """Format e.g. +3.1 % per step (244 ms without profiling, 252 ms with; steps vary by 1.2 %)."""
    plain, profiled = format_seconds(overhead.plain_step_seconds), format_seconds(overhead.profiled_step_seconds)
    scatter = f"steps vary by {format_percent(overhead.noise)}"
    share = f"{100 * overhead.share:+.1f} %"
    if overhead.share <= overhead.noise:
        return f"no measurable cost: {share} per step, {scatter} ({plain} without profiling, {profiled} with)"
    return f"{share} per step ({plain} without profiling, {profiled} with; {scatter})"


def format_calls(calls: int, num_steps: int) -> str:
    per_step = calls / max(1, num_steps)
    return f"{per_step:,.0f}" if per_step == round(per_step) or per_step >= 1000 else f"{per_step:.3g}"


def shorten(text: str, most: int) -> str:
    """Return the printable text, with its middle cut if too long: both ends of a C++ name are informative."""
    text = printable(text)
    if len(text) <= most:
        return text
    head = math.ceil((most - 1) / 2)
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def share_of(steps: Sequence[StepParts], part: str) -> float:
    taken = sum(getattr(step, f"{part}_seconds") for step in steps)
    return float(taken / sum(step.seconds for step in steps))


def describe_operator(name: str) -> str:
    space, _, bare = name.partition("::")
    return PLAIN_NAMES.get(bare, name) if space == "aten" else name


def _mean(steps: list[StepParts], field: str) -> float:
    return sum(getattr(step, field) for step in steps) / len(steps) if steps else 0.0
