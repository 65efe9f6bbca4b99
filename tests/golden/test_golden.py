"""Golden runs: they can be read, have the expected findings, and their step files give the stored results."""

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


def test_golden_folders_match_expected_cases():
    assert {path.parent.name for path in GOLDEN.glob("*/result.json")} == set(FINDINGS)


@pytest.mark.parametrize("case", FINDINGS)
def test_golden_run_is_small_text_and_has_expected_findings(golden, case: str):
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


def test_killed_run_ends_with_truncated_line(golden):
    path = golden("killed")
    text = (path / "steps-rank0000.csv").read_text()
    assert not text.endswith("\n")
    assert read_columns(path / "steps-rank0000.csv")["step"].size == text.count("\n") - 1
    assert '"status": "running"' in (path / "result.json").read_text()


def test_ten_ranks_run_has_two_hosts_and_one_slow_device(golden):
    result = read_result(golden("ten-ranks"))
    assert (result.world.ranks, result.world.nodes) == (10, 2)
    assert len(result.devices) == 10
    slowest = min(result.devices, key=lambda device: device.images_per_second)
    assert (slowest.host, slowest.label) == ("node-a", "cuda:0")


@pytest.mark.parametrize("case", ["good", "data-starved", "never-steady", "throttled"])
def test_summarise_steps_reproduces_stored_result(case: str):
    path = GOLDEN / case
    stored = read_result(path)
    assert stored.throughput is not None
    assert stored.step_seconds is not None
    assert stored.utilisation is not None
    summary = summarise_steps(read_columns(path / "steps-rank0000.csv"), compiled=False)
    found, expected = summary.throughput, stored.throughput
    assert (found.steady, found.steady_from_step) == (expected.steady, expected.steady_from_step)
    assert found.images_per_second == pytest.approx(expected.images_per_second, rel=1e-5)
    assert found.ci95 == (expected.ci95 and pytest.approx(expected.ci95, rel=1e-5))
    assert summary.step_seconds.p99 == pytest.approx(stored.step_seconds.p99, rel=1e-5)
    findings = [
        *check_throughput(found, summary.step_seconds),
        *check_limits(stored.utilisation, summary.data_share, "hot" if case == "throttled" else None),
    ]
    assert {finding.code for finding in findings} <= {finding.code for finding in stored.findings}
