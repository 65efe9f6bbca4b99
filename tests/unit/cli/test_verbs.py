"""What verbs settle before and after their work: words of compare, plans of train --runs, attempts of a launch."""

from collections.abc import Generator
from pathlib import Path

import pytest

from support.builders.results import write_run, write_runs
from support.builders.training_results import make_child, write_repeated
from support.processes.flows import drain
from trainstone.cli import launch as launching
from trainstone.cli.compare import check_limit, spread_to, suggest_next
from trainstone.cli.eval import refuse_repeated
from trainstone.cli.train import list_commands, plan_runs
from trainstone.config.load import load_config
from trainstone.errors import (
    EXIT_INTERRUPTED,
    EXIT_RESUMABLE,
    ConfigError,
    DataError,
    LaunchError,
    ResultError,
    TrainstoneError,
)
from trainstone.launch import failure_report
from trainstone.machine import supervisor
from trainstone.machine.signals import StopSignals
from trainstone.machine.supervisor import LaunchPlan
from trainstone.results.compare import compare


@pytest.mark.parametrize(
    ("given", "spread"),
    [
        ("A --to B", "A --to B"),
        ("A1 A2 --to B1 B2 B3", "A1 A2 --to B1 --to B2 --to B3"),
        ("A --to B1 B2 --json", "A --to B1 --to B2 --json"),
        ("A --to B1 B2 --fail-below 0.9 --to B3 B4", "A --to B1 --to B2 --fail-below 0.9 --to B3 --to B4"),
        ("A --to=B1 B2", "A --to=B1 --to B2"),
        ("--force A --to B", "--force A --to B"),
        ("--to B1 --force A", "--to B1 --force A"),
        ("--to B1 B2 -- A1 A2", "--to B1 --to B2 -- A1 A2"),
        ("-- --to B1 B2", "-- --to B1 B2"),
        ("A --to", "A --to"),
        ("", ""),
    ],
)
def test_to_takes_every_word_up_to_the_next_option(given, spread):
    assert spread_to(given.split(), "--to") == spread.split()


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), float("inf"), 95.0])
def test_check_limit_refuses_what_is_not_a_ratio(limit):
    with pytest.raises(ConfigError) as caught:
        check_limit(limit)
    assert ("--fail-below 0.95?" in caught.value.hint) == (limit == 95)


def test_the_next_command_depends_on_what_there_is(tmp_path):
    single = write_runs(tmp_path, "a b", [1.0, 1.0])
    fast, slow = write_runs(tmp_path, "fast", [2.0, 2.01, 1.99]), write_runs(tmp_path, "slow", [1.0, 1.01, 0.99])
    for runs, to, message in (
        (single[:1], single[1:], f"bench '{single[0]}/config.toml' --runs 5"),
        (fast, slow, "trainstone report"),
        (single[:1], ["a10-lambda-amp"], "--runs 5"),
    ):
        assert message in suggest_next(compare([*map(str, runs)], [*map(str, to)])[0])


CONFIG = load_config("demo-classify", settings=["seed=5"])


def test_one_run_is_no_plan(tmp_path: Path):
    assert plan_runs(CONFIG, None, 1, strict=False, changed=False) is None
    single = write_run(tmp_path, make_child(7, 40.0).result)
    assert plan_runs(CONFIG, single, 1, strict=False, changed=True) is None


def test_runs_begin_at_the_recipes_seed():
    plan = plan_runs(CONFIG, None, 3, strict=True, changed=True)
    assert (list(plan.seeds), plan.strict) == ([5, 6, 7], True)
    assert [command.split()[-1] for command in list_commands(plan, CONFIG, None)] == ["5", "6", "7"]


def test_a_run_that_is_resumed_has_its_plan(tmp_path: Path):
    path = write_repeated(tmp_path, (40.0, 41.0), num_runs=3)
    plan = plan_runs(CONFIG, path, 1, strict=False, changed=False)
    assert list(plan.seeds) == [7, 8, 9]
    (command,) = list_commands(plan, CONFIG, path)
    assert command.endswith(f"train {path}/config.toml --out {path}/points --seed 9")
    with pytest.raises(ConfigError, match="--resume cannot change it"):
        plan_runs(CONFIG, path, 1, strict=False, changed=True)
    with pytest.raises(ConfigError, match="--runs begins new runs"):
        plan_runs(CONFIG, path, 5, strict=False, changed=False)


def test_ranks_do_not_each_start_their_own(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert plan_runs(CONFIG, None, 1, strict=False, changed=False) is None
    with pytest.raises(ConfigError, match="here 4 ranks would each do so"):
        plan_runs(CONFIG, None, 2, strict=False, changed=False)


def test_eval_asks_for_one_of_them(tmp_path: Path):
    path = write_repeated(tmp_path, (40.0, 41.0, None))
    with pytest.raises(DataError, match="holds 3 runs, each with its own weights") as caught:
        refuse_repeated(path)
    assert caught.value.hint == f"give one; the best of them is {path}/points/run-8"
    refuse_repeated(path / "points" / "run-7")
    refuse_repeated(tmp_path / "nothing")


PLAN = LaunchPlan("mpi", ("mpirun",), {"TRAINSTONE_LAUNCH": "mpi-1"}, attempts=3)


def follow(
    monkeypatch: pytest.MonkeyPatch, run: Path, ends: list[int | TrainstoneError], requested: str | None = None
) -> int:
    """Follow engines that end so, one after the other."""

    def run_plan(*_: object) -> Generator[str, None, tuple[int, str]]:
        yield "training · step 1"
        return 0, ""

    def settle(*_: object, stopped: bool, launch: str) -> int:
        assert stopped == (requested is not None)
        end = ends.pop(0)
        if isinstance(end, TrainstoneError):
            raise end
        return end

    monkeypatch.setattr(supervisor, "run_plan", run_plan)
    monkeypatch.setattr(failure_report, "settle", settle)
    signals = StopSignals()
    signals.received = requested
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
