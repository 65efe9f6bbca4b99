"""Documents that ranks leave for each other in a store: with two real ranks, and a thousand made-up ones."""

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ranks import find_free_port, run_ranks
from trainstone.config.learning import ParallelConfig
from trainstone.errors import DataError, LaunchError, PeerLostError
from trainstone.machine.interfaces import Interface
from trainstone.machine.ranks import Meeting, Rank
from trainstone.train.preflight import roll, room
from trainstone.train.preflight.room import Room, host_store, name_place, visit_store

MEETING = Meeting("n1", 20123)


def make_rooms(world: int) -> list[Room]:
    import torch.distributed as dist

    store = dist.HashStore()
    return [Room(store, Rank(number, world), MEETING) for number in range(world)]


def test_an_address_is_told_with_its_port():
    assert name_place(MEETING) == "n1:20123"
    assert name_place(Meeting("fd00::1", 5)) == "[fd00::1]:5"


def test_the_first_rank_gathers_who_came_in_time_and_tells():
    first, second, _ = make_rooms(3)
    assert second.gather("x", {"a": 1}, 1) is None
    assert first.gather("x", {"a": 0}, 0.05) == {0: {"a": 0}, 1: {"a": 1}}
    assert first.tell("x", {"go": True}, None, 1, 1) == {"go": True}
    assert second.tell("x", None, None, 0, 1) == {"go": True}


def test_trouble_is_raised_by_the_first_and_ends_the_others_in_silence():
    first, second = make_rooms(2)
    codes: list[Any] = []

    def hear() -> None:
        try:
            second.tell("x", None, None, 0, 30)
        except SystemExit as end:
            codes.append(end.code)

    listener = threading.Thread(target=hear)
    listener.start()
    with pytest.raises(DataError, match="no pictures"):
        first.tell("x", None, DataError("no pictures"), 1, 30)
    listener.join()
    assert codes == [3]


def test_a_first_rank_that_says_nothing_or_is_gone_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "LINGER_SECONDS", 0.05)
    _, second = make_rooms(2)
    with pytest.raises(PeerLostError, match="rank 0 at n1:20123 said nothing in time, as rank 1 on "):
        second.tell("x", None, None, 0, 0.05)

    class Gone:
        def set(self, _key: str, _text: str) -> None:
            raise RuntimeError("Connection reset by peer")

    class Stuck:
        def set(self, _key: str, _text: str) -> None:
            time.sleep(1)

    monkeypatch.setattr(room, "ANSWER_SECONDS", 0.05)
    for store, told in ((Gone(), "left without a word"), (Stuck(), "does not answer any more")):
        with pytest.raises(PeerLostError, match=told):
            Room(store, Rank(1, 2), MEETING).post("x", {}, 0)  # type: ignore[arg-type]


def test_a_port_that_is_taken_and_a_place_where_nobody_answers_are_told():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        meeting = Meeting("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(LaunchError, match=r"cannot listen at .* another program uses this port"):
            host_store(meeting, 5)
        with pytest.raises(LaunchError, match="what listens there does not answer as rank 0 does"):
            visit_store(Rank(1, 2), meeting, 1)
    nobody = Meeting("127.0.0.1", find_free_port())
    with pytest.raises(LaunchError, match="Connection refused") as caught:
        visit_store(Rank(1, 2), nobody, 0.1)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("127.0.0.1 is each host itself")


def test_a_thousand_ranks_are_called_up_and_judged():
    rooms = make_rooms(1000)
    versions = {"trainstone": "1", "torch": "2"}
    for one in rooms:
        number = one.rank.number
        said = {"rank": number, "host": f"n{number // 8}", "versions": versions, "trouble": None, "config": "c"}
        said |= {"network": number // 8, "interface": "eth0", "address": "10.0.0.1", "devices": 8}
        one.store.set(f"hello/{number}", json.dumps(said))
    began = time.process_time()
    hellos = rooms[0].gather("hello", json.loads(rooms[0].store.get("hello/0")), 30)
    assert hellos is not None
    assert len(hellos) == 1000
    assert roll.judge_hellos(rooms[0], hellos, {}, 45) is None
    hosts = roll.list_hosts(hellos)
    assert [len(host["ranks"]) for host in hosts] == [8] * 125
    del hellos[500], hellos[999]
    absent = roll.judge_hellos(rooms[0], hellos, {}, 45)
    assert absent is not None
    assert "ranks 500, 999 did not come" in absent.message
    assert len(absent.message) < 300
    # Some 0.05 s: nothing here grows with the square of the ranks.
    assert time.process_time() - began < 5
    assert len(json.dumps(hosts)) < 100_000


def test_loopback_serves_one_host_and_a_way_out_is_taken_for_several(monkeypatch: pytest.MonkeyPatch):
    import torch

    loopback, card = Interface("lo", "127.0.0.1"), Interface("eth0", "10.0.0.1")
    monkeypatch.setattr(roll, "list_interfaces", lambda: [loopback, card])
    monkeypatch.setattr(roll, "find_route", lambda _address: card)
    here, there = (
        {"host": name, "network": name, "address": address}
        for name, address in (("n1", "127.0.0.1"), ("n2", "10.0.0.2"))
    )
    own = roll.Own(torch.device("cpu"), "gloo", None, loopback, None)
    assert roll.settle_interface(own, [here], "n1") == loopback
    # Rank 0 goes to itself by loopback: the way to another host counts.
    assert roll.settle_interface(own, [here, there], "n1") == card
    wished = roll.Own(torch.device("cpu"), "gloo", loopback, card, None)
    with pytest.raises(LaunchError, match=r"lo is loopback, .* there are: eth0 \(10.0.0.1\)"):
        roll.settle_interface(wished, [here, there], "n1")
    monkeypatch.setattr(roll, "find_route", lambda _address: None)
    with pytest.raises(LaunchError, match="no network interface leads to n2"):
        roll.settle_interface(own, [here, there], "n1")


def meet_twice_and_wait() -> dict[str, Any]:
    """In each rank: meet, part, meet again; then the second rank sleeps longer than the first waits for it."""
    import torch
    import torch.distributed as dist

    from ranks import join_world
    from trainstone.machine.ranks import read_rank
    from trainstone.train.distributed import barrier, sum_over

    parallel = ParallelConfig(timeout_seconds=2.0, meeting_seconds=40.0, time_links=False)
    with join_world(parallel) as world:
        first = float(sum_over(world, torch.ones(1)))
    with join_world(parallel.model_copy(update={"time_links": True})) as world:
        second = float(sum_over(world, torch.ones(1)))
        barrier(world)
        if read_rank().number:
            time.sleep(6)
            return {"sums": [first, second]}
        waited = []
        for group in (world.control, None):
            began = time.perf_counter()
            try:
                dist.all_reduce(torch.ones(1), group=group)
            except RuntimeError:
                waited.append(time.perf_counter() - began)
        links = world.preflight.links if world.preflight else []
        return {"sums": [first, second], "waited": waited, "links": [link.hosts for link in links]}


def test_ranks_meet_again_and_have_the_patience_that_the_recipe_says(tmp_path: Path):
    first, second = run_ranks(2, meet_twice_and_wait, tmp_path)
    assert first["sums"] == second["sums"] == [2.0, 2.0]
    assert len(first["waited"]) == 2
    assert all(1.5 < seconds < 4 for seconds in first["waited"])
    assert first["links"] == [[]]
