"""Network interfaces of this host, and the one with the route to another host."""

import ipaddress
import os
import socket
from pathlib import Path
from typing import NamedTuple

import psutil

from trainstone.errors import LaunchError

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
HINT = "--set parallel.interface=NAME chooses one by name, the same for all hosts"


class Interface(NamedTuple):
    name: str
    address: str

    @property
    def loopback(self) -> bool:
        return ipaddress.ip_address(self.address.partition("%")[0]).is_loopback


def list_interfaces() -> list[Interface]:
    """Return the interfaces that are up, one entry per address; IPv4 before IPv6, in gloo's order."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    listed = [(name, one) for name, addresses in psutil.net_if_addrs().items() if name in up for one in addresses]
    return [
        Interface(name, one.address)
        for family in (socket.AF_INET, socket.AF_INET6)
        for name, one in listed
        if one.family == family and not one.address.lower().startswith("fe80:")  # link-local
    ]


def find_requested_interface(name: str | None) -> Interface | None:
    """Return the interface that the recipe or the environment names; None if neither does."""
    here, source = list_interfaces(), "parallel.interface"
    by_name = {entry.name: entry for entry in reversed(here)}  # the first of several addresses
    if name is None:
        name, source = os.environ.get(GLOO, "").split(",")[0], GLOO
    if not name:
        # NCCL also accepts prefixes and exclusions; only a full name selects an interface here.
        return by_name.get(os.environ.get(NCCL, "").removeprefix("=").split(",")[0])
    if name not in by_name:
        present = ", ".join(dict.fromkeys(f"{entry.name} ({entry.address})" for entry in here)) or "none"
        state = "has no address or is down" if name in psutil.net_if_addrs() else "does not exist"
        raise LaunchError(f"network interface {name} ({source}) {state}; available: {present}", hint=HINT)
    return by_name[name]


def find_route(host: str) -> Interface | None:
    """Return the interface with the route to a host, or None without a route. Nothing is sent."""
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
        # All of 127.0.0.0/8 is loopback, which lists only one address.
        found = next(
            (entry for entry in here if entry.address == own.address or (entry.loopback and own.loopback)), None
        )
        if found:
            return found
    return None


def get_network_id() -> str:
    """Return an id shared by processes that reach each other over loopback: boot id and network namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/net').stat().st_ino}"
    except OSError:  # not Linux
        return os.uname().nodename
