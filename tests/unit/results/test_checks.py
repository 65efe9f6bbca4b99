import re

import pytest

from command import ROOT
from trainstone.machine.health import Noise
from trainstone.results import schema
from trainstone.results.checks import CODES, check_limits, check_machine, check_throughput, finding

THROUGHPUT = schema.Throughput(
    images_per_second=10.0,
    ci95=(9.9, 10.1),
    ci_covers="within this run",
    steady=True,
    steady_from_step=0,
    num_steps=100,
)
STEPS = schema.StepSeconds(
    median=0.1, p5=0.1, p95=0.1, p99=0.1, mad=0.0, first=0.2, num_outliers=0, outlier_kind="none"
)
QUIET = Noise(grade="A", reasons=())


def codes(findings) -> list[str]:
    return [found.code for found in findings]


def test_a_good_run_has_no_findings():
    assert check_throughput(THROUGHPUT, STEPS) == []
    assert check_limits(schema.Utilisation(mfu=0.4), 0.01, None) == []
    assert check_machine(QUIET, schema.Memory(page_faults_per_step=10), keep_memory=True, threads=2, cores=2) == []


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"ci95": None, "ci_covers": "not established: 3 steady steps, 50 needed"}, "few-steps"),
        ({"ci95": (9.0, 11.0)}, "wide-interval"),
        ({"steady": False, "trend_percent": 12.0}, "not-steady"),
    ],
)
def test_doubts_about_the_number(changes: dict, code: str):
    assert codes(check_throughput(THROUGHPUT.model_copy(update=changes), STEPS)) == [code]


def test_outliers_are_told_with_their_kind():
    many = STEPS.model_copy(update={"num_outliers": 9, "outlier_kind": "periodic"})
    (found,) = check_throughput(THROUGHPUT, many)
    assert found.code == "outliers"
    assert "9 of 100" in found.message
    assert "periodic" in found.message


def test_limits():
    assert codes(check_limits(schema.Utilisation(mfu=1.2), 0.3, "thermal")) == [
        "data-bound",
        "throttled",
        "peak-exceeded",
    ]


def test_machine():
    noise = Noise(grade="C", reasons=("busy",))
    memory = schema.Memory(page_faults_per_step=1e5, allocator="x")
    found = check_machine(noise, memory, keep_memory=True, threads=8, cores=2)
    assert codes(found) == ["noisy-machine", "threads-exceed-cores", "page-faults"]


def test_every_code_used_in_the_source_is_known():
    used = set()
    for path in (ROOT / "src").rglob("*.py"):
        used |= set(re.findall(r'finding\(\s*"([a-z-]+)"', path.read_text()))
    assert used == set(CODES)


def test_a_finding_carries_its_codes_hint():
    assert finding("few-steps", "x").hint == CODES["few-steps"].hint
    assert finding("few-steps", "x", hint="y").hint == "y"
    with pytest.raises(KeyError):
        finding("no-such-code", "x")
