"""Can each host reach each other at the chosen address, and how far apart are their clocks? Plain TCP, no gloo."""

import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple, Self

from trainstone.errors import LaunchError
from trainstone.train.preflight.deadline import Deadline

CONNECT_SECONDS = 5.0
SPARE_SECONDS = CONNECT_SECONDS + 1.0
MOST_AT_ONCE = 64
CLOCK_PINGS = 8
TOKEN_BYTES = 8
ANSWER = struct.Struct(f"!{TOKEN_BYTES}sd")


class Clock(NamedTuple):
    """How far the clock there goes ahead of the one here, and how well that is known."""

    skew_seconds: float
    uncertainty_seconds: float


class Listener:
    """Answers every byte with its token and its wall clock, until it is closed. Use it by `with`."""

    def __init__(self, address: str) -> None:
        plain, _, scope = address.partition("%")
        family = socket.AF_INET6 if ":" in plain else socket.AF_INET
        place: Any = (plain, 0, 0, socket.if_nametoindex(scope)) if scope else (plain, 0)
        self._server = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._server.bind(place)
            self._server.listen(1024)
        except OSError as err:
            self._server.close()
            raise LaunchError(f"cannot listen at {address}: {err.strerror or err}") from err
        self.port: int = self._server.getsockname()[1]
        self.token = secrets.token_bytes(TOKEN_BYTES)
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # A thread in accept() keeps a socket that is only closed.
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                caller, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(caller,), daemon=True).start()

    def _answer(self, caller: socket.socket) -> None:
        with caller:
            try:
                caller.settimeout(CONNECT_SECONDS)
                while caller.recv(1):
                    caller.sendall(ANSWER.pack(self.token, time.time()))
            except OSError:
                return


def ask_clock(address: str, port: int, token: str, pings: int = 1) -> Clock:
    """Call a listener and return its clock, by the fastest of several answers. OSError: it cannot be reached."""
    best: Clock | None = None
    with socket.create_connection((address, port), timeout=CONNECT_SECONDS) as call:
        call.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(pings):
            sent = time.time()
            call.sendall(b"?")
            answer = b""
            while len(answer) < ANSWER.size:
                piece = call.recv(ANSWER.size - len(answer))
                if not piece:
                    raise ConnectionError("it hung up")
                answer += piece
            got = time.time()
            found, there = ANSWER.unpack(answer)
            if found.hex() != token:
                raise ConnectionError("another program answers there")
            clock = Clock(there - (sent + got) / 2, max(0.0, got - sent) / 2)
            best = clock if best is None or clock.uncertainty_seconds < best.uncertainty_seconds else best
    assert best is not None
    return best


def call_all(
    here: dict[str, Any], peers: Iterable[dict[str, Any]], pings: int, deadline: Deadline
) -> tuple[dict[str, Clock], list[str]]:
    """Call every other host's listener at once; return their clocks, and who cannot be reached in words.

    Where so many do not answer that time is over, the last ones are not called.
    """
    others = [one for one in peers if one["host"] != here["host"]]

    def call(peer: dict[str, Any]) -> Clock | str | None:
        if deadline.left < SPARE_SECONDS:
            return None
        try:
            return ask_clock(peer["address"], peer["port"], peer["token"], pings)
        except OSError as err:
            reason = "timed out" if isinstance(err, TimeoutError) else err.strerror or str(err)
            at = f"{peer['address']} ({peer['interface']})"
            return f"{here['host']} cannot reach {peer['host']} at {at} from {here['interface']}: {reason}"

    with ThreadPoolExecutor(min(MOST_AT_ONCE, len(others)) or 1) as pool:
        answers = dict(zip((one["host"] for one in others), pool.map(call, others), strict=True))
    clocks = {host: answer for host, answer in answers.items() if isinstance(answer, Clock)}
    return clocks, [answer for answer in answers.values() if isinstance(answer, str)]


def explain_unreached(failures: list[str]) -> LaunchError | None:
    """Return one error of all that cannot reach each other; None: all can."""
    if not failures:
        return None
    more = f"; and {len(failures) - 4} more pairs" if len(failures) > 4 else ""
    return LaunchError(
        "; ".join(failures[:4]) + more,
        hint="does a firewall stand between them, or is it the wrong network? parallel.interface chooses another",
    )
