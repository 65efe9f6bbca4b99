"""The place where ranks tell each other small documents before there is any process group: torch's TCP store.

Every wait has an end. Nobody waits inside the store itself: its time-outs print warnings of their own.
"""

import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from trainstone.errors import LaunchError, PeerLostError, TrainstoneError
from trainstone.machine.interrupt import find_asked
from trainstone.machine.launched import name_host
from trainstone.machine.ranks import Meeting, Rank
from trainstone.text import printable
from trainstone.train.preflight.deadline import Deadline, call_within

Document = dict[str, Any]
Answer = TypeVar("Answer")
# How long the first rank stays after bad news, so that all can hear them; the others wait for news as much longer.
LINGER_SECONDS = 2.0
FIRST_LOOK, LAST_LOOK = 0.005, 0.25
# An answer of the store may be on its way when time is over.
ANSWER_SECONDS = 0.5
# And for each of many ranks, whose documents are fetched one by one.
EACH_SECONDS = 0.002


@dataclass(frozen=True)
class Room:
    """An open store and who this is."""

    store: dist.Store
    rank: Rank
    meeting: Meeting

    def post(self, key: str, document: Document, seconds: float) -> None:
        """Leave a document."""
        self._ask(seconds, lambda: self.store.set(key, json.dumps(document)))

    def read(self, keys: list[str], seconds: float) -> dict[str, Document]:
        """Wait for documents; return those that came in time."""
        answers = self._ask(seconds, lambda: self._await(keys, Deadline.after(seconds)))
        return {key: json.loads(answer) for key, answer in answers.items()}

    def gather(self, name: str, mine: Document, seconds: float) -> dict[int, Document] | None:
        """Leave a document; on the first rank, return those of all ranks that came in time. None on others."""
        self.post(f"{name}/{self.rank.number}", mine, seconds)
        if self.rank.number:
            return None
        keys = [f"{name}/{number}" for number in range(self.rank.world)]
        came = self.read(keys, seconds)
        return {number: came[key] for number, key in enumerate(keys) if key in came}

    def tell(
        self, name: str, told: Document | None, trouble: TrainstoneError | None, listeners: int, seconds: float
    ) -> Document:
        """Return what the first rank tells all. Trouble: it raises it, the others leave with its code and no word."""
        key = f"{name}/told"
        if self.rank.number == 0:
            self.post(key, {"exit_code": trouble.exit_code if trouble else 0, "told": told or {}}, LINGER_SECONDS)
            if trouble is None:
                return told or {}
            self._linger(f"{name}/heard", listeners)
            raise trouble
        answer = self.read([key], seconds + LINGER_SECONDS).get(key)
        if answer is None:
            raise self._miss("said nothing in time")
        if answer["exit_code"]:
            self._ask(LINGER_SECONDS, lambda: self.store.add(f"{name}/heard", 1))
            raise SystemExit(answer["exit_code"])
        heard: Document = answer["told"]
        return heard

    def _await(self, keys: list[str], deadline: Deadline) -> dict[str, bytes]:
        pause = FIRST_LOOK
        while not self.store.check(keys):
            if find_asked():  # perhaps others have left already
                raise KeyboardInterrupt(find_asked())
            if not deadline.left:
                keys = [key for key in keys if self.store.check([key])]
                break
            time.sleep(pause)
            pause = min(LAST_LOOK, pause * 1.5)
        return {key: self.store.get(key) for key in keys}

    def _ask(self, seconds: float, function: Callable[[], Answer]) -> Answer:
        """Use the store, which is within the process of the first rank: it may be gone, or never answer."""
        try:
            return call_within(seconds + ANSWER_SECONDS + self.rank.world * EACH_SECONDS, function)
        except TimeoutError as err:
            raise self._miss("does not answer any more") from err
        except RuntimeError as err:
            raise self._miss("left without a word") from err

    def _miss(self, what: str) -> PeerLostError:
        return PeerLostError(
            f"rank 0 at {name_place(self.meeting)} {what}, as rank {self.rank.number} on {name_host()} saw",
            hint="the output of rank 0 may say why",
        )

    def _linger(self, key: str, listeners: int) -> None:
        """Who hosts the store takes it away when leaving."""
        deadline = Deadline.after(LINGER_SECONDS)
        while self.store.add(key, 0) < listeners and deadline.left:
            time.sleep(0.02)
        time.sleep(0.05)  # their last answers are still on the way


def name_place(meeting: Meeting) -> str:
    """Return host:port."""
    host = printable(meeting.host)
    return f"[{host}]:{meeting.port}" if ":" in host else f"{host}:{meeting.port}"


_opened: dict[Meeting, tuple[dist.Store, int]] = {}


def open_room(rank: Rank, meeting: Meeting, seconds: float) -> Room:
    """Open the store, or go there; say where and why not within the time."""
    store, times = _opened.get(meeting, (None, 0))
    if store is None:
        # torchrun's agent may be the one who listens there.
        hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        store = host_store(meeting, seconds) if rank.number == 0 and not hosted else visit_store(rank, meeting, seconds)
    # It stays open to the end of the process: another meeting here would find the old one half closed.
    _opened[meeting] = store, times + 1
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Room(dist.PrefixStore(f"trainstone/{attempt}/{times}", store), rank, meeting)


def host_store(meeting: Meeting, seconds: float) -> dist.Store:
    """Listen for the others, at all addresses of this host."""
    # It goes to its own store by loopback: its name may lead elsewhere, as behind an address translation.
    here = Meeting("::1" if ":" in meeting.host else "127.0.0.1", meeting.port)
    try:
        return call_within(seconds, lambda: make_store(here, seconds, hosts=True))
    except (RuntimeError, TimeoutError) as err:
        taken = "EADDRINUSE" in str(err)
        reason = "another program uses this port" if taken else first_line(err) or "it does not answer itself"
        raise LaunchError(
            f"rank 0 on {name_host()} cannot listen at {name_place(meeting)}: {reason}",
            hint=f"set MASTER_PORT to a free port of {printable(meeting.host)}, the same for all ranks",
        ) from err


def make_store(meeting: Meeting, seconds: float, *, hosts: bool) -> dist.Store:
    """Open torch's store; it would tell of its own time-outs, so that they come later than ours."""
    timeout = timedelta(seconds=seconds + 60)
    return dist.TCPStore(meeting.host, meeting.port, None, hosts, timeout, wait_for_workers=False)


def visit_store(rank: Rank, meeting: Meeting, seconds: float) -> dist.Store:
    """Go to the store of the first rank, which may come later than this one."""
    deadline, pause = Deadline.after(seconds), FIRST_LOOK
    seconds = round(seconds)  # to tell
    while True:
        try:
            socket.create_connection(meeting, timeout=max(0.1, min(5.0, deadline.left))).close()
            break
        except OSError as err:
            if find_asked():
                raise KeyboardInterrupt(find_asked()) from err
            if deadline.left < pause:
                raise explain_unreachable(rank, meeting, seconds, err.strerror or str(err)) from err
        time.sleep(pause)
        pause = min(LAST_LOOK, pause * 1.5)
    try:
        left = max(1.0, deadline.left)
        return call_within(left, lambda: make_store(meeting, left, hosts=False))
    except TimeoutError as err:  # torch would wait for its answer for ever
        reason = "what listens there does not answer as rank 0 does"
        raise explain_unreachable(rank, meeting, seconds, reason) from err
    except RuntimeError as err:
        raise explain_unreachable(rank, meeting, seconds, first_line(err)) from err


def explain_unreachable(rank: Rank, meeting: Meeting, seconds: float, reason: str) -> LaunchError:
    """Say who could not reach which place."""
    here, there = name_host(), printable(meeting.host)
    hint = (
        f"is rank 0 started, and can {here} reach {there}? MASTER_ADDR and MASTER_PORT say where; where rank 0 cannot "
        "listen there its own output tells"
    )
    if meeting.host == "localhost" or meeting.host.startswith("127."):
        hint = f"{meeting.host} is each host itself: for several hosts set MASTER_ADDR to the name of rank 0's"
    return LaunchError(
        f"rank {rank.number} on {name_host()} cannot reach rank 0 at {name_place(meeting)} within {seconds:g} s: "
        f"{printable(reason)}",
        hint=hint,
    )


def first_line(err: Exception) -> str:
    """Return what happened without torch's trace."""
    return printable((str(err).splitlines() or [""])[0][:300])
