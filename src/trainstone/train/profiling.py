"""How `profile` flows: fit, steady steps, a few recorded ones, steady ones again, the work counted; then the analysis.

The steps before and after tell what recording costs. Every rank records itself; the first one's trace is analysed.
"""

import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import torch

from trainstone.data.splits import OpenSplit
from trainstone.errors import MachineError
from trainstone.measure.clock import Timer, choose_timer
from trainstone.measure.flops import CallCounter, Op, list_ops
from trainstone.measure.peaks import measure_peaks
from trainstone.measure.profiler import Capture, OuterCapture, Window
from trainstone.measure.recorder import StepRecorder
from trainstone.results.progress import Progress
from trainstone.results.schema import Status
from trainstone.results.steady import find_steady
from trainstone.results.steps import StepRecord
from trainstone.train.conclude import conclude
from trainstone.train.distributed import barrier
from trainstone.train.fit import Fitted, fit_to_machine
from trainstone.train.lifecycle import Lifecycle
from trainstone.train.loop import train_steps
from trainstone.train.observation import observe, open_recorder
from trainstone.train.profiled import Recorded, judge_profile, mark_as_profile
from trainstone.train.start import agree_on_fit, build_shared, provide_for_all
from trainstone.train.stopping import Pact
from trainstone.train.task import Task, open_data, settle_classes

TRACE_NAME = "trace/rank{:04d}.json.gz"
# Without --start: until steps are steady, but no longer than this share of the time that a bench would take.
SETTLING_SHARE = 1 / 3
MIN_STEPS = 5
# Unprofiled steps after the profiled ones, so that a machine that grows slower does not pass for the profiler's cost.
AFTER_STEPS = 5


def run_profile(
    life: Lifecycle, *, start: int | None, iterations: int, cores: bool = False, strict: bool = False
) -> Generator[Progress, None, Status]:
    """Profile some steps; every rank runs this, rank 0 writes the result.

    `cores`: an ncu run of the same configuration will follow.
    """
    yield from life.join()
    config, run, world = life.config, life.run, life.world
    yield from provide_for_all(config, life)
    opened = open_data(config)
    yield Progress("fitting the recipe to this machine")
    life.check_stop()
    fitted = agree_on_fit(fit_to_machine(settle_classes(config, opened), strict=strict, world=life.rank), world)
    if cores and fitted.device.type != "cuda":
        raise MachineError(
            f"--cores reads the counters of an NVIDIA device by ncu; this run is on {fitted.device.type}",
            hint="leave --cores out: compute utilisation and roofline need no such counters",
        )
    run.write_config(fitted.config)
    run.update(findings=list(fitted.findings))
    yield from profile_and_judge(life, fitted, opened, start, iterations)
    return run.result.status


def profile_and_judge(
    life: Lifecycle, fitted: Fitted, opened: OpenSplit | None, start: int | None, iterations: int
) -> Iterator[Progress]:
    """Measure the peak, record the steps, the peak again; the first rank judges its own trace and writes."""
    config, device, run, world = fitted.config, fitted.device, life.run, life.world
    yield Progress("measuring this device's peak")
    barrier(world)
    peaks = measure_peaks(device, config.train.precision)
    life.check_stop()
    with ExitStack() as files:
        with open_recorder(life, fitted) as recorder, observe(life, fitted, recorder.current_step) as observed:
            task = files.enter_context(closing(build_shared(fitted, opened, world)))
            pact = Pact(world, life.signals)
            recorded = yield from record_window(task, fitted, run.path, recorder, pact, start, iterations)
        yield Progress("measuring this device's peak again")
        barrier(world)
        observed.peaks = peaks.best_of(measure_peaks(device, config.train.precision))
        yield Progress("reading the trace")
        if world.rank.number == 0:
            run.update(timeline=judge_profile(recorder, recorded, observed.peaks, run.path))
        observed.interrupted = life.find_stop()
        left_out = range(recorded.window.begin, recorded.window.end)
        conclude(life, fitted, recorder, observed, loader=task.loader, left_out=left_out)
        if world.rank.number == 0:
            mark_as_profile(run, fitted, recorded)


def record_window(
    task: Task,
    fitted: Fitted,
    folder: Path,
    recorder: StepRecorder,
    pact: Pact,
    start: int | None,
    iterations: int,
) -> Generator[Progress, None, Recorded]:
    """Run to the window, through it and a little further; then count what a step executes.

    Several ranks agree upon the first step of the window and stay in step; each records itself.
    """
    engine, timer = fitted.config.engine, choose_timer(task.device)
    outer = engine.nvtx  # an nsys or ncu around us records, and only one can
    marked = task if outer else replace(task, mark=torch.profiler.record_function)
    running = train_steps(marked, timer, origin=time.perf_counter())
    steps = take_steps(running, recorder, pact)
    warm_up = 0 if outer else timer.lag + 1
    planned = None if start is None else plan_window(start, warm_up, iterations, timer)
    settling_seconds = fitted.config.measure.seconds * SETTLING_SHARE
    yield from settle_down(steps, recorder, planned.begin if planned else None, timer, settling_seconds, pact)
    window = planned or plan_window(len(recorder) + timer.lag + warm_up, warm_up, iterations, timer)
    rank = pact.world.rank
    trace = None if outer else folder / TRACE_NAME.format(rank.number)
    capture = Capture(trace, task.device, rank, window) if trace else OuterCapture()
    pact.settle()
    with capture:
        clocks = time.process_time(), time.perf_counter()
        for number in range(window.begin, window.end):
            if number == window.first:
                clocks = time.process_time(), time.perf_counter()
            record = next(steps)
            worked, passed = time.process_time() - clocks[0], time.perf_counter() - clocks[1]
            if number == window.end - 1:
                pact.settle()
            capture.step(number)
            yield Progress("profiling", record.step + 1, record.images / record.step_seconds)
    barrier(pact.world)  # a rank that writes its trace for longer shall not make the others' next step longer
    while len(recorder) < window.end + max(AFTER_STEPS, iterations):
        record = next(steps)
        yield Progress("measuring without the profiler", record.step + 1, record.images / record.step_seconds)
    pact.finish()
    ops: tuple[Op, ...] = ()
    if not (engine.compile or engine.cuda_graphs):  # neither lets its operators be seen
        with CallCounter() as counter, task.without_exchange():
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


def take_steps(steps: Iterator[StepRecord], recorder: StepRecorder, pact: Pact) -> Iterator[StepRecord]:
    """Record each step and look after its loss and after signals, of all ranks."""
    for record in steps:
        recorder.step(record)
        pact.look(record)
        pact.refuse_bad_loss()
        pact.end_if_stopped()
        yield record


def settle_down(
    steps: Iterator[StepRecord],
    recorder: StepRecorder,
    begin: int | None,
    timer: Timer,
    limit_seconds: float,
    pact: Pact,
) -> Iterator[Progress]:
    """Run until step `begin` is next; without one until the steps are steady, or the time for that is over.

    Of several ranks the first decides, and all know of it two steps later.
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
        if pact.wish_end(steady or timer.now() - began > limit_seconds):
            return
