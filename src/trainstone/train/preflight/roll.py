"""The roll call: every rank comes to one place, says what it is and has, and all go on or none does.

Three rounds: who is there and alike; folders and interfaces; who can reach whom. One rank tells what is wrong.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainstone.config.schema import Config
from trainstone.errors import LaunchError, TrainstoneError
from trainstone.machine.hostlist import list_step_hosts
from trainstone.machine.interfaces import Interface, find_route, find_wished, is_loopback, list_interfaces
from trainstone.machine.launched import name_host
from trainstone.machine.ranks import Rank, read_meeting
from trainstone.train.fit import choose_rank_device
from trainstone.train.preflight import hello
from trainstone.train.preflight.deadline import Deadline, rest_after
from trainstone.train.preflight.folder import check_folder, leave_token
from trainstone.train.preflight.group import choose_backend
from trainstone.train.preflight.reach import CLOCK_PINGS, Clock, Listener, call_all, explain_unreached
from trainstone.train.preflight.room import Room, name_place, open_room

Document = dict[str, Any]
# What hangs on a rank is told by that rank so long before the first one counts who is left.
SPARE_SECONDS = 2.0


@dataclass(frozen=True)
class Own:
    """What this rank found on its host before it came."""

    device: torch.device
    backend: str
    wished: Interface | None
    route: Interface | None
    trouble: TrainstoneError | None


@dataclass(frozen=True)
class Met:
    """What all know when the roll was called."""

    room: Room
    own: Own
    interface: Interface
    hosts: list[Document]
    """host, ranks, network, interface, address, devices, versions; in the order of their first ranks."""
    clocks: dict[str, Clock]
    """On the first rank: of the other hosts."""
    deadline: Deadline
    """When all of the meeting must be over."""

    @property
    def leaders(self) -> list[int]:
        """Return the first rank of each host."""
        return [host["ranks"][0] for host in self.hosts]


def look_around(config: Config, rank: Rank, meeting_host: str, trouble: TrainstoneError | None) -> Own:
    """Find this rank's device, interface and data. What is wrong is kept, for the first rank to tell."""
    device, backend, wished = torch.device("cpu"), "gloo", None
    try:
        device = choose_rank_device(config.device, rank)
        backend = choose_backend(config.parallel, device)
        wished = find_wished(config.parallel.interface)
        hello.check_data(config, config.parallel.meeting_seconds / 2)
    except TrainstoneError as err:
        trouble = trouble or err
    return Own(device, backend, wished, find_route(meeting_host), trouble)


def call_roll(config: Config, rank: Rank, folder: Path | None, trouble: TrainstoneError | None = None) -> Met:
    """Meet all ranks. Trouble of any of them is raised by the first rank; the others leave with its exit code.

    `folder`: the run's, on the first rank. `trouble`: what keeps this rank from going on.
    """
    meeting, coming = read_meeting(), Deadline.after(config.parallel.meeting_seconds)
    own = look_around(config, rank, meeting.host, trouble)
    room = open_room(rank, meeting, coming.left)
    if rank.number:  # the first may have come a moment ago, and waits as long
        coming = Deadline.after(config.parallel.meeting_seconds)
    with ExitStack() as held:
        try:
            token = held.enter_context(leave_token(folder and folder.absolute()))
        except TrainstoneError as err:
            token, own = None, Own(own.device, own.backend, own.wished, own.route, own.trouble or err)
        told = meet(room, config, own, {"folder": str(folder.absolute()) if folder else None, "token": token}, coming)
        deadline = Deadline.after(told["left_seconds"])
        with ExitStack() as listening:
            interface, peers = settle_places(room, own, told, listening, deadline)
            clocks = reach_all(room, interface, peers, told, deadline)
    places = [{key: peer[key] for key in ("interface", "address")} for peer in peers]
    hosts = [host | place for host, place in zip(told["hosts"], places, strict=True)]
    return Met(room, own, interface, hosts, clocks, deadline)


def meet(room: Room, config: Config, own: Own, run: Document, coming: Deadline) -> Document:
    """Round one: who is there, and are all alike? Return the hosts, the run's folder and how much time is left."""
    rest = rest_after(config.parallel.meeting_seconds)
    flat = hello.flatten(config)
    name = hello.hash_flat(flat)
    room.post(f"config/{name}", flat, coming.left)
    mine = hello.say_hello(room.rank, name, own.wished or own.route, own.trouble)
    hellos = room.gather("hello", mine, coming.left)
    problem, told = None, None
    if hellos is not None:
        problem = judge_hellos(room, hellos, flat, config.parallel.meeting_seconds)
        told = {"hosts": list_hosts(hellos), "left_seconds": coming.left + rest, **run}
    return room.tell("hello", told, problem, len(hellos or ()) - 1, coming.left + rest)


def judge_hellos(room: Room, hellos: dict[int, Document], flat: Document, seconds: float) -> TrainstoneError | None:
    """Return the gravest of what is wrong with those who came, or that some did not; None: nothing is."""
    came = {number: one["host"] for number, one in hellos.items()}
    problem: TrainstoneError | None = hello.find_trouble(hellos)
    if problem is None:
        place = name_place(room.meeting)
        problem = hello.find_absent(came, room.rank.world, place, seconds, list_step_hosts())
    problem = problem or hello.find_difference(hellos)
    other = next((one for one in hellos.values() if one["config"] != hellos[0]["config"]), None)
    if problem is None and other:
        theirs = room.read([f"config/{other['config']}"], 1.0)
        problem = hello.find_other_config(hellos[0], other, flat, *theirs.values())
    return problem


def list_hosts(hellos: dict[int, Document]) -> list[Document]:
    """Return each host with its ranks, as its first rank describes it."""
    hosts: dict[str, Document] = {}
    for number, one in sorted(hellos.items()):
        kept = {key: one[key] for key in ("host", "network", "interface", "address", "devices", "versions")}
        hosts.setdefault(one["host"], kept | {"ranks": []})["ranks"].append(number)
    return list(hosts.values())


def settle_interface(own: Own, hosts: list[Document], network: str) -> Interface:
    """Return the interface to take: the one wished for, loopback on one host, else one that leads to another host."""
    others = [host for host in hosts if host["network"] != network]
    present = list_interfaces()
    loopback = next((one for one in present if one.loopback), None)
    if own.wished:
        if own.wished.loopback and others:
            names = ", ".join(f"{one.name} ({one.address})" for one in present if not one.loopback) or "none"
            raise LaunchError(
                f"network interface {own.wished.name} is loopback, which reaches no other host; there are: {names}",
                hint="parallel.interface = NAME, or leave it out: the one that leads to rank 0's host is taken",
            )
        return own.wished
    if not others and loopback:
        return loopback
    ways = [own.route, *(find_route(host["address"]) for host in others if leads_out(host["address"]))]
    found = next((way for way in ways if way and (not way.loopback or not others)), None)
    if found is None:
        away = others[0]["host"] if others else "rank 0"
        names = ", ".join(f"{one.name} ({one.address})" for one in present) or "none"
        raise LaunchError(
            f"no network interface leads to {away}; there are: {names}",
            hint="set MASTER_ADDR to a name or address that all hosts can reach",
        )
    return found


def leads_out(address: str | None) -> bool:
    """Say whether others can go to an address."""
    return address is not None and not is_loopback(address)


def settle_places(
    room: Room, own: Own, told: Document, listening: ExitStack, deadline: Deadline
) -> tuple[Interface, list[Document]]:
    """Round two: interface and run folder of every rank; the first of each host listens. Return where they do."""
    host = next(one for one in told["hosts"] if room.rank.number in one["ranks"])
    mine: Document = {"trouble": None}
    interface = Interface("", "")
    try:
        interface = settle_interface(own, told["hosts"], host["network"])
        if told["token"] and room.rank.number:
            check_folder(Path(told["folder"]), told["token"], room.rank.number, deadline.left - SPARE_SECONDS)
        if room.rank.number == host["ranks"][0]:
            listener = listening.enter_context(Listener(interface.address))
            place = {"port": listener.port, "token": listener.token.hex()}
            mine |= {"host": host["host"], "interface": interface.name, "address": interface.address, **place}
    except TrainstoneError as err:
        mine["trouble"] = hello.describe_trouble(err)
    said = room.gather("place", mine, deadline.left)
    problem, answer = None, None
    if said is not None:
        problem = judge_round(room, said, told)
        answer = {"peers": [said[one["ranks"][0]] for one in told["hosts"]]} if problem is None else None
    heard = room.tell("place", answer, problem, len(said or ()) - 1, deadline.left)
    return interface, heard["peers"]


def judge_round(room: Room, said: dict[int, Document], told: Document) -> TrainstoneError | None:
    """Return the trouble that a rank told of in a later round, or that one was lost since the first."""
    hosts = {number: host["host"] for host in told["hosts"] for number in host["ranks"]}
    return hello.find_trouble(said, hosts) or find_lost(room, said, hosts)


def find_lost(room: Room, said: dict[int, Document], hosts: dict[int, str]) -> LaunchError | None:
    """Return which ranks are no longer heard of; None: all are."""
    lost = [number for number in hosts if number not in said]
    if not lost:
        return None
    return LaunchError(
        f"lost since all met at {name_place(room.meeting)}: {hello.group_ranks(lost, hosts)}",
        hint="their own output says why; a file system or a device that does not answer can be the cause",
    )


def reach_all(
    room: Room, interface: Interface, peers: list[Document], told: Document, deadline: Deadline
) -> dict[str, Clock]:
    """Round three: the first ranks of hosts call each other. Return clocks, on the first rank."""
    clocks: dict[str, Clock] = {}
    failed: list[str] = []
    leads = room.rank.number in [one["ranks"][0] for one in told["hosts"]]
    if leads and len(peers) > 1:
        here = {"host": name_host(), "interface": interface.name}
        clocks, failed = call_all(here, peers, CLOCK_PINGS if room.rank.number == 0 else 1, deadline)
    said = room.gather("reach", {"failed": failed}, deadline.left)
    problem = None
    if said is not None:
        failures = [one for each in said.values() for one in each["failed"]]
        problem = judge_round(room, said, told) or explain_unreached(failures)
    room.tell("reach", None, problem, len(said or ()) - 1, deadline.left)
    return clocks
