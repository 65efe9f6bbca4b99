"""How a run flows: fit the recipe, measure the peak, run the loop, judge, write. The table of contents.

The same on every rank; the first writes the result. Everything is written as it comes: a run killed at any moment
leaves a folder that can be read.
"""

import math
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing

from trainstone.config.schema import Config, MeasureConfig
from trainstone.data.splits import OpenSplit
from trainstone.machine.facts import read_facts, read_software
from trainstone.machine.health import read_pressure
from trainstone.machine.interrupt import RESUMABLE, Interrupt
from trainstone.machine.ranks import ALONE, Rank, read_rank
from trainstone.measure.clock import choose_timer
from trainstone.measure.devices import choose_reader, peak_device_bytes, peak_host_bytes, reset_peaks
from trainstone.measure.peaks import measure_peaks
from trainstone.measure.profiler_range import ProfilerRange
from trainstone.measure.recorder import StepRecorder
from trainstone.measure.telemetry import Telemetry
from trainstone.results.progress import Progress
from trainstone.results.schema import Status
from trainstone.results.store import RunFolder
from trainstone.train.conclude import Observed, conclude
from trainstone.train.distributed import World, barrier
from trainstone.train.exchange import measure_exchange
from trainstone.train.feeding import measure_after, measure_before, open_alone
from trainstone.train.fit import Fitted, fit_to_machine
from trainstone.train.loop import train_steps
from trainstone.train.meeting import announce_meeting, tell_meeting
from trainstone.train.original.facts import Facts
from trainstone.train.original.writers import Writers, open_writers
from trainstone.train.shared import Shared, build_shared, open_steps, share_measured, sync_steps
from trainstone.train.start import agree_on_fit, find_own_processes, find_seats, provide_for_all, stop_together
from trainstone.train.stopping import Pact, ask_all, record_steps, record_together
from trainstone.train.task import IMAGENET_PICTURES, Task, open_data, settle_classes


def run_bench(config: Config, run: RunFolder | None, *, strict: bool) -> Generator[Progress, None, Status]:
    """Measure training speed into `run`, which the first rank has (None on others); yields progress to show."""
    started, rank = time.perf_counter(), read_rank()
    with Interrupt(RESUMABLE) as interrupt, ExitStack() as files:
        yield announce_meeting(rank)
        shared = files.enter_context(share_measured(config, run))
        yield tell_meeting(shared.world)
        run, world = shared
        run.write_machine(read_facts(), read_software())
        if config.data.source != "synthetic":
            yield Progress("opening the data set")
            yield from provide_for_all(config, world, interrupt)
        opened = open_data(config)
        config = settle_classes(config, opened)
        yield Progress("fitting the recipe to this machine")
        stop_together(interrupt, world)
        fitted = agree_on_fit(fit_to_machine(config, strict=strict, world=rank), world)
        run.write_config(fitted.config)
        run.update(findings=[*fitted.findings, *world.findings])
        yield from measure_and_judge(fitted, opened, shared, interrupt, started)
        return run.result.status


def measure_and_judge(
    fitted: Fitted, opened: OpenSplit | None, shared: Shared, interrupt: Interrupt, started: float
) -> Iterator[Progress]:
    """Measure the peak, the steps, what feeding and exchange cost, the peak again; then write the result."""
    (run, world), config, device = shared, fitted.config, fitted.device
    with ExitStack() as files:
        yield Progress("measuring this device's peak")
        stop_together(interrupt, world)  # all begin at once: that is how they compute
        peaks = measure_peaks(device, config.train.precision)
        stop_together(interrupt, world)
        alone = open_alone(opened, run.path, config, files) if opened and world.alone else None
        if alone:
            yield from measure_before(fitted, alone, interrupt)
            stop_together(interrupt, world)
        reset_peaks(device)
        own = find_own_processes(world)
        barrier(world)  # so that the clocks of all step files begin together
        before, clock_start = read_pressure(pids=own), time.perf_counter()
        with (
            open_steps(shared, config) as recorder,
            sample_device(run, fitted, recorder, clock_start, world.rank) as telemetry,
        ):
            task = files.enter_context(closing(build_shared(fitted, opened, world)))
            writers = files.enter_context(open_originals(run, fitted, task, world))
            yield from measure_steps(task, config.measure, recorder, interrupt, clock_start, writers, world)
        after, memory = read_pressure(pids=own), (peak_device_bytes(device), peak_host_bytes())
        sync_steps(shared, recorder)
        communication = yield from measure_exchange(task, config.parallel, recorder, world, interrupt)
        if alone and not interrupt.asked:
            yield from measure_after(task, fitted, alone, interrupt)
        yield Progress("measuring this device's peak again")
        barrier(world)
        peaks = peaks.best_of(measure_peaks(device, config.train.precision))
        stopped, spent = ask_all(interrupt, world), time.perf_counter() - started
        beside = (before, after), peaks, memory, telemetry.path, telemetry.reader, stopped, spent
        seen = Observed(*beside, loader=task.loader, alone=alone, world=world, communication=communication)
        conclude(run, fitted, recorder, seen)
        writers.finish(run.result.status)
        run.update()  # which lists files


def open_originals(run: RunFolder, fitted: Fitted, task: Task, world: World) -> Writers:
    """Open the files that the recipe's original wrote of a bench, on the first rank."""
    seats, measure = find_seats(world), fitted.config.measure
    if world.rank.number:
        return Writers()
    return open_writers(
        Facts(
            kind="bench",
            config=fitted.config,
            folder=run.path,
            ranks=world.rank.world,
            global_batch=task.images_per_step * world.rank.world,
            train_pictures=task.loader.order.epoch_pictures if task.loader else IMAGENET_PICTURES,
            val_pictures=None,
            steps=limit_steps(task, measure),
            device=seats[0].device if seats else fitted.device.index or 0,
            seats=seats,
        )
    )


def sample_device(
    run: RunFolder, fitted: Fitted, recorder: StepRecorder, started: float, rank: Rank = ALONE
) -> Telemetry:
    """Sample the rank's device while steps are recorded; `started` is when the clock of both began."""
    # Ranks that share a CPU have a file each, and so have those that call their own device the first.
    same_name = fitted.device.type == "cpu" or fitted.device.index == 0
    suffix = f"-rank{rank.number:04d}" if same_name and rank.number else ""
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
    world: World,
) -> Iterator[Progress]:
    """Run the loop until the interval is narrow enough, the time is over, the steps are done or somebody asks.

    Several ranks agree upon it, and end after the same step.
    """
    timer, pact = choose_timer(task.device), Pact(world, interrupt)
    with ProfilerRange(measure.profiler_range) as profiled:
        steps = train_steps(
            task,
            timer,
            num_steps=limit_steps(task, measure),
            origin=clock_start,
            go_on=lambda: not pact.pause and profiled.pass_to_next_step(),
        )
        if world.alone:
            yield from record_steps(writers.watch(steps), timer, measure, recorder, interrupt)
        else:
            yield from record_together(writers.watch(steps), timer, measure, recorder, pact)


def limit_steps(task: Task, measure: MeasureConfig) -> int | None:
    """Return how many steps there are at most: those asked for, or an end of the pictures; None: until time is over."""
    limits = [measure.iterations] if measure.iterations is not None else []
    if measure.max_epochs is not None and task.loader:
        pictures = measure.max_epochs * task.loader.order.epoch_pictures
        limits.append(math.ceil(pictures / (task.loader.order.global_batch * task.accumulate)))
    return min(limits, default=None)
