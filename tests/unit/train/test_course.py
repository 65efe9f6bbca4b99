import json

import pytest

from trainstone.config.schema import EvalConfig
from trainstone.errors import ResultError
from trainstone.results.quality import Evaluation
from trainstone.results.steps import StepRecord
from trainstone.train.course import Course


def judged(step: int, top1: float, seconds: float = 1.0) -> Evaluation:
    metrics = {"top1": top1, "top5": 1.0}
    return Evaluation(epoch=step / 10, step=step, seconds=seconds, eval_seconds=0.5, metrics=metrics, images=7)


def make_course(*evaluations: Evaluation) -> Course:
    course = Course("top1", pictures=100, global_batch=10)
    for one in evaluations:
        course.history.append(one)
        course.done = one.step
    return course


def record(step: int, seconds: float, loss: float = 2.0) -> StepRecord:
    return StepRecord(step, 0, 0.0, seconds / 4, seconds, 10, loss, 0.1)


def test_the_first_of_equal_evaluations_is_the_best():
    course = make_course(judged(10, 0.5), judged(20, 0.5))
    best = course.best("top1")
    assert best is not None
    assert best.step == 10
    assert not course.is_best_now
    assert make_course(judged(10, 0.5), judged(20, 0.6)).is_best_now


def test_any_evaluation_may_reach_the_target():
    course = make_course(judged(10, 0.5))
    assert course.has_reached(0.5)
    assert not course.has_reached(0.51)
    assert not course.has_reached(None)
    course.add_step(record(10, 0.1))
    assert course.has_reached(0.5)  # a target that was lowered for a resumed run
    assert not course.judged_now


def test_quality_is_of_the_evaluation_that_reached_the_target_first():
    course = make_course(judged(10, 0.5, 3.0), judged(20, 0.7, 6.0), judged(30, 0.9, 9.0))
    quality = course.quality(EvalConfig(target=0.6))
    assert quality is not None
    assert (quality.value, quality.seconds_to_target) == (0.7, 6.0)
    quality = course.quality(EvalConfig(target=0.95))
    assert quality is not None
    assert (quality.value, quality.seconds_to_target, quality.epochs) == (0.9, None, 3.0)
    assert make_course().quality(EvalConfig()) is None


def test_a_course_goes_on_from_what_it_wrote():
    course = make_course(judged(10, 0.5), judged(20, 0.7))
    for step in (20, 21):
        course.add_step(record(step, 0.5))
    course.checkpoint_seconds = 0.25
    document = json.loads(json.dumps(course.document()))
    later = Course("top1", 100, 10, starts=2)
    later.go_on_from(document, "there")
    assert later.done == 22
    assert later.history == course.history
    assert later.phases() == course.phases()
    assert later.clock() >= later.seconds_before == later.saved_at_seconds == document["seconds"]
    assert later.starts == 2


@pytest.mark.parametrize(
    "change",
    [{"step": None}, {"seconds": "soon"}, {"history": [{"step": 1}]}, {"history": 7}, {"train_seconds": [1]}],
)
def test_a_document_that_does_not_say_how_far_it_was_is_refused(change: dict[str, object]):
    document = {**make_course(judged(10, 0.5)).document(), **change}
    with pytest.raises(ResultError, match=r"^there does not say how far the run was"):
        Course("top1", 100, 10).go_on_from(document, "there")
