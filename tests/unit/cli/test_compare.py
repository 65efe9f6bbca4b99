import io

import pytest
from rich.console import Console

from made_results import make_result, write_run, write_runs
from trainstone.cli.compare import check_limit, spread_to, suggest_next
from trainstone.cli.tables import print_comparison
from trainstone.errors import ConfigError
from trainstone.results import compare as module
from trainstone.results.schema import Comparison


def compare(runs, to) -> Comparison:
    return module.compare(runs, to).comparison


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
    assert spread_to(given.split()) == spread.split()


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), float("inf"), 95.0])
def test_limits_that_are_no_ratio(limit):
    with pytest.raises(ConfigError):
        check_limit(limit)


def test_a_percentage_is_set_right():
    with pytest.raises(ConfigError) as caught:
        check_limit(95.0)
    assert caught.value.hint == "did you mean --fail-below 0.95?"


@pytest.mark.parametrize("width", [40, 79, 80, 120])
def test_shares_fit_their_terminal(tmp_path, width):
    run = write_run(tmp_path, make_result("run", 3.3))
    for words in (["published"], ["a10-lambda-amp"]):
        file = io.StringIO()
        print_comparison(Console(file=file, width=width), compare([str(run)], words))
        assert all(len(line) <= width for line in file.getvalue().splitlines())
        assert "a10-lambda-amp" in file.getvalue()
        assert "0.517 % (0.512 … 0.522 %)" in " ".join(file.getvalue().split())


def test_the_next_command_depends_on_what_there_is(tmp_path):
    single = write_runs(tmp_path, "a b", [1.0, 1.0])
    assert f"bench '{single[0]}/config.toml' --runs 5" in suggest_next(compare([str(single[0])], [str(single[1])]))
    fast, slow = write_runs(tmp_path, "fast", [2.0, 2.01, 1.99]), write_runs(tmp_path, "slow", [1.0, 1.01, 0.99])
    words = {name: [str(path) for path in paths] for name, paths in (("f", fast), ("s", slow))}
    assert "trainstone report" in suggest_next(compare(words["f"], words["s"]))
    assert "--runs 5" in suggest_next(compare([str(single[0])], ["a10-lambda-amp"]))
