"""The training loop: train, evaluate and write checkpoints in the order that flows/train/events.py decides.

Events that only one rank sees (a signal, the time limit, a NaN loss) are shared between steps, so that all ranks stop
after the same step.
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
from trainstone.engine.distributed.stop_agreement import StopAgreement
from trainstone.engine.evaluate import Scoring, evaluate, write_samples
from trainstone.engine.event_schedule import EventSchedule
from trainstone.engine.loop import train_steps
from trainstone.engine.task import Task
from trainstone.errors import RunError
from trainstone.flows.lifecycle import Lifecycle
from trainstone.flows.observation import sync_steps
from trainstone.flows.train import checkpoint
from trainstone.flows.train.events import DecisionInputs, decide
from trainstone.flows.train.state import TrainingState
from trainstone.measure.clock import Timer, choose_timer
from trainstone.measure.recorder import Sink, StepRecorder
from trainstone.results.progress import Progress
from trainstone.results.schema.quality import Evaluation
from trainstone.results.steps import StepRecord

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingContext:
    """Everything the training loop uses that does not change while it runs."""

    life: Lifecycle
    config: Config
    task: Task
    schedule: EventSchedule
    validation: OpenSplit | None
    """None: the run does not evaluate."""
    recorder: StepRecorder
    """The first of the sinks; its columns become the result."""
    sinks: tuple[Sink, ...]
    scoring: Scoring

    @property
    def checkpoints(self) -> Path:
        return self.life.run.path / checkpoint.CHECKPOINTS


def train_to_end(context: TrainingContext, state: TrainingState) -> Iterator[Progress]:
    """Train from `state` to the end; then `state` says whether the target was reached or the run was stopped."""
    timer, saved = choose_timer(context.task.device), True
    agreement = StopAgreement(context.life.world, context.life.signals, late=True)
    while True:
        inputs = DecisionInputs(
            done=state.done,
            has_validation=context.validation is not None,
            evaluated=state.evaluated_now,
            is_best=state.is_best_now,
            pending=context.scoring.step,
            reached=state.has_reached(context.config.eval.target),
            saved=saved,
        )
        match action := decide(inputs, agreement.agreed, context.schedule):
            case "train":
                agreement = yield from run_steps(context, state, timer)
            case "evaluate":
                yield from run_evaluation(context, state)
                update_agreement(context, state, agreement)
                agreement.finish()
            case "collect":
                record_scores(context, state)
            case "checkpoint":
                yield Progress("writing a checkpoint")
                write_checkpoint(context, state)
            case "fail":
                raise build_nan_error(context, agreement.agreed.nan_step - 1)
            case "end":
                barrier(context.life.world)  # every rank has written its steps
                state.reached, state.stopped = inputs.reached, bool(agreement.agreed.stop)
                return
        saved = action == "checkpoint"


def run_steps(context: TrainingContext, state: TrainingState, timer: Timer) -> Generator[Progress, None, StopAgreement]:
    """Train until an event may be due or the ranks agree to act; return the agreement."""
    task, world, schedule, limit = (
        context.task,
        context.life.world,
        context.schedule,
        context.config.stop.seconds,
    )
    metric, agreement = context.config.eval.metric, StopAgreement(world, context.life.signals, late=True)
    steps = train_steps(
        task,
        timer,
        first_step=state.done,
        num_steps=schedule.next_event(state.done) - state.done,
        origin=timer.now() - state.clock(),
        keep_going=lambda: not any(agreement.agreed),
    )
    for sink in context.sinks:
        sink.begin_steps(state.done)
    for record in steps:
        context.life.run.commit()
        for sink in context.sinks:
            sink.step(record)
        state.add_step(record)
        update_agreement(context, state, agreement, record)
        left = (schedule.last_step - state.done) * state.seconds_per_step
        best = state.best
        yield Progress(
            "training",
            step=record.step + 1,
            images_per_second=record.images * world.rank.world / state.seconds_per_step,
            seconds_left=max(0.0, min(left, limit - state.clock()) if limit else left),
            epoch=schedule.epochs_after(state.done),
            epochs=schedule.epochs_after(schedule.last_step),
            loss=state.loss,
            metric=metric,
            accuracy=best.metrics[metric] if best else None,
        )
    agreement.finish()
    # Average the running statistics of the network and of its EMA over ranks: each rank saw other images.
    average_buffers(task.plain.buffers(), world)
    if task.average:
        names, averages = {name for name, _ in task.plain.named_buffers()}, task.average.tensors
        average_buffers((tensor for name, tensor in averages.items() if name in names), world)
    return agreement


def update_agreement(
    context: TrainingContext, state: TrainingState, agreement: StopAgreement, record: StepRecord | None = None
) -> None:
    """Share this rank's requests with the other ranks; `record`: the step that has just ended."""
    limit, every = context.config.stop.seconds, context.config.checkpoint.every_seconds
    saves = bool(every) and state.clock() - state.saved_at_seconds >= every
    agreement.update(record, end=bool(limit) and state.clock() >= limit, checkpoint=saves)


def write_checkpoint(context: TrainingContext, state: TrainingState) -> None:
    """Write a checkpoint on rank 0, and the best one if these are the best weights. All ranks must call this."""
    began = time.perf_counter()
    if not checkpoint.is_finite(context.task.plain):
        raise build_nan_error(context, state.done - 1)
    # Every rank writes its steps first: a resumed run discards a step file that ends before its checkpoint.
    for sink in context.sinks:
        sink.flush()
    sync_steps(context.life.run, context.recorder)
    barrier(context.life.world)
    if context.life.world.rank.number == 0:
        context.checkpoints.mkdir(exist_ok=True)
        document = {
            **state.document(),
            **checkpoint.collect_values(context.task),
            "run_id": context.life.run.result.run_id,
            "config": context.config.model_dump(mode="json", exclude_none=True),
        }
        tensors = checkpoint.collect_tensors(context.task)
        checkpoint.write_checkpoint(context.checkpoints, state.done, document, tensors)
        if context.config.checkpoint.best and state.is_best_now:
            checkpoint.keep_best(context.checkpoints, state.done)
        checkpoint.prune(context.checkpoints, context.config.checkpoint.keep)
    state.checkpoint_seconds += time.perf_counter() - began
    state.saved_at_seconds = state.clock()


def build_nan_error(context: TrainingContext, step: int) -> RunError:
    scale = context.task.scale.value
    scaled = f", loss scale {scale:g}" if scale is not None else ""
    saved = [path for path in checkpoint.list_checkpoints(context.checkpoints) if path.exists()]
    rate = context.task.rate(step)
    last = f"the last good checkpoint is {saved[0]}" if saved else "no checkpoint was written yet"
    lower = f"--set optimizer.learning_rate={context.config.optimizer.learning_rate / 4:g}"
    resume = f"trainstone train --resume {shlex.quote(str(context.life.run.path))} {lower}" if saved else f"try {lower}"
    return RunError(
        f"loss became NaN or infinite at step {step} (learning rate {rate:g}{scaled}); {last}",
        hint=f"{resume}; or a longer schedule.warm_up_epochs, or --set train.precision=fp32",
    )


def run_evaluation(context: TrainingContext, state: TrainingState) -> Iterator[Progress]:
    """Evaluate the validation set; record the scores unless eval.async is set or a signal interrupted it."""
    assert context.validation is not None
    began = time.perf_counter()
    for sink in context.sinks:
        sink.begin_evaluation(state.done)
    rows = yield from evaluate(
        context.task, context.config, context.validation, context.life.world, context.life.signals
    )
    spent = time.perf_counter() - began
    if rows is None:
        state.eval_seconds += spent
        return
    context.scoring.begin(context.validation, rows, state.done, spent)
    for sink in context.sinks:
        sink.end_evaluation(state.done)
    if not context.config.eval.async_:
        record_scores(context, state)


def record_scores(context: TrainingContext, state: TrainingState) -> None:
    """Wait for the scores of the last evaluation, which may be some steps ago, and record them."""
    step = context.scoring.step
    assert step is not None
    began = time.perf_counter()
    scored = context.scoring.take()
    context.life.run.commit()
    evaluation = Evaluation(
        epoch=context.schedule.epochs_after(step),
        step=step,
        seconds=state.clock(),
        eval_seconds=context.scoring.eval_seconds + time.perf_counter() - began,
        metrics=scored.metrics,
        images=scored.images,
    )
    state.history.append(evaluation)
    state.eval_seconds += evaluation.eval_seconds
    for sink in context.sinks:
        sink.evaluation(evaluation)
    message = ", ".join(f"{name} {value:.4f}" for name, value in scored.metrics.items())
    log.info("epoch %.2f, step %d: %s (%d images)", evaluation.epoch, evaluation.step, message, scored.images)
    if state.best is evaluation:
        state.tables, state.shown = scored.tables, write_samples(context.life.run.path, scored)
        if context.config.checkpoint.best and step < state.done and context.life.world.rank.number == 0:
            checkpoint.keep_best(context.checkpoints, step)
    context.life.run.update(quality=state.quality(context.config.eval), phases=state.phases())
