"""Hosts that call each other, on loopback."""

import socket

import pytest

from trainstone.errors import LaunchError
from trainstone.train.preflight import reach
from trainstone.train.preflight.deadline import Deadline

HERE = {"host": "n1", "interface": "eth0"}


def make_peer(host: str, port: int, token: str, address: str = "127.0.0.1") -> dict[str, object]:
    return {"host": host, "address": address, "interface": "eth1", "port": port, "token": token}


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_listener_tells_its_clock(address: str):
    if address == "::1" and not has_ipv6():
        pytest.skip("needs IPv6")
    with reach.Listener(address) as listener:
        peers = [make_peer("n2", listener.port, listener.token.hex(), address), make_peer("n1", 1, "")]
        clocks, failed = reach.call_all(HERE, peers, 4, Deadline.after(60))
    assert failed == []
    assert list(clocks) == ["n2"]
    assert abs(clocks["n2"].skew_seconds) <= clocks["n2"].uncertainty_seconds + 1e-3
    with pytest.raises(OSError):
        reach.ask_clock(address, listener.port, "")


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_who_cannot_be_reached_is_told_with_why(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reach, "CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, reach.Listener("127.0.0.1") as other:
        with socket.create_server(("127.0.0.1", 0)) as gone:
            closed = gone.getsockname()[1]
        peers = [
            make_peer("n2", silent.getsockname()[1], ""),
            make_peer("n3", closed, ""),
            make_peer("n4", other.port, "00" * 8),
        ]
        clocks, failed = reach.call_all(HERE, peers, 1, Deadline.after(60))
    assert clocks == {}
    assert failed == [
        "n1 cannot reach n2 at 127.0.0.1 (eth1) from eth0: timed out",
        "n1 cannot reach n3 at 127.0.0.1 (eth1) from eth0: Connection refused",
        "n1 cannot reach n4 at 127.0.0.1 (eth1) from eth0: another program answers there",
    ]
    told = reach.explain_unreached([*failed, *failed])
    assert told is not None
    assert told.message.count("cannot reach") == 4
    assert told.message.endswith("; and 2 more pairs")


def test_nobody_is_called_when_time_is_over():
    assert reach.call_all(HERE, [make_peer("n2", 1, "")], 1, Deadline.after(1)) == ({}, [])


def test_all_being_reached_is_no_error():
    assert reach.explain_unreached([]) is None


def test_an_address_of_another_host_cannot_be_listened_at():
    with pytest.raises(LaunchError, match=r"cannot listen at 192\.0\.2\.1: "):
        reach.Listener("192.0.2.1")
