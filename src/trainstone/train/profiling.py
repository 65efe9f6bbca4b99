"""How `profile` flows: fit, steady steps, a few recorded ones, steady ones again, the work counted; then the analysis.

The steps before and after tell what recording costs. Every rank records itself; the first one's trace is analysed.
"""

import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import torch

from trainstone.config.schema import Config
from trainstone.data.splits import OpenSplit
from trainstone.errors import MachineError
from trainstone.machine.facts import read_facts, read_software
from trainstone.machine.health import read_pressure
from trainstone.machine.interrupt import RESUMABLE, Interrupt
from trainstone.machine.ranks import read_rank
from trainstone.measure.clock import Timer, choose_timer
from trainstone.measure.devices import peak_device_bytes, peak_host_bytes, reset_peaks
from trainstone.measure.flops import CallCounter, Op, list_ops
from trainstone.measure.peaks import measure_peaks
from trainstone.measure.profiler import Capture, OuterCapture, Window
from trainstone.measure.recorder import StepRecorder
from trainstone.results.progress import Progress
from trainstone.results.schema import Status
from trainstone.results.steady import find_steady
from trainstone.results.steps import StepRecord
from trainstone.results.store import RunFolder
from trainstone.train.conclude import Observed, conclude
from trainstone.train.distributed import barrier
from trainstone.train.fit import Fitted, fit_to_machine
from trainstone.train.loop import train_steps
from trainstone.train.meeting import announce_meeting, tell_meeting
from trainstone.train.profiled import Recorded, judge_profile, mark_as_profile
from trainstone.train.run import sample_device
from trainstone.train.shared import Shared, build_shared, open_steps, share_measured
from trainstone.train.start import agree_on_fit, find_own_processes, provide_for_all, stop_together
from trainstone.train.stopping import Pact, ask_all
from trainstone.train.task import Task, open_data, settle_classes

TRACE_NAME = "trace/rank{:04d}.json.gz"
# Without --start: until steps are steady, but no longer than this share of the time that a bench would take.
SETTLING_SHARE = 1 / 3
MIN_STEPS = 5
# Unprofiled steps after the profiled ones, so that a machine that grows slower does not pass for the profiler's cost.
AFTER_STEPS = 5


def run_profile(
    config: Config,
    run: RunFolder | None,
    *,
    start: int | None,
    iterations: int,
    cores: bool = False,
    strict: bool = False,
) -> Generator[Progress, None, Status]:
    """Profile some steps into `run`, which the first rank has (None on others).

    `cores`: an ncu run of the same configuration will follow.
    """
    started, rank = time.perf_counter(), read_rank()
    with Interrupt(RESUMABLE) as interrupt, ExitStack() as files:
        yield announce_meeting(rank)
        shared = files.enter_context(share_measured(config, run))
        yield tell_meeting(shared.world)
        run, world = shared
        run.write_machine(read_facts(), read_software())
        yield from provide_for_all(config, world, interrupt)
        opened = open_data(config)
        yield Progress("fitting the recipe to this machine")
        stop_together(interrupt, world)
        fitted = agree_on_fit(fit_to_machine(settle_classes(config, opened), strict=strict, world=rank), world)
        if cores and fitted.device.type != "cuda":
            raise MachineError(
                f"--cores reads the counters of an NVIDIA device by ncu; this run is on {fitted.device.type}",
                hint="leave --cores out: compute utilisation and roofline need no such counters",
            )
        run.write_config(fitted.config)
        run.update(findings=[*fitted.findings, *world.findings])
        yield from profile_and_judge(fitted, opened, shared, interrupt, started, start, iterations)
        return run.result.status


def profile_and_judge(
    fitted: Fitted,
    opened: OpenSplit | None,
    shared: Shared,
    interrupt: Interrupt,
    started: float,
    start: int | None,
    iterations: int,
) -> Iterator[Progress]:
    """Measure the peak, record the steps, the peak again; the first rank judges its own trace and writes."""
    (run, world), config, device = shared, fitted.config, fitted.device
    with ExitStack() as files:
        yield Progress("measuring this device's peak")
        barrier(world)
        peaks = measure_peaks(device, config.train.precision)
        stop_together(interrupt, world)
        reset_peaks(device)
        own = find_own_processes(world)
        barrier(world)
        before, clock_start = read_pressure(pids=own), time.perf_counter()
        with (
            open_steps(shared, config) as recorder,
            sample_device(run, fitted, recorder, clock_start, world.rank) as telemetry,
        ):
            task = files.enter_context(closing(build_shared(fitted, opened, world)))
            pact = Pact(world, interrupt)
            recorded = yield from record_window(task, fitted, run.path, recorder, pact, start, iterations)
        after, memory = read_pressure(pids=own), (peak_device_bytes(device), peak_host_bytes())
        yield Progress("measuring this device's peak again")
        barrier(world)
        peaks = peaks.best_of(measure_peaks(device, config.train.precision))
        yield Progress("reading the trace")
        if world.rank.number == 0:
            run.update(timeline=judge_profile(recorder, recorded, peaks, run.path))
        stopped, spent = ask_all(interrupt, world), time.perf_counter() - started
        beside = (before, after), peaks, memory, telemetry.path, telemetry.reader, stopped, spent
        left_out = range(recorded.window.begin, recorded.window.end)
        conclude(run, fitted, recorder, Observed(*beside, loader=task.loader, left_out=left_out, world=world))
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
        recorder.add(record)
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
