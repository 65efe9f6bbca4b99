"""Several fake hosts on one machine: network namespaces with their own addresses and host names, on one bridge.

Needs root and the command `ip`. Everything is removed at the end.
"""

import ctypes
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.processes.command import Finished
from support.processes.forked import Child, Nursery

CLONE_NEWNET, CLONE_NEWUTS, CLONE_NEWNS = 0x40000000, 0x04000000, 0x00020000
SPACES = Path("/var/run/netns")


@dataclass
class Hosts:
    """The hosts h1, h2, ... with addresses 10.77.0.1, 10.77.0.2, ... on eth0."""

    names: list[str]
    nursery: Nursery
    space: dict[str, str] = field(default_factory=dict)
    port: int = 29411

    def start(
        self,
        ranks: list[str],
        arguments: list[str],
        *,
        world: int | None = None,
        env: dict[str, dict[str, str]] | None = None,
        before: dict[str, str] | None = None,
        prepare: str = "",
    ) -> list[Child]:
        """Start trainstone ranks on these hosts.

        By host: `env`, and `before`, a shell command that may change mounts. `prepare`: Python that ranks run first.
        """
        started = []
        self.port += 1
        same = {"MASTER_ADDR": "10.77.0.1", "MASTER_PORT": str(self.port), "WORLD_SIZE": str(world or len(ranks))}
        for number, host in enumerate(ranks):
            place = {**same, "RANK": str(number), "LOCAL_RANK": str(ranks[:number].count(host))}
            line = (before or {}).get(host, "true").format(port=self.port)
            entered = f"import hosts; hosts.enter({self.space[host]!r}, {host!r}, {line!r})\n{prepare}"
            started.append(self.nursery.start(*arguments, env={**place, **(env or {}).get(host, {})}, prepare=entered))
        return started

    def run(self, ranks: list[str], arguments: list[str], **more: object) -> list[Finished]:
        return [child.wait() for child in self.start(ranks, arguments, **more)]  # type: ignore[arg-type]

    def shell(self, host: str, script: str) -> bool:
        command = ["ip", "netns", "exec", self.space[host], "sh", "-c", script]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def enter(space: str, host: str, before: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(SPACES / space, os.O_RDONLY)
    for failed in (libc.setns(descriptor, CLONE_NEWNET), libc.unshare(CLONE_NEWUTS | CLONE_NEWNS)):
        assert not failed, os.strerror(ctypes.get_errno())
    os.close(descriptor)
    socket.sethostname(host)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["sh", "-c", before], check=True)


@contextmanager
def make_hosts(count: int, nursery: Nursery) -> Iterator[Hosts]:
    tag = secrets.token_hex(2)
    hosts = Hosts([f"h{number}" for number in range(1, count + 1)], nursery)
    bridge = f"ts{tag}br"
    if os.geteuid() or not shutil.which("ip") or not run_ip("link", "add", bridge, "type", "bridge"):
        pytest.skip("needs root and network namespaces")
    try:
        run_ip("link", "set", bridge, "up")
        for number, name in enumerate(hosts.names, 1):
            space, outer = f"ts{tag}{name}", f"ts{tag}v{number}"
            hosts.space[name] = space
            made = run_ip("netns", "add", space) and run_ip(
                "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", space
            )
            if not made:
                pytest.skip("needs root and network namespaces")
            run_ip("link", "set", outer, "master", bridge, "up")
            run_ip("-n", space, "link", "set", "lo", "up")
            run_ip("-n", space, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
            run_ip("-n", space, "link", "set", "eth0", "up")
        yield hosts
    finally:
        for space in hosts.space.values():
            run_ip("netns", "del", space)
        for number in range(1, count + 1):
            run_ip("link", "del", f"ts{tag}v{number}")
        run_ip("link", "del", bridge)


def run_ip(*arguments: str) -> bool:
    return subprocess.run(["ip", *arguments], capture_output=True, check=False).returncode == 0
