"""How a rank of a launch ends: signals, exit codes, the failures that it leaves."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from command import LIMIT
from trainstone.errors import DataError, LaunchError, PeerLostError
from trainstone.machine import launched
from trainstone.machine.launched import begin_attempt, leave_failure, read_code, read_failures, settle_code
from trainstone.machine.signals import StopSignals


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "launch").mkdir()
    monkeypatch.setenv("TRAINSTONE_RUN", str(tmp_path))
    monkeypatch.setattr(launched, "ECHO_SECONDS", 0.0)
    monkeypatch.setattr(launched, "end_with_parent", lambda _parent: None)  # of the test itself
    return tmp_path


def be_rank(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setenv("RANK", str(number))
    monkeypatch.setenv("WORLD_SIZE", "4")


def test_orderly_ends_are_0_for_the_engine(run: Path):
    assert settle_code(75) == 0
    assert read_code(run) == 75
    assert settle_code(130) == 0
    assert read_code(run) == 75  # that it was Ctrl-C only the launcher knows
    assert settle_code(130, "bench") == 0
    assert read_code(run) == 130  # it cannot be resumed
    assert settle_code(3) == 3


def test_another_verb_in_a_batch_script_has_no_part_in_the_launch_nor_one_without_a_launcher(run: Path):
    begin_attempt("report")  # from now on there is no launcher
    assert "TRAINSTONE_RUN" not in os.environ
    assert settle_code(75) == 75
    assert read_code(run) is None
    leave_failure(DataError("x"))
    begin_attempt("train")
    assert list((run / "launch").iterdir()) == []


def test_causes_come_before_echoes_and_a_new_attempt_forgets_its_own(run: Path, monkeypatch: pytest.MonkeyPatch):
    be_rank(monkeypatch, 0)
    leave_failure(PeerLostError("another rank died"))
    be_rank(monkeypatch, 2)
    leave_failure(DataError("no data", hint="make some"))
    (run / "launch/failed-rank0003.json").write_text("{")
    assert [(one.rank, one.echo, one.exit_code) for one in read_failures(run)] == [(2, False, 3), (0, True, 5)]
    (run / "launch/cause.txt").touch()
    begin_attempt("train")
    assert [one.rank for one in read_failures(run)] == [0]
    assert (run / "launch/cause.txt").exists()
    be_rank(monkeypatch, 0)
    begin_attempt("train")
    assert [path.name for path in (run / "launch").iterdir()] == ["failed-rank0003.json"]


def test_a_rank_that_takes_itself_for_the_only_one_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRAINSTONE_RANKS", "4")
    with pytest.raises(LaunchError, match="starts 4 ranks, and this one finds a world of 1"):
        begin_attempt("train")
    be_rank(monkeypatch, 3)
    begin_attempt("train")


def test_a_signal_while_torch_is_loading_is_an_orderly_end(run: Path, tmp_path: Path):
    program = (
        "import os, signal, sys\n"
        "from trainstone.cli import main\n"
        "main.app = lambda: os.kill(os.getpid(), signal.SIGUSR1)\n"
        "sys.argv[1:] = ['train']\n"
        "main.main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], timeout=LIMIT, check=False)
    assert ended.returncode == 0
    assert read_code(run) == 75


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_only_noted_and_a_second_ctrl_c_ends_at_once(number: signal.Signals):
    before = signal.getsignal(number)
    with StopSignals() as signals:
        assert signals.received is None
        os.kill(os.getpid(), number)
        assert signals.received == number.name
        if number == signal.SIGINT:
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)  # no second Ctrl-C
    assert signal.getsignal(number) is before
