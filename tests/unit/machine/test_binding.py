import os

import pytest

from trainstone.machine import binding
from trainstone.machine.binding import bind_cores, share_cores
from trainstone.machine.ranks import Rank

CORES = [frozenset({n, n + 7}) for n in range(7)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_shares_are_fair_whole_and_apart(ranks: int):
    shares = [share_cores(CORES, ranks, number) for number in range(ranks)]
    assert sorted(cpu for share in shares for cpu in share) == list(range(14))
    assert max(map(len, shares)) - min(map(len, shares)) in (0, 2)  # a core has two threads here
    assert shares[0] >= {0, 7}


def test_more_ranks_than_cores_share_in_turn():
    assert [share_cores(CORES[:2], 5, number) for number in range(5)] == [*CORES[:2], *CORES[:2], CORES[0]]


def test_a_rank_takes_its_share_once_and_only_if_asked(monkeypatch: pytest.MonkeyPatch):
    taken: list[frozenset[int]] = []
    monkeypatch.setattr(binding, "list_cores", lambda _cpus: CORES)
    monkeypatch.setattr(binding, "remember_affinity", lambda: None)
    monkeypatch.setattr(os, "sched_setaffinity", lambda _pid, cpus: taken.append(cpus))
    for name, value in {"RANK": "1", "WORLD_SIZE": "7", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "7"}.items():
        monkeypatch.setenv(name, value)
    bind_cores(Rank(1, 7, 1))
    assert taken == []
    monkeypatch.setenv("TRAINSTONE_BIND", "cores")
    bind_cores(Rank(1, 7, 1))
    bind_cores(Rank(1, 7, 1))
    assert taken == [CORES[1]]
    monkeypatch.setenv("TRAINSTONE_BIND", "cores")
    monkeypatch.setenv("SLURM_CPU_BIND_TYPE", "mask_cpu:")
    bind_cores(Rank(1, 7, 1))
    assert len(taken) == 1
