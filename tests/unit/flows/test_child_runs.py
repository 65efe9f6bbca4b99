"""Child processes: none is left running, failures are explained, and a resumed parent waits for leftover children."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.builders.results import make_result, write_run
from support.builders.training_results import FIRST_SEED, make_child
from support.processes.flows import drain, follow
from support.processes.forked import wait_until
from trainstone.config.load import format_toml, load_config
from trainstone.errors import DataError, LaunchError, RunError
from trainstone.flows import child_runs
from trainstone.flows.child_runs import ChildEnd, ChildRun
from trainstone.flows.lifecycle import Lifecycle
from trainstone.machine import supervisor
from trainstone.machine.signals import StopSignals
from trainstone.machine.supervisor import supervise
from trainstone.results.progress import Progress
from trainstone.results.run_folder import RunFolder, create_run, lock_run, read_result, reopen_run
from trainstone.results.schema.quality import Repeated

SLEEPER = "import sys, time; open(sys.argv[1], 'w').close(); time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"
FAILURE = (
    '{"rank": 0, "host": "here", "exit_code": 3, "message": "no images", "hint": "make some", '
    '"time_seconds": 1.0, "secondary": false}'
)


def python(program: str, *arguments: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", program, *arguments]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("program", [SLEEPER, STUBBORN])
def test_supervise_interrupted_leaves_no_process(monkeypatch, tmp_path: Path, program: str, error: type[BaseException]):
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

    running = supervise(python(program, str(begun)), {}, tmp_path / "launch/output.log", StopSignals())
    writer = threading.Thread(target=write_progress)
    writer.start()
    assert next(running) == "step 1"
    writer.join()
    (child,) = set(psutil.Process().children()) - others
    with pytest.raises(error):
        running.throw(error)
    assert not psutil.pid_exists(child.pid)


def test_supervise_forwards_signal_once_and_kills_after_grace_period(monkeypatch, tmp_path: Path):
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
        "open(sys.argv[1], 'w').close(); [time.sleep(600) for _ in range(9)]"
    )
    command = python(count, str(ready))
    _, ended = drain(supervise(command, {}, tmp_path / "launch/output.log", signals, grace_seconds=0.2))
    stopper.join()
    assert ended.code == -signal.SIGKILL
    assert ended.output in ("TERM\n", "TERM\nTERM\n")  # once by us, once at the end


@pytest.mark.parametrize(
    ("program", "code", "kind", "message"),
    [
        ("import os; run = os.environ['TRAINSTONE_RUN']; open(run + '/launch/progress.txt', 'a').write('step 7\\n'); "
         "print('done')", 0, None, ""),
        (f"import os; open(os.environ['TRAINSTONE_RUN'] + '/launch/failed-rank0000.json', 'w').write('''{FAILURE}'''); "
         "raise SystemExit(3)", 3, DataError, "no images"),
        ("import sys; print('what it said'); sys.exit(6)", 6, RunError, "ended with exit code 6: what it said"),
        ("import os; os.kill(os.getpid(), 9)", -9, LaunchError, "was ended by SIGKILL"),
    ],
)  # fmt: skip
def test_run_child_explains_failure(tmp_path: Path, program: str, code: int, kind: type | None, message: str):
    lines, end = drain(child_runs.run_child(ChildRun("x", python(program), tmp_path / "points/a"), StopSignals()))
    if kind is None:
        assert (lines, end) == (["x · step 7"], ChildEnd(0))
        assert (tmp_path / "points/a/launch/output.log").read_text() == "done\n"
        return
    assert (end.code, type(end.error), end.error.message) == (code, kind, message)
    with pytest.raises(kind, match=f"run 1: {message}"):
        end.check("run 1")


def test_child_ends_when_its_parent_is_killed(tmp_path: Path):
    program = (
        "import sys; from pathlib import Path; from trainstone.machine.supervisor import supervise; "
        "from trainstone.machine.signals import StopSignals; "
        f"list(supervise([sys.executable, '-I', '-S', '-c', {SLEEPER!r}, sys.argv[1] + '/begun'], {{}}, "
        "Path(sys.argv[1], 'launch/output.log'), StopSignals()))"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    wait_until((tmp_path / "begun").exists)
    (child,) = psutil.Process(parent.pid).children()
    parent.kill()
    parent.wait()
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_resumed_parent_waits_for_leftover_child(monkeypatch, tmp_path: Path):
    config = load_config("resnet50")
    run = create_run(tmp_path, "sweep", config, "x")
    child = write_run(run.path / "points", make_result("left"))
    holder = subprocess.Popen(
        [sys.executable, "-c", "import fcntl, sys, time; f = open(sys.argv[1] + '/log.txt', 'a'); "
         "fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); time.sleep(float(sys.argv[2]))", str(child), "0.5"],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None

    def wait(life: Lifecycle) -> Iterator[Progress]:
        yield from child_runs.run_children(life, [], lambda *_: None)

    with holder:
        holder.stdout.readline()
        phases = {progress.phase for progress in follow(wait, config, run)}
    assert phases == {"waiting for left to end"}
    monkeypatch.setattr(child_runs, "LEFTOVER_SECONDS", 0.0)
    with lock_run(child), pytest.raises(LaunchError, match="left is still in use by process 1 of an earlier start"):
        list(follow(wait, config, run))


Act = Callable[[Path, int, StopSignals], ChildEnd]
DONE = ChildEnd(0)


def begin(folder: Path, num_runs: int = 3, **changes: Any) -> RunFolder:
    config = load_config("resnet50", settings=[f"seed={FIRST_SEED}"])
    run = create_run(folder, "train", config, "trainstone train")
    run.update(repeated=Repeated(num_runs=num_runs, first_seed=FIRST_SEED, **changes))
    return run


def leave(folder: Path, seed: int, seconds: float | None, **changes: Any) -> None:
    """Write what a child run leaves: a run folder with its resolved configuration."""
    result = make_child(seed, seconds, **changes).result.model_copy(update={"run_id": folder.name})
    if folder.exists():
        (folder / "result.json").write_text(result.model_dump_json(exclude_none=True))
    else:
        write_run(folder.parent, result)
    config = load_config("resnet50", settings=[f"seed={seed}", "train.batch_size=8", "engine.threads=2", "device=cpu"])
    (folder / "config.toml").write_text(format_toml(config))


def fake_children(monkeypatch: pytest.MonkeyPatch, act: Act) -> list[list[str]]:
    commands: list[list[str]] = []

    def run_child(child: ChildRun, signals: StopSignals) -> Iterator[Progress]:
        words = child.command[4:]
        commands.append(words)
        yield Progress(child.label)
        resumed = "--resume" in words
        seed = read_result(child.folder).config["seed"] if resumed else int(words[words.index("--seed") + 1])
        return act(child.folder, seed, signals)

    monkeypatch.setattr(child_runs, "run_child", run_child)
    return commands


def list_repeated(run: RunFolder) -> list[str]:
    config = load_config(str(run.path / "config.toml"))
    repeated = run.result.repeated
    return [progress.phase for progress in follow(lambda life: child_runs.repeat_training(life, repeated), config, run)]


def reach(folder: Path, seed: int, _signals: StopSignals) -> ChildEnd:
    leave(folder, seed, 40.0 + seed)
    return DONE


def test_repeat_training_uses_consecutive_seeds_and_config_of_first_child(monkeypatch, tmp_path: Path):
    run = begin(tmp_path)
    commands = fake_children(monkeypatch, reach)
    labels = list_repeated(run)
    assert list(dict.fromkeys(labels)) == ["run 1 of 3", "run 2 of 3", "run 3 of 3"]
    config, points = str(run.path / "config.toml"), str(run.path / "points")
    assert commands == [["train", config, "--out", points, "--seed", str(seed)] for seed in (7, 8, 9)]
    result = read_result(run.path)
    assert result.status == "target_reached"
    assert result.repeated.score_seconds == 48.0
    assert [point.label for point in result.points] == ["seed 7", "seed 8", "seed 9"]
    assert [read_result(run.path / point.run).config["seed"] for point in result.points] == [7, 8, 9]
    settled = load_config(config)
    assert (settled.engine.threads, settled.train.batch_size, settled.seed) == (2, 8, FIRST_SEED)
    assert result.machine["cpu"]["model"] == "Intel Xeon"
    assert [device.name for device in result.devices] == ["Intel Xeon"]


@pytest.mark.parametrize(
    ("requested", "code", "message"),
    [("SIGUSR1", 75, "SIGUSR1"), ("SIGINT", 130, "SIGINT"), ("SIGTERM", -15, "SIGTERM"), (None, 75, "SIGTERM")],
)
def test_repeat_training_stopped_gives_resume_hint_and_resumes(
    monkeypatch, tmp_path: Path, requested: str | None, code: int, message: str
):
    def stop(folder: Path, seed: int, signals: StopSignals) -> ChildEnd:
        if seed == FIRST_SEED:
            return reach(folder, seed, signals)
        leave(folder, seed, None, status="interrupted")
        signals.received = requested
        return ChildEnd(code)

    run = begin(tmp_path, strict=True)
    fake_children(monkeypatch, stop)
    with pytest.raises(KeyboardInterrupt, match=message):
        list_repeated(run)
    result = read_result(run.path)
    assert result.status == "interrupted"
    (found,) = [one for one in result.findings if one.code == "interrupted"]
    assert found.message == f"stopped by {message} after 1 of 3 runs"
    assert found.hint == f"resume with: trainstone train --resume {run.path}"
    assert [r.status for r in result.repeated.runs] == ["target_reached", "interrupted"]

    again = reopen_run(run.path, "train", "x")
    commands = fake_children(monkeypatch, reach)
    list_repeated(again)
    child = str(run.path / result.repeated.runs[1].run)
    assert commands[0] == ["train", "--resume", child, "--strict"]
    assert commands[1][:2] == ["train", str(run.path / "config.toml")]
    assert commands[1][-3:] == ["--strict", "--seed", "9"]
    result = read_result(run.path)
    assert (result.status, result.repeated.score_seconds, result.findings) == ("target_reached", 48.0, [])
    assert result.devices


@pytest.mark.parametrize(
    ("ended", "error", "message"),
    [
        (ChildEnd(3, DataError("no images")), DataError, "run 2 of 3: no images"),
        (DONE, LaunchError, "run 2 of 3 ended without an error, but has no final result"),
    ],
)
def test_repeat_training_fails_with_failed_child(
    monkeypatch, tmp_path: Path, ended: ChildEnd, error: type[Exception], message: str
):
    def act(folder: Path, seed: int, signals: StopSignals) -> ChildEnd:
        return reach(folder, seed, signals) if seed == FIRST_SEED else ended

    run = begin(tmp_path)
    fake_children(monkeypatch, act)
    with pytest.raises(error, match=message):
        list_repeated(run)
    result = read_result(run.path)
    assert result.status == "failed"
    assert [(one.code, one.message) for one in result.findings] == [("run-failed", message)]
    assert result.verdict.startswith("ResNet-18: 1 of 3 runs finished: ")


def test_read_children_prefers_finished_else_newest_run_per_seed(tmp_path: Path):
    points = tmp_path / "points"
    for name, status in (("a", "failed"), ("b", "target_reached"), ("c", "interrupted")):
        write_run(points, make_child(7, 40.0, status=status).result.model_copy(update={"run_id": name}))
    for name, status in (("d", "failed"), ("e", "interrupted")):
        write_run(points, make_child(8, None, status=status).result.model_copy(update={"run_id": name}))
    write_run(points, make_child(9, None, status="running").result)
    found = child_runs.read_children(tmp_path)
    assert {seed: child.folder for seed, child in found.items()} == {
        7: "points/b", 8: "points/e", 9: "points/run-9"
    }  # fmt: skip
    repeated = Repeated(num_runs=4, first_seed=7)
    assert child_runs.list_due_seeds(tmp_path, repeated) == [8, 9, 10]
    planned = [child_runs.plan_child(tmp_path, repeated, seed, "resnet50").command[-2:] for seed in (8, 9, 10)]
    assert planned == [["--resume", f"{tmp_path}/points/e"], ["--resume", f"{tmp_path}/points/run-9"], ["--seed", "10"]]
