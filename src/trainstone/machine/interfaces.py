"""Network interfaces of this host, and the one that traffic to another host takes."""

import ipaddress
import os
import socket
from pathlib import Path
from typing import NamedTuple

import psutil

from trainstone.errors import LaunchError

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
HINT = "parallel.interface chooses one by name, the same for all hosts"


class Interface(NamedTuple):
    name: str
    address: str

    @property
    def loopback(self) -> bool:
        return ipaddress.ip_address(self.address.partition("%")[0]).is_loopback


def list_interfaces() -> list[Interface]:
    """Return the interfaces that are up, one entry an address; IPv4 before IPv6, as gloo takes them."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    listed = [(name, one) for name, addresses in psutil.net_if_addrs().items() if name in up for one in addresses]
    return [
        Interface(name, one.address)
        for family in (socket.AF_INET, socket.AF_INET6)
        for name, one in listed
        if one.family == family and not one.address.lower().startswith("fe80:")  # of one link
    ]


def find_requested(name: str | None) -> Interface | None:
    """Return the interface that the recipe or the environment names; None: neither does."""
    here, source = list_interfaces(), "parallel.interface"
    by_name = {one.name: one for one in reversed(here)}  # of several addresses the first
    if name is None:
        name, source = os.environ.get(GLOO, "").split(",")[0], GLOO
    if not name:
        # NCCL also takes beginnings of names, and names to exclude: only a whole name chooses one.
        return by_name.get(os.environ.get(NCCL, "").removeprefix("=").split(",")[0])
    if name not in by_name:
        present = ", ".join(dict.fromkeys(f"{one.name} ({one.address})" for one in here)) or "none"
        state = "has no address or is down" if name in psutil.net_if_addrs() else "is not there"
        raise LaunchError(f"network interface {name} ({source}) {state}; there are: {present}", hint=HINT)
    return by_name[name]


def find_route(host: str) -> Interface | None:
    """Return the interface whose address this host has towards another; None: no way there. Nothing is sent."""
    try:
        resolved = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    here = list_interfaces()
    for family, kind, _, _, address in resolved:
        try:
            with socket.socket(family, kind) as probe:
                probe.connect(address)
                own = Interface("", str(probe.getsockname()[0]))
        except OSError:
            continue
        # All of 127.0.0.0/8 is loopback's, which lists one address only.
        found = next((one for one in here if one.address == own.address or (one.loopback and own.loopback)), None)
        if found:
            return found
    return None


def name_network() -> str:
    """Return a name that processes share which can reach each other over loopback: this boot and its name space."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/net').stat().st_ino}"
    except OSError:  # not Linux
        return os.uname().nodename
