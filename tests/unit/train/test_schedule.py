"""Rates against the originals' own formulas, written out anew here."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainstone.config.learning import OptimizerConfig, ScheduleConfig
from trainstone.train.schedule import build_rate, check_rate, peak_rate

MLPERF = ScheduleConfig(name="polynomial", warm_up_epochs=2, first_step=1, end_rate=1e-4)
WMLCE = ScheduleConfig(name="cosine", warm_up_epochs=8, warm_up_offset=False)
TBD = ScheduleConfig(name="steps", warm_up_epochs=5, decay_epochs=(30, 60, 80))
SC22 = ScheduleConfig(
    name="steps", by="epoch", warm_up_epochs=5, warm_up_from="rank", decay_epochs=(25, 35, 40, 45, 50)
)


def mlperf(it: int, base: float, steps: int, warm_up: int, epochs: int) -> float:
    w, t = steps * warm_up, steps * epochs
    return base * it / w if it <= w else 1e-4 + (base - 1e-4) * (1 - (it - w) / (t - w)) ** 2


def wmlce(step: int, rescaled: float, steps: int, warm_up: int, epochs: int) -> float:
    w = int(steps * warm_up)
    if step < w:
        return rescaled * step / w
    return 0.5 * rescaled * (1 + math.cos(math.pi * step / (steps * epochs)))


def sc22(epoch: int, rate: float, workers: int, warm_up: int, decays: tuple[int, ...]) -> float:
    if epoch < warm_up:
        return rate * (1 / workers) * (epoch * (workers - 1) / warm_up + 1)
    return rate * 0.1 ** sum(epoch >= decay for decay in decays)


def test_mlperfs_polynomial_is_exact_at_every_step():
    steps, epochs = 393, 37
    rate = build_rate(MLPERF, 10.5, steps_per_epoch=steps, epochs=epochs)
    for step in range(steps * epochs):
        assert rate(step) == pytest.approx(mlperf(step + 1, 10.5, steps, 2, epochs), rel=1e-6, abs=1e-12)
    assert rate(2 * steps - 1) == 10.5  # the warm-up's end
    assert rate(steps * epochs - 1) == pytest.approx(1e-4, rel=1e-9)
    assert rate(steps * epochs + 1000) == rate(steps * epochs - 1)


def test_mlperfs_largest_system_has_another_warm_up():
    rate = build_rate(MLPERF.model_copy(update={"warm_up_epochs": 31.0}), 24.699, steps_per_epoch=19, epochs=90)
    for step in range(19 * 90):
        assert rate(step) == pytest.approx(mlperf(step + 1, 24.699, 19, 31, 90), rel=1e-6, abs=1e-12)


def test_wmlces_cosine_counts_from_the_beginning_and_jumps():
    steps, epochs = 1251, 50
    rate = build_rate(WMLCE, 1.024, steps_per_epoch=steps, epochs=epochs)
    for step in range(0, steps * epochs, 7):
        assert rate(step) == pytest.approx(wmlce(step, 1.024, steps, 8, epochs), rel=1e-6, abs=1e-12)
    assert rate(0) == 0
    assert rate(8 * steps - 1) == pytest.approx(1.024 * (8 * steps - 1) / (8 * steps))
    assert rate(8 * steps) / 1.024 == pytest.approx(0.938, abs=5e-4)


def test_cosine_with_offset_goes_on_from_the_peak_down_to_the_end():
    schedule = ScheduleConfig(name="cosine", warm_up_epochs=1, end_rate=0.01)
    rate = build_rate(schedule, 0.4, steps_per_epoch=10, epochs=5)
    assert rate(10) == 0.4
    assert rate(30) == pytest.approx((0.4 + 0.01) / 2)
    assert rate(50) == pytest.approx(0.01)


def test_tbds_steps():
    steps, peak = 5004, 0.1
    rate = build_rate(TBD, peak, steps_per_epoch=steps, epochs=90)
    table = {
        0: 0.0,
        1: peak / (5 * steps),
        5 * steps // 2: peak / 2,
        5 * steps: peak,
        30 * steps - 1: peak,
        30 * steps: peak / 10,
        60 * steps - 1: peak / 10,
        60 * steps: peak / 100,
        80 * steps - 1: peak / 100,
        80 * steps: peak / 1000,
        90 * steps: peak / 1000,
    }
    for step, expected in table.items():
        assert rate(step) == pytest.approx(expected, rel=1e-6), step


def test_sc22_changes_when_an_epoch_begins():
    steps, ranks = 100, 4
    rate = build_rate(SC22, 0.2, steps_per_epoch=steps, epochs=55, ranks=ranks)
    assert rate(0) == pytest.approx(0.05)
    assert rate(steps - 1) == pytest.approx(0.05)
    for epoch in range(55):
        expected = sc22(epoch, 0.2, ranks, 5, (25, 35, 40, 45, 50))
        for step in (epoch * steps, epoch * steps + 57, (epoch + 1) * steps - 1):
            assert rate(step) == pytest.approx(expected, rel=1e-6)


def test_one_rank_needs_no_warm_up_from_its_share():
    rate = build_rate(SC22, 0.05, steps_per_epoch=10, epochs=55, ranks=1)
    assert {rate(step) for step in range(250)} == {0.05}


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


def test_constant_is_constant():
    rate = build_rate(ScheduleConfig(), 0.01, steps_per_epoch=7.3, epochs=90)
    assert {rate(step) for step in (0, 1, 500, 10**6)} == {0.01}


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
    ("rate_for", "expected"),
    [("run", 0.256), (256, 1.024), ("rank", 1.024), (1024, 0.256)],
)
def test_the_peak_grows_with_what_the_rate_is_meant_for(rate_for, expected):
    optimizer = OptimizerConfig(learning_rate=0.256, rate_for=rate_for)
    assert peak_rate(optimizer, global_batch=1024, ranks=4) == pytest.approx(expected)


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


USUAL = [
    ("lars", 10.5, 3264),
    ("lars", 3.0, 408),
    ("lars", 21.9, 35840),
    ("lars", 24.699, 67456),
    ("sgd", 0.1, 256),  # TBD: 0.1 x B / 256
    ("sgd", 0.0125, 32),
    ("sgd", 0.2, 256),  # SC22: 4 ranks of 64
    ("sgd", 0.05, 64),
    ("sgd", 0.05, 16),  # SC22's single device
    ("sgd", 1.024, 1024),  # WMLCE
    ("sgd", 4.096, 4096),
    ("sgd", 0.05, 32),
    ("sgd", 0.1, 64),
    ("sgd", 0.01, 2),
]


@pytest.mark.parametrize(("name", "peak", "batch"), USUAL)
def test_usual_rates_raise_no_doubt(name, peak, batch):
    assert check_rate(OptimizerConfig(name=name), peak=peak, global_batch=batch) is None


@pytest.mark.parametrize(
    ("name", "peak", "batch"),
    [("lars", 10.5, 8), ("sgd", 10.5, 8), ("sgd", 1.024, 32), ("sgd", 1e-4, 256), ("lars", 0.01, 408), ("sgd", 0, 1)],
)
def test_a_rate_far_off_is_told_with_what_is_usual(name, peak, batch):
    sentence = check_rate(OptimizerConfig(name=name), peak=peak, global_batch=batch)
    assert sentence is not None
    assert f"{peak:g} is" in sentence
    assert ("at 1 image a step" if batch == 1 else f"at {batch} images a step") in sentence


def test_what_is_said_of_backend_ais_rate():
    sentence = check_rate(OptimizerConfig(name="lars"), peak=10.5, global_batch=8)
    assert sentence == (
        "the peak learning rate 10.5 is 20 times the 0.52 usual for LARS at 8 images a step "
        "(MLPerf's ResNet-50 takes 10.5 for 3264)"
    )


def test_a_late_border_belongs_to_what_is_before_it():
    late = TBD.model_copy(update={"decay_late": True})
    for schedule, at in ((TBD, 0.1), (late, 1.0)):
        rate = build_rate(schedule, 1.0, steps_per_epoch=100, epochs=90)
        assert [rate(30 * 100 + by) for by in (-1, 0, 1)] == pytest.approx([1.0, at, 0.1])
