"""Share small JSON documents between ranks before there is a process group, through torch's TCPStore.

Every wait has a time limit. No rank waits inside the store itself: torch prints warnings when such a wait times out.
"""

import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, Self, TypeVar

import torch.distributed as dist

from trainstone.errors import LaunchError, PeerLostError, TrainstoneError
from trainstone.machine.launch_protocol import get_host_name
from trainstone.machine.ranks import Rank, Rendezvous
from trainstone.machine.signals import find_stop_signal
from trainstone.text import printable

Document = dict[str, Any]
Answer = TypeVar("Answer")
# Rank 0 hosts the store. After an error it waits this long, so that the other ranks, which poll every LONGEST_PAUSE
# seconds, can read that they must end.
LINGER_SECONDS = 2.0
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.25
# Extra time for a pending answer of the store, and per document: documents are fetched one by one.
ANSWER_SECONDS, DOCUMENT_SECONDS = 0.5, 0.002


class Deadline(NamedTuple):
    """A point in time of the monotonic clock."""

    end: float

    @classmethod
    def after(cls, seconds: float) -> Self:
        return cls(time.monotonic() + seconds)

    @property
    def left(self) -> float:
        return max(0.0, self.end - time.monotonic())


def call_within(seconds: float, function: Callable[[], Answer], *, interruptible: bool = True) -> Answer:
    """Run a function with a time limit: raise TimeoutError when it expires, KeyboardInterrupt after a stop signal.

    The function then keeps running in its thread: a call that hangs in C++ or in a file system cannot be stopped.
    """
    future: Future[Answer] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as err:  # noqa: BLE001 -- raised again below, in the thread of the caller
            future.set_exception(err)

    deadline = Deadline.after(seconds)
    threading.Thread(target=call, daemon=True).start()  # the process would wait for an executor's threads at its end
    while not wait([future], min(0.1, deadline.left)).done and deadline.left:
        if interruptible and find_stop_signal():  # other ranks may have ended already
            raise KeyboardInterrupt(find_stop_signal())
    return future.result(timeout=0)


@dataclass(frozen=True)
class RankStore:
    """This rank's access to the store that rank 0 hosts."""

    store: dist.Store
    rank: Rank
    address: Rendezvous

    def post(self, key: str, document: Document, seconds: float) -> None:
        self._call(seconds, lambda: self.store.set(key, json.dumps(document)))

    def read(self, keys: list[str], seconds: float) -> dict[str, Document]:
        """Wait for documents; return those that arrive in time."""

        def wait_for_all() -> dict[str, bytes]:
            there, deadline, pause = keys, Deadline.after(seconds), FIRST_PAUSE
            while not self.store.check(there):
                if not deadline.left:
                    there = [key for key in there if self.store.check([key])]
                    break
                time.sleep(pause)
                pause = min(LONGEST_PAUSE, pause * 1.5)
            return {key: self.store.get(key) for key in there}

        return {key: json.loads(text) for key, text in self._call(seconds, wait_for_all).items()}

    def read_of_rank_0(self, key: str, seconds: float) -> Document:
        found = self.read([key], seconds)
        if key not in found:
            raise self._lost("timed out waiting for its message")
        return found[key]

    def hold_round(
        self,
        name: str,
        mine: Document,
        compare: Callable[[dict[int, Document]], Document],
        gather_seconds: float,
        answer_seconds: float,
    ) -> Document:
        """Post this rank's document; rank 0 calls `compare` with all that arrived in time and posts the answer.

        An error of `compare` is raised on rank 0; the other ranks exit with its exit code and print nothing.
        """
        self.post(f"{name}/{self.rank.number}", mine, gather_seconds)
        if self.rank.number:
            answer = self.read_of_rank_0(f"{name}/answer", answer_seconds + LINGER_SECONDS)
            if answer["exit_code"]:
                raise SystemExit(answer["exit_code"])
            return answer
        keys = [f"{name}/{number}" for number in range(self.rank.world)]
        found = self.read(keys, gather_seconds)
        documents = {number: found[key] for number, key in enumerate(keys) if key in found}
        try:
            answer = {"exit_code": 0} | compare(documents)
        except TrainstoneError as err:
            self.post(f"{name}/answer", {"exit_code": err.exit_code}, LINGER_SECONDS)
            time.sleep(LINGER_SECONDS)
            raise
        self.post(f"{name}/answer", answer, LINGER_SECONDS)
        return answer

    def _call(self, seconds: float, function: Callable[[], Answer]) -> Answer:
        """Call the store, which runs in the process of rank 0; raise PeerLostError if that has ended or hangs."""
        try:
            return call_within(seconds + ANSWER_SECONDS + self.rank.world * DOCUMENT_SECONDS, function)
        except TimeoutError as err:
            raise self._lost("it does not answer") from err
        except RuntimeError as err:
            raise self._lost("it ended without a message") from err

    def _lost(self, reason: str) -> PeerLostError:
        return PeerLostError(
            f"rank {self.rank.number} on {get_host_name()} lost rank 0 at {format_address(self.address)}: {reason}",
            hint="see the output of rank 0",
        )


def format_address(address: Rendezvous) -> str:
    host = printable(address.host)
    return f"[{host}]:{address.port}" if ":" in host else f"{host}:{address.port}"


_opened: dict[Rendezvous, tuple[dist.Store, int]] = {}


def open_store(rank: Rank, address: Rendezvous, seconds: float) -> RankStore:
    store, times = _opened.get(address, (None, 0))
    if store is None:
        # The agent of torchrun may host it already.
        by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        if rank.number or by_agent:
            store = connect_store(rank, address, seconds)
        else:
            # It listens at all addresses of this host; rank 0 itself connects through loopback, because its name may
            # resolve to another host (address translation).
            here = Rendezvous("::1" if ":" in address.host else "127.0.0.1", address.port)
            try:
                store = call_within(seconds, lambda: make_store(here, seconds, hosts=True))
            except (RuntimeError, TimeoutError) as err:
                reason = "the port is in use" if "EADDRINUSE" in str(err) else first_line(err)
                raise LaunchError(
                    f"rank 0 on {get_host_name()} cannot listen at {format_address(address)}: {reason}",
                    hint=f"set MASTER_PORT to a free port of {printable(address.host)}, the same for all ranks",
                ) from err
    # It stays open until the process ends: a second rendezvous in this process could find the first half closed.
    _opened[address] = store, times + 1
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return RankStore(dist.PrefixStore(f"trainstone/{attempt}/{times}", store), rank, address)


def make_store(address: Rendezvous, seconds: float, *, hosts: bool) -> dist.Store:
    """Open torch's store with a longer time limit than ours: torch prints a warning when its own expires."""
    timeout = timedelta(seconds=seconds + 60)
    return dist.TCPStore(address.host, address.port, None, hosts, timeout, wait_for_workers=False)


def connect_store(rank: Rank, address: Rendezvous, seconds: float) -> dist.Store:
    """Connect to the store of rank 0, which may start later than this rank."""
    deadline, pause = Deadline.after(seconds), FIRST_PAUSE
    while True:
        try:
            socket.create_connection(address, timeout=max(0.1, min(5.0, deadline.left))).close()
            break
        except OSError as err:
            if find_stop_signal():
                raise KeyboardInterrupt(find_stop_signal()) from err
            if deadline.left < pause:
                raise explain_unreachable(rank, address, seconds, err.strerror or str(err)) from err
        time.sleep(pause)
        pause = min(LONGEST_PAUSE, pause * 1.5)
    try:
        left = max(1.0, deadline.left)
        return call_within(left, lambda: make_store(address, left, hosts=False))
    except TimeoutError as err:  # torch would wait forever for the answer
        raise explain_unreachable(rank, address, seconds, "the program that listens there is not rank 0") from err
    except RuntimeError as err:
        raise explain_unreachable(rank, address, seconds, first_line(err)) from err


def explain_unreachable(rank: Rank, address: Rendezvous, seconds: float, reason: str) -> LaunchError:
    here, there = get_host_name(), printable(address.host)
    hint = (
        f"check that rank 0 is running (see its output), that {here} can reach {there}, and MASTER_ADDR and MASTER_PORT"
    )
    if address.host == "localhost" or address.host.startswith("127."):
        hint = f"{address.host} is the local host: with several hosts set MASTER_ADDR to the host name of rank 0"
    return LaunchError(
        f"rank {rank.number} on {here} cannot reach rank 0 at {format_address(address)} within {round(seconds)} s: "
        f"{printable(reason)}",
        hint=hint,
    )


def first_line(err: Exception) -> str:
    """Return the first line of a torch error, without gloo's source location and general advice."""
    line = (str(err).splitlines() or [type(err).__name__])[0]
    return printable(re.sub(r"\[\S+\.cc:\d+\] |\. This is typically caused .*", "", line)[:300])
