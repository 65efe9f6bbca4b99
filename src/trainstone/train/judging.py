"""Evaluations of a training run: evaluate the validation set, record the scores.

With eval.async the scores come up to an epoch later; train/decision.py says when they are collected.
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
    course.add_evaluation(evaluation)
    for sink in setting.sinks:
        sink.evaluation(evaluation)
    told = ", ".join(f"{name} {value:.4f}" for name, value in scored.metrics.items())
    log.info("epoch %.2f, step %d: %s (%d pictures)", evaluation.epoch, evaluation.step, told, scored.images)
    if course.best(metric) is evaluation:
        course.tables, course.shown = scored.tables, keep_pictures(setting.run.path, scored)
        if setting.config.checkpoint.best and step < course.done and setting.world.rank.number == 0:
            keep_best_of(setting.checkpoints, step)
    setting.run.update(quality=course.quality(setting.config.eval), phases=course.phases())
