"""How `profile` flows: fit, steady steps, a few recorded ones, steady ones again, the work counted; then the analysis.

The steps before and after tell what recording costs. Only one process is recorded: this one.
"""

import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from trainstone.config.schema import Config
from trainstone.errors import MachineError
from trainstone.log import log_into
from trainstone.machine.facts import read_facts, read_software
from trainstone.machine.health import read_pressure
from trainstone.machine.interrupt import Interrupt
from trainstone.machine.ranks import read_rank
from trainstone.measure.clock import Timer, choose_timer
from trainstone.measure.devices import peak_device_bytes, peak_host_bytes, reset_peaks
from trainstone.measure.flops import CallCounter, Op, list_ops
from trainstone.measure.peaks import Peaks, measure_peaks
from trainstone.measure.profiler import Capture, OuterCapture, Window
from trainstone.measure.recorder import StepRecorder
from trainstone.results.checks import finding
from trainstone.results.profiled import Overhead, Timeline
from trainstone.results.progress import Progress
from trainstone.results.roofline import WorkedOp, judge_roofline, name_in_trace
from trainstone.results.schema import Finding
from trainstone.results.stats import spread
from trainstone.results.steady import find_steady
from trainstone.results.steps import StepRecord
from trainstone.results.store import RunFolder
from trainstone.results.summary import write_profile_verdict
from trainstone.results.timeline import analyse_trace
from trainstone.train.conclude import Observed, conclude
from trainstone.train.fit import Fitted, fit_to_machine
from trainstone.train.loop import train_steps
from trainstone.train.run import check_loss, keep_record, sample_device, stop_if
from trainstone.train.task import Task, build_task, open_data, provide_data, settle_classes
from trainstone.units import format_count, format_percent
from trainstone.workloads.registry import WORKLOADS

TRACE_NAME = "trace/rank{:04d}.json.gz"
# Without --start: until steps are steady, but no longer than this share of the time that a bench would take.
SETTLING_SHARE = 1 / 3
MIN_STEPS = 5
# Unprofiled steps after the profiled ones, so that a machine that grows slower does not pass for the profiler's cost.
AFTER_STEPS = 5
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


def run_profile(
    config: Config, run: RunFolder, *, start: int | None, iterations: int, cores: bool = False, strict: bool = False
) -> Iterator[Progress]:
    """Profile some steps into `run`; `cores`: an ncu run of the same configuration will follow."""
    started = time.perf_counter()
    with Interrupt() as interrupt, log_into(run.path / "log.txt"), keep_record(run), ExitStack() as files:
        yield Progress("reading machine facts")
        run.write_machine(read_facts(), read_software())
        yield from provide_data(config)
        opened = open_data(config)
        yield Progress("fitting the recipe to this machine")
        stop_if(interrupt)
        fitted = fit_to_machine(settle_classes(config, opened), strict=strict)
        if cores and fitted.device.type != "cuda":
            raise MachineError(
                f"--cores reads the counters of an NVIDIA device by ncu; this run is on {fitted.device.type}",
                hint="leave --cores out: compute utilisation and roofline need no such counters",
            )
        run.write_config(fitted.config)
        run.update(findings=list(fitted.findings))
        yield Progress("measuring this device's peak")
        peaks = measure_peaks(fitted.device, fitted.config.train.precision)
        stop_if(interrupt)
        reset_peaks(fitted.device)
        before, clock_start = read_pressure(), time.perf_counter()
        with (
            StepRecorder(run.path / "steps-rank0000.csv", split_phases=fitted.config.engine.split_phases) as recorder,
            sample_device(run, fitted, recorder, clock_start) as telemetry,
        ):
            task = files.enter_context(closing(build_task(fitted.config, fitted.device, opened)))
            recorded = yield from record_window(task, fitted, run.path, recorder, interrupt, start, iterations)
        after, memory = read_pressure(), (peak_device_bytes(fitted.device), peak_host_bytes())
        yield Progress("measuring this device's peak again")
        peaks = peaks.best_of(measure_peaks(fitted.device, fitted.config.train.precision))
        yield Progress("reading the trace")
        run.update(timeline=judge_profile(recorder, recorded, peaks, run.path))
        spent = time.perf_counter() - started
        beside = (before, after), peaks, memory, telemetry.path, telemetry.reader, interrupt.asked, spent
        left_out = range(recorded.window.begin, recorded.window.end)
        conclude(run, fitted, recorder, Observed(*beside, loader=task.loader, left_out=left_out))
        mark_as_profile(run, fitted, recorded)


def record_window(
    task: Task,
    fitted: Fitted,
    folder: Path,
    recorder: StepRecorder,
    interrupt: Interrupt,
    start: int | None,
    iterations: int,
) -> Generator[Progress, None, Recorded]:
    """Run to the window, through it and a little further; then count what a step executes."""
    engine, timer = fitted.config.engine, choose_timer(task.device)
    outer = engine.nvtx  # an nsys or ncu around us records, and only one can
    marked = task if outer else replace(task, mark=torch.profiler.record_function)
    running = train_steps(marked, timer, origin=time.perf_counter())
    steps = take_steps(running, recorder, interrupt)
    warm_up = 0 if outer else timer.lag + 1
    planned = None if start is None else plan_window(start, warm_up, iterations, timer)
    settling_seconds = fitted.config.measure.seconds * SETTLING_SHARE
    yield from settle_down(steps, recorder, planned.begin if planned else None, timer, settling_seconds)
    window = planned or plan_window(len(recorder) + timer.lag + warm_up, warm_up, iterations, timer)
    trace = None if outer else folder / TRACE_NAME.format(read_rank().number)
    capture = Capture(trace, task.device, read_rank(), window) if trace else OuterCapture()
    with capture:
        clocks = time.process_time(), time.perf_counter()
        for number in range(window.begin, window.end):
            if number == window.first:
                clocks = time.process_time(), time.perf_counter()
            record = next(steps)
            worked, passed = time.process_time() - clocks[0], time.perf_counter() - clocks[1]
            capture.step(number)
            yield Progress("profiling", record.step + 1, record.images / record.step_seconds)
    while len(recorder) < window.end + max(AFTER_STEPS, iterations):
        record = next(steps)
        yield Progress("measuring without the profiler", record.step + 1, record.images / record.step_seconds)
    ops: tuple[Op, ...] = ()
    if not (engine.compile or engine.cuda_graphs):  # neither lets its operators be seen
        with CallCounter() as counter:
            next(running)  # slow, and no step of the run
        ops = list_ops(counter)
    return Recorded(window, worked / passed, trace, ops)


def plan_window(start: int, warm_up: int, iterations: int, timer: Timer) -> Window:
    """The profiler is on for some steps before those that count, if there are any.

    Where steps are read late, several have been given out before the first is seen: there is no stop between them.
    """
    earliest = timer.lag + 1 if timer.lag else 0
    first = max(start, earliest)
    return Window(max(first - warm_up, earliest), first, first + iterations)


def take_steps(steps: Iterator[StepRecord], recorder: StepRecorder, interrupt: Interrupt) -> Iterator[StepRecord]:
    """Record each step and look after its loss and after signals."""
    for record in steps:
        recorder.add(record)
        check_loss(record)
        stop_if(interrupt)
        yield record


def settle_down(
    steps: Iterator[StepRecord], recorder: StepRecorder, begin: int | None, timer: Timer, limit_seconds: float
) -> Iterator[Progress]:
    """Run until step `begin` is next; without one until the steps are steady, or the time for that is over."""
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
        if timer.now() - began > limit_seconds:
            return
        if number % AFTER_STEPS == 0 and find_steady(recorder.column("step_seconds")).steady:
            return


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
