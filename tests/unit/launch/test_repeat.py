"""train --runs with made-up children: what is started, kept, resumed, and how each end is written."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flows import follow
from made_repeated import FIRST_SEED, make_child
from made_results import write_run
from trainstone.config.load import load_config, write_toml
from trainstone.errors import DataError, LaunchError, RunError
from trainstone.launch import child_runs
from trainstone.launch.child_runs import ChildEnd, ChildRun
from trainstone.launch.repeat import list_due, plan_child, read_children, repeat_training
from trainstone.machine.signals import StopSignals
from trainstone.results.progress import Progress
from trainstone.results.quality import Repeated
from trainstone.results.store import RunFolder, create_run, read_result, reopen_run

Act = Callable[[Path, int, StopSignals], ChildEnd]
DONE = ChildEnd(0)


def begin(folder: Path, num_runs: int = 3, **changes: Any) -> RunFolder:
    config = load_config("resnet50", settings=[f"seed={FIRST_SEED}"])
    run = create_run(folder, "train", config, "trainstone train")
    run.update(repeated=Repeated(num_runs=num_runs, first_seed=FIRST_SEED, **changes))
    return run


def leave(folder: Path, seed: int, seconds: float | None, **changes: Any) -> None:
    """Leave what a child leaves: a run folder with its settled configuration."""
    result = make_child(seed, seconds, **changes).result.model_copy(update={"run_id": folder.name})
    if folder.exists():
        (folder / "result.json").write_text(result.model_dump_json(exclude_none=True))
    else:
        write_run(folder.parent, result)
    config = load_config("resnet50", settings=[f"seed={seed}", "train.batch_size=8", "engine.threads=2", "device=cpu"])
    (folder / "config.toml").write_text(write_toml(config))


def fake_children(monkeypatch: pytest.MonkeyPatch, act: Act) -> list[list[str]]:
    """Let `act` be each child; return the commands as they come."""
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
    """Train what is left; return the labels."""
    config = load_config(str(run.path / "config.toml"))
    repeated = run.result.repeated
    return [progress.phase for progress in follow(lambda life: repeat_training(life, repeated), config, run)]


def reach(folder: Path, seed: int, _signals: StopSignals) -> ChildEnd:
    leave(folder, seed, 40.0 + seed)
    return DONE


def test_each_run_has_its_seed_and_the_first_settles_the_configuration(monkeypatch, tmp_path: Path):
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


def test_one_that_missed_does_not_end_the_others(monkeypatch, tmp_path: Path):
    def act(folder: Path, seed: int, _signals: StopSignals) -> ChildEnd:
        leave(folder, seed, None if seed == FIRST_SEED else 40.0)
        return DONE

    run = begin(tmp_path)
    fake_children(monkeypatch, act)
    list_repeated(run)
    assert read_result(run.path).status == "target_missed"
    assert [r.reached for r in run.result.repeated.runs] == [False, True, True]


@pytest.mark.parametrize(
    ("asked", "code", "told"),
    [
        ("SIGTERM", 75, "SIGTERM"),
        ("SIGUSR1", 75, "SIGUSR1"),
        ("SIGINT", 130, "SIGINT"),
        ("SIGTERM", -15, "SIGTERM"),
        (None, 75, "SIGTERM"),
    ],
)
def test_stopped_it_says_how_to_go_on_and_does(monkeypatch, tmp_path: Path, asked: str | None, code: int, told: str):
    def stop(folder: Path, seed: int, signals: StopSignals) -> ChildEnd:
        if seed == FIRST_SEED:
            return reach(folder, seed, signals)
        leave(folder, seed, None, status="interrupted")
        signals.received = asked
        return ChildEnd(code)

    run = begin(tmp_path, strict=True)
    fake_children(monkeypatch, stop)
    with pytest.raises(KeyboardInterrupt, match=told):
        list_repeated(run)
    result = read_result(run.path)
    assert result.status == "interrupted"
    (found,) = [one for one in result.findings if one.code == "interrupted"]
    assert found.message == f"stopped by {told} after 1 of 3 runs"
    assert found.hint == f"go on with: trainstone train --resume {run.path}"
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


def test_a_signal_while_the_last_run_ends_changes_nothing(monkeypatch, tmp_path: Path):
    def act(folder: Path, seed: int, signals: StopSignals) -> ChildEnd:
        signals.received = "SIGTERM" if seed == FIRST_SEED + 1 else None
        return reach(folder, seed, signals)

    run = begin(tmp_path, num_runs=2)
    fake_children(monkeypatch, act)
    list_repeated(run)
    assert run.result.status == "target_reached"


def test_a_signal_between_two_runs_starts_no_other(monkeypatch, tmp_path: Path):
    def act(folder: Path, seed: int, signals: StopSignals) -> ChildEnd:
        signals.received = "SIGUSR1"
        return reach(folder, seed, signals)

    run = begin(tmp_path)
    commands = fake_children(monkeypatch, act)
    with pytest.raises(KeyboardInterrupt, match="SIGUSR1"):
        list_repeated(run)
    assert len(commands) == 1
    assert run.result.status == "interrupted"


@pytest.mark.parametrize(
    ("ended", "error", "told"),
    [
        (ChildEnd(6, RunError("the loss is nan")), RunError, "run 2 of 3: the loss is nan"),
        (ChildEnd(3, DataError("no pictures")), DataError, "run 2 of 3: no pictures"),
        (DONE, LaunchError, "run 2 of 3 ended well, but left no result that says so"),
    ],
)
def test_a_run_that_fails_fails_all(monkeypatch, tmp_path: Path, ended: ChildEnd, error: type[Exception], told: str):
    def act(folder: Path, seed: int, signals: StopSignals) -> ChildEnd:
        return reach(folder, seed, signals) if seed == FIRST_SEED else ended

    run = begin(tmp_path)
    fake_children(monkeypatch, act)
    with pytest.raises(error, match=told):
        list_repeated(run)
    result = read_result(run.path)
    assert result.status == "failed"
    assert [(one.code, one.message) for one in result.findings] == [("run-failed", told)]
    assert result.verdict.startswith("ResNet-18: 1 of 3 runs are over: ")


def test_of_two_runs_with_a_seed_the_one_that_is_over_counts_else_the_newest(tmp_path: Path):
    points = tmp_path / "points"
    for name, status in (("a", "failed"), ("b", "target_reached"), ("c", "interrupted")):
        write_run(points, make_child(7, 40.0, status=status).result.model_copy(update={"run_id": name}))
    for name, status in (("d", "failed"), ("e", "interrupted")):
        write_run(points, make_child(8, None, status=status).result.model_copy(update={"run_id": name}))
    write_run(points, make_child(9, None, status="running").result)
    (points / "broken").mkdir()
    (points / "broken" / "result.json").write_text("{")
    found = read_children(tmp_path)
    assert {seed: child.folder for seed, child in found.items()} == {
        7: "points/b", 8: "points/e", 9: "points/run-9"
    }  # fmt: skip
    repeated = Repeated(num_runs=4, first_seed=7)
    assert list_due(tmp_path, repeated) == [8, 9, 10]
    planned = [plan_child(tmp_path, repeated, seed, "resnet50").command[-2:] for seed in (8, 9, 10)]
    assert planned == [["--resume", f"{tmp_path}/points/e"], ["--resume", f"{tmp_path}/points/run-9"], ["--seed", "10"]]
