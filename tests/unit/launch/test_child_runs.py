"""Child processes: none is left behind, each end is explained, and leftovers of a killed parent are waited for."""

import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest

from flows import follow
from made_results import make_result, write_run
from nursery import wait_until
from trainstone.config.load import load_config
from trainstone.errors import DataError, LaunchError, RunError
from trainstone.launch import child_runs, supervisor
from trainstone.launch.child_runs import ChildEnd, ChildRun, name_signal, run_child, wait_for_leftovers
from trainstone.launch.supervisor import Ended, supervise
from trainstone.machine.signals import StopSignals
from trainstone.results.store import create_run, lock_run

SLEEPER = "import sys, time; open(sys.argv[1], 'w').close(); time.sleep(60)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"
FAILURE = (
    '{"rank": 0, "host": "here", "exit_code": 3, "message": "no images", "hint": "make some", '
    '"time_seconds": 1.0, "echo": false}'
)


def python(program: str, *arguments: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", program, *arguments]


def run_to_end(program: str, folder: Path, signals: StopSignals | None = None) -> tuple[list[str], ChildEnd]:
    """Run a program as a child run; return its progress lines and its end."""
    lines = []

    def collect() -> Generator[str, None, ChildEnd]:
        return (yield from run_child(ChildRun("x", python(program), folder), signals or StopSignals()))

    running = collect()
    while True:
        try:
            lines.append(next(running))
        except StopIteration as end:
            return lines, end.value


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, OSError])
@pytest.mark.parametrize("program", [SLEEPER, STUBBORN])
def test_supervise_broken_off_leaves_no_process(monkeypatch, tmp_path: Path, program: str, error: type[BaseException]):
    monkeypatch.setattr(supervisor, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(supervisor, "END_SECONDS", 0.2)
    others = set(psutil.Process().children())
    progress, begun = tmp_path / "launch/progress.txt", tmp_path / "begun"
    progress.parent.mkdir()
    progress.write_text("of an earlier start\n")

    def write_progress() -> None:
        wait_until(begun.exists)
        with progress.open("a") as file:
            file.write("step 1\n")

    running = supervise(python(program, str(begun)), {}, tmp_path, "output.log", StopSignals())
    writer = threading.Thread(target=write_progress)
    writer.start()
    assert next(running) == "step 1"
    writer.join()
    (child,) = set(psutil.Process().children()) - others
    with pytest.raises(error):
        running.throw(error)
    assert not psutil.pid_exists(child.pid)


def test_supervise_passes_a_signal_on_once_and_kills_after_the_grace(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(supervisor, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(supervisor, "END_SECONDS", 0.1)
    signals = StopSignals()
    ready = tmp_path / "ready"

    def stop() -> None:
        wait_until(ready.exists)
        signals.received = "SIGUSR1"

    stopper = threading.Thread(target=stop)
    stopper.start()
    count = (
        "import signal, sys, time; signal.signal(15, lambda *_: print('TERM', flush=True)); "
        "open(sys.argv[1], 'w').close(); [time.sleep(60) for _ in range(9)]"
    )

    def collect() -> Generator[str, None, Ended]:
        return (yield from supervise(python(count, str(ready)), {}, tmp_path, "output.log", signals, grace_seconds=0.2))

    with pytest.raises(StopIteration) as end:
        next(collect())
    stopper.join()
    assert end.value.value.code == -signal.SIGKILL
    # Once by us, once by the end of the `with`
    assert end.value.value.output in ("TERM\n", "TERM\nTERM\n")


def test_child_that_ends_well_has_no_error(tmp_path: Path):
    program = (
        "import os; run = os.environ['TRAINSTONE_RUN']; open(run + '/launch/progress.txt', 'a').write('step 7\\n'); "
        "print('done')"
    )
    lines, end = run_to_end(program, tmp_path / "points/a")
    assert (lines, end) == (["x · step 7"], ChildEnd(0))
    assert (tmp_path / "points/a/launch/output.log").read_text() == "done\n"


@pytest.mark.parametrize(
    ("program", "code", "kind", "message"),
    [
        (f"import os; open(os.environ['TRAINSTONE_RUN'] + '/launch/failed-rank0000.json', 'w').write('''{FAILURE}'''); "
         "raise SystemExit(3)", 3, DataError, "no images"),
        ("import sys; print('what it said'); sys.exit(6)", 6, RunError, "ended with exit code 6: what it said"),
        ("import os; os.kill(os.getpid(), 9)", -9, LaunchError, "ended by SIGKILL"),
        ("import os; os.kill(os.getpid(), 40)", -40, LaunchError, "ended by signal 40"),
    ],
)  # fmt: skip
def test_child_that_fails_is_explained(tmp_path: Path, program: str, code: int, kind: type, message: str):
    _, end = run_to_end(program, tmp_path)
    assert (end.code, type(end.error), end.error.message) == (code, kind, message)
    with pytest.raises(kind, match=f"run 1: {message}"):
        end.check("run 1")


def test_child_that_was_stopped_in_order_is_interrupted(tmp_path: Path):
    stopped = "import os; open(os.environ['TRAINSTONE_RUN'] + '/launch/code', 'w').write('75')"
    assert run_to_end(stopped, tmp_path)[1].interrupted
    assert [ChildEnd(code).interrupted for code in (0, 6, 75, 130, -15)] == [False, False, True, True, False]


def test_child_ends_with_its_killed_parent(tmp_path: Path):
    program = (
        "import sys; from pathlib import Path; from trainstone.launch.supervisor import supervise; "
        "from trainstone.machine.signals import StopSignals; "
        f"list(supervise([sys.executable, '-I', '-S', '-c', {SLEEPER!r}, sys.argv[1] + '/begun'], {{}}, "
        "Path(sys.argv[1]), 'output.log', StopSignals()))"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    wait_until((tmp_path / "begun").exists)
    (child,) = psutil.Process(parent.pid).children()
    parent.kill()
    parent.wait()
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, timeout=5)


def test_resumed_parent_waits_for_a_leftover_child(monkeypatch, tmp_path: Path):
    config = load_config("resnet50")
    run = create_run(tmp_path, "sweep", config, "x")
    child = write_run(run.path / "points", make_result("left"))
    holder = subprocess.Popen(
        [sys.executable, "-c", "import fcntl, sys, time; f = open(sys.argv[1] + '/log.txt', 'a'); "
         "fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); time.sleep(float(sys.argv[2]))", str(child), "0.5"],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None
    with holder:
        holder.stdout.readline()
        phases = {progress.phase for progress in follow(wait_for_leftovers, config, run)}
    assert phases == {"waiting for the end of left"}
    monkeypatch.setattr(child_runs, "LEFTOVER_SECONDS", 0.0)
    with lock_run(child), pytest.raises(LaunchError, match="left is still in use by process 1 of an earlier start"):
        list(follow(wait_for_leftovers, config, run))


def test_signals_have_names_or_numbers():
    assert (name_signal(signal.SIGTERM), name_signal(40)) == ("SIGTERM", "signal 40")
