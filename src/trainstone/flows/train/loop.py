"""How `train` flows: data, fit, start or resume, learn, judge, write. The table of contents, the same on every rank.

The first rank writes the result; each writes its own steps and log. Killed at any moment, the folder can be read and
the run goes on from its last checkpoint. All carry out what flows/train/events.py decides; what only one of them knows (a
signal, the time, a NaN loss) they agree on between steps, so that all stop after the same one.
"""

import logging
import shlex
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from trainstone.config.schema import Config
from trainstone.data.splits import OpenSplit
from trainstone.engine.distributed.collectives import average_buffers, barrier
from trainstone.engine.evaluate import Scoring, judge, keep_pictures
from trainstone.engine.fit import Fitted
from trainstone.engine.loop import train_steps
from trainstone.engine.task import Task, build_task, count_parameters, seed_network, settle_classes
from trainstone.errors import RunError
from trainstone.flows import prepare
from trainstone.flows.bench.result import (
    Observed,
    describe_device,
    describe_speed,
    gather_devices,
    measure_device,
    observe,
    open_recorder,
    summarise_own,
    sync_steps,
    tell_skipped,
)
from trainstone.flows.bench.stop_rule import Pact
from trainstone.flows.evaluate.run import tell_left_out
from trainstone.flows.lifecycle import OTHER_RANK, Lifecycle
from trainstone.flows.train import checkpoint
from trainstone.flows.train.events import Cadence, State, decide
from trainstone.flows.train.state import Course
from trainstone.flows.train.tracking import open_trackers
from trainstone.measure.clock import Timer, choose_timer
from trainstone.measure.recorder import Sink, StepRecorder
from trainstone.originals.mlperf.training_log import check_division, clear_caches, find_run_start, open_log
from trainstone.originals.output_file import has_decay
from trainstone.results.findings import finding
from trainstone.results.progress import Progress
from trainstone.results.schema import run as schema
from trainstone.results.schema.quality import Evaluation
from trainstone.results.schema.run import Status
from trainstone.results.steps import StepRecord
from trainstone.results.telemetry import Sample, read_samples
from trainstone.results.training import check_speed
from trainstone.results.verdicts import write_learning_verdict
from trainstone.workloads.registry import WORKLOADS

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Setting:
    life: Lifecycle
    config: Config
    task: Task
    cadence: Cadence
    validation: OpenSplit | None
    """None: nothing is evaluated."""
    recorder: StepRecorder
    """The first of the sinks, whose columns become the result."""
    sinks: tuple[Sink, ...]
    scoring: Scoring

    @property
    def checkpoints(self) -> Path:
        return self.life.run.path / checkpoint.CHECKPOINTS


def run_train(life: Lifecycle, *, strict: bool, resume: bool) -> Generator[Progress, None, Status]:
    """Train to the target; every rank runs this, rank 0 writes the result. Yields progress to show."""
    yield from life.join()
    config = life.config
    if life.rank.number:  # as rank 0 opened it: this one may have looked while the folder was being made
        resume = life.run.result.process.starts > 1
    yield from prepare.provide_for_all(config, life)
    pictures = prepare.open_both(config)
    fitted = yield from prepare.fit_all(life, settle_classes(config, pictures.training), strict=strict, measured=False)
    yield Progress("building the network")
    life.check_stop()
    yield from train_and_judge(life, fitted, pictures, resume=resume)
    return life.run.result.status


def train_and_judge(life: Lifecycle, fitted: Fitted, pictures: prepare.Pictures, *, resume: bool) -> Iterator[Progress]:
    """Start or take up the run, learn to the end, write the result.

    The clock, and run_start of mlperf.log, begin when the network is on its device and before any training picture is
    read. Opening a data set, before it, reads its index and no picture.
    """
    config, run, world, rank = fitted.config, life.run, life.world, life.rank
    training, validation = pictures
    begun, told = checkpoint.find_start(run, world) if resume else (None, [])
    with ExitStack() as files:
        cleared, uncleared = clear_caches(config, world, resumed=resume)
        network = seed_network(config, fitted.device, world, begins=begun is None)
        counts = len(training.source), len(validation.source) if validation else 0
        mlperf = files.enter_context(open_log(run, fitted, counts, rank, network, cleared))
        if not resume:
            mlperf.begin()
        # The run's clock starts: from here on training data is touched.
        course = prepare.begin_course(config, pictures, rank, begun, run.result.process.starts)
        task = build_task(config, fitted.device, training, world=world, first_step=course.done, network=network)
        files.enter_context(closing(task))
        course.parameters = count_parameters(task.plain)
        if begun:
            checkpoint.restore(task, begun.tensors, begun.document, str(begun.path))
        prepare.settle_gradients(task, config)
        cadence = Cadence(course.pictures, course.global_batch, config.eval, config.stop, config.checkpoint)
        findings = [*fitted.findings, *uncleared, *told]
        findings += prepare.list_doubts(config, pictures, course.global_batch, rank)
        findings += [*check_division(config, counts, rank), *WORKLOADS[config.workload].list_doubts(config)]
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
        writers = map(files.enter_context, prepare.open_originals(life, fitted, **facts))
        # mlperf.log before the others: its times count. Originals last: one copies mlperf.log when the run ends.
        sinks = recorder, mlperf, *trackers, *writers
        if resume:
            mlperf.resume(course.done, judged=course.judged_now)
        scoring = files.enter_context(Scoring(config, world))
        setting = Setting(life, config, task, cadence, validation, recorder, sinks, scoring)
        with observe(life, fitted, recorder.current_step, time.perf_counter() - course.clock()) as observed:
            yield from learn(setting, course)
        write_end(setting, course)
        if not course.stopped:  # a scheduler that asks for the end kills whoever is slow
            observed.peaks = yield from measure_device(life, fitted)
        conclude_training(setting, fitted, course, observed)


def learn(setting: Setting, course: Course) -> Iterator[Progress]:
    """Train from where the course is to the end; the course then holds how it ended."""
    timer, saved = choose_timer(setting.task.device), True
    pact = Pact(setting.life.world, setting.life.signals, late=True)
    while True:
        state = State(
            done=course.done,
            has_validation=setting.validation is not None,
            evaluated=course.judged_now,
            is_best=course.is_best_now,
            pending=setting.scoring.step,
            reached=course.has_reached(setting.config.eval.target),
            saved=saved,
        )
        match action := decide(state, pact.agreed, setting.cadence):
            case "train":
                pact = yield from run_steps(setting, course, timer)
            case "evaluate":
                yield from run_evaluation(setting, course)
                look(setting, course, pact)
                pact.finish()
            case "collect":
                take_scores(setting, course)
            case "checkpoint":
                yield Progress("writing a checkpoint")
                save(setting, course)
            case "fail":
                raise diverged(setting, pact.agreed.nan_step - 1)
            case "end":
                barrier(setting.life.world)  # every rank's steps are in its file
                course.reached, course.stopped = state.reached, bool(pact.agreed.stop)
                return
        saved = action == "checkpoint"


def run_steps(setting: Setting, course: Course, timer: Timer) -> Generator[Progress, None, Pact]:
    """Train until an event may be due or the ranks agree on something; return what holds it."""
    task, world, cadence, limit = setting.task, setting.life.world, setting.cadence, setting.config.stop.seconds
    metric, pact = setting.config.eval.metric, Pact(world, setting.life.signals, late=True)
    steps = train_steps(
        task,
        timer,
        first_step=course.done,
        num_steps=cadence.next_event(course.done) - course.done,
        origin=timer.now() - course.clock(),
        go_on=lambda: not any(pact.agreed),
    )
    for sink in setting.sinks:
        sink.begin_steps(course.done)
    for record in steps:
        setting.life.run.begin()
        for sink in setting.sinks:
            sink.step(record)
        course.add_step(record)
        look(setting, course, pact, record)
        left = (cadence.last_step - course.done) * course.seconds_per_step
        best = course.best
        yield Progress(
            "training",
            step=record.step + 1,
            images_per_second=record.images * world.rank.world / course.seconds_per_step,
            seconds_left=max(0.0, min(left, limit - course.clock()) if limit else left),
            epoch=cadence.epochs_after(course.done),
            epochs=cadence.epochs_after(cadence.last_step),
            loss=course.loss,
            metric=metric,
            accuracy=best.metrics[metric] if best else None,
        )
    pact.finish()
    # All ranks get the same running statistics, of the network and of its average: each saw other pictures.
    average_buffers(task.plain.buffers(), world)
    if task.average:
        names, averages = {name for name, _ in task.plain.named_buffers()}, task.average.tensors
        average_buffers((tensor for name, tensor in averages.items() if name in names), world)
    return pact


def look(setting: Setting, course: Course, pact: Pact, record: StepRecord | None = None) -> None:
    """Say what this rank requests; `record`: the step that has just ended."""
    limit, every = setting.config.stop.seconds, setting.config.checkpoint.every_seconds
    saves = bool(every) and course.clock() - course.saved_at_seconds >= every
    pact.look(record, enough=bool(limit) and course.clock() >= limit, checkpoint=saves)


def save(setting: Setting, course: Course) -> None:
    """Write a checkpoint, the best one too where this is it; the first rank does it for all."""
    began = time.perf_counter()
    if not checkpoint.is_finite(setting.task.plain):
        raise diverged(setting, course.done - 1)
    # A resumed run sets a step file aside that lacks steps of its checkpoint: they are written first, on every rank.
    for sink in setting.sinks:
        sink.flush()
    sync_steps(setting.life.run, setting.recorder)
    barrier(setting.life.world)
    if setting.life.world.rank.number == 0:
        setting.checkpoints.mkdir(exist_ok=True)
        document = {
            **course.document(),
            **checkpoint.take_values(setting.task),
            "run_id": setting.life.run.result.run_id,
            "config": setting.config.model_dump(mode="json", exclude_none=True),
        }
        tensors = checkpoint.take_tensors(setting.task)
        checkpoint.write_checkpoint(setting.checkpoints, course.done, document, tensors)
        if setting.config.checkpoint.best and course.is_best_now:
            checkpoint.keep_best(setting.checkpoints, course.done)
        checkpoint.prune(setting.checkpoints, setting.config.checkpoint.keep)
    course.checkpoint_seconds += time.perf_counter() - began
    course.saved_at_seconds = course.clock()


def diverged(setting: Setting, step: int) -> RunError:
    scale = setting.task.scale.value
    scaled = f", loss scale {scale:g}" if scale is not None else ""
    saved = [path for path in checkpoint.list_checkpoints(setting.checkpoints) if path.exists()]
    rate = setting.task.rate(step)
    good = f"the last good checkpoint is {saved[0]}" if saved else "there is no checkpoint yet"
    lower = f"--set optimizer.learning_rate={setting.config.optimizer.learning_rate / 4:g}"
    go_on = f"trainstone train --resume {shlex.quote(str(setting.life.run.path))} {lower}" if saved else f"try {lower}"
    return RunError(
        f"the loss is no number any more at step {step} (learning rate {rate:g}{scaled}); {good}",
        hint=f"{go_on}; or a longer schedule.warm_up_epochs, or train.precision=fp32",
    )


def run_evaluation(setting: Setting, course: Course) -> Iterator[Progress]:
    """Evaluate the validation set, and record the scores unless they come later; nothing if a signal broke it off."""
    assert setting.validation is not None
    began = time.perf_counter()
    for sink in setting.sinks:
        sink.begin_evaluation(course.done)
    rows = yield from judge(setting.task, setting.config, setting.validation, setting.life.world, setting.life.signals)
    spent = time.perf_counter() - began
    if rows is None:
        course.eval_seconds += spent
        return
    setting.scoring.begin(setting.validation, rows, course.done, spent)
    for sink in setting.sinks:
        sink.end_evaluation(course.done)
    if not setting.config.eval.async_:
        take_scores(setting, course)


def take_scores(setting: Setting, course: Course) -> None:
    """Record the scores of the last evaluation, which may be some steps ago; wait for them if necessary."""
    step = setting.scoring.step
    assert step is not None
    began = time.perf_counter()
    scored = setting.scoring.take()
    setting.life.run.begin()
    evaluation = Evaluation(
        epoch=setting.cadence.epochs_after(step),
        step=step,
        seconds=course.clock(),
        eval_seconds=setting.scoring.eval_seconds + time.perf_counter() - began,
        metrics=scored.metrics,
        images=scored.images,
    )
    course.history.append(evaluation)
    course.eval_seconds += evaluation.eval_seconds
    for sink in setting.sinks:
        sink.evaluation(evaluation)
    told = ", ".join(f"{name} {value:.4f}" for name, value in scored.metrics.items())
    log.info("epoch %.2f, step %d: %s (%d pictures)", evaluation.epoch, evaluation.step, told, scored.images)
    if course.best is evaluation:
        course.tables, course.shown = scored.tables, keep_pictures(setting.life.run.path, scored)
        if setting.config.checkpoint.best and step < course.done and setting.life.world.rank.number == 0:
            checkpoint.keep_best(setting.checkpoints, step)
    setting.life.run.update(quality=course.quality(setting.config.eval), phases=course.phases())


def write_end(setting: Setting, course: Course) -> None:
    """Write how it ended, before anything else is judged: whoever is killed now has come to the end all the same."""
    config, run = setting.config, setting.life.run
    signal_name = setting.life.signals.received or OTHER_RANK
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
    phases = phases.model_copy(update={"program_seconds": setting.life.seconds})
    title = WORKLOADS[config.workload].title(config)
    verdict = write_learning_verdict(
        quality, status, phases, title, stopped_by=signal_name, run=shlex.quote(str(run.path))
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


def conclude_training(setting: Setting, fitted: Fitted, course: Course, seen: Observed) -> None:
    run, world, recorder = setting.life.run, setting.life.world, setting.recorder
    summary, telemetry = None, {}
    if len(recorder):  # or stopped before its first step
        summary, telemetry = summarise_own(fitted, recorder, seen)
        if not has_one_clock(course, read_samples(seen.telemetry_file)):
            telemetry |= dict.fromkeys(("joules", "energy_seconds", "average_watts", "meter"))
    # A rank may have lost its steps while others have theirs: all must come here.
    devices = gather_devices(world, describe_device(fitted, seen.reader, telemetry, summary))
    if not devices:
        return
    phases = (run.result.phases or schema.Phases()).model_copy(update={"program_seconds": setting.life.seconds})
    run.update(devices=devices, phases=phases)
    if summary is not None:
        speed = describe_speed(fitted, summary, telemetry, seen, run.result.devices)
        found = [*check_speed(speed["throughput"], summary.step_seconds), *speed.pop("findings")]
        run.update(**speed, findings=[*run.result.findings, *found])


def has_one_clock(course: Course, samples: Sequence[Sample]) -> bool:
    """Say whether telemetry is of a single start: an energy counter went on between two."""
    times = [sample.time_seconds for sample in samples]
    return course.starts == 1 and times == sorted(times)
