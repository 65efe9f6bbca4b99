"""Findings, limits and sentences about runs and the input pipeline."""

import re

import numpy as np
import pytest
from pydantic import ValidationError

from support.builders.results import A100, HERE, make_data_bench, make_point
from support.processes.command import ROOT
from trainstone.machine.noise import Noise
from trainstone.results import findings, loader_speed
from trainstone.results.finding_codes import CODES
from trainstone.results.interleaved import assess_gradient_sync, describe_gradient_sync
from trainstone.results.schema import run as schema
from trainstone.results.schema.data_bench import DataBenchResult
from trainstone.results.step_summary import describe_preflight, find_limit, summarise_steps
from trainstone.results.verdicts import format_data_verdict, format_verdict

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
        ({"ci95": None, "ci_covers": "not established: 3 steady steps, 20 needed"}, 0, ["few-steps"]),
        ({"ci95": (9.0, 11.0)}, 0, ["wide-interval"]),
        ({"steady": False, "trend_percent": 12.0}, 0, ["not-steady"]),
        ({"steady": False}, 0, []),  # too few steps to assess
        ({}, 9, ["outliers"]),
    ],
)
def test_check_throughput_returns_expected_codes(changes: dict, outliers: int, codes: list[str]):
    steps = STEPS.model_copy(update={"num_outliers": outliers, "outlier_kind": "periodic"})
    found = findings.check_throughput(make_throughput(**changes), steps)
    assert [one.code for one in found] == codes
    assert not outliers or "9 of 100 steady steps are outliers (periodic)" in found[0].message


def test_check_limits_and_machine_return_expected_codes():
    assert findings.check_limits(schema.Utilisation(mfu=0.4), 0.01, None) == []
    found = findings.check_limits(schema.Utilisation(mfu=1.2), 0.3, "thermal")
    assert [one.code for one in found] == ["data-bound", "throttled", "peak-exceeded"]
    assert findings.check_machine(QUIET, FEW_FAULTS, keep_memory=True, threads=2, cores=2) == []
    found = findings.check_machine(BUSY, MANY_FAULTS, keep_memory=True, threads=8, cores=2)
    assert [one.code for one in found] == ["noisy-machine", "threads-exceed-cores", "page-faults"]


def test_every_code_used_in_the_source_is_known():
    texts = [path.read_text() for path in (ROOT / "src").rglob("*.py") if path.name != "finding_codes.py"]
    own = (ROOT / "src/trainstone/results/findings.py").read_text()
    given = {code for text in [*texts, own] for code in re.findall(r'finding\(\s*"([a-z-]+)"', text)}
    assert given <= set(CODES)
    assert [code for code in CODES if code not in given and not any(f'"{code}"' in text for text in texts)] == []
    assert findings.finding("few-steps", "x").hint == CODES["few-steps"].hint
    assert findings.finding("few-steps", "x", hint="y").hint == "y"


def make_loader(**changes: object) -> schema.LoaderResult:
    values = {"images_per_second": 500.0, "synthetic_images_per_second": 400.0, "threads": 2, "images": 100}
    return schema.LoaderResult.model_validate({**values, "share_of_synthetic": 0.98, **changes})


@pytest.mark.parametrize(("share", "data_share", "bound"), [(0.91, 0.09, False), (0.91, 0.11, True), (0.89, 0.0, True)])
def test_is_data_bound_above_ten_percent_wait_or_loss(share: float, data_share: float, bound: bool):
    assert findings.is_data_bound(share, data_share) is bound


@pytest.mark.parametrize(
    ("changes", "data_share", "words"),
    [
        (
            {"data_bound": True, "share_of_synthetic": 0.5},
            0.48,
            ["data-bound: 50 % of the speed", "waits 48 % of the time", "loader alone delivers 500"],
        ),
        ({}, 0.01, ["not data-bound: 98 % of the speed"]),
    ],
)
def test_describe_data_bound_names_speed_and_wait(changes: dict, data_share: float, words: list[str]):
    message = findings.describe_data_bound(make_loader(**changes), data_share)
    assert all(word in message for word in words), message
    assert findings.describe_data_bound(make_loader(share_of_synthetic=None), data_share) == ""


@pytest.mark.parametrize(
    ("stages", "data_share", "hint"),
    [
        ({"read": 0.002, "decode": 0.001}, 0.5, "reading takes longest"),
        ({"read": 0.001, "decode": 0.002}, 0.5, "loader.threads"),
        ({}, 0.01, "loader.threads"),
    ],
)
def test_check_loader_hints_at_slow_stage_and_counts_skipped_images(stages: dict, data_share: float, hint: str):
    loader = make_loader(data_bound=True, skipped=7, skipped_images=3, stage_seconds_per_image=stages)
    bound, skipped = findings.check_loader(loader, data_share)
    assert (bound.code, skipped.code) == ("data-bound", "images-skipped")
    assert hint in bound.hint
    assert "3 damaged images skipped, 7 times in total" in skipped.message
    assert findings.check_loader(make_loader(), 0.0) == []


SIZES = schema.Communication(gradient_bytes=102_000_000, bucket_bytes=25 * 2**20)
DRIFTING = [[1.2 + n / 25, 1.01 + n / 25, 1.02 + n / 25, 1.23 + n / 25] for n in range(7)]


@pytest.mark.parametrize(
    ("ranks", "seconds", "interval"),
    [
        ([DRIFTING], 0.2, (0.2, 0.2)),  # a linear drift is not communication
        ([[[1.5, 0.9, 0.9, 1.5]] * 2, [[1.5, 1.4, 1.4, 1.5]] * 2], 0.1, None),  # nor a slower rank
        ([[[1.1, 1.0, 1.0, 1.1], [1.1, 1.0, 1.0, 1.1], [9.0, 1.0, 1.0, 9.0]]], 0.1, None),  # one disturbed round
        ([[[1.0, 1.1, 1.1, 1.0]] * 2], -0.1, None),  # less than the noise
    ],
)
def test_assess_gradient_sync_returns_cost_and_interval(ranks: list, seconds: float, interval: tuple | None):
    result = assess_gradient_sync(SIZES, ranks)
    assert result.exposed_seconds == pytest.approx(seconds)
    assert result.exposed_ci95 == (pytest.approx(interval) if interval else None)
    if interval:
        assert result.share == pytest.approx(0.2 / 1.335)


@pytest.mark.parametrize(
    ("cost", "interval", "message"),
    [
        (None, None, "the cost of all-reduce was not measured"),
        (-0.1, None, "all-reduce costs less than the noise"),
        (0.01, (-0.01, 0.03), "all-reduce costs less than the noise (at most 30 ms)"),
        (0.031, (0.03, 0.032), "all-reduce adds 31 ms per step (30 ms … 32 ms), 8.1 % of the step time"),
    ],
)
def test_describe_gradient_sync_names_cost_and_interval(cost: float | None, interval: tuple | None, message: str):
    share = None if cost is None else 0.081
    values = {"exposed_seconds": cost, "exposed_ci95": interval, "share": share}
    assert describe_gradient_sync(SIZES.model_copy(update=values)) == f"97.3 MiB of gradients per step; {message}"


def columns(seconds: np.ndarray, *, wait: float = 0.0) -> dict[str, np.ndarray]:
    n = len(seconds)
    return {"step_seconds": seconds, "images": np.full(n, 4.0), "data_seconds": np.full(n, wait)}


def noisy(n: int, level: float) -> np.ndarray:
    return level * (1 + 0.01 * np.random.default_rng(0).standard_normal(n))


def test_summarise_steps_excludes_warm_up():
    seconds = np.concatenate([[10.0, 3.0, 1.5], noisy(200, 0.5)])
    summary = summarise_steps(columns(seconds), compiled=True)
    assert 3 <= summary.throughput.steady_from_step <= 30
    assert summary.throughput.images_per_second == pytest.approx(8.0, rel=0.01)
    assert summary.step_seconds.first == 10.0
    assert summary.phases.compile_seconds == pytest.approx(9.5, abs=0.02)
    assert summary.phases.train_seconds == pytest.approx(seconds.sum())


def test_summarise_steps_returns_data_wait_share():
    summary = summarise_steps(columns(noisy(100, 0.5), wait=0.1), compiled=False)
    assert summary.data_share == pytest.approx(0.2, rel=0.01)
    assert summary.phases.data_wait_seconds == pytest.approx(10.0)
    assert summary.phases.compile_seconds is None


def make_utilisation(compute: float, memory: float) -> schema.Utilisation:
    return schema.Utilisation(mfu=0.38, roofline_compute_seconds=compute, roofline_memory_seconds=memory)


COMPUTE, MEMORY, UNKNOWN = make_utilisation(2.0, 1.0), make_utilisation(1.0, 2.0), schema.Utilisation()


@pytest.mark.parametrize(
    ("utilisation", "seen", "limit"),
    [
        (COMPUTE, {"data_bound": True}, "data"),
        (COMPUTE, {"throttled": "thermal"}, "throttling"),
        (COMPUTE, {"busy_percent": 40.0}, "the host (the device is idle part of the time)"),
        (COMPUTE, {}, "compute"),
        (MEMORY, {"busy_percent": 99.0}, "memory bandwidth"),
        (UNKNOWN, {}, "unknown"),
    ],
)
def test_find_limit_checks_causes_in_order(utilisation: schema.Utilisation, seen: dict, limit: str):
    arguments = {"data_bound": False, "busy_percent": None, "throttled": None} | seen
    assert find_limit(utilisation, **arguments) == limit


def test_format_verdict_contains_rate_peak_limit_and_noise():
    window = {"steady": True, "steady_from_step": 3, "num_steps": 80, "ci_covers": "within this run"}
    throughput = schema.Throughput(images_per_second=4.9, ci95=(4.85, 4.95), **window)
    utilisation = make_utilisation(2, 1).model_copy(update={"mfu": 0.68, "limit": "compute"})
    noise = Noise(grade="B", reasons=())
    verdict = format_verdict("ResNet-50", throughput, utilisation, noise, peak="CPU's measured fp32 peak")
    assert verdict == (
        "ResNet-50: 4.9 images/s ± 1.0 % (95 %, within this run); 68 % of this CPU's measured fp32 peak; "
        "limited by compute; noise grade B"
    )
    of_two = format_verdict("ResNet-50", throughput, utilisation, noise, peak="CPU's measured fp32 peak", ranks=2)
    assert (
        "images/s on 2 ranks ± 1.0 % (95 %, within this run); 68 % of the CPU's measured fp32 peak on rank 0" in of_two
    )


def test_summarise_steps_with_few_steps_is_not_drifting():
    few = summarise_steps(columns(np.full(10, 0.5)), compiled=False)
    assert not few.throughput.steady
    assert not few.drifting
    drifting = summarise_steps(columns(np.linspace(0.5, 0.6, 200)), compiled=False)
    assert drifting.drifting


def test_describe_preflight_names_hosts_interface_and_largest_all_reduce():
    hosts = [schema.Host(host=name, ranks=ranks, interface="eth0") for name, ranks in (("n1", [0, 1]), ("n2", [2, 3]))]
    timed = schema.AllReduce(bytes=[1024, 2**24], seconds=[1e-4, 0.012], bytes_per_second=2**24 / 0.012)
    preflight = schema.Preflight(rendezvous="n1:20123", backend="gloo", seconds=1.0, hosts=hosts, all_reduce=timed)
    line = "4 ranks on 2 hosts connected at n1:20123 over eth0; all-reduce of 16 MiB in 12 ms"
    assert describe_preflight(preflight) == line


@pytest.mark.parametrize("changes", [{"points": []}, {"cores": 0}, {"images": -1}, {"image_bytes": float("nan")}])
def test_data_bench_result_round_trips_json_and_rejects_invalid_values(changes: dict[str, object]):
    bench = make_data_bench(demand=A100)
    assert DataBenchResult.model_validate_json(bench.model_dump_json()) == bench
    with pytest.raises(ValidationError):
        DataBenchResult(**{**bench.model_dump(), **changes})


@pytest.mark.parametrize(
    ("rate", "threads", "busy", "cores", "per_core"),
    [(1200, 2, None, 4, 600), (1200, 2, 1.5, 4, 800), (9600, 32, 30.0, 16, 600), (9600, 32, None, 16, 600)],
)
def test_rate_per_core_divides_by_busy_cores(
    rate: float, threads: int, busy: float | None, cores: int, per_core: float
):
    assert loader_speed.rate_per_core(rate, threads, busy, cores) == per_core


def test_cores_needed_uses_point_with_most_threads():
    points = [make_point(1, 600, cores=8), make_point(4, 2000, cores=8), make_point(8, 1600, cores=8)]
    bench = make_data_bench(points, cores=8, demand=A100)
    assert loader_speed.find_best_point(bench).threads == 4
    assert loader_speed.cores_needed(bench) == 100  # at 1600 / 8 per core, not at 2000 / 4
    assert loader_speed.cores_needed(make_data_bench()) is None


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"stages": []}, ["1,190 images/s with 2 threads on 2 cores (595 per core)"]),
        ({}, ["1,190 images/s", "decoding takes 78 % of the time"]),
        ({"points": [make_point(2, 1190, 1.2)]}, ["only 1.2 of 2 cores busy"]),
        (
            {"demand": A100},
            ["ResNet-50 on 8 x NVIDIA A100 needs 20,000 images/s", "34 cores; the 2 cores here are too few"],
        ),
        (
            {"demand": HERE},
            ["ResNet-50 on this CPU needs 5.1 images/s", "0.01 cores; the 2 cores here, which also train, are enough"],
        ),
    ],
)
def test_format_data_verdict_contains_known_parts(changes: dict[str, object], parts: list[str]):
    verdict = format_data_verdict(make_data_bench(**changes), "ResNet-50")
    assert [part for part in parts if part not in verdict] == []
    assert ("busy" in verdict) == ("points" in changes)


def test_describe_covers_lists_each_text_once():
    one, two = make_point(1, 600), make_point(2, 1190, ci95=None, ci_covers="not established: 3 batches")
    assert len(loader_speed.describe_covers(make_data_bench([one, one]))) == 1
    assert len(loader_speed.describe_covers(make_data_bench([one, two]))) == 2


@pytest.mark.parametrize(("cores", "text"), [(33.6, "34"), (34.0, "34"), (3.31, "3.31"), (1e-9, "0.01")])
def test_format_cores_rounds_up(cores: float, text: str):
    assert loader_speed.format_cores(cores) == text
