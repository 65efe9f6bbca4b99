"""Trains until the target, the end or a signal: steps, evaluations, checkpoints, in the rhythm of train/cadence.py.

All ranks run this alike. What only one of them knows (a signal, the time, a loss that is no number) they agree upon
between steps, so that all stop after the same one.
"""

import logging
import math
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass

from trainstone.errors import RunError
from trainstone.files import sync_path
from trainstone.measure.clock import Timer, choose_timer
from trainstone.results.progress import Progress
from trainstone.results.steps import StepRecord
from trainstone.train.checkpoint import keep_best, list_checkpoints, prune, write_checkpoint
from trainstone.train.course import Course
from trainstone.train.distributed import Agreement, average_buffers, barrier
from trainstone.train.judging import lacks_evaluation, run_evaluation, take_pending
from trainstone.train.loop import train_steps
from trainstone.train.setting import Setting
from trainstone.train.snapshot import is_finite, take_tensors, take_values

log = logging.getLogger(__name__)


@dataclass
class Wishes:
    """What ranks have agreed upon since the last event; 0: nothing."""

    bad_step: int = 0
    """1 + the step whose loss is no number."""
    stop: int = 0
    time_over: int = 0
    checkpoint: int = 0

    def take(self, agreement: Agreement) -> None:
        """Take in what was agreed upon."""
        bad, stop, time_over, checkpoint = agreement.take()
        self.bad_step, self.stop = max(self.bad_step, bad), max(self.stop, stop)
        self.time_over, self.checkpoint = max(self.time_over, time_over), max(self.checkpoint, checkpoint)

    @property
    def pause(self) -> bool:
        """Something is to be done before the next step."""
        return bool(self.bad_step or self.stop or self.time_over or self.checkpoint)


def learn(setting: Setting, course: Course) -> Iterator[Progress]:
    """Go on from where the course is to the end; the course then says how it ended."""
    timer, last = choose_timer(setting.task.device), setting.cadence.last_step
    if course.has_reached(setting.config.eval.target):
        barrier(setting.world)  # as after a checkpoint: every rank's steps are in its file
        course.end(reached=True, stopped=False)
    while not course.ended:
        wishes = Wishes()
        # A signal may have come when an evaluation was due: then the next start makes it before its first step.
        owing = course.done > 0 and setting.cadence.evaluates_after(course.done) and lacks_evaluation(setting, course)
        if course.done < last and not owing:
            yield from run_steps(setting, course, timer, wishes)
        if wishes.bad_step:
            take_pending(setting, course, now=True)  # what the network was before still counts
            raise diverged(setting, wishes.bad_step - 1)
        share_statistics(setting)
        due = wishes.time_over or setting.cadence.evaluates_after(course.done)
        take_pending(setting, course, now=bool(due or wishes.checkpoint) or wants_checkpoint(setting, course))
        wanted = due and not wishes.stop and not course.has_reached(setting.config.eval.target)
        if wanted and lacks_evaluation(setting, course):
            yield from run_evaluation(setting, course)
            wishes.take(ask_all(setting, course))  # it may have taken long, or was broken off
        take_pending(setting, course, now=course.done >= last or bool(wishes.time_over or wishes.stop))
        reached = course.has_reached(setting.config.eval.target)
        ending = reached or course.done >= last or bool(wishes.time_over or wishes.stop)
        if ending or wishes.checkpoint or wants_checkpoint(setting, course):
            yield Progress("writing a checkpoint")
            save(setting, course)
        if ending:
            course.end(reached=reached, stopped=bool(wishes.stop))


def run_steps(setting: Setting, course: Course, timer: Timer, wishes: Wishes) -> Iterator[Progress]:
    """Train until something is due."""
    task, agreement = setting.task, Agreement(setting.world, 4)
    steps = train_steps(
        task,
        timer,
        first_step=course.done,
        num_steps=setting.cadence.next_event(course.done) - course.done,
        origin=timer.now() - course.clock(),
        go_on=lambda: not wishes.pause,
    )
    setting.mlperf.begin_steps(course.done)
    for record in steps:
        setting.run.begin()
        setting.recorder.add(record)
        setting.trackers.step(record)
        setting.mlperf.step(record)
        setting.writers.step(record)
        course.add_step(record)
        wishes.take(agreement)
        agreement.post(list_wishes(setting, course, record))
        yield tell_progress(setting, course, record)
    wishes.take(agreement)


def ask_all(setting: Setting, course: Course) -> Agreement:
    """Ask all ranks for their wishes, between two steps."""
    agreement = Agreement(setting.world, 4)
    agreement.post(list_wishes(setting, course, None))
    return agreement


def share_statistics(setting: Setting) -> None:
    """Give all ranks the same running statistics, of the network and of its average: each saw other pictures."""
    task = setting.task
    average_buffers(task.plain.buffers(), setting.world)
    if task.average:
        names, averages = {name for name, _ in task.plain.named_buffers()}, task.average.state()
        average_buffers((tensor for name, tensor in averages.items() if name in names), setting.world)


def wants_checkpoint(setting: Setting, course: Course) -> bool:
    """Say whether one is due by the rhythm, or because the network is better than ever, or may turn out to be."""
    best = setting.config.checkpoint.best and (course.is_best_now or setting.scoring.step == course.done)
    return best or setting.cadence.checkpoints_after(course.done)


def list_wishes(setting: Setting, course: Course, record: StepRecord | None) -> list[int]:
    """What this rank wants, in the order of Wishes; `record`: after a step."""
    limit, old = setting.config.stop.seconds, setting.config.checkpoint.every_seconds
    return [
        0 if record is None or math.isfinite(record.loss) else record.step + 1,
        int(setting.interrupt.asked is not None),
        int(bool(limit) and course.clock() >= limit),
        int(bool(old) and course.clock() - course.saved_at_seconds >= old),
    ]


def save(setting: Setting, course: Course) -> None:
    """Write a checkpoint, the best one too where this is it; the first rank does it for all."""
    began = time.perf_counter()
    if not is_finite(setting.task.plain):
        raise diverged(setting, course.done - 1)
    # A step file that lacks steps of the checkpoint would begin anew: first they are written, on every rank.
    setting.recorder.flush()
    if setting.run.result.world.nodes > 1:
        sync_path(setting.recorder.path)  # so that the first rank can read it from its host
    setting.writers.flush()
    barrier(setting.world)
    if setting.world.rank.number == 0:
        setting.checkpoints.mkdir(exist_ok=True)
        document = {
            **course.document(),
            **take_values(setting.task),
            "run_id": setting.run.result.run_id,
            "config": setting.config.model_dump(mode="json", exclude_none=True),
        }
        path = write_checkpoint(setting.checkpoints, course.done, document, take_tensors(setting.task))
        if setting.config.checkpoint.best and course.is_best_now:
            keep_best(setting.checkpoints, path)
        prune(setting.checkpoints, setting.config.checkpoint.keep)
    course.add_checkpoint(time.perf_counter() - began)


def diverged(setting: Setting, step: int) -> RunError:
    """Say where it went wrong, with what, and from where to go on."""
    scale = setting.task.scale.value
    scaled = f", loss scale {scale:g}" if scale is not None else ""
    saved = [path for path in list_checkpoints(setting.checkpoints) if path.exists()]
    rate = setting.task.rate(step)
    good = f"the last good checkpoint is {saved[0]}" if saved else "there is no checkpoint yet"
    lower = f"--set optimizer.learning_rate={setting.config.optimizer.learning_rate / 4:g}"
    go_on = f"trainstone train --resume {shlex.quote(str(setting.run.path))} {lower}" if saved else f"try {lower}"
    return RunError(
        f"the loss is no number any more at step {step} (learning rate {rate:g}{scaled}); {good}",
        hint=f"{go_on}; or a longer schedule.warm_up_epochs, or train.precision=fp32",
    )


def tell_progress(setting: Setting, course: Course, record: StepRecord) -> Progress:
    """Where the run is, and how long it will last at most."""
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
