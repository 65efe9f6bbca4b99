"""The golden runs: they read back, carry the findings they are named for, and are judged as they were."""

import pytest

from support.processes.command import ROOT
from trainstone.results.findings import check_limits, check_throughput
from trainstone.results.run_folder import read_result
from trainstone.results.step_summary import summarise_steps
from trainstone.results.steps import read_columns
from trainstone.results.telemetry import read_samples

GOLDEN = ROOT / "tests/golden"
FINDINGS = {
    "good": ["precision-chosen", "outliers", "not-measured"],
    "killed": ["precision-chosen"],
    "never-steady": ["few-steps", "not-steady", "noisy-machine", "not-measured"],
    "throttled": ["few-steps", "not-steady", "throttled", "noisy-machine"],
    "data-starved": ["data-bound"],
    "ten-ranks": [],
}


def test_every_folder_is_named_here():
    assert {path.parent.name for path in GOLDEN.glob("*/result.json")} == set(FINDINGS)


@pytest.mark.parametrize("case", FINDINGS)
def test_golden_run_is_small_plain_text_and_reads_back_with_its_findings(golden, case: str):
    path = golden(case)
    texts = [file.read_bytes().decode("utf-8") for file in path.rglob("*") if file.is_file()]
    assert sum(len(text.encode()) for text in texts) < 100_000
    result = read_result(path)
    assert result.status == ("killed" if case == "killed" else "ok")
    assert [found.code for found in result.findings] == FINDINGS[case]
    step_files = sorted(path.glob("steps-rank*.csv"))
    assert len(step_files) == result.world.ranks
    assert all(read_columns(file)["step"].size >= 79 for file in step_files)
    telemetry = list(path.glob("telemetry-*.csv"))
    assert len(telemetry) == result.world.ranks
    assert all(read_samples(file) for file in telemetry)


def test_the_killed_one_ends_in_a_torn_line(golden):
    path = golden("killed")
    text = (path / "steps-rank0000.csv").read_text()
    assert not text.endswith("\n")
    assert read_columns(path / "steps-rank0000.csv")["step"].size == text.count("\n") - 1
    assert '"status": "running"' in (path / "result.json").read_text()


def test_ten_ranks_are_two_hosts_with_a_slow_device(golden):
    result = read_result(golden("ten-ranks"))
    assert (result.world.ranks, result.world.nodes) == (10, 2)
    assert len(result.devices) == 10
    slowest = min(result.devices, key=lambda device: device.images_per_second)
    assert (slowest.host, slowest.label) == ("node-a", "cuda:0")


@pytest.mark.parametrize("case", ["good", "data-starved", "never-steady", "throttled"])
def test_steps_are_judged_as_stored(case: str):
    path = GOLDEN / case
    stored = read_result(path)
    assert stored.throughput is not None
    assert stored.step_seconds is not None
    assert stored.utilisation is not None
    summary = summarise_steps(read_columns(path / "steps-rank0000.csv"), compiled=False)
    found, wanted = summary.throughput, stored.throughput
    assert (found.steady, found.steady_from_step) == (wanted.steady, wanted.steady_from_step)
    assert found.images_per_second == pytest.approx(wanted.images_per_second, rel=1e-5)
    assert found.ci95 == (wanted.ci95 and pytest.approx(wanted.ci95, rel=1e-5))
    assert summary.step_seconds.p99 == pytest.approx(stored.step_seconds.p99, rel=1e-5)
    findings = [
        *check_throughput(found, summary.step_seconds),
        *check_limits(stored.utilisation, summary.data_share, "hot" if case == "throttled" else None),
    ]
    assert {finding.code for finding in findings} <= {finding.code for finding in stored.findings}
