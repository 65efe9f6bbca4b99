"""Where the time of training steps went, by a trace of torch.profiler: the record `timeline` of result.json.

How traces are read is in formats/kineto.py; what each moment belongs to in results/trace/parts.py.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from trainstone.formats.kineto import Kind, read_trace
from trainstone.results.profiled import StepParts, Timeline
from trainstone.results.trace.parts import judge_device, judge_processor, split_steps
from trainstone.results.trace.tables import (
    OperatorCalls,
    count_calls,
    find_callers,
    list_kernels,
    list_lanes,
    list_operators,
)
from trainstone.results.trace.view import PASS, View, look_at
from trainstone.text import printable
from trainstone.units import format_count, format_percent, format_share

MIN_SHARE = 0.0005
"""Less is not worth a word."""
IDLE = {
    "launch": "launch-bound (the host is not fast enough in giving out work: larger batches, engine.compile or "
    "engine.cuda_graphs help)",
    "data_wait": "waiting for data",
    "synchronisation": "synchronising (the host waits for the device before it gives out more)",
    "host": "Python between operators",
    "unaccounted": "not accounted for",
}


@dataclass(frozen=True)
class TraceReport:
    """What a trace says."""

    timeline: Timeline
    calls: list[OperatorCalls]
    """Of the counted operators."""


def analyse_trace(path: Path, *, counted: Collection[str] = ()) -> TraceReport:
    """Read a trace, plain or gzip, and say where the time of its steps went.

    Steps are torch's ProfilerStep marks; without any the whole trace is one. Of operators named in `counted`, as
    "aten::convolution", each outermost call is summed up by the sizes of its inputs. Raises DataError.
    """
    view = look_at(read_trace(path), printable(str(path)))
    calling = find_callers(view, counted)
    judged = judge_processor(view) if view.device is None else judge_device(view, calling)
    steps = split_steps(view, *judged)
    total_ns = float((view.ends - view.starts).sum())
    timeline = Timeline(
        trace=path.name,
        device=_name_device(view),
        rank=view.trace.rank,
        steps=steps,
        compute_utilisation=min(1.0, _share(steps, "kernel_running")),  # rounding may make the whole a little more
        accounted_share=1 - min(1.0, _share(steps, "unaccounted")),
        operators=list_operators(view, calling, total_ns),
        kernels=[] if view.device is None else list_kernels(view, total_ns),
        lanes=list_lanes(view),
        told=_tell_time(view, steps),
        events=view.trace.num_events,
    )
    return TraceReport(timeline, count_calls(view, calling))


def _name_device(view: View) -> str:
    """Return the kind of device, by the calls that its driver has."""
    if view.device is None:
        return "cpu"
    seen = {view.trace.names[name] for name in set(view.trace.name[view.trace.kind == Kind.CALL].tolist())}
    if any(name.startswith("hip") for name in seen):
        return "rocm"
    return "xpu" if any(name.startswith(("ze", "ur")) for name in seen) else "cuda"


def _tell_time(view: View, steps: list[StepParts]) -> list[str]:
    """Return what the steps' time says, with numbers."""
    told = [_tell_processor(steps) if view.device is None else _tell_device(steps)]
    told += _tell_communication(steps)
    if not view.marked:
        told.append("The trace has no marks of steps (ProfilerStep#), so all of it counts as one.")
    if not len(view.marks(PASS).starts) and _share(steps, "unaccounted") > MIN_SHARE:
        told.append(
            "It has no marks of forward and backward: Python between operators is in what is not accounted for."
        )
    if len(view.devices) > 1:
        others = format_count(len(view.devices) - 1, "other device")
        told.append(f"Judged is device {view.device}, which works most; {others} in the trace, too.")
    return told


def _tell_device(steps: list[StepParts]) -> str:
    idle = 1 - _share(steps, "busy")
    causes = [
        f"{format_share(share)} {words}" for part, words in IDLE.items() if (share := _share(steps, part)) > MIN_SHARE
    ]
    if idle <= MIN_SHARE or not causes:
        return f"The device is busy for {format_percent(1 - idle)} of the step."
    return f"The device is idle for {format_share(idle)} of the step: {', '.join(causes)}."


def _tell_processor(steps: list[StepParts]) -> str:
    parts = [f"Operators run for {format_percent(_share(steps, 'kernel_running'))} of the step"]
    words = {
        "host": "is Python between them",
        "data_wait": "is waiting for data",
        "unaccounted": "is not accounted for",
    }
    parts += [
        f"{format_share(share)} {told}" for part, told in words.items() if (share := _share(steps, part)) > MIN_SHARE
    ]
    return "; ".join(parts) + "."


def _tell_communication(steps: list[StepParts]) -> list[str]:
    total = _share(steps, "communication_total")
    if total <= MIN_SHARE:
        return []
    hidden = _share(steps, "overlap") / total
    exposed = _share(steps, "communication")
    rest = f"; the rest takes {format_share(exposed)} of the step" if exposed > MIN_SHARE else ""
    return [f"{format_percent(hidden, 0)} of communication is hidden behind compute{rest}."]


def _share(steps: list[StepParts], part: str) -> float:
    taken = sum(getattr(step, f"{part}_seconds") for step in steps)
    return float(taken / sum(step.seconds for step in steps))
