"""Where the time of training steps went, by a trace of torch.profiler: the record `timeline` of result.json.

How traces are read is in formats/kineto.py; what each moment belongs to in results/trace/parts.py.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from trainstone.formats.eventcolumns import Kind
from trainstone.formats.kineto import read_trace
from trainstone.results.profiled import StepParts, Timeline
from trainstone.results.trace.launches import find_launches
from trainstone.results.trace.parts import judge_device, judge_processor, split_steps
from trainstone.results.trace.tables import (
    OperatorCalls,
    count_calls,
    find_callers,
    list_kernels,
    list_lanes,
    list_operators,
)
from trainstone.results.trace.told import tell_time
from trainstone.results.trace.view import View, look_at
from trainstone.text import printable


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
    launches = find_launches(view)
    moments = judge_processor(view) if view.device is None else judge_device(view, launches)
    steps = split_steps(view, moments)
    calling = find_callers(view, launches, counted)
    total_ns = float((view.ends - view.starts).sum())
    timeline = Timeline(
        trace=path.name,
        device=_name_device(view),
        rank=view.trace.rank,
        steps=steps,
        compute_utilisation=_share(steps, "kernel_running_seconds"),
        accounted_share=1 - _share(steps, "unaccounted_seconds"),
        operators=list_operators(view, calling, total_ns),
        kernels=[] if view.device is None else list_kernels(view, total_ns),
        lanes=list_lanes(view),
        told=tell_time(view, steps),
        events=view.trace.num_events,
    )
    return TraceReport(timeline, count_calls(view, calling))


def _share(steps: list[StepParts], part: str) -> float:
    taken = sum(getattr(step, part) for step in steps) / sum(step.seconds for step in steps)
    return min(1.0, float(taken))  # rounding may make the whole a little more


def _name_device(view: View) -> str:
    """Return the kind of device, by the calls that its driver has."""
    if view.device is None:
        return "cpu"
    seen = {view.trace.names[name] for name in set(view.trace.name[view.kind == Kind.CALL].tolist())}
    if any(name.startswith("hip") for name in seen):
        return "rocm"
    return "xpu" if any(name.startswith(("ze", "ur")) for name in seen) else "cuda"
