"""Rates that the originals do not have (theirs: test_originals.py), and what is usual."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainstone.config.schema import OptimizerConfig, ScheduleConfig
from trainstone.train.schedule import build_rate, check_rate, peak_rate

STEPS, FILLED = {"name": "steps", "decay_epochs": (30, 60, 80)}, {"steps_per_epoch": 230, "epochs": 80}
BY_IMAGES, UNFILLED = {"warm_up_epochs": 5.25, "warm_up_by": "pictures"}, {"unfilled_steps": 117266 / 512}
ALL_WARM_UP = {"name": "polynomial", "warm_up_epochs": 2}
COARSE = {"name": "steps", "by": "epoch", "decay_epochs": (1, 3)}
RATES = {
    "cosine with offset goes from the peak down to the end": (
        {"name": "cosine", "warm_up_epochs": 1, "end_rate": 0.025},
        {"steps_per_epoch": 10, "epochs": 5},
        {10: 1.0, 30: (1 + 0.025) / 2, 50: 0.025},
    ),
    "300 of 1000 images a step": (
        COARSE,
        {"steps_per_epoch": 1000 / 300, "epochs": 4},
        {step: 0.1 ** ((step * 300 // 1000 >= 1) + (step * 300 // 1000 >= 3)) for step in range(13)},
    ),
    # 0.57 x 100 is 56.99999999999999
    "a warm-up lasts whole steps": (
        {"warm_up_epochs": 0.57},
        {"steps_per_epoch": 100, "epochs": 1},
        {56: 56 / 57, 57: 1},
    ),
    "a warm-up of less than a step is none": ({"warm_up_epochs": 0.57}, {"steps_per_epoch": 1.5, "epochs": 1}, {0: 1}),
    "all warm-up ends at the peak": (ALL_WARM_UP, {"steps_per_epoch": 10, "epochs": 2}, {20: 1}),
    "a warm-up longer than the run stays where it ends": (ALL_WARM_UP, {"steps_per_epoch": 10, "epochs": 1}, {99: 0.5}),
    "a border belongs to what follows": (
        STEPS,
        {"steps_per_epoch": 100, "epochs": 90},
        {2999: 1, 3000: 0.1, 3001: 0.1},
    ),
    "a late border belongs to what is before it": (
        {**STEPS, "decay_late": True},
        {"steps_per_epoch": 100, "epochs": 90},
        {2999: 1, 3000: 1, 3001: 0.1},
    ),
    "what fills an epoch up does not count": (BY_IMAGES, FILLED | UNFILLED, {601: 0.5}),  # of 1202
    "an epoch that is not filled up": (BY_IMAGES, FILLED, {1207: 1}),
    "by steps it counts": (BY_IMAGES | {"warm_up_by": "steps"}, FILLED | UNFILLED, {1206: 1206 / 1207}),
}


@pytest.mark.parametrize("case", RATES)
def test_build_rate_gives_the_rates_of_the_table(case: str):
    schedule, run, expected = RATES[case]
    rate = build_rate(ScheduleConfig(**schedule), 1.0, **run)
    assert {step: rate(step) for step in expected} == pytest.approx(expected)


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


USUAL = [("lars", 10.5, 3264), ("lars", 3.0, 408), ("lars", 24.699, 67456), ("sgd", 0.1, 256), ("sgd", 4.096, 4096)]
FAR = [("lars", 10.5, 8), ("sgd", 10.5, 8), ("sgd", 1.024, 32), ("sgd", 1e-4, 256), ("lars", 0.01, 408), ("sgd", 0, 1)]


@pytest.mark.parametrize(("name", "peak", "batch"), USUAL + FAR)
def test_check_rate_tells_usual_rates_from_far_ones(name: str, peak: float, batch: int):
    told = check_rate(OptimizerConfig(name=name), peak=peak, global_batch=batch)
    assert (told is not None) == ((name, peak, batch) in FAR)
