"""Test helpers of the verbs: options of compare, plans of train --runs, attempts of launch."""

from collections.abc import Generator
from pathlib import Path

import pytest

from support.builders.results import write_run, write_runs
from support.builders.training_results import make_child, write_repeated
from support.processes.flows import drain
from trainstone.cli import launch as launching
from trainstone.cli.compare import check_fail_below, repeat_option, suggest_next
from trainstone.cli.eval import check_single_run
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
def test_repeat_option_takes_every_word_up_to_next_option(given, spread):
    assert repeat_option(given.split(), "--to") == spread.split()


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), float("inf"), 95.0])
def test_check_fail_below_rejects_values_that_are_not_ratios(limit):
    with pytest.raises(ConfigError) as caught:
        check_fail_below(limit)
    assert ("--fail-below 0.95?" in caught.value.hint) == (limit == 95)


def test_suggest_next_depends_on_number_of_runs(tmp_path):
    single = write_runs(tmp_path, "a b", [1.0, 1.0])
    fast, slow = write_runs(tmp_path, "fast", [2.0, 2.01, 1.99]), write_runs(tmp_path, "slow", [1.0, 1.01, 0.99])
    for runs, to, expected in (
        (single[:1], single[1:], f"bench '{single[0]}/config.toml' --runs 5"),
        (fast, slow, "trainstone report"),
        (single[:1], ["a10-lambda-amp"], "--runs 5"),
    ):
        assert expected in suggest_next(compare([*map(str, runs)], [*map(str, to)])[0])


CONFIG = load_config("demo-classify", settings=["seed=5"])


def test_plan_runs_of_single_run_returns_none(tmp_path: Path):
    assert plan_runs(CONFIG, None, 1, strict=False, changed=False) is None
    single = write_run(tmp_path, make_child(7, 40.0).result)
    assert plan_runs(CONFIG, single, 1, strict=False, changed=True) is None


def test_plan_runs_starts_at_seed_of_recipe():
    plan = plan_runs(CONFIG, None, 3, strict=True, changed=True)
    assert (list(plan.seeds), plan.strict) == ([5, 6, 7], True)
    assert [command.split()[-1] for command in list_commands(plan, CONFIG, None)] == ["5", "6", "7"]


def test_plan_runs_of_resumed_run_keeps_its_plan(tmp_path: Path):
    path = write_repeated(tmp_path, (40.0, 41.0), num_runs=3)
    plan = plan_runs(CONFIG, path, 1, strict=False, changed=False)
    assert list(plan.seeds) == [7, 8, 9]
    (command,) = list_commands(plan, CONFIG, path)
    assert command.endswith(f"train {path}/config.toml --out {path}/points --seed 9")
    with pytest.raises(ConfigError, match="--resume cannot change it"):
        plan_runs(CONFIG, path, 1, strict=False, changed=True)
    with pytest.raises(ConfigError, match="--runs and --resume exclude"):
        plan_runs(CONFIG, path, 5, strict=False, changed=False)


def test_plan_runs_on_many_ranks_is_rejected(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert plan_runs(CONFIG, None, 1, strict=False, changed=False) is None
    with pytest.raises(ConfigError, match="needs a single process: found 4 ranks"):
        plan_runs(CONFIG, None, 2, strict=False, changed=False)


def test_check_single_run_rejects_folder_of_several_runs(tmp_path: Path):
    path = write_repeated(tmp_path, (40.0, 41.0, None))
    with pytest.raises(DataError, match="holds 3 runs, each with its own weights") as caught:
        check_single_run(path)
    assert caught.value.hint == f"give one of them; the best is {path}/points/run-8"
    check_single_run(path / "points" / "run-7")
    check_single_run(tmp_path / "nothing")


PLAN = LaunchPlan("mpi", ("mpirun",), {"TRAINSTONE_LAUNCH": "mpi-1"}, attempts=3)


def follow(
    monkeypatch: pytest.MonkeyPatch, run: Path, ends: list[int | TrainstoneError], signal: str | None = None
) -> int:
    """Run launch attempts whose engines end as given in `ends`; return the exit code."""

    def run_plan(*_: object) -> Generator[str, None, tuple[int, str]]:
        yield "training · step 1"
        return 0, ""

    def resolve_exit_code(*_: object, stopped: bool, launch: str) -> int:
        assert stopped == (signal is not None)
        end = ends.pop(0)
        if isinstance(end, TrainstoneError):
            raise end
        return end

    monkeypatch.setattr(supervisor, "run_plan", run_plan)
    monkeypatch.setattr(failure_report, "resolve_exit_code", resolve_exit_code)
    signals = StopSignals()
    signals.received = signal
    return drain(launching.run_attempts(PLAN, run, signals))[1]


def test_run_attempts_restarts_after_rank_failure_and_removes_old_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (tmp_path / "launch").mkdir()
    (tmp_path / "launch/cause.txt").touch()
    ends: list[int | TrainstoneError] = [LaunchError("died"), LaunchError("died"), 0]
    assert follow(monkeypatch, tmp_path, ends) == 0
    assert not (tmp_path / "launch/cause.txt").exists()


@pytest.mark.parametrize("lasting", [DataError("no data"), ResultError("disk full")])
def test_run_attempts_with_permanent_error_does_not_restart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lasting: TrainstoneError
):
    with pytest.raises(type(lasting)):
        follow(monkeypatch, tmp_path, [lasting, 0])


@pytest.mark.parametrize(("signal", "code"), [("SIGINT", EXIT_INTERRUPTED), ("SIGTERM", EXIT_RESUMABLE)])
def test_run_attempts_after_stop_signal_returns_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, signal: str, code: int
):
    assert follow(monkeypatch, tmp_path, [EXIT_RESUMABLE], signal) == code
    with pytest.raises(LaunchError, match="died"):  # the failure is raised, without a restart
        follow(monkeypatch, tmp_path, [LaunchError("died"), 0], signal)
