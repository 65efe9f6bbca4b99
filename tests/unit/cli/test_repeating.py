"""train --runs: what is planned, taken up and refused."""

from pathlib import Path

import pytest

from made_learning import make_child, write_repeated
from made_results import write_run
from trainstone.cli.eval import refuse_repeated
from trainstone.cli.train import list_commands, plan_runs
from trainstone.config.load import load_config
from trainstone.errors import ConfigError, DataError

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
