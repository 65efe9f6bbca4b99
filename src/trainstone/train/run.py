"""How a run flows: fit the recipe, measure the peak, run the loop, judge, write. The table of contents.

Everything is written as it comes: a run killed at any moment leaves a folder that can be read.
"""

import logging
import math
import os
import shlex
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

from trainstone.config.schema import Config, MeasureConfig
from trainstone.errors import MachineError, OutOfMemoryError, ResultError, RunError, TrainstoneError
from trainstone.log import log_into
from trainstone.machine.facts import read_facts, read_software
from trainstone.machine.health import read_pressure
from trainstone.machine.interrupt import Interrupt
from trainstone.machine.ranks import read_rank
from trainstone.measure.clock import Timer, choose_timer
from trainstone.measure.devices import (
    choose_reader,
    is_out_of_memory,
    peak_device_bytes,
    peak_host_bytes,
    reset_peaks,
)
from trainstone.measure.peaks import measure_peaks
from trainstone.measure.profiler_range import ProfilerRange
from trainstone.measure.recorder import StepRecorder
from trainstone.measure.telemetry import Telemetry
from trainstone.results import stats
from trainstone.results.checks import finding
from trainstone.results.progress import Progress
from trainstone.results.schema import Finding
from trainstone.results.steady import find_steady
from trainstone.results.steps import StepRecord
from trainstone.results.store import RunFolder
from trainstone.train.conclude import Observed, conclude
from trainstone.train.distributed import explain_peer_error
from trainstone.train.feeding import measure_after, measure_before, open_alone
from trainstone.train.fit import Fitted, fit_to_machine
from trainstone.train.loop import train_steps
from trainstone.train.original.facts import Facts
from trainstone.train.original.writers import Writers, open_writers
from trainstone.train.task import IMAGENET_PICTURES, Task, build_task, open_data, provide_data, settle_classes

log = logging.getLogger(__name__)

# A narrow interval after a few seconds says nothing of heat and boost clocks, nor does an energy counter.
MIN_SECONDS = 10.0
# How much longer the series is at each look whether it is precise enough: looking costs, and many looks mislead.
CHECK_GROWTH = 1.25


def run_bench(config: Config, run: RunFolder, *, strict: bool) -> Iterator[Progress]:
    """Measure training speed into `run`; yields progress for whoever wants to show it."""
    started = time.perf_counter()
    with Interrupt() as interrupt, log_into(run.path / "log.txt"), keep_record(run), ExitStack() as files:
        yield Progress("reading machine facts")
        run.write_machine(read_facts(), read_software())
        if config.data.source != "synthetic":
            yield Progress("opening the data set")
            yield from provide_data(config)
        opened = open_data(config)
        config = settle_classes(config, opened)
        yield Progress("fitting the recipe to this machine")
        stop_if(interrupt)
        fitted = fit_to_machine(config, strict=strict)
        run.write_config(fitted.config)
        run.update(findings=list(fitted.findings))
        yield Progress("measuring this device's peak")
        stop_if(interrupt)
        peaks = measure_peaks(fitted.device, fitted.config.train.precision)
        stop_if(interrupt)
        alone = open_alone(opened, run.path, fitted.config, files) if opened else None
        if alone:
            yield from measure_before(fitted, alone, interrupt)
            stop_if(interrupt)
        reset_peaks(fitted.device)
        before, clock_start = read_pressure(), time.perf_counter()
        steps_file = run.path / "steps-rank0000.csv"
        with (
            StepRecorder(steps_file, split_phases=fitted.config.engine.split_phases) as recorder,
            sample_device(run, fitted, recorder, clock_start) as telemetry,
        ):
            task = files.enter_context(closing(build_task(fitted.config, fitted.device, opened)))
            writers = files.enter_context(open_writers(describe_bench(run, fitted, task)))
            yield from measure_steps(task, fitted.config.measure, recorder, interrupt, clock_start, writers)
        after, memory = read_pressure(), (peak_device_bytes(fitted.device), peak_host_bytes())
        if alone and not interrupt.asked:
            yield from measure_after(task, fitted, alone, interrupt)
        yield Progress("measuring this device's peak again")
        peaks = peaks.best_of(measure_peaks(fitted.device, fitted.config.train.precision))
        spent = time.perf_counter() - started
        beside = (before, after), peaks, memory, telemetry.path, telemetry.reader, interrupt.asked, spent
        conclude(run, fitted, recorder, Observed(*beside, loader=task.loader, alone=alone))
        writers.finish(run.result.status)
        run.update()  # which lists files


def describe_bench(run: RunFolder, fitted: Fitted, task: Task) -> Facts:
    """What the files of the recipe's original tell of a bench."""
    return Facts(
        kind="bench",
        config=fitted.config,
        folder=run.path,
        ranks=1,
        global_batch=task.images_per_step,
        train_pictures=task.loader.order.epoch_pictures if task.loader else IMAGENET_PICTURES,
        val_pictures=None,
        steps=limit_steps(task, fitted.config.measure),
        device=fitted.device.index or 0,
    )


def sample_device(
    run: RunFolder, fitted: Fitted, recorder: StepRecorder, started: float, suffix: str = ""
) -> Telemetry:
    """Sample the run's device while steps are recorded; `started` is when the clock of both began."""
    return Telemetry(
        run.path,
        device_label=str(fitted.device).replace(":", "") + suffix,
        reader=choose_reader(fitted.device),
        current_step=recorder.current_step,
        interval_seconds=fitted.config.measure.telemetry_seconds,
        started=started,
    )


def measure_steps(
    task: Task,
    measure: MeasureConfig,
    recorder: StepRecorder,
    interrupt: Interrupt,
    clock_start: float,
    writers: Writers,
) -> Iterator[Progress]:
    """Run the loop until the interval is narrow enough, the time is over, the steps are done or somebody asks.

    The time counts from the end of the first step, which may have to compile for minutes.
    """
    timer = choose_timer(task.device)
    with ProfilerRange(measure.profiler_range) as profiled:
        steps = train_steps(
            task, timer, num_steps=limit_steps(task, measure), origin=clock_start, go_on=profiled.pass_to_next_step
        )
        yield from record_steps(writers.watch(steps), timer, measure, recorder, interrupt)


def limit_steps(task: Task, measure: MeasureConfig) -> int | None:
    """Return how many steps there are at most: those asked for, or an end of the pictures; None: until time is over."""
    limits = [measure.iterations] if measure.iterations is not None else []
    if measure.max_epochs is not None and task.loader:
        pictures = measure.max_epochs * task.loader.order.epoch_pictures
        limits.append(math.ceil(pictures / (task.loader.order.global_batch * task.accumulate)))
    return min(limits, default=None)


def record_steps(
    steps: Iterator[StepRecord],
    timer: Timer,
    measure: MeasureConfig,
    recorder: StepRecorder,
    interrupt: Interrupt,
    *,
    learns: bool = True,
) -> Iterator[Progress]:
    """Take steps until the interval is narrow enough, the time is over, there are no more or somebody asks.

    `learns`: a step has a loss, which must be a number.
    """
    begin, next_check, half_width = float("inf"), stats.MIN_STEADY_STEPS, None
    for record in steps:
        recorder.add(record)
        if learns:
            check_loss(record)
        begin = min(begin, timer.now())
        seconds_left = measure.seconds - (timer.now() - begin) if measure.iterations is None else None
        yield Progress("measuring", record.step + 1, record.images / record.step_seconds, half_width, seconds_left)
        if interrupt.asked or (seconds_left is not None and seconds_left <= 0):
            break
        if seconds_left is not None and len(recorder) >= next_check:
            next_check = int(len(recorder) * CHECK_GROWTH) + 1
            seconds = recorder.column("step_seconds")
            steady = find_steady(seconds)
            half_width = stats.half_width_quick(seconds[steady.from_step :])
            ripe = measure.seconds - seconds_left >= min(MIN_SECONDS, measure.seconds / 2)
            if ripe and steady.steady and stats.precise_enough(seconds[steady.from_step :], measure.half_width):
                break


def check_loss(record: StepRecord) -> None:
    """Stop at a loss that is no number: what follows would be timed on NaN, which some processors do slower."""
    if not math.isfinite(record.loss):
        raise RunError(
            f"the loss of step {record.step} is {record.loss} (learning rate {record.lr:g})",
            hint="lower optimizer.learning_rate, or take train.precision=fp32",
        )


def stop_if(interrupt: Interrupt) -> None:
    """Between phases: end where somebody asked for it, before there is anything to measure."""
    if interrupt.asked:
        raise KeyboardInterrupt(interrupt.asked)


@contextmanager
def keep_record(run: RunFolder) -> Iterator[None]:
    """Write a failure into the result before it ends the program; a run that was taken up in vain stays as it was."""
    try:
        yield
    except TrainstoneError as err:
        _write_failure(run, err.message, err.hint, memory=isinstance(err, OutOfMemoryError))
        raise
    except RuntimeError as err:
        known = explain_torch_error(err)
        told = (known.message, known.hint) if known else (str(err), None)
        _write_failure(run, *told, memory=isinstance(known, OutOfMemoryError))
        if known is None:
            raise
        raise known from err
    except KeyboardInterrupt:
        with suppress(OSError):
            run.update(status="interrupted", findings=[*run.result.findings, tell_early_end(run)])
        raise
    except OSError as err:
        _write_failure(run, str(err), None)
        raise ResultError(f"cannot write into {run.path}: {err}", hint="is the disk full?") from err
    except BaseException as err:
        _write_failure(run, f"{type(err).__name__}: {err}", None, memory=isinstance(err, MemoryError))
        raise


@contextmanager
def explaining() -> Iterator[None]:
    """Turn what torch or the disk says into an error with a hint where no record is kept: on ranks beside the first."""
    try:
        yield
    except OSError as err:
        place = f"{err.filename}: {err.strerror}" if err.filename else str(err)
        raise ResultError(
            f"rank {read_rank().number} on {os.uname().nodename}: {place}",
            hint="all ranks must see the same run folder and the same data: choose an --out DIR that all nodes share",
        ) from err
    except RuntimeError as err:
        known = explain_torch_error(err)
        if known is None:
            raise
        raise known from err


def tell_early_end(run: RunFolder) -> Finding:
    """A finding where somebody stopped a run before there was anything to judge."""
    hint = f"go on with: trainstone train --resume {shlex.quote(str(run.path))}" if run.result.kind == "train" else None
    return finding("interrupted", "stopped before the measurement was complete", hint=hint)


def explain_torch_error(err: RuntimeError) -> TrainstoneError | None:
    """Recognise what torch says when memory is out, a rank is gone or a model cannot be compiled; None: not known."""
    text = str(err)
    if is_out_of_memory(err):
        first = text.splitlines()[0]
        return OutOfMemoryError(
            f"out of memory: {first}", hint="take a smaller train.batch_size (eval.batch_size to evaluate), or auto"
        )
    if type(err).__module__.startswith(("torch._dynamo", "torch._inductor")):
        told = next((line.strip() for line in text.splitlines() if line.strip() and not line.endswith("raised:")), text)
        return MachineError(f"torch.compile does not work here: {told}", hint="--set engine.compile=false")
    return explain_peer_error(err)


def _write_failure(run: RunFolder, message: str, hint: str | None, *, memory: bool = False) -> None:
    log.debug("the run failed", exc_info=True)  # the trace goes to log.txt; the terminal gets the message
    failed = finding("out-of-memory", message, hint=hint) if memory else finding("run-failed", message, hint=hint)
    with suppress(OSError):  # a full disk must not hide what happened
        if not run.undo():
            run.update(status="failed", findings=[*run.result.findings, failed])
