"""How `train` flows: data, fit, start or resume, learn, judge, write. The table of contents, the same on every rank.

The first rank writes the result; each writes its own steps and log. Killed at any moment, the folder can be read and
the run goes on from its last checkpoint.
"""

import shlex
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing

from trainstone.results import schema
from trainstone.results.checks import finding
from trainstone.results.learning import check_speed
from trainstone.results.progress import Progress
from trainstone.results.samples import Sample, read_samples
from trainstone.results.schema import Status
from trainstone.results.verdicts import write_learning_verdict
from trainstone.train import start
from trainstone.train.conclude import (
    Observed,
    describe_device,
    describe_speed,
    gather_devices,
    measure_device,
    observe,
    open_recorder,
    summarise_own,
    tell_skipped,
)
from trainstone.train.course import Course
from trainstone.train.decision import Cadence
from trainstone.train.evaluate import Scoring
from trainstone.train.evaluation import tell_left_out
from trainstone.train.fit import Fitted
from trainstone.train.learn import Setting, learn
from trainstone.train.lifecycle import OTHER_RANK, Lifecycle
from trainstone.train.original.lines import has_decay
from trainstone.train.original.mllog import check_division, clear_caches, find_run_start, open_log
from trainstone.train.task import seed_network, settle_classes
from trainstone.train.tracking import open_trackers
from trainstone.workloads.registry import WORKLOADS

ENERGY = ("joules", "energy_seconds", "average_watts", "meter")


def run_train(life: Lifecycle, *, strict: bool, resume: bool) -> Generator[Progress, None, Status]:
    """Train to the target; every rank runs this, rank 0 writes the result. Yields progress to show."""
    yield from life.join()
    config = life.config
    if life.rank.number:  # as rank 0 opened it: this one may have looked while the folder was being made
        resume = life.run.result.process.starts > 1
    yield from start.provide_for_all(config, life)
    pictures = start.open_both(config)
    fitted = yield from start.fit_all(life, settle_classes(config, pictures.training), strict=strict, measured=False)
    yield Progress("building the network")
    life.check_stop()
    yield from train_and_judge(life, fitted, pictures, resume=resume)
    return life.run.result.status


def train_and_judge(life: Lifecycle, fitted: Fitted, pictures: start.Pictures, *, resume: bool) -> Iterator[Progress]:
    """Start or take up the run, learn to the end, write the result.

    The clock, and run_start of mlperf.log, begin when the network is on its device and before any training picture is
    read. Opening a data set, before it, reads its index and no picture.
    """
    config, run, world, rank = fitted.config, life.run, life.world, life.rank
    training, validation = pictures
    checkpoint, told = start.find_start(run, world) if resume else (None, [])
    with ExitStack() as files:
        cleared, uncleared = clear_caches(config, world, resumed=resume)
        network = seed_network(config, fitted.device, world, begins=checkpoint is None)
        counts = len(training.source), pictures.num_validation
        mlperf = files.enter_context(open_log(run, fitted, counts, rank, network, cleared))
        if not resume:
            mlperf.begin()
        # The run's clock starts: from here on training data is touched.
        course = start.begin_course(config, pictures, rank, checkpoint, run.result.process.starts)
        task = files.enter_context(closing(start.start_task(fitted, training, world, course, checkpoint, network)))
        cadence = Cadence(course.pictures, course.global_batch, config.eval, config.stop, config.checkpoint)
        findings = [*fitted.findings, *uncleared, *told]
        findings += start.check_learning_rate(config, course.global_batch, rank)
        findings += [*start.tell_unjudged(pictures, config), *check_division(config, counts, rank)]
        findings += WORKLOADS[config.workload].list_doubts(config)
        # Not before: a change that a resumed run cannot bear must not stay in its folder.
        run.write_config(config)
        # Evaluations after the checkpoint are to be made again.
        run.update(findings=findings, quality=course.quality(config.eval), phases=course.phases())
        recorder = files.enter_context(open_recorder(life, fitted, course.done, decay_loss=has_decay(config.optimizer)))
        settings = config.model_dump(mode="json", exclude_none=True)
        curves = open_trackers(config.tracking, run.path, run.result.run_id, settings, first_step=course.done)
        trackers = map(files.enter_context, curves if rank.number == 0 else ())
        facts = {
            "kind": "train",
            "global_batch": course.global_batch,
            "train_pictures": course.pictures,
            "began": find_run_start(run) or time.time() - course.clock(),
            "steps": cadence.last_step,
            "first_step": course.done,
            "history": tuple(course.history),
        }
        writers = map(files.enter_context, start.open_originals(life, fitted, **facts))
        # mlperf.log before the others: its times count. Originals last: one copies mlperf.log when the run ends.
        sinks = recorder, mlperf, *trackers, *writers
        if resume:
            mlperf.resume(course.done, judged=course.judged_now)
        scoring = files.enter_context(Scoring(config, world))
        setting = Setting(config, run, world, task, cadence, validation, recorder, sinks, scoring, life.signals)
        with observe(life, fitted, recorder.current_step, time.perf_counter() - course.clock()) as observed:
            yield from learn(setting, course)
        signal = (life.signals.received or OTHER_RANK) if course.stopped else None
        write_end(setting, course, signal, life.seconds)
        if not course.stopped:  # a scheduler that asks for the end kills whoever is slow
            observed.peaks = yield from measure_device(life, fitted)
        conclude_training(setting, fitted, course, observed, life.seconds)


def write_end(setting: Setting, course: Course, signal_name: str | None, program_seconds: float) -> None:
    """Write how it ended, before anything else is judged: whoever is killed now has come to the end all the same."""
    config, run = setting.config, setting.run
    run.begin()
    validation = setting.validation
    quality = course.quality(config.eval, ended=validation is None)
    status: Status = "ok" if config.eval.target is None else "target_missed"
    if course.reached:
        status = "target_reached"
    elif course.stopped:
        status = "interrupted"
    # The clock of a run that reached its target stopped with that evaluation: what came after it is not counted.
    phases = run.result.phases if course.reached and run.result.phases else course.phases()
    phases = phases.model_copy(update={"program_seconds": program_seconds})
    title = WORKLOADS[config.workload].title(config)
    verdict = write_learning_verdict(
        quality, status, phases, title, stopped_by=signal_name or "a signal", run=shlex.quote(str(run.path))
    )
    findings = [
        *run.result.findings,
        *tell_skipped(setting.task.loader),
        *(tell_left_out(validation, course.history[-1].images, config) if validation and course.history else ()),
    ]
    if course.stopped:
        hint = f"go on with: trainstone train --resume {shlex.quote(str(run.path))}"
        findings.append(finding("interrupted", f"stopped by {signal_name} after {course.done:,} steps", hint=hint))
    run.update(status=status, quality=quality, phases=phases, verdict=verdict, findings=findings)
    for sink in setting.sinks:
        sink.finish(status)


def conclude_training(setting: Setting, fitted: Fitted, course: Course, seen: Observed, program_seconds: float) -> None:
    run, world, recorder = setting.run, setting.world, setting.recorder
    summary, telemetry = None, {}
    if len(recorder):  # or stopped before its first step
        summary, telemetry = summarise_own(fitted, recorder, seen)
        if not has_one_clock(course, read_samples(seen.telemetry_file)):
            telemetry |= dict.fromkeys(ENERGY)
    # A rank may have lost its steps while others have theirs: all must come here.
    devices = gather_devices(world, describe_device(fitted, seen.reader, telemetry, summary))
    if not devices:
        return
    phases = (run.result.phases or schema.Phases()).model_copy(update={"program_seconds": program_seconds})
    run.update(devices=devices, phases=phases)
    if summary is not None:
        speed = describe_speed(fitted, summary, telemetry, seen, run.result.devices)
        found = [*check_speed(speed["throughput"], summary.step_seconds), *speed.pop("findings")]
        run.update(**speed, findings=[*run.result.findings, *found])


def has_one_clock(course: Course, samples: Sequence[Sample]) -> bool:
    """Say whether telemetry is of a single start: an energy counter went on between two."""
    times = [sample.time_seconds for sample in samples]
    return course.starts == 1 and times == sorted(times)
