"""decide(): a table of the rules; EventSchedule: compared with counting image by image; TrainingState."""

import json
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainstone.config.schema import CheckpointConfig, EvalConfig, StopConfig
from trainstone.engine.distributed.stop_agreement import StopDecision
from trainstone.engine.event_schedule import EventSchedule
from trainstone.errors import ResultError
from trainstone.flows.train.events import Action, DecisionInputs, decide
from trainstone.flows.train.state import TrainingState
from trainstone.results.schema.quality import Evaluation
from trainstone.results.steps import StepRecord

STOP, TIME, SECONDS, NAN = (
    StopDecision(stop=1),
    StopDecision(time_over=1),
    StopDecision(checkpoint=1),
    StopDecision(nan_step=8),
)


def make_schedule(*, every: int = 2, at: tuple[float, ...] = (), **checkpoint: Any) -> EventSchedule:
    """Build a schedule: 4 epochs of 10 steps; evaluations after epochs 2 and 4; only the last checkpoint."""
    evaluation = EvalConfig(every_epochs=every, at_epochs=at)
    return EventSchedule(
        100, 10, evaluation, StopConfig(epochs=4.0), CheckpointConfig(**{"every_epochs": 0.0, **checkpoint})
    )


def trained(done: int, **others: Any) -> DecisionInputs:
    """Return the decision inputs right after training steps."""
    return DecisionInputs(done, **{"saved": False, **others})


CASES: dict[str, tuple[DecisionInputs, StopDecision, str]] = {
    # Start
    "a new run trains": (DecisionInputs(0), StopDecision(), "train"),
    "a resumed run trains": (DecisionInputs(7), StopDecision(), "train"),
    "a resumed run that has its evaluation trains": (
        DecisionInputs(20, evaluated=True, is_best=True),
        StopDecision(),
        "train",
    ),
    "an evaluation lost to a signal comes before the first step": (DecisionInputs(20), StopDecision(), "evaluate"),
    "also at the last step": (DecisionInputs(40), StopDecision(), "evaluate"),
    "a resumed run that has reached its target ends": (DecisionInputs(7, reached=True), StopDecision(), "end"),
    "a resumed run that has everything ends": (DecisionInputs(40, evaluated=True), StopDecision(), "end"),
    "a resumed run beyond a shortened end is evaluated": (DecisionInputs(45), StopDecision(), "evaluate"),
    # Evaluate
    "an evaluation is due": (trained(20), StopDecision(), "evaluate"),
    "none is due at the end of other epochs": (trained(10), StopDecision(), "train"),
    "none without validation data": (trained(20, has_validation=False), StopDecision(), "train"),
    "none on a signal": (trained(20), STOP, "checkpoint"),
    "one when the time is over": (trained(7), TIME, "evaluate"),
    "none when the time is over on a signal": (trained(7), STOP._replace(time_over=1), "checkpoint"),
    "none because a checkpoint is": (trained(7), SECONDS, "checkpoint"),
    "one at the last step": (trained(40), StopDecision(), "evaluate"),
    "only one": (trained(20, evaluated=True), StopDecision(), "train"),
    "not again when the time is over": (trained(20, evaluated=True), TIME, "checkpoint"),
    "not again while its scores are pending": (trained(20, pending=20), SECONDS, "checkpoint"),
    "none once the target is reached": (trained(20, reached=True), StopDecision(), "checkpoint"),
    # Collect (eval.async)
    "scores can wait within the epoch": (trained(27, pending=20), StopDecision(), "train"),
    "scores are collected an epoch later": (trained(30, pending=20), StopDecision(), "collect"),
    "scores from within an epoch are collected at its end": (trained(30, pending=27), StopDecision(), "collect"),
    "before the next evaluation": (trained(40, pending=31), StopDecision(), "collect"),
    "before the evaluation at the end of the time": (trained(27, pending=20), TIME, "collect"),
    "before a later checkpoint": (trained(27, pending=20), SECONDS, "collect"),
    "before the checkpoint on a signal": (trained(27, pending=20), STOP, "collect"),
    "on a signal that came with the evaluation": (trained(20, pending=20), STOP, "collect"),
    "at once when the evaluation used up the time": (trained(20, pending=20), TIME, "collect"),
    "at once at the last step": (trained(40, pending=40), StopDecision(), "collect"),
    "before a NaN step fails the run": (trained(27, pending=20), NAN, "collect"),
    # Checkpoint
    "by time": (trained(10), SECONDS, "checkpoint"),
    "of the best": (trained(20, evaluated=True, is_best=True), StopDecision(), "checkpoint"),
    "not of a worse one": (trained(20, evaluated=True), StopDecision(), "train"),
    "of what may turn out to be the best": (trained(20, pending=20), StopDecision(), "checkpoint"),
    "on a signal": (trained(7), STOP, "checkpoint"),
    "when the time is over": (trained(7, evaluated=True), TIME, "checkpoint"),
    "when the target is reached": (trained(7, reached=True), StopDecision(), "checkpoint"),
    "at the last step": (trained(40, evaluated=True), StopDecision(), "checkpoint"),
    "after an evaluation that a signal interrupted": (replace(DecisionInputs(20), saved=False), STOP, "checkpoint"),
    "only one by time": (DecisionInputs(10), SECONDS, "train"),
    "only one of the best": (DecisionInputs(20, evaluated=True, is_best=True), SECONDS, "train"),
    "only one while scores are pending": (DecisionInputs(20, pending=20), SECONDS, "train"),
    # End
    "on a signal it ends": (DecisionInputs(7), STOP, "end"),
    "when the time is over it ends": (DecisionInputs(7, evaluated=True), TIME, "end"),
    "with the target it ends": (DecisionInputs(20, evaluated=True, reached=True), StopDecision(), "end"),
    "after the last step it ends": (DecisionInputs(40, evaluated=True), StopDecision(), "end"),
    "without validation data too": (DecisionInputs(40, has_validation=False), StopDecision(), "end"),
    "the target counts more than a signal": (DecisionInputs(20, evaluated=True, reached=True), STOP, "end"),
    "a signal counts more than the last step": (DecisionInputs(40), STOP, "end"),
    "a signal counts more than the time": (DecisionInputs(7), STOP._replace(time_over=1), "end"),
    # NaN
    "a NaN step fails": (trained(8), NAN, "fail"),
    "also on a signal, at the end, or with a checkpoint due": (trained(40), StopDecision(41, 1, 1, 1), "fail"),
}


@pytest.mark.parametrize("case", CASES)
def test_decide_follows_the_rules(case: str):
    state, agreed, expected = CASES[case]
    assert decide(state, agreed, make_schedule()) == expected


@pytest.mark.parametrize(
    ("changes", "state", "expected"),
    [
        ({"every_epochs": 1.0}, trained(10), "checkpoint"),
        ({"every_epochs": 1.0}, DecisionInputs(10), "train"),
        ({"every_epochs": 1.0}, trained(20), "evaluate"),  # first, so that its scores are in the checkpoint
        ({"every_epochs": 1.0}, trained(10, pending=9), "collect"),
        ({"every_steps": 3}, DecisionInputs(0), "train"),
        ({"every_steps": 3}, trained(9), "checkpoint"),
        ({"every_steps": 3}, trained(21, pending=20), "collect"),
        ({"every_steps": 3}, trained(22, pending=20), "train"),
        ({"best": False}, trained(20, evaluated=True, is_best=True), "train"),
        ({"best": False}, trained(20, pending=20), "train"),
        ({"best": False}, trained(40, evaluated=True), "checkpoint"),
        ({"at": (2.0, 2.5)}, trained(25), "evaluate"),
        ({"at": (2.0, 2.5)}, trained(25, pending=20), "collect"),
        ({"every": 0}, trained(20), "train"),
        ({"every": 0}, trained(40), "evaluate"),
    ],
)
def test_decide_follows_the_schedule(changes: dict[str, Any], state: DecisionInputs, expected: Action):
    assert decide(state, StopDecision(), make_schedule(**changes)) == expected


@st.composite
def schedules(draw: st.DrawFn) -> EventSchedule:
    every = draw(st.integers(1, 4))
    evaluation = EvalConfig(
        every_epochs=every,
        offset=draw(st.none() | st.integers(0, every - 1)),
        at_epochs=sorted(draw(st.sets(st.sampled_from((0.1, 0.5, 1.0, 1.3, 2.0, 3.0, 9.0)), max_size=3))),
    )
    stop = StopConfig(epochs=draw(st.sampled_from((0.1, 0.5, 1.0, 2.7, 5.0))), steps=draw(st.integers(0, 30)))
    parts = st.sampled_from((0.0, 0.25, 0.3, 0.5, 1.0, 1.5, 2.0))
    checkpoint = CheckpointConfig(every_epochs=draw(parts), every_steps=draw(st.integers(0, 7)))
    return EventSchedule(draw(st.integers(1, 40)), draw(st.integers(1, 60)), evaluation, stop, checkpoint)


def simulate(schedule: EventSchedule) -> tuple[int, set[int], set[int]]:
    """Count image by image; return the last step, and the steps that are followed by an evaluation or a checkpoint."""
    evaluation, checkpoint = schedule.eval, schedule.checkpoint
    offset = evaluation.every_epochs - 1 if evaluation.offset is None else evaluation.offset
    part = Fraction(str(checkpoint.every_epochs)) * schedule.images
    wanted = Fraction(str(schedule.stop.epochs)) * schedule.images
    listed = [Fraction(str(epoch)) * schedule.images for epoch in evaluation.at_epochs]
    evaluated, saved = set(), set()
    taken, epochs, parts, step = 0, 0, 0, 0
    while True:
        step += 1
        for _ in range(schedule.global_batch):
            taken += 1
            if taken % schedule.images == 0:
                if not listed and epochs % evaluation.every_epochs == offset:
                    evaluated.add(step)
                epochs += 1
            evaluated |= {step for due in listed if taken - 1 < due <= taken}
            while part and (parts + 1) * part <= taken:
                parts += 1
                saved.add(step)
        if checkpoint.every_steps and step % checkpoint.every_steps == 0:
            saved.add(step)
        if taken >= wanted or step == schedule.stop.steps:
            return step, evaluated | {step}, saved | {step}


@given(schedules())
def test_event_schedule_equals_counting_images(schedule: EventSchedule):
    last, evaluated, saved = simulate(schedule)
    assert schedule.last_step == last
    steps = range(1, last + 1)
    assert {step for step in steps if schedule.evaluates_after(step)} == evaluated
    assert {step for step in steps if schedule.checkpoints_after(step)} == saved


EVERY, LISTED = {"every_epochs": 4, "offset": 2}, {"every_epochs": 2, "offset": 0, "at_epochs": (4.0, 7.0)}


@pytest.mark.parametrize(
    ("when", "how", "expected"),
    [
        (EVERY, {"epochs": 9.0}, [3, 7]),
        (EVERY, {"epochs": 7.0}, [3, 7]),
        (EVERY, {"epochs": 9.0, "steps": 5}, [3, 5]),  # shortened run: evaluated at its end
        (EVERY, {"epochs": 2.0}, [2]),  # no other evaluation: evaluated at its end
        (LISTED, {"epochs": 9.0}, [4, 7]),
        (LISTED, {"epochs": 7.0}, [4, 7]),
        (LISTED, {"epochs": 9.0, "steps": 5}, [4, 5]),
        (LISTED, {"epochs": 3.0}, [3]),
    ],
)
def test_event_schedule_without_at_end_still_evaluates_shortened_runs(when: dict, how: dict, expected: list[int]):
    schedule = EventSchedule(10, 10, EvalConfig(**when, at_end=False), StopConfig(**how), CheckpointConfig())
    assert [done for done in range(1, schedule.last_step + 1) if schedule.evaluates_after(done)] == expected


def evaluated(step: int, top1: float, seconds: float = 1.0) -> Evaluation:
    metrics = {"top1": top1, "top5": 1.0}
    return Evaluation(epoch=step / 10, step=step, seconds=seconds, eval_seconds=0.5, metrics=metrics, images=7)


def make_state(*evaluations: Evaluation) -> TrainingState:
    run_state = TrainingState("top1", images=100, global_batch=10)
    for one in evaluations:
        run_state.history.append(one)
        run_state.done = one.step
    return run_state


def record(step: int, seconds: float, loss: float = 2.0) -> StepRecord:
    return StepRecord(step, 0, 0.0, seconds / 4, seconds, 10, loss, 0.1)


def test_training_state_best_is_first_of_equal_evaluations():
    run_state = make_state(evaluated(10, 0.5), evaluated(20, 0.5))
    assert run_state.best.step == 10
    assert not run_state.is_best_now
    assert make_state(evaluated(10, 0.5), evaluated(20, 0.6)).is_best_now
    run_state = make_state(evaluated(10, 0.5))
    assert run_state.has_reached(0.5)
    assert not run_state.has_reached(0.51)
    assert not run_state.has_reached(None)
    run_state.add_step(record(10, 0.1))
    assert run_state.has_reached(0.5)  # an earlier evaluation counts, too
    assert not run_state.evaluated_now


def test_quality_uses_first_evaluation_that_reached_target():
    run_state = make_state(evaluated(10, 0.5, 3.0), evaluated(20, 0.7, 6.0), evaluated(30, 0.9, 9.0))
    quality = run_state.quality(EvalConfig(target=0.6))
    assert (quality.value, quality.seconds_to_target) == (0.7, 6.0)
    quality = run_state.quality(EvalConfig(target=0.95))
    assert (quality.value, quality.seconds_to_target, quality.epochs) == (0.9, None, 3.0)
    assert make_state().quality(EvalConfig()) is None


def test_training_state_resumes_from_its_document():
    run_state = make_state(evaluated(10, 0.5), evaluated(20, 0.7))
    for step in (20, 21):
        run_state.add_step(record(step, 0.5))
    run_state.checkpoint_seconds = 0.25
    document = json.loads(json.dumps(run_state.document()))
    later = TrainingState("top1", 100, 10, starts=2)
    later.resume_from(document, "there")
    assert (later.done, later.starts) == (22, 2)
    assert (later.history, later.phases()) == (run_state.history, run_state.phases())
    assert later.clock() >= later.seconds_before == later.saved_at_seconds == document["seconds"]


@pytest.mark.parametrize(
    "change", [{"step": None}, {"seconds": "soon"}, {"history": [{"step": 1}]}, {"history": 7}, {"train_seconds": [1]}]
)
def test_training_state_refuses_invalid_document(change: dict[str, object]):
    document = {**make_state(evaluated(10, 0.5)).document(), **change}
    with pytest.raises(ResultError, match=r"^there has invalid training progress"):
        TrainingState("top1", 100, 10).resume_from(document, "there")
