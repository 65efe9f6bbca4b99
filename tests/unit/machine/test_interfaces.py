"""Network interfaces of this machine: there is loopback at least."""

import pytest

from trainstone.errors import LaunchError
from trainstone.machine import interfaces
from trainstone.machine.interfaces import GLOO, NCCL, Interface, find_requested, find_route

MADE = [Interface("lo", "127.0.0.1"), Interface("eth0", "10.0.0.1"), Interface("eth0", "fd00::1")]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces, "list_interfaces", lambda: MADE)
    for name in (GLOO, NCCL):
        monkeypatch.delenv(name, raising=False)


def test_loopback_is_found_and_leads_to_this_host():
    loopback = find_route("127.0.0.1")
    assert loopback is not None
    assert loopback.loopback
    assert find_requested(loopback.name) == loopback
    assert find_route("127.8.9.1") == loopback
    assert find_route("no such host.invalid") is None


@pytest.mark.usefixtures("made")
def test_the_recipe_is_believed_before_gloo_and_gloo_before_nccl(monkeypatch: pytest.MonkeyPatch):
    assert find_requested(None) is None
    monkeypatch.setenv(NCCL, "=eth0,eth1")
    assert find_requested(None) == MADE[1]
    monkeypatch.setenv(NCCL, "^docker")
    assert find_requested(None) is None
    monkeypatch.setenv(GLOO, "lo")
    assert find_requested(None) == MADE[0]
    assert find_requested("eth0") == MADE[1]


@pytest.mark.usefixtures("made")
def test_an_interface_that_is_not_there_or_has_no_address_is_told_with_those_that_are(monkeypatch: pytest.MonkeyPatch):
    present = r"there are: lo \(127\.0\.0\.1\), eth0 \(10\.0\.0\.1\), eth0 \(fd00::1\)"
    with pytest.raises(LaunchError, match=rf"ib0 \(parallel.interface\) is not there; {present}"):
        find_requested("ib0")
    monkeypatch.setattr(interfaces.psutil, "net_if_addrs", lambda: {"ib0": []})
    with pytest.raises(LaunchError, match=r"ib0 .* has no address or is down"):
        find_requested("ib0")
