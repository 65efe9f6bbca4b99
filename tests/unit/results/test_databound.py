"""When a run counts as data-bound, and what is said about it."""

import pytest

from trainstone.results.databound import advise, check_feeding, is_data_bound, tell_feeding
from trainstone.results.schema import Loader


def make_loader(**changes: object) -> Loader:
    values = {"images_per_second": 500.0, "synthetic_images_per_second": 400.0, "threads": 2, "pictures": 100}
    return Loader.model_validate({**values, "share_of_synthetic": 0.98, **changes})


@pytest.mark.parametrize(
    ("share", "data_share", "bound"),
    [
        (0.99, 0.0, False),
        (0.91, 0.09, False),
        (0.91, 0.11, True),  # it waits
        (0.89, 0.0, True),  # it does not wait, but the loader takes the cores
        (2.0, 0.02, False),
    ],
)
def test_waiting_or_losing_more_than_a_tenth_is_data_bound(share: float, data_share: float, bound: bool):
    assert is_data_bound(share, data_share) is bound


def test_the_sentence_says_by_how_much():
    told = tell_feeding(make_loader(data_bound=True, share_of_synthetic=0.5), 0.48)
    assert told.startswith("data-bound: 50 % of the speed with synthetic data (median steps)")
    assert "waits 48 % of the time" in told
    assert "loader alone gives 500" in told
    assert tell_feeding(make_loader(), 0.01).startswith("not data-bound: 98 % of the speed")


def test_a_loader_that_takes_the_cores_is_told_apart_from_waiting():
    told = tell_feeding(make_loader(data_bound=True, share_of_synthetic=0.75), 0.02)
    assert told.startswith("data-bound: 75 %")
    assert "the loader slows its steps" in told


def test_real_pictures_that_seem_faster_are_not_believed():
    told = tell_feeding(make_loader(share_of_synthetic=1.5), 0.0)
    assert "150 %" not in told
    assert "not quiet" in told


def test_without_a_synthetic_speed_nothing_is_said():
    assert tell_feeding(make_loader(share_of_synthetic=None), 0.0) == ""


def test_findings_name_what_is_scarce_and_what_was_left_out():
    loader = make_loader(
        data_bound=True, skipped=7, skipped_pictures=3, stage_seconds_per_image={"read": 0.002, "decode": 0.001}
    )
    bound, skipped = check_feeding(loader, 0.5)
    assert bound.code == "data-bound"
    assert "reading" in bound.hint
    assert skipped.code == "pictures-skipped"
    assert "3 damaged pictures left out, 7 times in all" in skipped.message
    assert check_feeding(make_loader(), 0.0) == []


def test_advice_depends_on_what_is_scarce():
    decoding = make_loader(stage_seconds_per_image={"read": 0.001, "decode": 0.002})
    assert "loader.threads" in advise(decoding, 0.5)
    assert "share the cores" in advise(decoding, 0.01)
