"""Rendezvous of ranks on several hosts (network namespaces of this machine): one message names the faulty host."""

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.builders.training_runs import set_arguments
from support.processes.command import Finished
from support.processes.forked import Nursery, wait_until
from support.processes.hosts import Hosts, make_hosts
from trainstone.results.run_folder import read_result

QUICK = {"parallel.rendezvous_seconds": 12.0, "stop.steps": 1, "data.generated_train": 16, "data.generated_val": 8}
BOTH = ["h1", "h2"]
# Code that fakes a fault on one rank.
OTHER_VERSION = """
import os; from trainstone.engine.distributed import roll_call; real = roll_call.read_versions
if os.environ['RANK'] == '1': roll_call.read_versions = lambda: {{**real(), '{name}': '2.12.1'}}
"""
NO_DEVICE = """
import os, torch; from trainstone.engine.distributed import data_parallel, rendezvous, roll_call
def choose(_device, rank):
    data_parallel.place_device(torch.device('cuda'), rank)
    return torch.device('cpu')
torch.accelerator.device_count = lambda: 2 if os.environ['RANK'] == '0' else 0
roll_call.choose_rank_device = rendezvous.choose_rank_device = choose
"""
STOPS = """
import os, signal; from trainstone.engine.distributed import {module}, roll_call
roll_call.REST_SECONDS = 5.0
def stop(*_): os.kill(os.getpid(), signal.{signal})
if os.environ['RANK'] == '{rank}': {module}.{function} = stop
"""


@pytest.fixture(scope="module")
def hosts(nursery: Nursery) -> Iterator[Hosts]:
    with make_hosts(3, nursery) as made:
        yield made


def train(out: Path, **changes: object) -> list[str]:
    changed = QUICK | {name.replace("__", "."): value for name, value in changes.items()}
    return ["train", "demo-classify", *set_arguments(**changed), "--out", str(out)]


def assert_shown_once(ended: list[Finished], code: int, *parts: str) -> None:
    """Check that rank 0 prints one message, other ranks none, and all have the same exit code."""
    assert [one.code for one in ended] == [code] * len(ended), ended
    message = [line for one in ended for line in one.err.splitlines() if line.startswith("error: ")]
    assert len(message) == 1, ended
    for part in parts:
        assert part in message[0]
    assert all(one.err == "" for one in ended[1:]), ended


def test_train_on_three_hosts_records_hosts_and_all_reduce(hosts: Hosts, tmp_path: Path):
    caches = {host: tmp_path / f"cache-{host}" for host in hosts.names}
    env = {host: {"TRAINSTONE_CACHE": str(cache)} for host, cache in caches.items()}
    ended = hosts.run(hosts.names, train(tmp_path / "runs"), env=env)
    assert [one.code for one in ended] == [0, 0, 0], ended
    place = f"10.77.0.1:{hosts.port}"
    assert f"connecting with 2 other ranks at {place}" in ended[0].err
    assert f"3 ranks on 3 hosts connected at {place} over eth0; all-reduce of " in ended[0].err
    drawn = [sorted(file.name for file in cache.rglob("*") if file.is_file()) for cache in caches.values()]
    assert drawn[0]
    assert drawn[1:] == drawn[:1] * 2
    (run,) = (tmp_path / "runs").iterdir()
    result = read_result(run)
    assert result.preflight is not None
    met = [(one.host, one.ranks, one.interface) for one in result.preflight.hosts]
    assert met == [("h1", [0], "eth0"), ("h2", [1], "eth0"), ("h3", [2], "eth0")]
    timed = result.preflight.all_reduce
    assert timed is not None
    assert timed.bytes[0] == 2**10
    assert 0 < timed.seconds[0] < timed.seconds[-1]
    assert timed.bytes_per_second == pytest.approx(timed.bytes[-1] / timed.seconds[-1])
    assert not [name for name in result.files if name.startswith(".rendezvous")]


def test_missing_data_or_folder_error_names_host(hosts: Hosts, tmp_path: Path):
    images, runs = tmp_path / "images", tmp_path / "runs"
    images.mkdir()
    runs.mkdir()
    command = train(runs, data__source="files", data__root=str(images))
    ended = hosts.run(BOTH, command, before={"h2": f"mount -t tmpfs none {tmp_path}; mkdir -p {runs}"})
    assert_shown_once(ended, 3, "rank 1 on h2: cannot read the data set", str(images))
    read_only = f"mount --bind {runs} {runs}; mount -o remount,ro,bind {runs}"
    ended = hosts.run(BOTH, train(runs), before={"h2": read_only})
    assert_shown_once(ended, 7, f"cannot write the run folder {runs}")
    ended = hosts.run(BOTH, train(runs), before={"h2": f"mount -t tmpfs none {runs}"})
    assert_shown_once(ended, 7, "h2 does not see the run folder")


def test_differing_versions_devices_or_config_error_names_host(hosts: Hosts, tmp_path: Path):
    for name in ("torch", "trainstone"):
        ended = hosts.run(BOTH, train(tmp_path), prepare=OTHER_VERSION.format(name=name))
        assert_shown_once(ended, 4, f"rank 1 on h2: {name} 2.12.1 differs from {name} ")
    ended = hosts.run(BOTH, train(tmp_path), prepare=NO_DEVICE)
    assert_shown_once(ended, 4, "rank 1 on h2: ", "its host has 0 CUDA devices")
    other = "import os, sys\nif os.environ['RANK'] == '1': sys.argv += ['--set', 'seed=7']"
    ended = hosts.run(BOTH, train(tmp_path), prepare=other)
    assert_shown_once(ended, 2, "rank 1 on h2: configuration differs from that of rank 0 on h1: seed = 7 (")


@pytest.mark.slow
def test_wrong_interface_error_names_host(hosts: Hosts, tmp_path: Path):
    ended = hosts.run(BOTH, train(tmp_path, parallel__interface="ib7"))
    missing = "rank 0 on h1: network interface ib7 (parallel.interface) does not exist"
    assert_shown_once(ended, 5, missing, "eth0 (10.77.0.1)")
    loopback = {host: {"GLOO_SOCKET_IFNAME": "lo"} for host in BOTH}
    ended = hosts.run(BOTH, train(tmp_path), env=loopback)
    assert_shown_once(ended, 5, "rank 0 on h1: network interface lo is loopback", "eth0 (10.77.0.1)")
    for number, host in enumerate(BOTH, 1):  # an interface without a route to the other host
        assert hosts.shell(host, "ip link add side0 type veth peer name side1")
        assert hosts.shell(host, f"ip addr add 10.9.0.{number}/24 dev side0")
        assert hosts.shell(host, "ip link set side0 up; ip link set side1 up")
    ended = hosts.run(BOTH, train(tmp_path, parallel__interface="side0"))
    assert [one.code for one in ended] == [5, 5], ended
    (message,) = (line for one in ended for line in one.err.splitlines() if line.startswith("error: "))
    assert message.startswith("error: rank 1 on h2: ranks cannot communicate over gloo: ")
    assert "No route to host, remote=[10.9.0.1]" in message
    assert "hosts: h1 at 10.9.0.1 (side0), h2 at 10.9.0.2 (side0)" in message


@pytest.mark.slow
def test_missing_rank_and_port_in_use_are_reported(hosts: Hosts, tmp_path: Path):
    command = train(tmp_path, parallel__rendezvous_seconds=5.0)
    ended = hosts.run(BOTH, command, world=3, env={"h1": {"SLURM_JOB_NODELIST": "h[1-3]"}})
    assert_shown_once(ended, 5, "rank 2 did not connect to ", "; connected: h1 (0), h2 (1); no rank connected from h3")
    nowhere = {"MASTER_ADDR": "10.77.0.99", "RANK": "1", "WORLD_SIZE": "2"}
    (ended_1,) = hosts.run(["h2"], command, env={"h2": nowhere})
    assert ended_1.code == 5
    assert f"error: rank 1 on h2 cannot reach rank 0 at 10.77.0.99:{hosts.port} within 5 s: " in ended_1.err
    taken = tmp_path / "taken"
    program = f"import socket,time; s=socket.create_server(('', {{port}})); open('{taken}', 'w'); time.sleep(60)"
    taker = f'python3 -c "{program}" & until [ -e {taken} ]; do sleep 0.05; done'
    ended = hosts.run(BOTH, command, before={"h1": taker})
    place = f"10.77.0.1:{hosts.port}"
    assert [one.code for one in ended] == [5, 5]
    assert f"error: rank 0 on h1 cannot listen at {place}: the port is in use" in ended[0].err
    # Without a store both ranks print an error.
    assert f"error: rank 1 on h2 cannot reach rank 0 at {place} within 5 s: " in ended[1].err
    assert "check that rank 0 is running (see its output)" in ended[1].err
    assert [len(one.err.splitlines()) for one in ended] == [4, 2], ended  # no output of torch


@pytest.mark.slow
def test_hanging_rank_is_reported_by_another_rank(hosts: Hosts, tmp_path: Path):
    silent = "no answer from h2 (1) after connecting to {}"
    cases = [(1, "roll_call", "check_rank", silent, "SIGSTOP"), (1, "rendezvous", "open_group", silent, "SIGSTOP")]
    lost = "rank 1 on h2 lost rank 0 at {}: it "
    cases += [(0, "roll_call", "compare_ranks", f"{lost}does not answer", "SIGSTOP")]
    cases += [(0, "roll_call", "compare_ranks", f"{lost}ended without a message", "SIGKILL")]
    started = []
    for rank, module, function, message, number in cases:
        stops = STOPS.format(rank=rank, module=module, function=function, signal=number)
        ranks = hosts.start(BOTH, train(tmp_path, parallel__rendezvous_seconds=5.0), prepare=stops)
        started.append((ranks[rank], ranks[1 - rank], f"error: {message.format(f'10.77.0.1:{hosts.port}')}"))
    for stopped, other, message in started:
        ended = other.wait()
        stopped.send(signal.SIGKILL)
        assert stopped.wait().code == -signal.SIGKILL
        assert ended.code == 5
        assert [line for line in ended.err.splitlines() if line.startswith("error: ")] == [message]


def test_error_of_rank_0_ends_other_ranks_with_its_exit_code(hosts: Hosts, tmp_path: Path):
    file = tmp_path / "file"
    file.touch()
    ended = hosts.run(BOTH, train(file, parallel__rendezvous_seconds=600.0))
    assert_shown_once(ended, 7, str(file))


@pytest.mark.parametrize("rank", [0, 1])
def test_signal_during_rendezvous_ends_immediately(nursery: Nursery, tmp_path: Path, rank: int):
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts connections of rank 1, but never answers
        server.settimeout(60)
        port = server.getsockname()[1]
        if rank == 0:
            server.close()
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank)}
        child = nursery.start(*train(tmp_path, parallel__rendezvous_seconds=600.0), env=place)
        held = []
        if rank == 0:
            wait_until(lambda: "connecting with 1 other rank" in child.err.read_text())
        else:
            held = [server.accept() for _ in range(2)]  # the second connection is from torch's store
        child.send(signal.SIGTERM)
        ended = child.wait()
    for connection, _ in held:
        connection.close()
    assert ended.code == 75, ended


def test_rendezvous_over_ipv6(nursery: Nursery, tmp_path: Path):
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as probe:
            port = probe.getsockname()[1]
    except OSError:
        pytest.skip("needs IPv6")
    same = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "::1", "MASTER_PORT": str(port)}
    ranks = [
        nursery.start(*train(tmp_path), env={**same, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)
    ]
    ended = [one.wait() for one in ranks]
    assert [one.code for one in ended] == [0, 0], ended
    assert f"2 ranks on 1 host connected at [::1]:{port} over lo; " in ended[0].err
