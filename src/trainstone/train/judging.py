"""Evaluations of a training run: when one is owed, judging the pictures, writing down what came of it.

With eval.async it comes an epoch later: a checkpoint is written with the evaluation, and none after it before its
scores are known. So a run that is killed in between owes that evaluation again, or has it.
"""

import logging
import time
from collections.abc import Iterator

from trainstone.results.progress import Progress
from trainstone.results.quality import Evaluation
from trainstone.train.checkpoint import keep_best_of
from trainstone.train.course import Course
from trainstone.train.evaluate import judge
from trainstone.train.scoring import keep_pictures
from trainstone.train.setting import Setting

log = logging.getLogger(__name__)


def lacks_evaluation(setting: Setting, course: Course) -> bool:
    """Say whether the network as it is now could still be judged."""
    return setting.validation is not None and not course.judged_now and setting.scoring.step != course.done


def take_pending(setting: Setting, course: Course, *, now: bool) -> None:
    """Take the scores of an evaluation that are still to come: now, or because an epoch has ended since."""
    before, cadence = setting.scoring.step, setting.cadence
    if before is None:
        return
    ended, then = (done * cadence.global_batch // cadence.pictures for done in (course.done, before))
    if now or ended > then:
        take_scores(setting, course)


def run_evaluation(setting: Setting, course: Course) -> Iterator[Progress]:
    """Judge the validation pictures and write down what came of it; nothing where a signal broke it off."""
    assert setting.validation is not None
    began = time.perf_counter()
    setting.mlperf.begin_evaluation(course.done)
    rows = yield from judge(setting.task, setting.config, setting.validation, setting.world, setting.interrupt)
    spent = time.perf_counter() - began
    if rows is None:
        course.eval_seconds += spent
        return
    setting.scoring.begin(setting.validation, rows, course.done, spent)
    if setting.config.eval.async_:
        setting.mlperf.end_evaluation(course.done)
    else:
        take_scores(setting, course)


def take_scores(setting: Setting, course: Course) -> None:
    """Write down what came of the last evaluation, which may be some steps ago."""
    step, late = setting.scoring.step, setting.config.eval.async_
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
    course.add_evaluation(evaluation)
    metric, target = setting.config.eval.metric, setting.config.eval.target
    reached = course.has_reached(target)
    setting.mlperf.evaluation(evaluation, metric=metric, reached=reached, late_after=course.done if late else None)
    setting.trackers.evaluation(evaluation)
    setting.writers.evaluation(evaluation)
    told = ", ".join(f"{name} {value:.4f}" for name, value in scored.metrics.items())
    log.info("epoch %.2f, step %d: %s (%d pictures)", evaluation.epoch, evaluation.step, told, scored.images)
    if course.best(metric) is evaluation:
        course.tables, course.shown = scored.tables, keep_pictures(setting.run.path, scored)
        if setting.config.checkpoint.best and step < course.done and setting.world.rank.number == 0:
            keep_best_of(setting.checkpoints, step)
    setting.run.update(quality=course.quality(setting.config.eval), phases=course.phases())
