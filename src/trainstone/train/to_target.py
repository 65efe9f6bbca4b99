"""How `train` flows: data, fit, start or resume, learn, judge, write. The table of contents, the same on every rank.

The first rank writes the result; each writes its own steps and log. Killed at any moment, the folder can be read and
the run goes on from its last checkpoint.
"""

import logging
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing

from trainstone.config.learning import TrackingConfig
from trainstone.config.schema import Config
from trainstone.machine.ranks import Rank
from trainstone.measure.peaks import measure_peaks
from trainstone.measure.sink import Sink
from trainstone.results.progress import Progress
from trainstone.results.schema import Status
from trainstone.results.store import RunFolder
from trainstone.train.cadence import Cadence
from trainstone.train.course import Course
from trainstone.train.distributed import World
from trainstone.train.fit import Fitted, fit_to_machine
from trainstone.train.learn import learn
from trainstone.train.learned import conclude_training, write_end
from trainstone.train.lifecycle import OTHER_RANK, Lifecycle
from trainstone.train.network import seed_network
from trainstone.train.observation import observe, open_recorder
from trainstone.train.original.facts import Facts
from trainstone.train.original.mllog_open import check_division, clear_caches, open_log
from trainstone.train.original.writers import list_writers
from trainstone.train.scoring import Scoring
from trainstone.train.setting import Setting
from trainstone.train.start import (
    Pictures,
    agree_on_fit,
    begin_course,
    check_learning_rate,
    find_seats,
    find_start,
    open_both,
    provide_for_all,
    start_task,
    tell_unjudged,
)
from trainstone.train.task import settle_classes
from trainstone.train.tracking import Tracker, open_trackers
from trainstone.workloads.registry import WORKLOADS

log = logging.getLogger(__name__)


def run_train(life: Lifecycle, *, strict: bool, resume: bool) -> Generator[Progress, None, Status]:
    """Train to the target; every rank runs this, rank 0 writes the result. Yields progress to show."""
    yield from life.join()
    config, world = life.config, life.world
    if life.rank.number:  # as the first rank opened it: this one may have looked while the folder was being made
        resume = life.run.result.process.starts > 1
    yield from provide_for_all(config, life)
    pictures = open_both(config)
    config = settle_classes(config, pictures.training)
    yield Progress("fitting the recipe to this machine")
    life.check_stop()
    fitted = agree_on_fit(fit_to_machine(config, strict=strict, world=life.rank, measured=False), world)
    yield Progress("building the network")
    life.check_stop()
    yield from train_and_judge(life, fitted, pictures, resume=resume)
    return life.run.result.status


def train_and_judge(life: Lifecycle, fitted: Fitted, pictures: Pictures, *, resume: bool) -> Iterator[Progress]:
    """Start or take up the run, learn to the end, write the result.

    The clock, and run_start of mlperf.log, begin when the network is on its device and before any training picture is
    read. Opening a data set, before it, reads its index and no picture.
    """
    config, run, world, rank = fitted.config, life.run, life.world, life.rank
    training, validation = pictures
    checkpoint, told = find_start(run, world) if resume else (None, [])
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
        findings = [*fitted.findings, *uncleared, *told]
        findings += check_learning_rate(config, course.global_batch, rank)
        findings += [*tell_unjudged(pictures, config), *check_division(config, counts, rank)]
        findings += WORKLOADS[config.workload].list_doubts(config)
        # Not before: a change that a resumed run cannot bear must not stay in its folder.
        run.write_config(config)
        # Evaluations after the checkpoint are to be made again.
        run.update(findings=findings, quality=course.quality(config.eval), phases=course.phases())
        recorder = files.enter_context(open_recorder(life, fitted, course.done))
        trackers = map(files.enter_context, open_curves(run, config, rank, course))
        writers = map(files.enter_context, open_originals(run, fitted, pictures, world, cadence, course))
        # mlperf.log before the others: its times count. Originals last: one copies mlperf.log when the run ends.
        sinks = recorder, mlperf, *trackers, *writers
        if resume:
            mlperf.go_on(course.done, judged=course.judged_now)
        scoring = files.enter_context(Scoring(config, world))
        setting = Setting(config, run, world, task, cadence, validation, recorder, sinks, scoring, life.signals)
        with observe(life, fitted, recorder.current_step, time.perf_counter() - course.clock()) as observed:
            yield from learn(setting, course)
        signal = (life.signals.received or OTHER_RANK) if course.stopped else None
        write_end(setting, course, signal, life.seconds)
        if not course.stopped:  # a scheduler that asks for the end kills whoever is slow
            yield Progress("measuring this device's peak")
            observed.peaks = measure_peaks(fitted.device, config.train.precision)
        conclude_training(setting, fitted, course, observed, life.seconds)


def open_curves(run: RunFolder, config: Config, rank: Rank, course: Course) -> Iterator[Tracker]:
    """Open what else the curves are written to, on the first rank."""
    tracking = config.tracking if rank.number == 0 else TrackingConfig()
    told = config.model_dump(mode="json", exclude_none=True)
    return open_trackers(tracking, run.path, run.result.run_id, told, first_step=course.done)


def open_originals(
    run: RunFolder, fitted: Fitted, pictures: Pictures, world: World, cadence: Cadence, course: Course
) -> Iterator[Sink]:
    """Open the files that the recipe's original wrote, on rank 0."""
    seats = find_seats(world)
    if world.rank.number:
        return iter(())
    return list_writers(
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
