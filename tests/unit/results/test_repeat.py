import pytest

from trainstone.machine.health import Noise
from trainstone.results import schema
from trainstone.results.checks import finding
from trainstone.results.repeated import combine_runs


def make_child(rate: float, grade: str = "A", findings=()) -> schema.Result:
    return schema.Result(
        kind="bench",
        run_id=f"run-{rate}",
        command="",
        status="ok",
        verdict="ResNet-50: whatever",
        recipe=schema.Recipe(name="resnet50", version=1, sha256="0"),
        process=schema.Process(host="h", pid=1, started_utc="2026-01-01T00:00:00+00:00"),
        throughput=schema.Throughput(
            images_per_second=rate, ci_covers="within this run", steady=True, steady_from_step=2, num_steps=50
        ),
        noise=Noise(grade=grade, reasons=()),
        findings=list(findings),
    )


def test_student_t_over_run_means():
    combined = combine_runs([make_child(rate) for rate in (9.0, 10.0, 11.0)])
    low, high = combined["throughput"].ci95
    assert combined["throughput"].images_per_second == pytest.approx(10.0)
    # t(0.975, 2) = 4.3027, standard error 1/sqrt(3)
    assert (high - low) / 2 == pytest.approx(4.3027 / 3**0.5, rel=1e-4)
    assert combined["throughput"].ci_covers == "between runs"
    assert combined["verdict"].startswith("ResNet-50: 10 images/s ± 24.8 % (95 %, between runs)")


def test_the_worst_noise_counts():
    assert combine_runs([make_child(9, "A"), make_child(9, "C"), make_child(9, "B")])["noise"].grade == "C"


def test_findings_are_told_once_with_their_number():
    noisy = finding("noisy-machine", "busy")
    (found,) = combine_runs([make_child(9), make_child(9, findings=[noisy]), make_child(9, findings=[noisy])])[
        "findings"
    ]
    assert found.message == "2 of 3 runs: busy"


def test_one_run_gives_no_interval():
    assert combine_runs([make_child(9)])["throughput"].ci95 is None


def test_runs_without_a_number():
    child = make_child(9).model_copy(update={"throughput": None})
    assert combine_runs([child]) == {"findings": []}
