"""The command line of compare: --to takes many words, limits of the gate, the next command."""

import pytest

from made_results import write_runs
from trainstone.cli.compare import check_limit, spread_to, suggest_next
from trainstone.errors import ConfigError
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
    for runs, to, told in (
        (single[:1], single[1:], f"bench '{single[0]}/config.toml' --runs 5"),
        (fast, slow, "trainstone report"),
        (single[:1], ["a10-lambda-amp"], "--runs 5"),
    ):
        assert told in suggest_next(compare([*map(str, runs)], [*map(str, to)]).comparison)
