"""Judges what `profile` recorded: its trace, what recording cost, its verdict. The last phase of train/profiling.py."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainstone.measure.flops import Op
from trainstone.measure.peaks import Peaks
from trainstone.measure.profiler import Window
from trainstone.measure.recorder import StepRecorder
from trainstone.results.checks import finding
from trainstone.results.profiled import Overhead, Timeline
from trainstone.results.roofline import WorkedOp, judge_roofline, name_in_trace
from trainstone.results.schema import Finding
from trainstone.results.stats import spread
from trainstone.results.steady import find_steady
from trainstone.results.store import RunFolder
from trainstone.results.summary import write_profile_verdict
from trainstone.results.timeline import analyse_trace
from trainstone.train.fit import Fitted
from trainstone.units import format_count, format_percent
from trainstone.workloads.registry import WORKLOADS

# Recording costs some microseconds an operator: so much longer steps are no longer those of an ordinary run.
MUCH_OVERHEAD = 0.2


@dataclass(frozen=True)
class Recorded:
    """What the steps left beside their records."""

    window: Window
    cores_used: float
    """Processor time / time of the recorded steps."""
    trace: Path | None
    """None where an outer tool records."""
    ops: tuple[Op, ...]
    """What one step executes; empty where it cannot be seen."""


def judge_profile(recorder: StepRecorder, recorded: Recorded, peaks: Peaks, folder: Path) -> Timeline | None:
    """Analyse the trace; None where another tool records."""
    if recorded.trace is None:
        return None
    counted = {name_in_trace(op.name) for op in recorded.ops}
    report = analyse_trace(recorded.trace, counted=counted)
    timeline = report.timeline
    steps = len(timeline.steps)
    seconds = sum(step.seconds for step in timeline.steps) / steps
    ops = [WorkedOp(op.name, op.input_shapes, op.count, op.flops, op.bytes_moved) for op in recorded.ops]
    return timeline.model_copy(
        update={
            "trace": str(recorded.trace.relative_to(folder)),
            "cores_used": recorded.cores_used,
            "overhead": judge_overhead(recorder.column("step_seconds"), recorded.window),
            "roofline": judge_roofline(
                ops,
                report.calls,
                steps=steps,
                step_seconds=seconds,
                peak_flops=peaks.flops,
                peak_source=peaks.flops_source,
                peak_bytes_per_second=peaks.bytes_per_second,
            ),
        }
    )


def judge_overhead(step_seconds: NDArray[np.float64], window: Window) -> Overhead:
    """Hold the recorded steps against those before, from where they are steady, and after."""
    before, profiled, after = (
        step_seconds[find_steady(step_seconds[: window.begin]).from_step : window.begin],
        step_seconds[window.first : window.end],
        step_seconds[window.end :],
    )
    plain = spread(np.concatenate([before, after]))
    median = float(np.median(profiled))
    return Overhead(
        plain_step_seconds=plain.median,
        profiled_step_seconds=median,
        plain_steps=len(before) + len(after),
        profiled_steps=len(profiled),
        share=median / plain.median - 1,
        noise=1.4826 * plain.mad / plain.median,
    )


def mark_as_profile(run: RunFolder, fitted: Fitted, recorded: Recorded) -> None:
    """Say what the run is, and that its speed is nobody's yardstick."""
    timeline, window = run.result.timeline, recorded.window
    # That there are too few steps for an interval is no news here.
    findings = [found for found in run.result.findings if found.code != "few-steps"]
    title = WORKLOADS[fitted.config.workload].title(fitted.config)
    verdict = write_profile_verdict(title, timeline) if timeline else run.result.verdict
    run.update(findings=[tell_profiled(timeline, window), *findings], verdict=verdict)


def tell_profiled(timeline: Timeline | None, window: Window) -> Finding:
    """The finding of every profile."""
    several = window.end - window.first > 1
    which = f"steps {window.first} to {window.end - 1} were" if several else f"step {window.first} was"
    if timeline is None or timeline.overhead is None:
        return finding("profiled", f"{which} given to an outer profiler (cudaProfilerStart to Stop)")
    cost = timeline.overhead
    longer = f"{format_percent(abs(cost.share))} {'longer' if cost.share >= 0 else 'shorter'}"
    others = f"than {format_count(cost.plain_steps, 'step')} of this run without it"
    told = f"{which} profiled: each took {longer} {others}, which scatter by {format_percent(cost.noise)}"
    if cost.share <= max(MUCH_OVERHEAD, cost.noise):
        return finding("profiled", told)
    overstated = "what takes little time each, small operators and Python, has a larger share here than without"
    return finding("profiled", f"{told}; {overstated}", severity="warning")
