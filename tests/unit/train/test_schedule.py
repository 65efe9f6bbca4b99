"""Rates that the originals do not have (theirs: test_originals.py), and what is usual."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainstone.config.learning import OptimizerConfig, ScheduleConfig
from trainstone.train.schedule import build_rate, check_rate, peak_rate

TBD = ScheduleConfig(name="steps", warm_up_epochs=5, decay_epochs=(30, 60, 80))


def test_cosine_with_offset_goes_on_from_the_peak_down_to_the_end():
    schedule = ScheduleConfig(name="cosine", warm_up_epochs=1, end_rate=0.01)
    rate = build_rate(schedule, 0.4, steps_per_epoch=10, epochs=5)
    assert [rate(step) for step in (10, 30, 50)] == pytest.approx([0.4, (0.4 + 0.01) / 2, 0.01])


def test_epochs_of_no_whole_number_of_steps():
    schedule = ScheduleConfig(name="steps", by="epoch", decay_epochs=(1, 3))
    rate = build_rate(schedule, 1.0, steps_per_epoch=1000 / 300, epochs=4)  # 300 of 1000 pictures a step
    epochs = [step * 300 // 1000 for step in range(13)]
    expected = [0.1 ** ((epoch >= 1) + (epoch >= 3)) for epoch in epochs]
    assert [rate(step) for step in range(13)] == pytest.approx(expected)


def test_a_warm_up_of_part_of_an_epoch_lasts_whole_steps():
    schedule = ScheduleConfig(warm_up_epochs=0.57)  # 0.57 x 100 is 56.99999999999999
    rate = build_rate(schedule, 1.0, steps_per_epoch=100, epochs=1)
    assert rate(56) == pytest.approx(56 / 57)
    assert rate(57) == 1.0
    assert build_rate(schedule, 1.0, steps_per_epoch=1.5, epochs=1)(0) == 1.0  # less than a step: none


def test_a_schedule_that_is_all_warm_up_ends_at_its_peak():
    schedule = ScheduleConfig(name="polynomial", warm_up_epochs=2)
    assert build_rate(schedule, 0.3, steps_per_epoch=10, epochs=2)(20) == 0.3
    # Longer than the run: stays where the run ends.
    assert build_rate(schedule, 0.3, steps_per_epoch=10, epochs=1)(99) == pytest.approx(0.15)


@settings(deadline=None)
@given(
    st.sampled_from(["constant", "polynomial", "cosine", "steps"]),
    st.sampled_from(["step", "epoch"]),
    st.floats(0, 20),
    st.sampled_from([0.0, 0.3, 1.0, "rank"]),
    st.sampled_from([0, 1]),
    st.booleans(),
    st.floats(0.05, 500),
    st.floats(0.1, 30),
)
def test_no_schedule_leaves_the_span_between_end_and_peak(
    name, by, warm_up, begin, first, offset, steps_per_epoch, epochs
):
    schedule = ScheduleConfig(
        name=name,
        by=by,
        warm_up_epochs=warm_up,
        warm_up_from=begin,
        first_step=first,
        warm_up_offset=offset,
        end_rate=0.0,
        decay_epochs=(3, 7.5),
    )
    rate = build_rate(schedule, 0.5, steps_per_epoch=steps_per_epoch, epochs=epochs, ranks=3)
    total = round(steps_per_epoch * epochs)
    rates = [rate(step) for step in range(0, total + 2, max(1, total // 50))]
    assert all(0 <= value <= 0.5 * (1 + 1e-12) for value in rates)
    if by == "step":
        assert rate(total + 1) == rate(total + 10**6)
    highest = rates.index(max(rates))
    assert all(later <= earlier + 1e-12 for earlier, later in zip(rates[highest:], rates[highest + 1 :], strict=False))


@pytest.mark.parametrize(
    ("rate", "rate_for", "batch", "expected"),
    [
        (2.92e-3, 32, 512, 0.0475),
        (5.84e-3, 32, 1024, 0.1875),
        (3.2e-3, 32, 896, 0.09),
        (2.5e-3, 32, 1, 0.0025),  # at least one
        (2.5e-3, "rank", 64, 0.01),
        (0.0031, "run", 512, 0.0031),  # taken as it is
    ],
)
def test_the_peak_is_a_multiple_of_the_unit(rate: float, rate_for, batch: int, expected: float):
    optimizer = OptimizerConfig(learning_rate=rate, rate_for=rate_for, rate_unit=2.5e-3)
    assert peak_rate(optimizer, global_batch=batch, ranks=4) == pytest.approx(expected, rel=1e-12)


def test_a_warm_up_by_pictures_does_not_count_what_fills_an_epoch_up():
    schedule = ScheduleConfig(warm_up_epochs=5.25, warm_up_by="pictures")
    filled = {"steps_per_epoch": 230.0, "epochs": 80.0}
    assert build_rate(schedule, 1.0, **filled, unfilled_steps=117266 / 512)(601) == pytest.approx(0.5)  # of 1202
    assert build_rate(schedule, 1.0, **filled)(1207) == 1.0
    by_steps = schedule.model_copy(update={"warm_up_by": "steps"})
    assert build_rate(by_steps, 1.0, **filled, unfilled_steps=117266 / 512)(1206) < 1.0


USUAL = [("lars", 10.5, 3264), ("lars", 3.0, 408), ("lars", 24.699, 67456), ("sgd", 0.1, 256), ("sgd", 4.096, 4096)]
FAR = [("lars", 10.5, 8), ("sgd", 10.5, 8), ("sgd", 1.024, 32), ("sgd", 1e-4, 256), ("lars", 0.01, 408), ("sgd", 0, 1)]


@pytest.mark.parametrize(("name", "peak", "batch"), USUAL + FAR)
def test_check_rate_tells_usual_rates_from_far_ones(name: str, peak: float, batch: int):
    told = check_rate(OptimizerConfig(name=name), peak=peak, global_batch=batch)
    assert (told is not None) == ((name, peak, batch) in FAR)


def test_a_late_border_belongs_to_what_is_before_it():
    late = TBD.model_copy(update={"decay_late": True})
    for schedule, at in ((TBD, 0.1), (late, 1.0)):
        rate = build_rate(schedule, 1.0, steps_per_epoch=100, epochs=90)
        assert [rate(30 * 100 + by) for by in (-1, 0, 1)] == pytest.approx([1.0, at, 0.1])
