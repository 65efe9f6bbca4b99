"""Tests of the compliance checker's child process: accepted and rejected logs, and hostile logs."""

import json
import subprocess
from pathlib import Path

import pytest

from support.builders.mlperf_logs import closed_log
from trainstone.errors import DataError, LaunchError, MachineError
from trainstone.originals.mlperf import checker
from trainstone.originals.mlperf.checker import check_log, check_paths


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


def test_check_log_closed_log_passes_and_saves_checker_output(good, tmp_path):
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
        ("epoch_start", None),  # block_start is enough
    ],
)
def test_check_log_missing_key_returns_checker_complaints(good, key, complaint):
    checked = check_log(without(good, key), "4.0.0")
    assert checked.passed == (complaint is None)
    assert (complaint in checked.complaints) == (complaint is not None)
    assert not [line for line in checked.complaints if line.startswith(("INFO", "ERROR", "---"))]


def test_check_log_crashed_checker_returns_fault(tmp_path):
    log = tmp_path / "log"
    log.write_text(event_line("submission_division", "closed") + event_line("submission_benchmark", "vgg"))
    checked = check_log(log, "4.0.0")
    assert not checked.passed
    assert "FileNotFoundError" in checked.fault


@pytest.mark.parametrize("lines", ["{}", "{}\r{}", "noise {}", ':::MLLOG {{"key": 1}} {}'])
def test_check_log_rejects_path_in_submission_value(tmp_path, lines):
    evil = tmp_path / "evil_common.yaml"
    ran = tmp_path / "ran"
    evil.write_text(f"- BEGIN:\n    CODE: \"open('{ran}', 'w')\"\n")
    hostile = "../" * 12 + str(tmp_path / "evil").lstrip("/")
    event = event_line("submission_division", hostile).strip()
    log = tmp_path / "log"
    log.write_text(lines.replace("{}", event) + "\n")
    with pytest.raises(DataError, match=r"invalid submission_division: .*; a plain word without slashes"):
        check_log(log, "4.0.0")
    # The real checker does execute that file.
    command = [checker.sys.executable, "-m", "mlperf_logging.compliance_checker", "--ruleset", "4.0.0", str(log)]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert ran.exists()


def test_check_paths_parses_old_lines_and_ignores_invalid_ones(tmp_path):
    log = tmp_path / "log"
    for text in ("", "x", ":::MLLOG {", ":::MLLOG []", ":::MLLOG 5", ":::MLL 1 a: 7", ":::MLLOG " + "[" * 9000):
        log.write_text(text)
        check_paths(log)
    log.write_text(':::MLL 1.5 submission_benchmark: {"value": "../evil", "metadata": {}}\n')
    with pytest.raises(DataError, match="submission_benchmark"):
        check_paths(log)


def test_check_log_kills_checker_after_timeout(monkeypatch, good):
    monkeypatch.setattr(checker, "TIMEOUT_SECONDS", 0.01)
    with pytest.raises(LaunchError, match="timed out after"):
        check_log(good, "4.0.0")


def test_check_log_missing_library_raises_machine_error(monkeypatch, good, tmp_path):
    (tmp_path / "yaml.py").write_text("import nowhere_to_be_found\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(MachineError, match="does not start: ModuleNotFoundError") as caught:
        check_log(good, "4.0.0")
    assert "pip install 'trainstone[mlperf]'" in (caught.value.hint or "")
