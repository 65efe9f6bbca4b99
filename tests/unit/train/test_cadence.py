from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainstone.config.learning import CheckpointConfig, EvalConfig, StopConfig
from trainstone.train.cadence import Cadence

PARTS = (0.0, 0.25, 0.3, 0.5, 1.0, 1.5, 2.0)


def make_cadence(pictures: int, batch: int, *, epochs: float = 3.0, steps: int = 0, **others) -> Cadence:
    evaluation = EvalConfig(
        every_epochs=others.pop("every", 1), offset=others.pop("offset", None), at_epochs=others.pop("at", ())
    )
    checkpoint = CheckpointConfig(every_epochs=others.pop("saved", 1.0), every_steps=others.pop("saved_steps", 0))
    assert not others
    return Cadence(pictures, batch, evaluation, StopConfig(epochs=epochs, steps=steps), checkpoint)


@st.composite
def cadences(draw: st.DrawFn) -> Cadence:
    every = draw(st.integers(1, 4))
    return make_cadence(
        draw(st.integers(1, 40)),
        draw(st.integers(1, 60)),
        epochs=draw(st.sampled_from((0.1, 0.5, 1.0, 2.7, 5.0))),
        steps=draw(st.integers(0, 30)),
        every=every,
        offset=draw(st.none() | st.integers(0, every - 1)),
        saved=draw(st.sampled_from(PARTS)),
        saved_steps=draw(st.integers(0, 7)),
        at=sorted(draw(st.sets(st.sampled_from((0.1, 0.5, 1.0, 1.3, 2.0, 3.0, 9.0)), max_size=3))),
    )


def simulate(cadence: Cadence) -> tuple[int, set[int], set[int]]:
    """Take picture after picture; return the last step, and the steps after which is evaluated and saved."""
    evaluation, checkpoint = cadence.eval, cadence.checkpoint
    offset = evaluation.every_epochs - 1 if evaluation.offset is None else evaluation.offset
    part = Fraction(str(checkpoint.every_epochs)) * cadence.pictures
    wanted = Fraction(str(cadence.stop.epochs)) * cadence.pictures
    listed = [Fraction(str(epoch)) * cadence.pictures for epoch in evaluation.at_epochs]
    evaluated, saved = set(), set()
    taken, epochs, parts, step = 0, 0, 0, 0
    while True:
        step += 1
        for _ in range(cadence.global_batch):
            taken += 1
            if taken % cadence.pictures == 0:
                if not listed and epochs % evaluation.every_epochs == offset:
                    evaluated.add(step)
                epochs += 1
            evaluated |= {step for due in listed if taken - 1 < due <= taken}
            while part and (parts + 1) * part <= taken:
                parts += 1
                saved.add(step)
        if checkpoint.every_steps and step % checkpoint.every_steps == 0:
            saved.add(step)
        if taken >= wanted or step == cadence.stop.steps:
            return step, evaluated | {step}, saved | {step}


@given(cadences())
def test_it_agrees_with_counting_picture_by_picture(cadence: Cadence):
    last, evaluated, saved = simulate(cadence)
    assert cadence.last_step == last
    steps = range(1, last + 1)
    assert {step for step in steps if cadence.evaluates_after(step)} == evaluated
    assert {step for step in steps if cadence.checkpoints_after(step)} == saved


@given(cadences())
def test_the_next_event_is_never_beyond_what_is_due(cadence: Cadence):
    last, evaluated, saved = simulate(cadence)
    due = sorted(evaluated | saved)
    for done in range(last):
        event = cadence.next_event(done)
        assert done < event <= next(step for step in due if step > done)


@given(cadences())
def test_the_next_evaluation_is_the_first_that_is_due_after_so_many_epochs(cadence: Cadence):
    """Go through hundredths of an epoch: which are due, and the first step that has all of its pictures."""
    last, evaluated, _ = simulate(cadence)
    evaluation = cadence.eval
    offset = evaluation.every_epochs - 1 if evaluation.offset is None else evaluation.offset
    listed = [round(100 * epoch) for epoch in evaluation.at_epochs]
    rhythm = [100 * epoch + 100 for epoch in range(20) if epoch % evaluation.every_epochs == offset]
    for epochs in range(4):
        due = min((part for part in (listed or rhythm) if part > 100 * epochs), default=10**6)
        steps = (step for step in range(1, last) if 100 * step * cadence.global_batch >= due * cadence.pictures)
        assert cadence.next_evaluation(epochs) == next(steps, last)
        assert cadence.next_evaluation(epochs) in evaluated


def test_mlperf_evaluates_every_fourth_epoch_from_the_third_and_after_the_last():
    # ImageNet with 3,264 images a step: 37 epochs, epochs counted from 0, offset 2.
    cadence = make_cadence(1_281_167, 3264, epochs=37.0, every=4, offset=2)
    steps = [step for step in range(1, cadence.last_step + 1) if cadence.evaluates_after(step)]
    ends = [-(-epoch * 1_281_167 // 3264) for epoch in (3, 7, 11, 15, 19, 23, 27, 31, 35, 37)]
    assert steps == ends
    assert cadence.last_step == 14_524  # 14,523.1 steps hold 37 epochs


def test_a_batch_of_several_epochs_evaluates_once_a_step():
    cadence = make_cadence(10, 25, epochs=10.0)
    assert cadence.last_step == 4
    assert all(cadence.evaluates_after(step) for step in range(1, 5))
    assert cadence.epochs_after(1) == 2.5


@pytest.mark.parametrize(("epochs", "steps", "last"), [(3.0, 0, 36), (0.5, 0, 6), (3.0, 5, 5), (0.01, 99, 1)])
def test_the_first_stop_rule_counts(epochs: float, steps: int, last: int):
    assert make_cadence(96, 8, epochs=epochs, steps=steps).last_step == last


def test_a_tenth_of_an_epoch_is_a_tenth():
    """0.1 as a binary number is a little more."""
    cadence = make_cadence(3200, 32, epochs=0.1, saved=0.1)
    assert cadence.last_step == 10
    assert make_cadence(3200, 32, saved=0.1).checkpoints_after(10)


def test_without_a_rhythm_only_the_last_step_is_judged():
    cadence = make_cadence(10, 5, epochs=4.0, every=0)
    assert [done for done in range(1, 9) if cadence.evaluates_after(done)] == [8]


def test_the_end_is_left_out_only_of_a_whole_run_that_was_judged():
    def judged(**how) -> list[int]:
        evaluation = EvalConfig(every_epochs=4, offset=2, at_end=False)
        cadence = Cadence(10, 10, evaluation, StopConfig(**how), CheckpointConfig())
        return [done for done in range(1, cadence.last_step + 1) if cadence.evaluates_after(done)]

    assert judged(epochs=9.0) == [3, 7]
    assert judged(epochs=7.0) == [3, 7]
    assert judged(epochs=9.0, steps=5) == [3, 5]  # cut short: as it is then
    assert judged(epochs=2.0) == [2]  # or never


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"epochs": 9.0}, [4, 7]),
        ({"epochs": 7.0}, [4, 7]),
        ({"epochs": 9.0, "steps": 5}, [4, 5]),  # cut short
        ({"epochs": 3.0}, [3]),
    ],
)
def test_a_list_of_epochs_goes_before_the_rhythm(how: dict[str, float], expected: list[int]):
    evaluation = EvalConfig(every_epochs=2, offset=0, at_epochs=(4.0, 7.0), at_end=False)
    cadence = Cadence(10, 10, evaluation, StopConfig(**how), CheckpointConfig())
    assert [done for done in range(1, cadence.last_step + 1) if cadence.evaluates_after(done)] == expected


def test_parts_of_an_epoch_may_be_listed():
    cadence = make_cadence(100, 10, epochs=2.0, at=(0.25, 1.0), saved=0.0)
    assert [done for done in range(1, 21) if cadence.evaluates_after(done)] == [3, 10, 20]
    assert [cadence.next_event(done) for done in (0, 2, 3, 9, 10)] == [3, 3, 10, 10, 20]
