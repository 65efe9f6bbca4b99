"""How fast a data set loads: which point counts, how many cores a demand takes, and the sentences."""

import pytest
from pydantic import ValidationError

from made_results import A100, HERE, make_feeding, make_point
from trainstone.results import feeding as loading
from trainstone.results.feeding import Feeding
from trainstone.results.verdicts import write_data_verdict


@pytest.mark.parametrize("changes", [{"points": []}, {"cores": 0}, {"pictures": -1}, {"picture_bytes": float("nan")}])
def test_feeding_survives_json_and_refuses_impossible_values(changes: dict[str, object]):
    feeding = make_feeding(demand=A100)
    assert Feeding.model_validate_json(feeding.model_dump_json()) == feeding
    with pytest.raises(ValidationError):
        Feeding(**{**feeding.model_dump(), **changes})


@pytest.mark.parametrize(
    ("rate", "threads", "busy", "cores", "per_core"),
    [(1200, 2, None, 4, 600), (1200, 2, 1.5, 4, 800), (9600, 32, 30.0, 16, 600), (9600, 32, None, 16, 600)],
)
def test_rate_per_core_counts_busy_cores(rate: float, threads: int, busy: float | None, cores: int, per_core: float):
    assert loading.rate_per_core(rate, threads, busy, cores) == per_core


def test_best_point_is_the_fastest_and_cores_needed_uses_most_threads():
    points = [make_point(1, 600, cores=8), make_point(4, 2000, cores=8), make_point(8, 1600, cores=8)]
    feeding = make_feeding(points, cores=8, demand=A100)
    assert loading.best_point(feeding).threads == 4
    assert loading.cores_needed(feeding) == 100  # at 1600 / 8 a core, not at 2000 / 4
    assert loading.cores_needed(make_feeding()) is None


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"stages": []}, ["1,190 images/s with 2 threads on 2 cores (595 a core)"]),
        ({}, ["1,190 images/s", "decoding takes 78 % of the time"]),
        ({"points": [make_point(2, 1190, 1.2)]}, ["only 1.2 of 2 cores busy"]),
        ({"demand": A100}, ["ResNet-50 on 8 x NVIDIA A100 takes 20,000 images/s", "34 cores; 2 here do not reach"]),
        ({"demand": HERE}, ["ResNet-50 on this CPU takes 5.1 images/s", "0.01 cores; 2 here, which also train, reach"]),
    ],
)
def test_data_verdict_has_what_is_known(changes: dict[str, object], parts: list[str]):
    verdict = write_data_verdict(make_feeding(**changes), "ResNet-50")
    assert [part for part in parts if part not in verdict] == []
    assert ("busy" in verdict) == ("points" in changes)


def test_intervals_are_described_or_why_there_is_none():
    one, two = make_point(1, 600), make_point(2, 1190, ci95=None, ci_covers="not established: 3 batches")
    assert len(loading.describe_covers(make_feeding([one, one]))) == 1
    assert len(loading.describe_covers(make_feeding([one, two]))) == 2


@pytest.mark.parametrize(("cores", "text"), [(33.6, "34"), (34.0, "34"), (3.31, "3.31"), (1e-9, "0.01")])
def test_cores_are_rounded_up(cores: float, text: str):
    assert loading.format_cores(cores) == text
