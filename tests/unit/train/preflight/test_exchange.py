"""What is told when the group does not work: the cause, not its echoes."""

from typing import Any

import torch
import torch.distributed as dist

from trainstone.errors import LaunchError
from trainstone.machine.interfaces import Interface
from trainstone.machine.ranks import Meeting, Rank
from trainstone.train.preflight.deadline import Deadline
from trainstone.train.preflight.exchange import judge_exchange
from trainstone.train.preflight.hello import describe_trouble
from trainstone.train.preflight.roll import Met, Own
from trainstone.train.preflight.room import Room

LOOPBACK = Interface("lo", "127.0.0.1")
ECHO = describe_trouble(LaunchError("closed by peer"))


def judge(**said: dict[str, Any]) -> str | None:
    """The message where four ranks on two hosts should have said something."""
    room = Room(dist.HashStore(), Rank(0, 4), Meeting("n1", 20123))
    own = Own(torch.device("cpu"), "gloo", None, LOOPBACK, None)
    hosts = [{"host": "n1", "ranks": [0, 1]}, {"host": "n2", "ranks": [2, 3]}]
    met = Met(room, own, LOOPBACK, hosts, {}, Deadline.after(1))
    answers = {int(name[1:]): {"trouble": None, "failed": None, **one} for name, one in said.items()}
    problem = judge_exchange(met, answers)
    return problem.message if problem else None


def test_nothing_is_told_where_all_went_well():
    assert judge(r0={}, r1={}, r2={}, r3={}) is None


def test_a_lost_rank_is_told_before_a_bad_pair_and_that_before_troubles():
    troubled = {"trouble": ECHO}
    assert judge(r0=troubled, r1=troubled, r2=troubled) == "lost since all met at n1:20123: n2 (3)"
    pair = {"failed": "n1 and n2 cannot exchange messages: timed out"}
    assert judge(r0=pair, r1=troubled, r2=pair, r3={}) == "n1 and n2 cannot exchange messages: timed out"
    assert judge(r0={}, r1={}, r2=troubled, r3={}) == "rank 2 on n2: closed by peer"
