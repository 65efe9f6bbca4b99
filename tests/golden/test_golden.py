"""The golden runs: they read back, carry the findings they are named for, and their step files give their numbers."""

from pathlib import Path

import pytest

from command import ROOT
from trainstone.results.checks import check_throughput
from trainstone.results.samples import read_samples
from trainstone.results.steps import read_columns
from trainstone.results.store import read_result
from trainstone.results.summary import summarise_steps

GOLDEN = ROOT / "tests/golden"
FINDINGS = {
    "good": ["precision-chosen", "outliers", "not-measured"],
    "killed": ["precision-chosen"],
    "never-steady": ["few-steps", "not-steady", "noisy-machine", "not-measured"],
    "throttled": ["few-steps", "not-steady", "throttled", "noisy-machine"],
    "data-starved": ["data-bound"],
    "ten-ranks": [],
}


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_folder_is_named_here():
    assert {path.parent.name for path in GOLDEN.glob("*/result.json")} == set(FINDINGS)


@pytest.mark.parametrize("case", FINDINGS)
def test_it_reads_back_with_its_findings(golden, case: str):
    path = golden(case)
    result = read_result(path)
    assert result.status == ("killed" if case == "killed" else "ok")
    assert [found.code for found in result.findings] == FINDINGS[case]
    step_files = sorted(path.glob("steps-rank*.csv"))
    assert len(step_files) == result.world.ranks
    assert all(read_columns(file)["step"].size >= 79 for file in step_files)
    telemetry = list(path.glob("telemetry-*.csv"))
    assert len(telemetry) == result.world.ranks
    assert all(read_samples(file) for file in telemetry)


@pytest.mark.parametrize("case", ["good", "never-steady", "throttled", "data-starved"])
def test_step_file_gives_the_numbers_of_the_result(golden, case: str):
    path = golden(case)
    stored, summary = read_result(path), summarise_steps(read_columns(path / "steps-rank0000.csv"), compiled=False)
    assert stored.throughput is not None
    assert summary.throughput.steady is stored.throughput.steady
    assert summary.throughput.images_per_second == pytest.approx(stored.throughput.images_per_second, rel=1e-6)
    assert (summary.throughput.ci95 or ()) == pytest.approx(stored.throughput.ci95 or (), rel=1e-6)
    found = [one.code for one in check_throughput(summary.throughput, summary.step_seconds)]
    assert [code for code in FINDINGS[case] if code in found] == found


@pytest.mark.parametrize("case", FINDINGS)
def test_it_is_small_plain_text(case: str):
    files = files_in(GOLDEN / case)
    assert sum(map(len, files.values())) < 100_000
    for content in files.values():
        content.decode("utf-8")


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
