"""How `train` flows: data, fit, start or resume, learn, judge, write. The table of contents, the same on every rank.

The first rank writes the result; each writes its own steps and log. Killed at any moment, the folder can be read and
the run goes on from its last checkpoint.
"""

import logging
import time
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, closing
from typing import NamedTuple

from trainstone.config.learning import TrackingConfig
from trainstone.config.schema import Config
from trainstone.log import log_into
from trainstone.machine.facts import read_facts, read_software
from trainstone.machine.health import read_pressure
from trainstone.machine.interrupt import RESUMABLE, Interrupt
from trainstone.machine.ranks import Rank, read_rank
from trainstone.measure.devices import peak_device_bytes, peak_host_bytes, reset_peaks
from trainstone.measure.peaks import measure_peaks
from trainstone.measure.recorder import StepRecorder
from trainstone.measure.telemetry import Telemetry
from trainstone.results.progress import Progress
from trainstone.results.schema import Status
from trainstone.results.store import RunFolder
from trainstone.train.cadence import Cadence
from trainstone.train.course import Course
from trainstone.train.distributed import World
from trainstone.train.failures import explaining, keep_record
from trainstone.train.fit import Fitted, fit_to_machine
from trainstone.train.learn import learn
from trainstone.train.learned import Seen, conclude_training, write_end
from trainstone.train.meeting import announce_meeting, meet_all, tell_meeting
from trainstone.train.network import seed_network
from trainstone.train.original.facts import Facts
from trainstone.train.original.mllog_open import check_division, clear_caches, open_log
from trainstone.train.original.writers import Writers, open_writers
from trainstone.train.run import sample_device
from trainstone.train.scoring import Scoring
from trainstone.train.setting import Setting
from trainstone.train.start import (
    OTHER_RANK,
    Pictures,
    agree_on_fit,
    begin_course,
    check_learning_rate,
    find_own_processes,
    find_seats,
    find_start,
    open_both,
    provide_for_all,
    share_run,
    start_task,
    stop_together,
    tell_unjudged,
)
from trainstone.train.task import settle_classes
from trainstone.train.tracking import Trackers, open_trackers
from trainstone.workloads.registry import WORKLOADS

log = logging.getLogger(__name__)


class Ended(NamedTuple):
    """How a run ended on this rank, and by which signal."""

    status: Status
    signal: str | None


def run_train(config: Config, run: RunFolder | None, *, strict: bool, resume: bool) -> Generator[Progress, None, Ended]:
    """Train into `run`, which the first rank has (None on others); yields progress for whoever wants to show it."""
    started, rank = time.perf_counter(), read_rank()
    with Interrupt(RESUMABLE) as interrupt, ExitStack() as files:
        files.enter_context(keep_record(run) if run else explaining())
        yield announce_meeting(rank)
        world = files.enter_context(meet_all(config, run))
        yield tell_meeting(world)
        run = share_run(run, world)
        if rank.number:  # as the first rank opened it: this one may have looked while the folder was being made
            resume = run.result.process.starts > 1
        files.enter_context(log_into(run.path / ("log.txt" if rank.number == 0 else f"log-rank{rank.number:04d}.txt")))
        run.write_machine(read_facts(), read_software())
        yield from provide_for_all(config, world, interrupt)
        pictures = open_both(config)
        config = settle_classes(config, pictures.training)
        yield Progress("fitting the recipe to this machine")
        stop_together(interrupt, world)
        fitted = agree_on_fit(fit_to_machine(config, strict=strict, world=rank, measured=False), world)
        yield Progress("building the network")
        stop_together(interrupt, world)
        yield from train_and_judge(fitted, pictures, run, world, interrupt, started, resume=resume)
        return Ended(run.result.status, interrupt.asked)


def train_and_judge(
    fitted: Fitted,
    pictures: Pictures,
    run: RunFolder,
    world: World,
    interrupt: Interrupt,
    started: float,
    *,
    resume: bool,
) -> Iterator[Progress]:
    """Start or take up the run, learn to the end, write the result.

    The clock, and run_start of mlperf.log, begin when the network is on its device and before any training picture is
    read. Opening a data set, before it, reads its index and no picture.
    """
    config, rank = fitted.config, world.rank
    training, validation = pictures
    checkpoint, told = find_start(run, world) if resume else (None, [])
    reset_peaks(fitted.device)
    own = find_own_processes(world)
    before = read_pressure(pids=own)
    with ExitStack() as files:
        cleared, uncleared = clear_caches(config, world, resumed=resume)
        network = seed_network(config, fitted.device, world, begins=checkpoint is None)
        counts = len(training.source), pictures.num_validation
        mlperf = files.enter_context(open_log(run, fitted, counts, rank, network, cleared))
        if not resume:
            mlperf.begin()
        # The run's clock starts: from here on training data is touched.
        course = begin_course(config, pictures, rank, checkpoint, run.result.process.starts)
        task = files.enter_context(closing(start_task(fitted, training, world, course, checkpoint, network)))
        cadence = Cadence(course.pictures, course.global_batch, config.eval, config.stop, config.checkpoint)
        findings = [*fitted.findings, *world.findings, *uncleared, *told]
        findings += check_learning_rate(config, course.global_batch, rank)
        findings += [*tell_unjudged(pictures, config), *check_division(config, counts, rank)]
        findings += WORKLOADS[config.workload].list_doubts(config)
        # Not before: a change that a resumed run cannot bear must not stay in its folder.
        run.write_config(config)
        # Evaluations after the checkpoint are to be made again.
        run.update(findings=findings, quality=course.quality(config.eval), phases=course.phases())
        recorder = files.enter_context(open_recorder(run, config, world, course))
        trackers = files.enter_context(open_curves(run, config, rank, course))
        writers = files.enter_context(open_originals(run, fitted, pictures, world, cadence, course))
        if resume:
            mlperf.go_on(course.done, judged=course.judged_now)
        scoring = files.enter_context(Scoring(config, world))
        beside = recorder, trackers, mlperf, writers, scoring
        setting = Setting(config, run, world, task, cadence, validation, *beside, interrupt)
        with open_sampler(run, fitted, world, recorder, course) as telemetry:
            yield from learn(setting, course)
        after, memory = read_pressure(pids=own), (peak_device_bytes(fitted.device), peak_host_bytes())
        signal = (interrupt.asked or OTHER_RANK) if course.stopped else None
        write_end(setting, course, signal, time.perf_counter() - started)
        peaks = None
        if not course.stopped:  # a scheduler that asks for the end kills whoever is slow
            yield Progress("measuring this device's peak")
            peaks = measure_peaks(fitted.device, config.train.precision)
        seen = Seen((before, after), peaks, memory, telemetry.path, telemetry.reader, time.perf_counter() - started)
        conclude_training(setting, fitted, course, seen)
        trackers.finish(run.result.status)


def open_curves(run: RunFolder, config: Config, rank: Rank, course: Course) -> AbstractContextManager[Trackers]:
    """Open what else the curves are written to, on the first rank."""
    tracking = config.tracking if rank.number == 0 else TrackingConfig()
    told = config.model_dump(mode="json", exclude_none=True)
    return open_trackers(tracking, run.path, run.result.run_id, told, first_step=course.done)


def open_originals(
    run: RunFolder, fitted: Fitted, pictures: Pictures, world: World, cadence: Cadence, course: Course
) -> Writers:
    """Open the files that the recipe's original wrote, on the first rank."""
    seats = find_seats(world)
    if world.rank.number:
        return Writers()
    return open_writers(
        Facts(
            kind="train",
            config=fitted.config,
            folder=run.path,
            ranks=world.rank.world,
            global_batch=course.global_batch,
            train_pictures=course.pictures,
            val_pictures=pictures.num_validation or None,
            steps=cadence.last_step,
            device=seats[0].device if seats else fitted.device.index or 0,
            first_step=course.done,
            evaluations=len(course.history),
            seats=seats,
        )
    )


def open_recorder(run: RunFolder, config: Config, world: World, course: Course) -> StepRecorder:
    """Open this rank's step file, after the steps of earlier starts."""
    path = run.path / f"steps-rank{world.rank.number:04d}.csv"
    return StepRecorder(path, split_phases=config.engine.split_phases, first_step=course.done)


def open_sampler(run: RunFolder, fitted: Fitted, world: World, recorder: StepRecorder, course: Course) -> Telemetry:
    """Sample this rank's device, on the run's clock."""
    return sample_device(run, fitted, recorder, time.perf_counter() - course.clock(), world.rank)
