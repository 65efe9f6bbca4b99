"""The real checkers as child processes: what they take and refuse, and what a hostile log cannot make them do."""

import json
import subprocess
from pathlib import Path

import pytest

from support.builders.mlperf_logs import closed_log
from trainstone.errors import DataError, LaunchError, MachineError
from trainstone.originals.mlperf import checker
from trainstone.originals.mlperf.checker import check_log, refuse_paths


@pytest.fixture
def good(tmp_path) -> Path:
    (tmp_path / "good.log").write_text(closed_log())
    return tmp_path / "good.log"


def without(log: Path, key: str) -> Path:
    kept = [line for line in log.read_text().splitlines() if json.loads(line.partition(" ")[2])["key"] != key]
    log.write_text("".join(f"{line}\n" for line in kept))
    return log


def event_line(key: str, value: object) -> str:
    event = {"namespace": "", "time_ms": 1, "event_type": "POINT_IN_TIME", "key": key, "value": value, "metadata": {}}
    return f":::MLLOG {json.dumps(event)}\n"


def test_a_good_log_passes_and_the_checkers_own_log_is_kept(good, tmp_path):
    kept = tmp_path / "kept/own.log"
    checked = check_log(good, "4.0.0", kept)
    assert (checked.passed, checked.complaints, checked.fault) == (True, (), "")
    assert "Compliance checks: training_4.0.0/closed_resnet.yaml" in kept.read_text()
    assert "SUCCESS" in kept.read_text()
    assert list(Path.cwd().glob("*checker.log")) == []


@pytest.mark.parametrize(
    ("key", "complaint"),
    [
        ("run_stop", "WARNING -  Required EXACTLY_ONE occurrence of 'run_stop' but found 0"),
        ("lars_epsilon", "WARNING -  Required EXACTLY_ONE occurrence of 'lars_epsilon' but found 0"),
        ("eval_accuracy", "WARNING -  Required AT_LEAST_ONE occurrence of 'eval_accuracy' but found 0"),
        ("seed", None),
        ("epoch_start", None),  # block_start stands for it
    ],
)
def test_complaints_are_the_checker_s_own_lines(good, key, complaint):
    checked = check_log(without(good, key), "4.0.0")
    assert checked.passed == (complaint is None)
    assert (complaint in checked.complaints) == (complaint is not None)
    assert not [line for line in checked.complaints if line.startswith(("INFO", "ERROR", "---"))]


def test_a_checker_that_falls_over_is_told_apart_from_a_verdict(tmp_path):
    log = tmp_path / "log"
    log.write_text(event_line("submission_division", "closed") + event_line("submission_benchmark", "vgg"))
    checked = check_log(log, "4.0.0")
    assert not checked.passed
    assert "FileNotFoundError" in checked.fault


@pytest.mark.parametrize("lines", ["{}", "{}\r{}", "noise {}", ':::MLLOG {{"key": 1}} {}'])
def test_a_log_cannot_lead_the_checker_to_rules_of_its_own(tmp_path, lines):
    evil = tmp_path / "evil_common.yaml"
    ran = tmp_path / "ran"
    evil.write_text(f"- BEGIN:\n    CODE: \"open('{ran}', 'w')\"\n")
    there = "../" * 12 + str(tmp_path / "evil").lstrip("/")
    event = event_line("submission_division", there).strip()
    log = tmp_path / "log"
    log.write_text(lines.replace("{}", event) + "\n")
    with pytest.raises(DataError, match="submission_division must be a plain word"):
        check_log(log, "4.0.0")
    # The real checker does go there.
    command = [checker.sys.executable, "-m", "mlperf_logging.compliance_checker", "--ruleset", "4.0.0", str(log)]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert ran.exists()


def test_refuse_paths_reads_old_lines_too_and_leaves_those_that_are_no_events_to_the_checker(tmp_path):
    log = tmp_path / "log"
    for text in ("", "x", ":::MLLOG {", ":::MLLOG []", ":::MLLOG 5", ":::MLL 1 a: 7", ":::MLLOG " + "[" * 9000):
        log.write_text(text)
        refuse_paths(log)
    log.write_text(':::MLL 1.5 submission_benchmark: {"value": "../evil", "metadata": {}}\n')
    with pytest.raises(DataError, match="submission_benchmark"):
        refuse_paths(log)


def test_a_checker_that_never_ends_is_ended(monkeypatch, good):
    monkeypatch.setattr(checker, "TIMEOUT_SECONDS", 0.01)
    with pytest.raises(LaunchError, match="did not end"):
        check_log(good, "4.0.0")


def test_checkers_that_lack_a_library_are_the_machines_fault(monkeypatch, good, tmp_path):
    (tmp_path / "yaml.py").write_text("import nowhere_to_be_found\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(MachineError, match="does not start: ModuleNotFoundError") as caught:
        check_log(good, "4.0.0")
    assert "pip install 'trainstone[mlperf]'" in (caught.value.hint or "")
