"""Child processes: none is left behind, and every end has a name."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from trainstone.launch import children
from trainstone.launch.children import Ended, explain_failure, name_signal, run_child
from trainstone.machine.interrupt import Interrupt

SLEEPER = "import sys, time; open(sys.argv[1], 'w').close(); time.sleep(60)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, OSError])
@pytest.mark.parametrize("program", [SLEEPER, STUBBORN])
def test_no_child_outlives_its_parents_wait(monkeypatch, tmp_path: Path, program: str, error: type[BaseException]):
    monkeypatch.setattr(children, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(children, "END_SECONDS", 0.2)
    others = set(psutil.Process().children())
    running = run_child([sys.executable, "-I", "-S", "-c", program, str(tmp_path / "begun")], "x", Interrupt())
    next(running)
    while not (tmp_path / "begun").exists():
        next(running)
    (child,) = set(psutil.Process().children()) - others
    with pytest.raises(error):
        running.throw(error)
    assert not psutil.pid_exists(child.pid)


def test_a_child_that_ends_by_itself_is_left_alone():
    def run() -> Iterator[Ended]:
        yield (yield from run_child([sys.executable, "-I", "-S", "-c", "print(7)"], "x", Interrupt()))

    assert list(run())[-1] == Ended(0, "7\n", "")


def test_signals_have_names_or_numbers():
    assert (name_signal(signal.SIGTERM), name_signal(40)) == ("SIGTERM", "signal 40")
    assert explain_failure("batch 2", Ended(-40, "", "")).message == "batch 2 was ended by signal 40"
    assert "memory ran out" in explain_failure("batch 2", Ended(-signal.SIGKILL, "", "")).hint


def test_who_was_stopped_is_told_from_who_ended():
    assert [Ended(code, "", "").interrupted for code in (0, 6, 75, 130, -15)] == [False, False, True, True, False]
