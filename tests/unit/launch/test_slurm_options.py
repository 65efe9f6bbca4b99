"""Options of sbatch, as they are read, refused and written."""

import pytest

from trainstone.errors import ConfigError
from trainstone.launch.slurm_options import (
    OWN,
    count_devices,
    find_lead,
    read_directives,
    read_time,
    write_directive,
)


def test_options_of_sbatch_are_quoted_as_it_reads_them():
    assert write_directive("mem", "0") == "--mem=0"
    assert write_directive("exclusive", None) == "--exclusive"
    assert write_directive("comment", 'a "b" \\ #') == '--comment="a \\"b\\" \\\\ #"'
    assert read_directives(["--exclusive", "mem=0", "mem=4G", "comment=a=b"]) == {
        "exclusive": None,
        "mem": "4G",
        "comment": "a=b",
    }
    with pytest.raises(ConfigError, match="is no option of sbatch"):
        read_directives(["N 4"])


@pytest.mark.parametrize("name", [*OWN, "out", "arr"])
def test_what_the_launcher_says_itself_is_refused(name: str):
    with pytest.raises(ConfigError, match="is for trainstone launch slurm to say") as raised:
        read_directives([f"--{name}=1"])
    assert raised.value.hint


def test_a_fleet_takes_a_limit_and_no_array():
    assert read_directives(["array=%4", "export=NONE"], fleet=True) == {"array": "%4", "export": "NONE"}
    for word, fleet in (("array=%4", False), ("array=0-3%4", True)):
        with pytest.raises(ConfigError, match="--array is for"):
            read_directives([word], fleet=fleet)


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("30", 1800), ("30:05", 1805), ("1:00:05", 3605), ("2-3", 183_600), ("1-0:10", 87_000), ("unlimited", None)],
)
def test_time_limits(time: str, seconds: int | None):
    assert read_time(time) == seconds


def test_a_short_job_is_told_later():
    assert [find_lead(time) for time in (None, "4:20:00", "2", "0:02")] == [90, 90, 30, 1]


@pytest.mark.parametrize(
    ("gres", "ranks"),
    [
        (None, 1),
        ("gpu", 1),
        ("shard:3", 1),
        ("gpu:4", 4),
        ("gpu:v100:2", 2),
        ("gpu:2080ti:4", 4),
        ("gpu:3090:8", 8),
        ("gpu:1g.5gb:2", 2),
        ("gpu:a100:2(S:0-1)", 2),
        ("gpu:2,nic:1", 2),
        ("nic:1,gpu:16", 16),
        ("gpu:v100:2,gpu:a100:1", 3),
    ],
)
def test_a_rank_for_each_device(gres: str | None, ranks: int):
    assert count_devices(gres) == ranks
