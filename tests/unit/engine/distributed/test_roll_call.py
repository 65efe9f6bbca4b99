"""Checks of all ranks' documents on rank 0 (a thousand fake ones); documents shared through the store; store errors."""

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support.processes.command import find_free_port
from support.processes.forked import join_world, run_ranks, wait_until
from trainstone.config.schema import ParallelConfig
from trainstone.engine.distributed import roll_call, store
from trainstone.engine.distributed.collectives import barrier
from trainstone.engine.distributed.store import Deadline, RankStore
from trainstone.errors import DataError, LaunchError
from trainstone.machine.interfaces import Interface
from trainstone.machine.ranks import Rank, Rendezvous, read_rank

LOOPBACK, CARD = Interface("lo", "127.0.0.1"), Interface("eth0", "10.0.0.1")


def make_documents(world: int, per_host: int) -> dict[int, dict[str, Any]]:
    documents = {}
    for number in range(world):
        host = f"n{number // per_host}"
        kept = {"rank": number, "host": host, "network": host, "devices": 8, "versions": {"torch": "2"}, "error": None}
        documents[number] = kept | {"requested": False, "interface": CARD, "interfaces": [CARD]}
    return documents


def compare(documents: dict[int, dict[str, Any]], world: int, arrived: tuple[int, ...] = ()) -> dict[str, Any]:
    store = RankStore(dist.HashStore(), Rank(0, world), Rendezvous("n0", 20123))
    for number in arrived:
        store.post(f"arrived/{number}", {"host": "n9"}, 1)
    return roll_call.compare_ranks(store, 45.0, Deadline.after(57), documents)


def test_compare_ranks_handles_thousand_ranks_quickly():
    documents = make_documents(1000, 8)
    began = time.process_time()
    answer = compare(documents, 1000)
    assert [len(host["ranks"]) for host in answer["hosts"]] == [8] * 125
    del documents[500], documents[999]
    with pytest.raises(LaunchError, match="ranks 500, 999 did not connect to n0:20123 within 45 s") as caught:
        compare(documents, 1000)
    assert len(caught.value.message) < 300
    # About 0.1 s: no step is quadratic in the number of ranks.
    assert time.process_time() - began < 5
    assert len(json.dumps(answer)) < 100_000


def test_compare_ranks_names_missing_ranks_and_silent_hosts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[0-2]")
    documents = make_documents(4, 2)
    message = r"ranks 4-6, 8 did not connect to .*; connected: n0 \(0, 1\), n1 \(2, 3\), n9 \(7\)"
    with pytest.raises(LaunchError, match=rf"{message}; no rank connected from n2$"):
        compare(documents, 9, arrived=(7,))


def test_compare_ranks_names_rank_that_hangs():
    with pytest.raises(LaunchError, match=r"no answer from n9 \(4\) after connecting to n0:20123"):
        compare(make_documents(4, 2), 5, arrived=(4,))


def test_compare_ranks_raises_error_of_lowest_rank_first():
    documents = make_documents(4, 2)
    for rank in (2, 3):
        documents[rank]["error"] = roll_call.describe_error(DataError("no /data", hint="get it"))
    with pytest.raises(DataError) as caught:
        compare(documents, 5)
    assert caught.value.message == "rank 2 on n1: no /data (and 1 more rank: n1 (3))"
    assert caught.value.hint == "get it"


def test_list_hosts_uses_loopback_only_on_single_host(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(roll_call, "list_interfaces", lambda: [LOOPBACK, CARD])
    assert roll_call.list_hosts(make_documents(2, 2))[0]["interface"] == "lo"
    documents = make_documents(2, 1)
    documents[0]["interface"] = LOOPBACK  # MASTER_ADDR is a loopback address on its own host
    monkeypatch.setattr(roll_call, "find_route", {"10.0.0.1": CARD}.get)
    assert [host["interface"] for host in roll_call.list_hosts(documents)] == ["eth0", "eth0"]
    documents[1] |= {"requested": True, "interface": LOOPBACK}
    documents[0] |= {"requested": True, "interface": CARD}
    with pytest.raises(LaunchError, match=r"rank 1 on n1: network interface lo .*; interfaces: eth0 \(10.0.0.1\)"):
        roll_call.list_hosts(documents)
    documents[0] |= {"requested": False, "interface": None}
    monkeypatch.setattr(roll_call, "find_route", lambda _address: None)
    with pytest.raises(LaunchError, match="rank 0 on n0: no route to other hosts"):
        roll_call.list_hosts(documents)


def test_open_store_reports_port_in_use_and_unreachable_rank_0():
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = Rendezvous("127.0.0.1", other.getsockname()[1])
        with pytest.raises(LaunchError, match=r"rank 0 on .* cannot listen at .* the port is in use"):
            store.open_store(Rank(0, 2), address, 5)
        with pytest.raises(LaunchError, match="the program that listens there is not rank 0"):
            store.open_store(Rank(1, 2), address, 1)
    with pytest.raises(LaunchError, match=r"rank 1 on .* cannot reach rank 0 at .* Connection refused") as caught:
        store.open_store(Rank(1, 2), Rendezvous("127.0.0.1", find_free_port()), 0.1)
    assert (caught.value.hint or "").startswith("127.0.0.1 is the local host")


def connect_twice_and_wait(over: str) -> dict[str, Any]:
    """On each rank: connect, disconnect, connect again; then rank 1 does not answer until rank 0 has timed out."""
    parallel = ParallelConfig(timeout_seconds=1.0, rendezvous_seconds=40.0)
    with join_world(parallel) as world:
        dist.all_reduce(first := torch.ones(1), group=world.control)
    with join_world(parallel) as world:
        dist.all_reduce(second := torch.ones(1), group=world.control)
        barrier(world)
        if read_rank().number:
            wait_until(Path(over).exists)
            return {"sums": [float(first), float(second)]}
        waited = []
        for group in (world.control, None):
            began = time.perf_counter()
            try:
                dist.all_reduce(torch.ones(1), group=group)
            except RuntimeError:
                waited.append(time.perf_counter() - began)
        Path(over).touch()
        timed = world.preflight.all_reduce
        return {"sums": [float(first), float(second)], "waited": waited, "bytes": timed.bytes if timed else None}


def test_connect_ranks_twice_and_groups_use_timeout_of_recipe(tmp_path: Path):
    first, second = run_ranks(2, connect_twice_and_wait, tmp_path, str(tmp_path / "over"))
    assert first["sums"] == second["sums"] == [2.0, 2.0]
    assert len(first["waited"]) == 2
    assert all(0.7 < seconds < 30 for seconds in first["waited"])
    assert first["bytes"][:2] == [2**10, 2**20]
