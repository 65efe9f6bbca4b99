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
    """One that can be used."""

    name: str
    address: str

    @property
    def loopback(self) -> bool:
        """Nobody outside this host can reach it."""
        return is_loopback(self.address)


def is_loopback(address: str) -> bool:
    """Say whether an address means the host itself."""
    plain = address.partition("%")[0]
    return ipaddress.ip_address(plain).is_loopback


def list_interfaces() -> list[Interface]:
    """Return the interfaces that are up, one entry an address; IPv4 before IPv6, as gloo takes them."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = []
    for family in (socket.AF_INET, socket.AF_INET6):
        for name, addresses in psutil.net_if_addrs().items():
            for one in addresses:
                link_local = one.address.lower().startswith("fe80:")
                if one.family == family and name in up and not link_local:
                    found.append(Interface(name, one.address))
    return found


def find_named(name: str, wished_by: str) -> Interface:
    """Return the interface of that name; say which there are where it is not here or has no address."""
    here = list_interfaces()
    found = next((one for one in here if one.name == name), None)
    if found:
        return found
    present = ", ".join(dict.fromkeys(f"{one.name} ({one.address})" for one in here)) or "none"
    state = "has no address or is down" if name in psutil.net_if_addrs() else "is not there"
    raise LaunchError(f"network interface {name} ({wished_by}) {state}; there are: {present}", hint=HINT)


def find_wished(asked: str | None) -> Interface | None:
    """Return the interface that the recipe or the environment names; None: nobody names one."""
    if asked:
        return find_named(asked, "parallel.interface")
    wished = os.environ.get(GLOO)
    if wished:
        return find_named(wished.split(",")[0], GLOO)
    # NCCL also takes beginnings of names, and names that are not to be taken: only a whole name says which one.
    name = os.environ.get(NCCL, "").removeprefix("=").split(",")[0]
    return next((one for one in list_interfaces() if one.name == name), None)


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
                own = str(probe.getsockname()[0])
        except OSError:
            continue
        # All of 127.0.0.0/8 is loopback's, which lists one address only.
        same = (one for one in here if one.address == own or (one.loopback and is_loopback(own)))
        found = next(same, None)
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
