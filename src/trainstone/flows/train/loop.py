"""Train, evaluate, write checkpoints: carry out what flows/train/events.py decides, one action after the other.

What only one rank knows (a signal, the time, a NaN loss) the ranks agree on between steps, so that all stop after the
same one.
"""

import logging
import shlex
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from trainstone.config.schema import Config
from trainstone.data.splits import OpenSplit
from trainstone.engine.distributed.collectives import barrier
from trainstone.engine.distributed.data_parallel import average_buffers
from trainstone.engine.distributed.stop_agreement import Pact
from trainstone.engine.evaluate import Scoring, judge, keep_pictures
from trainstone.engine.event_schedule import Cadence
from trainstone.engine.loop import train_steps
from trainstone.engine.task import Task
from trainstone.errors import RunError
from trainstone.flows.lifecycle import Lifecycle
from trainstone.flows.observation import sync_steps
from trainstone.flows.train import checkpoint
from trainstone.flows.train.events import State, decide
from trainstone.flows.train.state import Course
from trainstone.measure.clock import Timer, choose_timer
from trainstone.measure.recorder import Sink, StepRecorder
from trainstone.results.progress import Progress
from trainstone.results.schema.quality import Evaluation
from trainstone.results.steps import StepRecord

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
