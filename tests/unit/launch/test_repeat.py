"""train --runs with made-up children: what is started, kept, resumed, and how each end is written."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from made_repeated import FIRST_SEED, make_child
from made_results import write_run
from trainstone.config.load import load_config, write_toml
from trainstone.errors import DataError, LaunchError, RunError
from trainstone.launch import repeat
from trainstone.launch.children import Ended
from trainstone.launch.repeat import glance, list_commands, read_children, repeat_training
from trainstone.machine.interrupt import Interrupt
from trainstone.results.progress import Progress
from trainstone.results.quality import Repeated
from trainstone.results.store import RunFolder, create_run, read_result, reopen_run

Act = Callable[[Path, int, Interrupt], Ended]
DONE = Ended(0, "", "")


def begin(folder: Path, num_runs: int = 3, **changes: Any) -> RunFolder:
    config = load_config("resnet50", settings=[f"seed={FIRST_SEED}"])
    run = create_run(folder, "train", config, "trainstone train")
    run.update(repeated=Repeated(num_runs=num_runs, first_seed=FIRST_SEED, **changes))
    return run


def leave(points: Path, seed: int, seconds: float | None, **changes: Any) -> None:
    """Leave what a child leaves: a run folder with its settled configuration."""
    result = make_child(seed, seconds, **changes).result
    path = points / result.run_id
    if path.exists():
        (path / "result.json").write_text(result.model_dump_json(exclude_none=True))
    else:
        write_run(points, result)
    config = load_config("resnet50", settings=[f"seed={seed}", "train.batch_size=8", "engine.threads=2", "device=cpu"])
    (path / "config.toml").write_text(write_toml(config))


def fake_children(monkeypatch: pytest.MonkeyPatch, act: Act) -> list[list[str]]:
    """Let `act` be each child; return the commands as they come."""
    commands: list[list[str]] = []

    def run_child(command: list[str], label: str, interrupt: Interrupt) -> Iterator[Progress]:
        commands.append(command[4:])
        yield Progress(label)
        words = command[4:]
        if "--seed" in words:
            seed, points = int(words[words.index("--seed") + 1]), Path(words[words.index("--out") + 1])
        else:
            child = Path(words[words.index("--resume") + 1])
            seed, points = int(child.name.removeprefix("run-")), child.parent
        return act(points, seed, interrupt)

    monkeypatch.setattr(repeat, "run_child", run_child)
    return commands


def reach(points: Path, seed: int, _interrupt: Interrupt) -> Ended:
    leave(points, seed, 40.0 + seed)
    return DONE


def test_each_run_has_its_seed_and_the_first_settles_the_configuration(monkeypatch, tmp_path: Path):
    run = begin(tmp_path)
    commands = fake_children(monkeypatch, reach)
    labels = [progress.phase for progress in repeat_training(run)]
    assert list(dict.fromkeys(labels)) == ["run 1 of 3", "run 2 of 3", "run 3 of 3"]
    config, points = str(run.path / "config.toml"), str(run.path / "points")
    assert commands == [
        ["train", config, "--out", points, "--json", "--quiet", "--seed", str(seed)] for seed in (7, 8, 9)
    ]
    result = read_result(run.path)
    assert result.status == "target_reached"
    assert result.repeated.score_seconds == 48.0
    assert [(point.label, point.run) for point in result.points] == [
        (f"seed {seed}", f"points/run-{seed}") for seed in (7, 8, 9)
    ]
    settled = load_config(config)
    assert (settled.engine.threads, settled.train.batch_size, settled.seed) == (2, 8, FIRST_SEED)
    assert result.machine["cpu"]["model"] == "Intel Xeon"
    assert [device.name for device in result.devices] == ["Intel Xeon"]


def test_one_that_missed_does_not_end_the_others(monkeypatch, tmp_path: Path):
    def act(points: Path, seed: int, _interrupt: Interrupt) -> Ended:
        leave(points, seed, None if seed == FIRST_SEED else 40.0)
        return DONE

    run = begin(tmp_path)
    fake_children(monkeypatch, act)
    list(repeat_training(run))
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
        (None, 130, "SIGINT"),
    ],
)
def test_stopped_it_says_how_to_go_on_and_does(monkeypatch, tmp_path: Path, asked: str | None, code: int, told: str):
    def stop(points: Path, seed: int, interrupt: Interrupt) -> Ended:
        if seed == FIRST_SEED:
            return reach(points, seed, interrupt)
        leave(points, seed, None, status="interrupted")
        interrupt.asked = asked
        return Ended(code, "", "")

    run = begin(tmp_path, strict=True)
    fake_children(monkeypatch, stop)
    with pytest.raises(KeyboardInterrupt, match=told):
        list(repeat_training(run))
    result = read_result(run.path)
    assert result.status == "interrupted"
    (found,) = [one for one in result.findings if one.code == "interrupted"]
    assert found.message == f"stopped by {told} after 1 of 3 runs"
    assert found.hint == f"go on with: trainstone train --resume {run.path}"
    assert f"; stopped by {told}; go on with trainstone train --resume {run.path}" in result.verdict
    assert [r.status for r in result.repeated.runs] == ["target_reached", "interrupted"]

    again = reopen_run(run.path, "train", "x")
    commands = fake_children(monkeypatch, reach)
    list(repeat_training(again))
    child = str(run.path / "points/run-8")
    assert commands[0] == ["train", "--resume", child, "--json", "--quiet", "--strict"]
    assert commands[1][:2] == ["train", str(run.path / "config.toml")]
    assert commands[1][-3:] == ["--strict", "--seed", "9"]
    result = read_result(run.path)
    assert (result.status, result.repeated.score_seconds, result.findings) == ("target_reached", 48.0, [])
    assert result.devices


def test_a_signal_while_the_last_run_ends_changes_nothing(monkeypatch, tmp_path: Path):
    def act(points: Path, seed: int, interrupt: Interrupt) -> Ended:
        interrupt.asked = "SIGTERM" if seed == FIRST_SEED + 1 else None
        return reach(points, seed, interrupt)

    run = begin(tmp_path, num_runs=2)
    fake_children(monkeypatch, act)
    list(repeat_training(run))
    assert run.result.status == "target_reached"


def test_a_signal_between_two_runs_starts_no_other(monkeypatch, tmp_path: Path):
    def act(points: Path, seed: int, interrupt: Interrupt) -> Ended:
        interrupt.asked = "SIGUSR1"
        return reach(points, seed, interrupt)

    run = begin(tmp_path)
    commands = fake_children(monkeypatch, act)
    with pytest.raises(KeyboardInterrupt, match="SIGUSR1"):
        list(repeat_training(run))
    assert len(commands) == 1
    assert run.result.status == "interrupted"


@pytest.mark.parametrize(
    ("ended", "error", "told"),
    [
        (Ended(6, "", "error: the loss is nan\nhint:  a lower rate\n"), RunError, "run 2 of 3: the loss is nan"),
        (Ended(3, "", "error: no pictures\n"), DataError, "run 2 of 3: no pictures"),
        (Ended(-9, "", ""), LaunchError, "run 2 of 3 was ended by SIGKILL"),
        (Ended(0, "", ""), LaunchError, "run 2 of 3 ended well, but left no result that says so"),
    ],
)
def test_a_run_that_fails_fails_all(monkeypatch, tmp_path: Path, ended: Ended, error: type[Exception], told: str):
    def act(points: Path, seed: int, interrupt: Interrupt) -> Ended:
        return reach(points, seed, interrupt) if seed == FIRST_SEED else ended

    run = begin(tmp_path)
    fake_children(monkeypatch, act)
    with pytest.raises(error, match=told):
        list(repeat_training(run))
    result = read_result(run.path)
    assert result.status == "failed"
    assert [(one.code, one.message) for one in result.findings] == [("child-failed", told)]
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
    commands = list_commands(tmp_path, Repeated(num_runs=4, first_seed=7))
    assert [command[-1] for command in commands] == ["--quiet", "--quiet", "10"]


def test_without_a_folder_all_are_to_be_started():
    commands = list_commands(Path("RUN"), Repeated(num_runs=2, first_seed=0))
    assert [command[4:6] + command[-2:] for command in commands] == [
        ["train", "RUN/config.toml", "--seed", str(seed)] for seed in (0, 1)
    ]


def test_progress_tells_the_last_evaluation(tmp_path: Path):
    path = write_run(tmp_path, make_child(7, 40.0).result)
    seen = glance(Progress("run 1 of 3"), path)
    assert (seen.epoch, seen.metric, seen.accuracy) == (4, "top1", pytest.approx(0.907))
    assert glance(Progress("x"), None) == glance(Progress("x"), tmp_path / "gone") == Progress("x")
    document = json.loads((path / "result.json").read_text())
    del document["quality"]
    other = tmp_path / "other"
    other.mkdir()
    (other / "result.json").write_text(json.dumps(document))
    assert glance(Progress("x"), other) == Progress("x")
