"""How fast a data set feeds: which point counts, how many cores a demand takes, and the sentences."""

import pytest
from pydantic import ValidationError

from made_feeding import A100, HERE, make_feeding, make_point
from trainstone.results.feeding import (
    Feeding,
    Stage,
    best_point,
    cores_needed,
    describe_cores,
    describe_covers,
    describe_spread,
    describe_target,
    format_cores,
    format_microseconds,
    largest_stage,
    rate_per_core,
    widest_point,
)
from trainstone.results.verdicts import write_data_verdict


def test_records_survive_json():
    feeding = make_feeding(demand=A100)
    assert Feeding.model_validate_json(feeding.model_dump_json()) == feeding
    assert make_feeding().demand is None


@pytest.mark.parametrize("changes", [{"points": []}, {"cores": 0}, {"pictures": -1}, {"picture_bytes": float("nan")}])
def test_what_cannot_be_is_refused(changes: dict[str, object]):
    with pytest.raises(ValidationError):
        Feeding(**{**make_feeding().model_dump(), **changes})


def test_a_core_is_a_thread_where_cpu_time_is_not_known():
    assert rate_per_core(1200, 2, None, 4) == 600
    assert rate_per_core(1200, 2, 1.5, 4) == 800


def test_hardware_threads_do_not_make_more_cores():
    assert rate_per_core(9600, 32, 30.0, 16) == 600
    assert rate_per_core(9600, 32, None, 16) == 600


def test_the_best_point_is_the_fastest_and_cores_are_reckoned_with_most_threads():
    points = [make_point(1, 600, cores=8), make_point(4, 2000, cores=8), make_point(8, 1600, cores=8)]
    feeding = make_feeding(points, cores=8, demand=A100)
    assert best_point(feeding).threads == 4
    assert widest_point(feeding).threads == 8
    assert cores_needed(feeding) == 100  # at 1600 / 8 a core, not at 2000 / 4
    assert cores_needed(make_feeding()) is None


def test_the_largest_stage():
    stage = largest_stage(make_feeding())
    assert stage is not None
    assert stage.name == "decode"
    assert largest_stage(make_feeding(stages=[])) is None


@pytest.mark.parametrize(
    ("demand", "told"),
    [
        (A100, "not enough: ResNet-50 on 8 x NVIDIA A100 takes 20,000 images/s, 34 cores (there are 2 here)"),
        (
            A100.model_copy(update={"devices": 1, "images_per_second": 950.0}),
            "; enough: ResNet-50 on NVIDIA A100 takes 950 images/s, 1.6 cores (there are 2 here)",
        ),
        (
            HERE.model_copy(update={"images_per_second": 300.0}),
            "enough: ResNet-50 on this CPU takes 300 images/s, 0.51 of the cores that train (there are 2 here)",
        ),
    ],
)
def test_verdict_says_whether_the_cores_are_enough(demand, told: str):
    verdict = write_data_verdict(make_feeding(demand=demand), "ResNet-50")
    assert verdict.startswith(
        "1,190 images/s with 2 threads on 2 cores (595 a core); decoding takes 78 % of the time; "
    )
    assert verdict.endswith(told)


def test_a_verdict_says_only_what_is_known():
    assert write_data_verdict(make_feeding(stages=[])) == "1,190 images/s with 2 threads on 2 cores (595 a core)"
    nameless = A100.model_copy(update={"device": ""})
    assert "; not enough: training takes 20,000 images/s" in write_data_verdict(make_feeding(demand=nameless))
    odd = make_feeding(stages=[Stage(name="warp", seconds_per_image=1e-3, share=1)])
    assert write_data_verdict(odd).endswith("; warp takes 100 % of the time")


def test_cores_that_wait_are_told():
    waiting = make_feeding([make_point(2, 1190, 1.2)], demand=A100)
    assert "; only 1.2 of 2 cores busy; " in write_data_verdict(waiting)
    assert "busy" not in write_data_verdict(make_feeding([make_point(2, 1190, 1.9)]))
    assert "busy" not in write_data_verdict(make_feeding([make_point(8, 1190, 1.9)]))


def test_enough_is_only_what_was_reached():
    waiting = make_feeding([make_point(2, 1000, 0.5)], demand=A100.model_copy(update={"images_per_second": 1100.0}))
    told = write_data_verdict(waiting)
    assert cores_needed(waiting) == pytest.approx(0.55)
    assert "not enough" in told
    assert "were not reached" in describe_cores(waiting)
    assert "only 0.5 of 2 cores busy" in told


def test_the_cores_sentence_says_whose_rate_it_takes():
    assert describe_cores(make_feeding(demand=A100)) == (
        "A core feeds 595 images/s with 2 threads, the most measured: the rate a core usually falls as threads get "
        "more. So 20,000 images/s (8 x NVIDIA A100, given) take 34 cores; there are 2 here."
    )
    assert "(this CPU, resnet50, fp32, batch 16, measured here) take 0.01 of the cores that train" in describe_cores(
        make_feeding(demand=HERE)
    )
    assert describe_cores(make_feeding([make_point(1, 600)])) == (
        "A core feeds 600 images/s with 1 thread. A training that takes N images/s needs N / 600 cores to feed it."
    )


def test_what_is_to_be_fed():
    assert describe_target(make_feeding(demand=A100)) == "8 x NVIDIA A100"
    assert describe_target(make_feeding(demand=A100.model_copy(update={"device": ""})), "SSD") == "SSD"
    assert describe_target(make_feeding(), "SSD") == "SSD"


def test_intervals_are_told_or_why_there_is_none():
    one, two = make_point(1, 600), make_point(2, 1190, ci95=None, ci_covers="not established: 3 batches")
    assert describe_spread(one) == "± 1.0 %"
    assert describe_spread(two) == ""
    assert describe_covers(make_feeding([one])) == ["95 % interval within this run"]
    assert describe_covers(make_feeding([one, two])) == [
        "threads 1: 95 % interval within this run",
        "threads 2: 95 % interval not established: 3 batches",
    ]


@pytest.mark.parametrize(
    ("cores", "told"),
    [(33.6, "34"), (34.0, "34"), (1234.5, "1,235"), (3.31, "3.4"), (1.1, "1.1"), (2.0, "2.0"), (0.0086, "0.01"),
     (0.5, "0.50"), (1e-9, "0.01"), (1e-5, "0.01")],
)  # fmt: skip
def test_cores_are_rounded_up(cores: float, told: str):
    assert format_cores(cores) == told


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(1.311e-3, "1,311"), (3.42e-5, "34.2"), (9.996e-5, "100"), (5.1e-7, "0.51"), (0.0, "0"), (1.5, "1,500,000")],
)
def test_microseconds_stand_in_a_column(seconds: float, told: str):
    assert format_microseconds(seconds) == told
