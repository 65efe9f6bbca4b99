"""`trainstone profile`: train until steps are steady, record some with torch's profiler, analyse the trace.

Unprofiled steps before and after show the overhead of the profiler. Every rank records a trace; the trace of rank 0 is
analysed.
"""

import time
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from trainstone.engine.distributed.collectives import barrier
from trainstone.engine.distributed.stop_agreement import StopAgreement
from trainstone.engine.fit import Fitted
from trainstone.engine.loop import train_steps
from trainstone.engine.task import Task, build_task
from trainstone.errors import MachineError
from trainstone.flows.bench.result import SideMeasurements, conclude
from trainstone.flows.lifecycle import Lifecycle
from trainstone.flows.observation import measure_device, observe, open_recorder
from trainstone.flows.prepare import rebuild_gradient_buckets, start_measurement
from trainstone.measure.clock import Timer, choose_timer
from trainstone.measure.devices import synchronize
from trainstone.measure.flops import CallCounter, Op, list_ops
from trainstone.measure.peaks import Peaks
from trainstone.measure.profiler import Capture, OuterCapture, ProfileWindow
from trainstone.measure.recorder import StepRecorder
from trainstone.results.findings import finding
from trainstone.results.progress import Progress
from trainstone.results.schema.run import Finding, Status
from trainstone.results.schema.timeline import Overhead, Timeline
from trainstone.results.steps import StepRecord
from trainstone.results.verdicts import format_profile_verdict
from trainstone.stats.steady_state import find_steady
from trainstone.stats.throughput import spread
from trainstone.trace.breakdown import analyse_trace
from trainstone.trace.roofline import OperatorWork, compute_roofline, name_in_trace
from trainstone.units import format_percent
from trainstone.workloads.registry import WORKLOADS

TRACE_NAME = "trace/rank{:04d}.json.gz"
# Without --start: wait until steps are steady, at most this share of the time of a bench.
WAIT_SHARE = 1 / 3
MIN_STEPS = 5
# Unprofiled steps after the profiled ones, so that a machine that slows down does not look like profiler overhead.
AFTER_STEPS = 5
# Recording costs some microseconds per operator; above this overhead the profile differs from an ordinary run.
MUCH_OVERHEAD = 0.2


@dataclass(frozen=True)
class ProfiledSteps:
    """Output of the profiled steps beside their step records."""

    window: ProfileWindow
    cores_used: float
    """CPU time / wall time of the profiled steps."""
    trace: Path | None
    """None: an outer tool (nsys, ncu) records."""
    ops: tuple[Op, ...]
    """Operators of one step; empty if they are not visible (engine.compile, engine.cuda_graphs)."""


def run_profile(
    life: Lifecycle, *, start: int | None, iterations: int, cores: bool = False, strict: bool = False
) -> Generator[Progress, None, Status]:
    """Profile some steps; every rank runs this, rank 0 writes the result.

    `cores`: an ncu run of the same configuration follows.
    """
    fitted, opened = yield from start_measurement(life, strict=strict)
    run, world = life.run, life.world
    if cores and fitted.device.type != "cuda":
        raise MachineError(
            f"--cores needs an NVIDIA GPU (it reads counters with ncu): this run is on {fitted.device.type}",
            hint="leave --cores out: compute utilisation and roofline do not need it",
        )
    peaks = yield from measure_device(life, fitted)
    life.check_stop()
    with closing(build_task(fitted.config, fitted.device, opened, world=world)) as task:
        with open_recorder(life, fitted) as recorder, observe(life, fitted, recorder.current_step) as observed:
            rebuild_gradient_buckets(task, fitted.config)
            agreement = StopAgreement(world, life.signals)
            recorded = yield from record_window(task, fitted, run.path, recorder, agreement, start, iterations)
        observed.peaks = yield from measure_device(life, fitted, peaks)
        yield Progress("reading the trace")
        if world.rank.number == 0:
            run.update(timeline=assess_profile(recorder, recorded, observed.peaks, run.path))
        observed.interrupted = life.find_stop()
        profiled = range(recorded.window.begin, recorded.window.end)
        conclude(life, fitted, recorder, observed, SideMeasurements(task.loader), excluded_steps=profiled)
    if world.rank.number == 0:
        # A profile need not have enough steps for an interval.
        findings = [found for found in run.result.findings if found.code != "few-steps"]
        run.update(findings=[build_finding(run.result.timeline, recorded.window), *findings])
        if run.result.timeline:
            title = WORKLOADS[fitted.config.workload].title(fitted.config)
            run.update(verdict=format_profile_verdict(title, run.result.timeline))
    return run.result.status


def record_window(
    task: Task,
    fitted: Fitted,
    folder: Path,
    recorder: StepRecorder,
    agreement: StopAgreement,
    start: int | None,
    iterations: int,
) -> Generator[Progress, None, ProfiledSteps]:
    """Train up to the profiled window, through it and some steps further; then count the operators of one step.

    All ranks profile the same steps; each records its own trace.
    """
    engine, timer = fitted.config.engine, choose_timer(task.device)
    outer = engine.nvtx  # an outer nsys or ncu records, and only one profiler can
    marked = task if outer else replace(task, mark=torch.profiler.record_function)
    running = train_steps(marked, timer, origin=time.perf_counter())
    steps = record_steps(running, recorder, agreement)
    warm_up = 0 if outer else timer.lag + 1
    planned = None if start is None else plan_window(start, warm_up, iterations, timer)
    limit_seconds = fitted.config.measure.seconds * WAIT_SHARE
    yield from wait_until_steady(steps, recorder, planned.begin if planned else None, timer, limit_seconds, agreement)
    window = planned or plan_window(len(recorder) + timer.lag + warm_up, warm_up, iterations, timer)
    rank = agreement.world.rank
    trace = None if outer else folder / TRACE_NAME.format(rank.number)
    capture = Capture(trace, task.device, rank, window) if trace else OuterCapture()
    agreement.wait_pending()
    with capture:
        clocks = time.process_time(), time.perf_counter()
        for number in range(window.begin, window.end):
            if number in (window.begin, window.first):  # the profiler has been started
                timer.pause()
            if number == window.first:
                clocks = time.process_time(), time.perf_counter()
            record = next(steps)
            if number in (window.first - 1, window.end - 1):  # else the recording has work of other steps, too
                synchronize(task.device)
            worked, passed = time.process_time() - clocks[0], time.perf_counter() - clocks[1]
            if number == window.end - 1:
                agreement.wait_pending()
            capture.step(number)
            yield Progress("profiling", record.step + 1, record.images / record.step_seconds)
    barrier(agreement.world)  # else the next step waits for the rank that writes its trace slowest
    timer.pause()
    while len(recorder) < window.end + max(AFTER_STEPS, iterations):
        record = next(steps)
        yield Progress("measuring without the profiler", record.step + 1, record.images / record.step_seconds)
    agreement.finish()
    ops: tuple[Op, ...] = ()
    if not (engine.compile or engine.cuda_graphs):  # with either, operators are not visible
        with CallCounter() as counter, task.without_gradient_sync():
            next(running)  # slow; not recorded as a step of the run
        ops = list_ops(counter)
    return ProfiledSteps(window, worked / passed, trace, ops)


def plan_window(start: int, warm_up: int, iterations: int, timer: Timer) -> ProfileWindow:
    """Return the window of profiled steps; the profiler warms up on some steps before those that count.

    With a timer that reads late, the device already has the next steps when the first is read: the window starts after.
    """
    earliest = timer.lag + 1 if timer.lag else 0
    first = max(start, earliest)
    return ProfileWindow(max(first - warm_up, earliest), first, first + iterations)


def record_steps(steps: Iterator[StepRecord], recorder: StepRecorder, agreement: StopAgreement) -> Iterator[StepRecord]:
    """Record each step; raise if any rank has a bad loss or received a stop signal."""
    for record in steps:
        recorder.step(record)
        agreement.update(record)
        agreement.raise_if_bad_loss()
        agreement.raise_if_stopped()
        yield record


def wait_until_steady(
    steps: Iterator[StepRecord],
    recorder: StepRecorder,
    begin: int | None,
    timer: Timer,
    limit_seconds: float,
    agreement: StopAgreement,
) -> Iterator[Progress]:
    """Run until step `begin` is next; if it is None, until steps are steady or the time limit is reached.

    Rank 0 decides; the other ranks know it two steps later.
    """
    if begin == 0:
        return
    began = None
    for record in steps:
        began = timer.now() if began is None else began
        yield Progress("waiting for steady steps", record.step + 1, record.images / record.step_seconds)
        number = len(recorder)
        if begin is not None and number + timer.lag >= begin:
            return
        if begin is not None or number < MIN_STEPS:
            continue
        steady = number % AFTER_STEPS == 0 and find_steady(recorder.column("step_seconds")).steady
        if agreement.request_end(steady or timer.now() - began > limit_seconds):
            return


def assess_profile(recorder: StepRecorder, recorded: ProfiledSteps, peaks: Peaks, folder: Path) -> Timeline | None:
    """Analyse the trace; None if an outer tool records."""
    if recorded.trace is None:
        return None
    counted = {name_in_trace(op.name) for op in recorded.ops}
    report = analyse_trace(recorded.trace, counted=counted)
    timeline = report.timeline
    steps = len(timeline.steps)
    seconds = sum(step.seconds for step in timeline.steps) / steps
    ops = [OperatorWork(op.name, op.input_shapes, op.count, op.flops, op.bytes_moved) for op in recorded.ops]
    return timeline.model_copy(
        update={
            "trace": str(recorded.trace.relative_to(folder)),
            "cores_used": recorded.cores_used,
            "overhead": assess_overhead(recorder.column("step_seconds"), recorded.window),
            "roofline": compute_roofline(
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


def assess_overhead(step_seconds: NDArray[np.float64], window: ProfileWindow) -> Overhead:
    """Compare the profiled steps with the steady steps before them and the steps after them."""
    before = step_seconds[find_steady(step_seconds[: window.begin]).from_step : window.begin]
    profiled, after = step_seconds[window.first : window.end], step_seconds[window.end :]
    plain = spread(np.concatenate([before, after]))
    median = float(np.median(profiled))
    return Overhead(
        plain_step_seconds=plain["median"],
        profiled_step_seconds=median,
        plain_steps=len(before) + len(after),
        profiled_steps=len(profiled),
        share=median / plain["median"] - 1,
        noise=1.4826 * plain["mad"] / plain["median"],
    )


def build_finding(timeline: Timeline | None, window: ProfileWindow) -> Finding:
    which = f"steps {window.first} to {window.end - 1}"
    if timeline is None or timeline.overhead is None:
        return finding("profiled", f"{which} were marked for an outer profiler (cudaProfilerStart to Stop)")
    cost = timeline.overhead
    longer = f"{format_percent(abs(cost.share))} {'longer' if cost.share >= 0 else 'shorter'}"
    others = f"than {cost.plain_steps} steps of this run without it"
    message = f"{which} were profiled: each took {longer} {others}, which vary by {format_percent(cost.noise)}"
    if cost.share <= max(MUCH_OVERHEAD, cost.noise):
        return finding("profiled", message)
    overstated = "the shares of small operators and of Python are overstated"
    return finding("profiled", f"{message}; {overstated}", severity="warning")
