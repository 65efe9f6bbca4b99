import json
from pathlib import Path

import pytest

from support.builders.training_runs import make_config
from trainstone.errors import EXIT_RESUMABLE, DataError, LaunchError, TrainstoneError
from trainstone.launch.failure_report import main, record_cause, resolve_exit_code
from trainstone.machine.launch_protocol import get_host_name
from trainstone.results.run_folder import create_run, read_result

TORCHRUN = """
python3 FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-16_20:54:28
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 25331)  (SIGKILL)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-16_20:54:28
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : 5 (pid: 25330)
============================================================
"""
MPIRUN = "mpirun noticed that process rank 1 with PID 0 on node n2 exited on signal 9 (Killed).\n"
SRUN = "srun: error: n1: task 0: Terminated\nsrun: error: n2: task 1: Killed\n"
RULE = "-" * 74
SLOTS = f"""{RULE}
There are not enough slots available in the system to satisfy the 5
slots that were requested by the application:

  python3
{RULE}
"""


def write_failure(run: Path, rank: int, **changes: object) -> None:
    failure = {"rank": rank, "host": f"n{rank + 1}", "exit_code": 3, "message": "no data", "hint": "make some"}
    file = run / f"launch/failed-rank{rank:04d}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**failure, "time_seconds": 1.0, "secondary": False, **changes}))


SECONDARY = {"secondary": True, "exit_code": 5, "message": "another rank died", "time_seconds": 0.5}
LATER = {"exit_code": 7, "time_seconds": 2.0}
BUG = {"exit_code": 1, "message": "KeyError: 'x'", "hint": None}
SSH = f"ssh: no route to n2\n{RULE}\nORTE was unable to start daemons.\n\n* guess\n* guess\n{RULE}\n"
PRINTED = "error: no such thing\n       at all\nhint:  do it\n"


@pytest.mark.parametrize(
    ("left", "engine", "text", "code", "kind", "message", "hint"),
    [
        # The first failure record that is not secondary, with its class and hint.
        ([SECONDARY, {}, LATER], "local", TORCHRUN, 1, DataError, "rank 1 on n2: no data", "make some"),
        # A rank without a failure record is named by the engine.
        ([SECONDARY], "local", TORCHRUN, 1, LaunchError, f"rank 1 on {get_host_name()} was ended by SIGKILL", "memory"),
        ([SECONDARY], "mpi", MPIRUN, 1, LaunchError, "rank 1 on n2 was ended by SIGKILL", "memory"),
        ([SECONDARY], "slurm", SRUN, 1, LaunchError, "rank 1 on n2 was ended by SIGKILL", "memory"),
        ([SECONDARY, BUG], "local", TORCHRUN, 1, TrainstoneError, "rank 1 on n2: KeyError: 'x'", "launch/engine.log"),
        # Errors of the engine.
        ([], "mpi", SLOTS, 1, LaunchError, "there are not enough slots for all ranks", "oversubscribe"),
        ([], "mpi", SSH, 1, LaunchError, "ssh: no route to n2\nORTE was unable to start daemons.", "launch/"),
        ([], "mpi", PRINTED, 3, DataError, "no such thing\nat all", "do it"),
        ([], "local", "", -9, LaunchError, "torchrun was ended by SIGKILL", ""),
    ],
)
def test_resolve_exit_code_raises_the_cause(
    tmp_path: Path, left: list[dict], engine: str, text: str, code: int, kind: type, message: str, hint: str
):
    for rank, changes in enumerate(left):
        write_failure(tmp_path, rank, **changes)
    with pytest.raises(kind) as raised:
        resolve_exit_code(tmp_path, text, engine, code)
    assert type(raised.value) is kind
    assert raised.value.message.endswith(message)
    assert hint in str(raised.value.hint)


@pytest.mark.parametrize(("before", "after"), [("running", "failed"), ("target_missed", "target_missed")])
def test_record_cause_writes_result_and_cause_file(tmp_path: Path, before: str, after: str):
    run = create_run(tmp_path, "train", make_config(), "x")
    (run.path / "launch").mkdir()
    run.update(status=before)
    for _ in range(2):
        record_cause(run.path, LaunchError("rank 1 on n2 was ended by SIGKILL"))
    result = read_result(run.path)
    assert result.status == after
    assert [(finding.code, finding.severity) for finding in result.findings] == [("rank-failed", "error")]
    assert (run.path / "launch/cause.txt").read_text() == "error: rank 1 on n2 was ended by SIGKILL\n"


def test_resolve_exit_code_of_a_normal_end_returns_the_written_code(tmp_path: Path):
    (tmp_path / "launch").mkdir()
    (tmp_path / "launch/code").write_text("75\n")
    assert resolve_exit_code(tmp_path, "", "local", 0) == 75
    with pytest.raises(TrainstoneError, match="ended with exit code 1"):
        resolve_exit_code(tmp_path, "", "local", 1)
    (tmp_path / "launch/code").unlink()
    with pytest.raises(LaunchError, match="no rank wrote an exit code"):
        resolve_exit_code(tmp_path, "", "local", 0)


STOPPED = TORCHRUN.replace("-9", "-15")
EARLY = MPIRUN.replace("signal 9 (Killed)", "signal 10 (User defined signal 1)")


@pytest.mark.parametrize(
    ("engine", "text", "code"), [("local", STOPPED, 1), ("mpi", EARLY, 138), ("mpi", "", -10), ("local", "", -15)]
)
def test_resolve_exit_code_of_ranks_ended_by_the_stop_signal_is_resumable(
    tmp_path: Path, engine: str, text: str, code: int
):
    run = create_run(tmp_path, "train", make_config(), "x")
    write_failure(run.path, 0, secondary=True, exit_code=5)
    assert resolve_exit_code(run.path, text, engine, code, stopped=True) == EXIT_RESUMABLE
    assert read_result(run.path).status == "running"
    assert not (run.path / "launch/cause.txt").exists()
    with pytest.raises(LaunchError):  # without a stop signal it is a failure
        resolve_exit_code(run.path, text, engine, code)
    assert read_result(run.path).status == "failed"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (STOPPED, {"exit_code": 7, "message": "No space left on device"}),
        (TORCHRUN.replace("-9", "7"), {"secondary": True}),  # it could not write its failure
    ],
)
def test_resolve_exit_code_raises_a_failure_during_a_stop(tmp_path: Path, text: str, left: dict[str, object]):
    write_failure(tmp_path, 0, **left)
    with pytest.raises(TrainstoneError):
        resolve_exit_code(tmp_path, text, "local", 1, stopped=True)
    assert (tmp_path / "launch/cause.txt").exists()


def test_main_prints_the_error_and_returns_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_failure(tmp_path, 1)
    assert main([str(tmp_path), "slurm", "1", str(tmp_path / "no.log")]) == 3
    assert capsys.readouterr().err == "error: rank 1 on n2: no data\nhint:  make some\n"
