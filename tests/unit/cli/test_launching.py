from collections.abc import Generator
from pathlib import Path

import pytest

from flows import drain
from trainstone.cli import launch as launching
from trainstone.errors import EXIT_INTERRUPTED, EXIT_RESUMABLE, DataError, LaunchError, ResultError, TrainstoneError
from trainstone.launch import aftermath, supervisor
from trainstone.launch.supervisor import Plan
from trainstone.machine.signals import StopSignals

PLAN = Plan("mpi", ("mpirun",), {"TRAINSTONE_LAUNCH": "mpi-1"}, attempts=3)


def follow(
    monkeypatch: pytest.MonkeyPatch, run: Path, ends: list[int | TrainstoneError], asked: str | None = None
) -> int:
    """Follow engines that end so, one after the other."""

    def run_plan(*_: object) -> Generator[str, None, tuple[int, str]]:
        yield "training · step 1"
        return 0, ""

    def settle(*_: object, stopped: bool, launch: str) -> int:
        assert stopped == (asked is not None)
        end = ends.pop(0)
        if isinstance(end, TrainstoneError):
            raise end
        return end

    monkeypatch.setattr(supervisor, "run_plan", run_plan)
    monkeypatch.setattr(aftermath, "settle", settle)
    signals = StopSignals()
    signals.received = asked
    return drain(launching.run_attempts(PLAN, run, signals))[1]


def test_ranks_start_again_after_a_death_and_what_was_left_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "launch").mkdir()
    (tmp_path / "launch/cause.txt").touch()
    ends: list[int | TrainstoneError] = [LaunchError("died"), LaunchError("died"), 0]
    assert follow(monkeypatch, tmp_path, ends) == 0
    assert not (tmp_path / "launch/cause.txt").exists()


@pytest.mark.parametrize("lasting", [DataError("no data"), ResultError("disk full")])
def test_what_a_further_start_would_meet_again_ends_the_launch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lasting: TrainstoneError
):
    with pytest.raises(type(lasting)):
        follow(monkeypatch, tmp_path, [lasting, 0])


@pytest.mark.parametrize(("signal", "code"), [("SIGINT", EXIT_INTERRUPTED), ("SIGTERM", EXIT_RESUMABLE)])
def test_a_launch_that_was_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, signal: str, code: int):
    assert follow(monkeypatch, tmp_path, [EXIT_RESUMABLE], signal) == code
    with pytest.raises(LaunchError, match="died"):  # a failure stays one, and nothing is started again
        follow(monkeypatch, tmp_path, [LaunchError("died"), 0], signal)
