"""Trains until the target, the last step, the time limit or a signal: carries out what train/decision.py decides.

All ranks run this alike. What only one of them knows (a signal, the time, a NaN loss) they agree on between steps, so
that all stop after the same one.
"""

import logging
import math
import shlex
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from trainstone.config.schema import Config
from trainstone.data.splits import OpenSplit
from trainstone.errors import RunError
from trainstone.machine.signals import StopSignals
from trainstone.measure.clock import Timer, choose_timer
from trainstone.measure.recorder import Sink, StepRecorder
from trainstone.results.progress import Progress
from trainstone.results.quality import Evaluation
from trainstone.results.steps import StepRecord
from trainstone.results.store import RunFolder
from trainstone.train import checkpoint
from trainstone.train.conclude import sync_steps
from trainstone.train.course import Course
from trainstone.train.decision import Agreed, Cadence, State, decide
from trainstone.train.distributed import Agreement, World, average_buffers, barrier
from trainstone.train.evaluate import Scoring, judge, keep_pictures
from trainstone.train.loop import train_steps
from trainstone.train.task import Task

CHECKPOINTS = "checkpoints"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Setting:
    config: Config
    run: RunFolder
    world: World
    task: Task
    cadence: Cadence
    validation: OpenSplit | None
    """None: nothing is evaluated."""
    recorder: StepRecorder
    """The first of the sinks, whose columns become the result."""
    sinks: tuple[Sink, ...]
    scoring: Scoring
    signals: StopSignals

    @property
    def checkpoints(self) -> Path:
        return self.run.path / CHECKPOINTS


def learn(setting: Setting, course: Course) -> Iterator[Progress]:
    """Train from where the course is to the end; the course then holds how it ended."""
    timer, agreed, saved = choose_timer(setting.task.device), Agreed(), True
    while not course.ended:
        state = State(
            done=course.done,
            has_validation=setting.validation is not None,
            evaluated=course.judged_now,
            is_best=course.is_best_now,
            pending=setting.scoring.step,
            reached=course.has_reached(setting.config.eval.target),
            saved=saved,
        )
        match action := decide(state, agreed, setting.cadence):
            case "train":
                agreed = yield from run_steps(setting, course, timer)
                share_statistics(setting)
            case "evaluate":
                yield from run_evaluation(setting, course)
                agreement = Agreement(setting.world, len(Agreed._fields))
                agreement.post(list_requests(setting, course, None))
                agreed = merge(agreed, agreement)
            case "collect":
                take_scores(setting, course)
            case "checkpoint":
                yield Progress("writing a checkpoint")
                save(setting, course)
            case "fail":
                raise diverged(setting, agreed.nan_step - 1)
            case "end":
                barrier(setting.world)  # every rank's steps are in its file
                course.ended, course.reached, course.stopped = True, state.reached, bool(agreed.stop)
        saved = action == "checkpoint"


def run_steps(setting: Setting, course: Course, timer: Timer) -> Generator[Progress, None, Agreed]:
    """Train until an event may be due or the ranks agree on something; return what they agreed on."""
    agreement, agreed = Agreement(setting.world, len(Agreed._fields)), Agreed()
    steps = train_steps(
        setting.task,
        timer,
        first_step=course.done,
        num_steps=setting.cadence.next_event(course.done) - course.done,
        origin=timer.now() - course.clock(),
        go_on=lambda: not any(agreed),
    )
    for sink in setting.sinks:
        sink.begin_steps(course.done)
    for record in steps:
        setting.run.begin()
        for sink in setting.sinks:
            sink.step(record)
        course.add_step(record)
        agreed = merge(agreed, agreement)
        agreement.post(list_requests(setting, course, record))
        yield tell_progress(setting, course, record)
    return merge(agreed, agreement)


def merge(agreed: Agreed, agreement: Agreement) -> Agreed:
    return Agreed(*map(max, agreed, agreement.take()))


def share_statistics(setting: Setting) -> None:
    """Give all ranks the same running statistics, of the network and of its average: each saw other pictures."""
    task = setting.task
    average_buffers(task.plain.buffers(), setting.world)
    if task.average:
        names, averages = {name for name, _ in task.plain.named_buffers()}, task.average.state()
        average_buffers((tensor for name, tensor in averages.items() if name in names), setting.world)


def list_requests(setting: Setting, course: Course, record: StepRecord | None) -> list[int]:
    """Return what this rank requests, in the order of Agreed; `record`: the step that has just ended."""
    limit, every = setting.config.stop.seconds, setting.config.checkpoint.every_seconds
    return [
        0 if record is None or math.isfinite(record.loss) else record.step + 1,
        int(setting.signals.received is not None),
        int(bool(limit) and course.clock() >= limit),
        int(bool(every) and course.clock() - course.saved_at_seconds >= every),
    ]


def save(setting: Setting, course: Course) -> None:
    """Write a checkpoint, the best one too where this is it; the first rank does it for all."""
    began = time.perf_counter()
    if not checkpoint.is_finite(setting.task.plain):
        raise diverged(setting, course.done - 1)
    # A resumed run sets a step file aside that lacks steps of its checkpoint: they are written first, on every rank.
    for sink in setting.sinks:
        sink.flush()
    sync_steps(setting.run, setting.recorder)
    barrier(setting.world)
    if setting.world.rank.number == 0:
        setting.checkpoints.mkdir(exist_ok=True)
        document = {
            **course.document(),
            **checkpoint.take_values(setting.task),
            "run_id": setting.run.result.run_id,
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
    go_on = f"trainstone train --resume {shlex.quote(str(setting.run.path))} {lower}" if saved else f"try {lower}"
    return RunError(
        f"the loss is no number any more at step {step} (learning rate {rate:g}{scaled}); {good}",
        hint=f"{go_on}; or a longer schedule.warm_up_epochs, or train.precision=fp32",
    )


def tell_progress(setting: Setting, course: Course, record: StepRecord) -> Progress:
    left = (setting.cadence.last_step - course.done) * course.seconds_per_step
    limit = setting.config.stop.seconds
    if limit:
        left = min(left, limit - course.clock())
    best = course.best(setting.config.eval.metric)
    return Progress(
        "training",
        step=record.step + 1,
        images_per_second=record.images * setting.world.rank.world / course.seconds_per_step,
        seconds_left=max(0.0, left),
        epoch=setting.cadence.epochs_after(course.done),
        epochs=setting.cadence.epochs_after(setting.cadence.last_step),
        loss=course.loss,
        metric=setting.config.eval.metric,
        accuracy=best.metrics[setting.config.eval.metric] if best else None,
    )


def run_evaluation(setting: Setting, course: Course) -> Iterator[Progress]:
    """Evaluate the validation set, and record the scores unless they come later; nothing if a signal broke it off."""
    assert setting.validation is not None
    began = time.perf_counter()
    for sink in setting.sinks:
        sink.begin_evaluation(course.done)
    rows = yield from judge(setting.task, setting.config, setting.validation, setting.world, setting.signals)
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
    step, metric = setting.scoring.step, setting.config.eval.metric
    assert step is not None
    began = time.perf_counter()
    scored = setting.scoring.take()
    setting.run.begin()
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
    if course.best(metric) is evaluation:
        course.tables, course.shown = scored.tables, keep_pictures(setting.run.path, scored)
        if setting.config.checkpoint.best and step < course.done and setting.world.rank.number == 0:
            checkpoint.keep_best(setting.checkpoints, step)
    setting.run.update(quality=course.quality(setting.config.eval), phases=course.phases())
