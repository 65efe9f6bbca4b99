"""Check all ranks before the process group is opened: every rank posts a document, rank 0 reports what is wrong.

Each rank checks versions and configuration against rank 0, data set and run folder. rendezvous.py then opens the
process group.
"""

import itertools
import platform
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from trainstone import __version__, errors
from trainstone.config.load import flatten
from trainstone.config.schema import Config
from trainstone.engine.distributed.store import (
    Deadline,
    Document,
    RankStore,
    call_within,
    format_address,
    open_store,
)
from trainstone.engine.fit import choose_rank_device
from trainstone.errors import LaunchError, TrainstoneError
from trainstone.machine import interfaces
from trainstone.machine.interfaces import Interface, find_route, list_interfaces
from trainstone.machine.launch_protocol import get_host_name
from trainstone.machine.ranks import Rank, list_step_hosts, read_rendezvous
from trainstone.measure.devices import list_devices
from trainstone.units import format_count

# Time limit for what follows once all ranks have connected: with 45 s to connect, every error is shown within a minute.
# A larger world, which needs more time to connect, gets more for the rest too.
REST_SECONDS, REST_SHARE = 12.0, 0.25
EQUAL_VERSIONS = ("trainstone", "torch", "nccl")
# Keys that may differ between hosts.
HOST_KEYS = ("device", "data.root", "parallel.interface")
SHOWN_KEYS = 3
# A network file system may show a new file late.
VISIBLE_SECONDS = 3.0
FOLDER_HINT = "all hosts must share the run folder: choose an --out DIR that they share"


@dataclass(frozen=True)
class RollCall:
    """What the checks found, on each rank."""

    store: RankStore
    device: torch.device
    backend: str
    interface: str
    """Name of the network interface to use."""
    hosts: list[Document]
    """host, ranks, interface, address, devices, versions; in the order of their first ranks."""
    deadline: Deadline
    """Time limit for opening the process group."""


def call_roll(config: Config, rank: Rank, folder: Path | None, trouble: TrainstoneError | None = None) -> RollCall:
    """Wait until every rank has posted its document. Rank 0 raises the error of any rank; the others exit silently.

    `folder`: the run folder, on rank 0. `trouble`: an error that this rank has already found.
    """
    address, seconds = read_rendezvous(), config.parallel.rendezvous_seconds
    deadline = Deadline.after(seconds)
    store = open_store(rank, address, deadline.left)
    if rank.number:  # rank 0 may have started only now, and waits as long
        deadline = Deadline.after(seconds)
    mine = {
        "rank": rank.number,
        "host": get_host_name(),
        "network": interfaces.get_network_id(),
        "devices": sum(not name.startswith("cpu") for name in list_devices()),
        "versions": read_versions(),
        "interfaces": [one for one in list_interfaces() if not one.loopback],
    }
    store.post(f"arrived/{rank.number}", {"host": mine["host"]}, deadline.left)
    # A file that identifies the run folder: another folder of the same name does not have it.
    token = folder.absolute() / f".rendezvous-{secrets.token_hex(8)}.partial" if folder else None
    first = mine | {"config": list_shared_keys(config), "token": str(token) if token else None}
    if rank.number == 0:
        store.post("rank0", first, deadline.left)
    else:
        first = store.read_of_rank_0("rank0", deadline.left)
    device, backend, requested = torch.device("cpu"), "gloo", None
    end = Deadline(deadline.end + max(REST_SECONDS, REST_SHARE * seconds))
    try:
        try:
            if trouble is None:
                device, backend, requested = check_rank(config, rank, mine, first)
        except TrainstoneError as err:
            trouble = err
        mine |= {"requested": requested is not None, "interface": requested or find_route(address.host)}
        mine |= {"error": describe_error(trouble)}
        compare = partial(compare_ranks, store, seconds, end)
        answer = store.hold_round("identity", mine, compare, deadline.left, end.left)
    finally:
        with suppress(OSError):
            if token:
                token.unlink()
    own = next(host["interface"] for host in answer["hosts"] if rank.number in host["ranks"])
    interface = requested.name if requested else own
    return RollCall(store, device, backend, interface, answer["hosts"], Deadline.after(answer["seconds"]))


def check_rank(
    config: Config, rank: Rank, mine: Document, first: Document
) -> tuple[torch.device, str, Interface | None]:
    """Return device, backend and requested interface of this rank; raise if this rank or its host is not usable."""
    seconds, token = config.parallel.rendezvous_seconds, Path(first["token"]) if first["token"] else None
    if token and rank.number == 0:
        check_folder(token, 0, seconds / 2)
    device, backend = choose_rank_device(config.device, rank), config.parallel.backend
    if backend == "auto":
        backend = "nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo"
    if backend == "nccl" and device.type != "cuda":
        raise errors.ConfigError(
            f"parallel.backend = nccl needs CUDA devices, this is {device.type}", hint="--set parallel.backend=gloo"
        )
    if not dist.is_backend_available(backend):
        raise errors.MachineError(f"this torch was built without {backend}", hint="--set parallel.backend=auto")
    requested = interfaces.find_requested_interface(config.parallel.interface)
    if config.data.source == "files" and config.data.root is not None:  # generated data is written later if missing
        root = Path(config.data.root)
        try:
            call_within(seconds / 2, lambda: next(root.iterdir(), None) if root.is_dir() else root.open("rb").close())
        except OSError as err:
            reason = err.strerror or f"the file system does not answer within {seconds / 2:g} s"
            hint = "every host needs the data set at the same path: --data DIR"
            raise errors.DataError(f"cannot read the data set {root}: {reason}", hint=hint) from err
    if rank.number:
        compare_with_rank_0(mine, list_shared_keys(config), first)
        if token:
            check_folder(token, rank.number, max(2 * VISIBLE_SECONDS, seconds / 4))
    return device, backend, requested


def compare_ranks(store: RankStore, seconds: float, end: Deadline, documents: dict[int, Document]) -> Document:
    """On rank 0: raise if a rank has an error or is missing; return the hosts and the time left for the rest."""
    hosts, world = {number: one["host"] for number, one in documents.items()}, store.rank.world
    place = format_address(store.address)
    raise_first_error(documents, hosts)
    if len(hosts) < world:
        arrived = store.read([f"arrived/{number}" for number in range(world)], 0.0)
        hosts |= {int(key.partition("/")[2]): one["host"] for key, one in arrived.items()}
        if missing := [number for number in range(world) if number not in hosts]:
            silent = [host for host in list_step_hosts() if host not in hosts.values()]
            where = f"; no rank connected from {shorten(silent)}" if silent else ""
            raise LaunchError(
                f"{'rank' if len(missing) == 1 else 'ranks'} {join_ranks(missing)} did not connect to {place} within "
                f"{seconds:g} s; connected: {group_by_host(hosts, hosts)}{where}",
                hint="see their own output, and check that their hosts can reach this address; more time: "
                "--set parallel.rendezvous_seconds=N",
            )
        require_answers(documents, hosts, place)
    return {"hosts": list_hosts(documents), "seconds": end.left}


def describe_error(error: TrainstoneError | None) -> Document | None:
    return error and {"exit_code": error.exit_code, "message": error.message, "hint": error.hint}


def raise_first_error(documents: dict[int, Document], hosts: dict[int, str]) -> None:
    failed = [number for number, one in sorted(documents.items()) if one["error"]]
    if failed:
        first, *others = failed
        error = documents[first]["error"]
        also = f" (and {format_count(len(others), 'more rank')}: {group_by_host(others, hosts)})" if others else ""
        message = f"rank {first} on {hosts[first]}: {error['message']}{also}"
        raise errors.build_child_error(error["exit_code"], message, error["hint"])


def require_answers(documents: dict[int, Document], hosts: dict[int, str], place: str) -> None:
    """Raise if a rank has connected but posted no document."""
    silent = [number for number in hosts if number not in documents]
    if silent:
        raise LaunchError(
            f"no answer from {group_by_host(silent, hosts)} after connecting to {place}",
            hint="see their own output; a file system or a device that does not answer may be the cause",
        )


def list_hosts(documents: dict[int, Document]) -> list[Document]:
    """Return each host with its ranks, and devices, versions and network interface of its first rank.

    The interface of a rank is the requested one, loopback on a single host, else the one that routes to another host.
    """
    far = next((one for one in documents.values() if one["network"] != documents[0]["network"]), None)
    loopback = next((one for one in list_interfaces() if one.loopback), None)
    hosts: dict[str, Document] = {}
    for number, one in sorted(documents.items()):
        found = Interface(*one["interface"]) if one["interface"] else None
        if far is None and loopback and not one["requested"]:
            found = loopback
        elif far and far["interface"] and not one["requested"] and (found is None or found.loopback):
            found = find_route(far["interface"][1])  # on rank 0's own host, where MASTER_ADDR may be a loopback address
        if found is None or (far and found.loopback):
            what = f"network interface {found.name} is loopback and cannot reach other hosts" if found else None
            present = ", ".join(f"{name} ({address})" for name, address in one["interfaces"]) or "none"
            raise LaunchError(
                f"rank {one['rank']} on {one['host']}: {what or 'no route to other hosts'}; interfaces: {present}",
                hint="--set parallel.interface=NAME, or leave it out to use the route to rank 0's host",
            )
        entry = {"host": one["host"], "ranks": [], "interface": found.name, "address": found.address}
        host = hosts.setdefault(one["host"], entry | {"devices": one["devices"], "versions": one["versions"]})
        host["ranks"].append(number)
    return list(hosts.values())


def join_ranks(numbers: list[int]) -> str:
    """Format rank numbers as `3, 5-9, 12`."""
    parts = []
    for _, neighbours in itertools.groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]):
        run = [str(number) for _, number in neighbours]
        parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else run
    return ", ".join(parts)


def group_by_host(numbers: Iterable[int], hosts: dict[int, str]) -> str:
    """Format ranks by host as `n1 (0, 1), n2 (2)`."""
    grouped: dict[str, list[int]] = {}
    for number in sorted(numbers):
        grouped.setdefault(hosts[number], []).append(number)
    return shorten([f"{host} ({join_ranks(ranks)})" for host, ranks in grouped.items()])


def shorten(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def read_versions() -> dict[str, str]:
    found = {"trainstone": __version__, "torch": str(torch.__version__)}
    found |= {"python": platform.python_version(), "numpy": np.__version__}
    if torch.cuda.is_available() and dist.is_nccl_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


def list_shared_keys(config: Config) -> Document:
    return {key: value for key, value in flatten(config.model_dump(mode="json")) if key not in HOST_KEYS}


def compare_with_rank_0(mine: Document, keys: Document, first: Document) -> None:
    for name in EQUAL_VERSIONS:
        here, there = (one["versions"].get(name, "none") for one in (mine, first))
        if here != there:
            raise errors.MachineError(
                f"{name} {here} differs from {name} {there} of rank 0 on {first['host']}",
                hint=f"install the same version of {name} on all hosts",
            )
    differing = [key for key in sorted(keys | first["config"]) if keys.get(key) != first["config"].get(key)]
    if differing:
        shown = shorten([f"{key} = {keys.get(key)} ({first['config'].get(key)})" for key in differing], SHOWN_KEYS)
        raise errors.ConfigError(
            f"configuration differs from that of rank 0 on {first['host']}: {shown}",
            hint="start all ranks with the same command",
        )


def check_folder(token: Path, number: int, seconds: float) -> None:
    """Write the token on rank 0; on other ranks raise if it is not visible or the run folder is not writable."""
    folder = token.parent

    def find_and_write() -> bool:
        if number == 0:
            token.touch()
            return True
        deadline = Deadline.after(VISIBLE_SECONDS)
        while not token.exists():
            if not deadline.left:
                return False
            with suppress(OSError):
                list(folder.iterdir())  # makes NFS look again
            time.sleep(0.05)
        mine = token.with_suffix(f".{number}.partial")
        mine.touch()
        mine.unlink()
        return True

    try:
        visible = call_within(seconds, find_and_write)
    except OSError as err:
        reason = err.strerror or "the file system does not answer"
        message = f"cannot write the run folder {folder} on {get_host_name()}: {reason}"
        raise errors.ResultError(message, hint=FOLDER_HINT) from err
    if not visible:
        what = "sees another folder of that name instead of" if folder.is_dir() else "does not see"
        raise errors.ResultError(f"{get_host_name()} {what} the run folder {folder}", hint=FOLDER_HINT)
