"""Where the time of training steps went, by a trace of torch.profiler: the record `timeline` of result.json.

How traces are read is in formats/kineto.py; what each moment belongs to in results/trace/parts.py.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from trainstone.formats.kineto import Kind, read_trace
from trainstone.results.breakdown import MIN_SHARE, describe_steps, share_of
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
from trainstone.units import format_count


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
        compute_utilisation=min(1.0, share_of(steps, "kernel_running")),  # rounding may make the whole a little more
        accounted_share=1 - min(1.0, share_of(steps, "unaccounted")),
        operators=list_operators(view, calling, total_ns),
        kernels=[] if view.device is None else list_kernels(view, total_ns),
        lanes=list_lanes(view),
        told=_describe_time(view, steps),
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


def _describe_time(view: View, steps: list[StepParts]) -> list[str]:
    """Return what the steps' time says, and what the trace lacks."""
    told = describe_steps(steps, on_device=view.device is not None)
    if not view.marked:
        told.append("The trace has no marks of steps (ProfilerStep#), so all of it counts as one.")
    if not len(view.marks(PASS).starts) and share_of(steps, "unaccounted") > MIN_SHARE:
        told.append(
            "It has no marks of forward and backward: Python between operators is in what is not accounted for."
        )
    if len(view.devices) > 1:
        others = format_count(len(view.devices) - 1, "other device")
        told.append(f"Judged is device {view.device}, which works most; {others} in the trace, too.")
    return told
