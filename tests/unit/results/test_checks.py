"""Findings from what was measured: which code is raised when, and what its sentence says."""

import re

import pytest

from command import ROOT
from trainstone.machine.health import Noise
from trainstone.results import schema
from trainstone.results.checks import (
    CODES,
    check_feeding,
    check_limits,
    check_machine,
    check_throughput,
    finding,
    is_data_bound,
    tell_feeding,
)
from trainstone.results.ratio import judge_exchange, tell_exchange

STEPS = schema.StepSeconds(
    median=0.1, p5=0.1, p95=0.1, p99=0.1, mad=0.0, first=0.2, num_outliers=0, outlier_kind="none"
)
QUIET, BUSY = Noise(grade="A", reasons=()), Noise(grade="C", reasons=("busy",))
FEW_FAULTS, MANY_FAULTS = (schema.Memory(page_faults_per_step=faults, allocator="x") for faults in (10, 1e5))


def make_throughput(**changes: object) -> schema.Throughput:
    values = {"images_per_second": 10.0, "ci95": (9.9, 10.1), "ci_covers": "within this run", "num_steps": 100}
    return schema.Throughput.model_validate({**values, "steady": True, "steady_from_step": 0, **changes})


@pytest.mark.parametrize(
    ("changes", "outliers", "codes"),
    [
        ({}, 0, []),
        ({"ci95": None, "ci_covers": "not established: 3 steady steps, 50 needed"}, 0, ["few-steps"]),
        ({"ci95": (9.0, 11.0)}, 0, ["wide-interval"]),
        ({"steady": False, "trend_percent": 12.0}, 0, ["not-steady"]),
        ({"steady": False}, 0, []),  # too few to judge
        ({}, 9, ["outliers"]),
    ],
)
def test_doubts_about_the_number(changes: dict, outliers: int, codes: list[str]):
    steps = STEPS.model_copy(update={"num_outliers": outliers, "outlier_kind": "periodic"})
    found = check_throughput(make_throughput(**changes), steps)
    assert [one.code for one in found] == codes
    assert not outliers or "9 of 100 steady steps are outliers (periodic)" in found[0].message


def test_limits_and_machine():
    assert check_limits(schema.Utilisation(mfu=0.4), 0.01, None) == []
    found = check_limits(schema.Utilisation(mfu=1.2), 0.3, "thermal")
    assert [one.code for one in found] == ["data-bound", "throttled", "peak-exceeded"]
    assert check_machine(QUIET, FEW_FAULTS, keep_memory=True, threads=2, cores=2) == []
    found = check_machine(BUSY, MANY_FAULTS, keep_memory=True, threads=8, cores=2)
    assert [one.code for one in found] == ["noisy-machine", "threads-exceed-cores", "page-faults"]


def test_every_code_used_in_the_source_is_known():
    texts = [path.read_text() for path in (ROOT / "src").rglob("*.py") if path.name != "checks.py"]
    own = (ROOT / "src/trainstone/results/checks.py").read_text()
    given = {code for text in [*texts, own] for code in re.findall(r'finding\(\s*"([a-z-]+)"', text)}
    assert given <= set(CODES)
    assert [code for code in CODES if code not in given and not any(f'"{code}"' in text for text in texts)] == []
    assert finding("few-steps", "x").hint == CODES["few-steps"].hint
    assert finding("few-steps", "x", hint="y").hint == "y"


def make_loader(**changes: object) -> schema.Loader:
    values = {"images_per_second": 500.0, "synthetic_images_per_second": 400.0, "threads": 2, "pictures": 100}
    return schema.Loader.model_validate({**values, "share_of_synthetic": 0.98, **changes})


@pytest.mark.parametrize(("share", "data_share", "bound"), [(0.91, 0.09, False), (0.91, 0.11, True), (0.89, 0.0, True)])
def test_waiting_or_losing_more_than_a_tenth_is_data_bound(share: float, data_share: float, bound: bool):
    assert is_data_bound(share, data_share) is bound


@pytest.mark.parametrize(
    ("changes", "data_share", "words"),
    [
        (
            {"data_bound": True, "share_of_synthetic": 0.5},
            0.48,
            ["data-bound: 50 % of the speed", "waits 48 % of the time", "loader alone gives 500"],
        ),
        ({}, 0.01, ["not data-bound: 98 % of the speed"]),
    ],
)
def test_the_sentence_says_by_how_much(changes: dict, data_share: float, words: list[str]):
    told = tell_feeding(make_loader(**changes), data_share)
    assert all(word in told for word in words), told
    assert tell_feeding(make_loader(share_of_synthetic=None), data_share) == ""


@pytest.mark.parametrize(
    ("stages", "data_share", "hint"),
    [
        ({"read": 0.002, "decode": 0.001}, 0.5, "reading takes longest"),
        ({"read": 0.001, "decode": 0.002}, 0.5, "loader.threads"),
        ({}, 0.01, "loader.threads"),
    ],
)
def test_findings_name_what_is_scarce_and_what_was_left_out(stages: dict, data_share: float, hint: str):
    loader = make_loader(data_bound=True, skipped=7, skipped_pictures=3, stage_seconds_per_image=stages)
    bound, skipped = check_feeding(loader, data_share)
    assert (bound.code, skipped.code) == ("data-bound", "pictures-skipped")
    assert hint in bound.hint
    assert "3 damaged pictures left out, 7 times in all" in skipped.message
    assert check_feeding(make_loader(), 0.0) == []


SIZES = schema.Communication(gradient_bytes=102_000_000, bucket_bytes=25 * 2**20)
DRIFTING = [[1.2 + n / 25, 1.01 + n / 25, 1.02 + n / 25, 1.23 + n / 25] for n in range(7)]


@pytest.mark.parametrize(
    ("ranks", "seconds", "interval"),
    [
        ([DRIFTING], 0.2, (0.2, 0.2)),  # what drifts evenly is no exchange
        ([[[1.5, 0.9, 0.9, 1.5]] * 2, [[1.5, 1.4, 1.4, 1.5]] * 2], 0.1, None),  # nor is a slower rank; two rounds
        ([[[1.1, 1.0, 1.0, 1.1], [1.1, 1.0, 1.0, 1.1], [9.0, 1.0, 1.0, 9.0]]], 0.1, None),  # one disturbed round
        ([[[1.0, 1.1, 1.1, 1.0]] * 2], -0.1, None),  # noise is larger
    ],
)
def test_the_exchange_costs_what_steps_are_longer_with_it(ranks: list, seconds: float, interval: tuple | None):
    told = judge_exchange(SIZES, ranks)
    assert told.exposed_seconds == pytest.approx(seconds)
    assert told.exposed_ci95 == (pytest.approx(interval) if interval else None)
    if interval:
        assert told.share == pytest.approx(0.2 / 1.335)


@pytest.mark.parametrize(
    ("cost", "interval", "told"),
    [
        (None, None, "what it costs was not measured"),
        (-0.1, None, "it costs less than the noise"),
        (0.01, (-0.01, 0.03), "it costs less than the noise (at most 30 ms)"),
        (0.031, (0.03, 0.032), "it makes a step 31 ms longer (30 ms … 32 ms), 8.1 % of it"),
    ],
)
def test_the_exchange_is_told_with_its_interval(cost: float | None, interval: tuple | None, told: str):
    share = None if cost is None else 0.081
    values = {"exposed_seconds": cost, "exposed_ci95": interval, "share": share}
    assert tell_exchange(SIZES.model_copy(update=values)) == f"97.3 MiB of gradients a step; {told}"
