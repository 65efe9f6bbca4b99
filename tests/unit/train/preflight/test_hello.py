"""What the first rank makes of what others said, with made-up hellos."""

from trainstone.errors import DataError
from trainstone.train.preflight.hello import (
    describe_trouble,
    find_absent,
    find_difference,
    find_other_config,
    find_trouble,
    join_ranks,
)
from trainstone.train.preflight.links import plan_rounds

HOSTS = {0: "n1", 1: "n1", 2: "n2", 3: "n2"}


def make_hello(rank: int, torch: str = "2.13.0") -> dict[str, object]:
    return {"rank": rank, "host": HOSTS[rank], "versions": {"torch": torch, "trainstone": "1"}, "trouble": None}


def test_ranks_are_written_short():
    assert join_ranks([3, 1, 5, 6, 7, 8, 12, 13]) == "1, 3, 5-8, 12, 13"


def test_the_first_trouble_is_told_with_rank_and_host():
    said = {rank: make_hello(rank) for rank in HOSTS}
    assert find_trouble(said) is None
    for rank in (2, 3):
        said[rank]["trouble"] = describe_trouble(DataError("no /data", hint="get it"))
    trouble = find_trouble(said)
    assert isinstance(trouble, DataError)
    assert trouble.message == "rank 2 on n2: no /data (and 1 more rank: n2 (3))"
    assert trouble.hint == "get it"


def test_who_did_not_come_is_told():
    assert find_absent(HOSTS, 4, "n1:20123", 45, []) is None
    came = {rank: host for rank, host in HOSTS.items() if rank < 2}
    absent = find_absent(came, 4, "n1:20123", 45, ["n1", "n2"])
    assert absent is not None
    assert absent.message == ("ranks 2, 3 did not come to n1:20123 within 45 s; came: n1 (0, 1); nobody came from n2")


def test_versions_must_be_the_same():
    said = {rank: make_hello(rank) for rank in HOSTS}
    assert find_difference(said) is None
    said[2] = make_hello(2, "2.12.1")
    said[3] = make_hello(3, "2.12.1")
    different = find_difference(said)
    assert different is not None
    assert different.message == "ranks have different versions of torch: 2.13.0 on n1; 2.12.1 on n2"


def test_another_configuration_is_told_by_its_keys():
    told = find_other_config(make_hello(0), make_hello(2), {"a": 1, "b": 2}, {"a": 1, "b": 3})
    assert told.message == "rank 2 on n2 is asked for something else than rank 0 on n1: b = 3 (2)"


def test_every_pair_of_hosts_meets_once_and_none_twice_a_round():
    for hosts in (2, 3, 6, 9):
        rounds = plan_rounds(hosts)
        pairs = [pair for one in rounds for pair in one]
        assert sorted(pairs) == [(a, b) for a in range(hosts) for b in range(a + 1, hosts)]
        for one in rounds:
            seats = [seat for pair in one for seat in pair]
            assert len(seats) == len(set(seats))
