"""Rank, rendezvous address and cores from each launcher's variables; exit codes and failures of ranks."""

import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from support.builders.machines import make_tree
from support.processes.command import LIMIT
from trainstone.errors import DataError, LaunchError, PeerLostError
from trainstone.machine import interfaces, launch_protocol, ranks
from trainstone.machine.cpus import parse_cpu_list
from trainstone.machine.interfaces import GLOO, NCCL, Interface, find_requested_interface, find_route
from trainstone.machine.launch_protocol import (
    begin_attempt,
    read_exit_code,
    read_failures,
    report_exit_code,
    write_failure,
)
from trainstone.machine.ranks import (
    Rank,
    Rendezvous,
    assign_cores,
    bind_cores,
    list_step_hosts,
    read_rank,
    read_rendezvous,
)
from trainstone.machine.signals import StopSignals

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "head", "MASTER_PORT": "29500"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "6",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_LOCALID": "3",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "2",
    "SLURM_JOB_NODELIST": "n[01-03,7],gpu5",
    "SLURM_STEP_NODELIST": "n[02-03]",
}
SAME_HOST = {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}


def port_of(job: str) -> int:
    return 20000 + zlib.crc32(job.encode()) % 12000


def set_variables(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MPI_LOCALRANKID", "MPI_LOCALNRANKS", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("read", "environment", "expected"),
    [
        (read_rank, {}, Rank(0, 1, 0)),
        (read_rank, TORCHRUN, Rank(3, 8, 1)),
        (read_rank, OPEN_MPI, Rank(2, 4, 2)),
        (read_rank, PMI, Rank(1, 2, 1)),
        (read_rank, SRUN, Rank(5, 6, 3)),
        (read_rank, {**SRUN, **TORCHRUN}, Rank(3, 8, 1)),  # torchrun inside a Slurm job
        (read_rank, {**SRUN, **OPEN_MPI}, Rank(2, 4, 2)),  # mpirun inside a Slurm job
        # srun --mpi=pmi2: the local rank is Slurm's
        (read_rank, {**SRUN, "PMI_RANK": "5", "PMI_SIZE": "6"}, Rank(5, 6, 3)),
        (read_rank, {**SRUN, "RANK": "5", "WORLD_SIZE": "6"}, Rank(5, 6, 3)),
        (read_rank, {"RANK": "5", "WORLD_SIZE": "6"}, Rank(5, 6, 0)),
        (read_rank, {"SLURM_PROCID": "0", "SLURM_NTASKS": "6"}, Rank(0, 1, 0)),  # a batch script is a single process
        (read_rank, {"RANK": "3"}, Rank(0, 1, 0)),
        (read_rank, {"RANK": "0", "WORLD_SIZE": "1"}, Rank(0, 1, 0)),
        # Rendezvous address.
        (read_rendezvous, TORCHRUN, Rendezvous("head", 29500)),
        (read_rendezvous, SRUN, Rendezvous("n02", port_of("4711.2"))),
        (read_rendezvous, {**SRUN, "SLURM_STEP_NODELIST": ""}, Rendezvous("n01", port_of("4711.2"))),
        (read_rendezvous, {**SRUN, "MASTER_PORT": "1234"}, Rendezvous("n02", 1234)),
        (read_rendezvous, {**SRUN, "MASTER_ADDR": "head"}, Rendezvous("head", port_of("4711.2"))),
        # mpirun inside a Slurm job: the step of its daemons lacks the first host and differs between ranks
        (read_rendezvous, {**SRUN, **OPEN_MPI, "OMPI_MCA_ess_base_jobid": "9"}, Rendezvous("n01", port_of("9"))),
        (read_rendezvous, {**SRUN, **OPEN_MPI}, Rendezvous("n01", port_of("4711"))),
        (read_rendezvous, {**SAME_HOST, "OMPI_MCA_ess_base_jobid": "9"}, Rendezvous("127.0.0.1", port_of("9"))),
        (
            read_rendezvous,
            {**SAME_HOST, "PMIX_NAMESPACE": "prterun-h-1@1"},
            Rendezvous("127.0.0.1", port_of("prterun-h-1@1")),
        ),
        (read_rendezvous, {**PMI, "MPI_LOCALNRANKS": "2", "MASTER_PORT": "1234"}, Rendezvous("127.0.0.1", 1234)),
        *(
            (list_step_hosts, {"SLURM_JOB_NODELIST": nodes}, hosts.split())
            for nodes, hosts in (
                ("n[01-03,7],gpu5", "n01 n02 n03 n7 gpu5"),
                ("gpu5,n[01-02]", "gpu5 n01 n02"),
                ("n[3,5-6]", "n3 n5 n6"),
                ("rack[2-3]-n[010-011]", "rack2-n010 rack2-n011 rack3-n010 rack3-n011"),
                ("n[1-2].example.org,x", "n1.example.org n2.example.org x"),
            )
        ),
    ],
)
def test_read_rank_read_rendezvous_and_list_step_hosts_use_the_launchers_variables(
    read: Callable[[], object], environment: dict[str, str], expected: object, monkeypatch: pytest.MonkeyPatch
):
    set_variables(environment, monkeypatch)
    assert read() == expected


@pytest.mark.parametrize(
    ("read", "environment", "message", "hint"),
    [
        *((read_rank, {**TORCHRUN, "RANK": rank}, f"RANK={rank!r}:", "") for rank in ("-1", "", "x", "1.0", " 1")),
        (read_rank, {**TORCHRUN, "RANK": "8"}, "RANK=8:", ""),
        (read_rank, {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "0"}, "RANK=0:", ""),
        (read_rank, {**TORCHRUN, "WORLD_SIZE": ""}, "WORLD_SIZE='':", ""),
        (read_rank, {**TORCHRUN, "LOCAL_RANK": "-1"}, "LOCAL_RANK='-1':", ""),
        (read_rendezvous, {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "MASTER_ADDR is not set", "MASTER_ADDR"),
        (read_rendezvous, SAME_HOST, "MASTER_PORT is not set", "MASTER_PORT"),
        (read_rendezvous, {**TORCHRUN, "MASTER_PORT": ""}, "MASTER_PORT is not set", "MASTER_PORT"),
        (read_rendezvous, {**TORCHRUN, "MASTER_PORT": "65536"}, "MASTER_PORT='65536'", ""),
        (read_rendezvous, {**TORCHRUN, "MASTER_PORT": "http"}, "MASTER_PORT='http'", ""),
    ],
)
def test_read_rank_and_read_rendezvous_name_invalid_variables(
    read: Callable[[], object], environment: dict[str, str], message: str, hint: str, monkeypatch: pytest.MonkeyPatch
):
    set_variables(environment, monkeypatch)
    with pytest.raises(LaunchError, match=message) as caught:
        read()
    assert hint in (caught.value.hint or "")


CORES = [frozenset({n, n + 7}) for n in range(7)]


@pytest.mark.parametrize("number", [1, 2, 3, 7])
def test_assign_cores_gives_equal_disjoint_shares_of_whole_cores(number: int):
    shares = [assign_cores(CORES, number, rank) for rank in range(number)]
    assert sorted(cpu for share in shares for cpu in share) == list(range(14))
    assert max(map(len, shares)) - min(map(len, shares)) in (0, 2)  # a core has two threads here
    assert shares[0] >= {0, 7}
    # More ranks than cores share cores in turn.
    assert [assign_cores(CORES[:2], 5, number) for number in range(5)] == [*CORES[:2], *CORES[:2], CORES[0]]


def test_bind_cores_binds_once_and_only_on_request(monkeypatch: pytest.MonkeyPatch):
    bound: list[frozenset[int]] = []
    monkeypatch.setattr(ranks, "list_cores", lambda _cpus: CORES)
    monkeypatch.setattr(ranks, "remember_affinity", lambda: None)
    monkeypatch.setattr(os, "sched_setaffinity", lambda _pid, cpus: bound.append(cpus))
    set_variables({"RANK": "1", "WORLD_SIZE": "7", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "7(x2)"}, monkeypatch)
    bind_cores(Rank(1, 7, 1))
    assert bound == []
    monkeypatch.setenv("TRAINSTONE_BIND", "cores")
    bind_cores(Rank(1, 7, 1))
    bind_cores(Rank(1, 7, 1))
    assert bound == [CORES[1]]
    monkeypatch.setenv("TRAINSTONE_BIND", "cores")
    monkeypatch.setenv("SLURM_CPU_BIND_TYPE", "mask_cpu:")
    bind_cores(Rank(1, 7, 1))
    assert len(bound) == 1


def bind_all(monkeypatch: pytest.MonkeyPatch, root: Path, lists: list[str], cpus: str = "0-15") -> list[str]:
    """Return the CPUs of each of several ranks whose GPUs have these local_cpulists."""
    gpus = [f"0000:{number:02x}:00.0" for number in range(len(lists))]
    make_tree(root, {f"sys/bus/pci/devices/{gpu}/local_cpulist": text for gpu, text in zip(gpus, lists, strict=True)})
    bound: list[frozenset[int]] = []
    monkeypatch.setattr(ranks, "read_affinity", lambda: parse_cpu_list(cpus))
    monkeypatch.setattr(ranks, "list_cores", lambda cpus: [frozenset({cpu}) for cpu in sorted(cpus)])
    monkeypatch.setattr(ranks, "remember_affinity", lambda: None)
    monkeypatch.setattr(os, "sched_setaffinity", lambda _pid, cpus: bound.append(cpus))
    for number in range(len(lists)):
        variables = {"RANK": str(number), "WORLD_SIZE": "9", "LOCAL_RANK": str(number)}
        set_variables(variables | {"LOCAL_WORLD_SIZE": str(len(lists)), "TRAINSTONE_BIND": "cores"}, monkeypatch)
        bind_cores(Rank(number, 9, number), gpus, root)
    return [",".join(map(str, sorted(cpus))) for cpus in bound]


@pytest.mark.parametrize(
    ("lists", "cpus", "expected"),
    [
        # Two GPUs per socket; the order of the GPUs is not that of the sockets.
        (["8-15", "0-7", "8-15", "0-7"], "0-15", ["8,9,10,11", "0,1,2,3", "12,13,14,15", "4,5,6,7"]),
        # One socket, or a machine that does not know: all CPUs are near.
        (["0-15", "0-15"], "0-15", ["0,1,2,3,4,5,6,7", "8,9,10,11,12,13,14,15"]),
        (["", ""], "0-3", ["0,1", "2,3"]),
        # Only some CPUs are allowed; a GPU may have none of its own among them.
        (["0-7", "8-15"], "4-11", ["4,5,6,7", "8,9,10,11"]),
        (["0-7", "8-15"], "0-3", ["0,1,2,3", "2,3"]),
        # CPUs near no GPU (half of the NUMA nodes of a DGX A100) are divided by all ranks.
        (["0-3", "8-11"], "0-15", ["0,1,2,3,4,5,6,7", "8,9,10,11,12,13,14,15"]),
        (["0-5", "0-5", "6-7"], "0-7", ["0,1,2", "3,4,5", "6,7"]),
    ],
)
def test_bind_cores_gives_ranks_the_cores_near_their_gpu(
    lists: list[str], cpus: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert bind_all(monkeypatch, tmp_path, lists, cpus) == expected


def test_bind_cores_leaves_a_rank_that_sees_only_its_own_gpu_unbound(monkeypatch: pytest.MonkeyPatch):
    bound = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda _pid, cpus: bound.append(cpus))
    set_variables({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, monkeypatch)
    monkeypatch.setenv("TRAINSTONE_BIND", "cores")
    bind_cores(Rank(1, 2, 1), ["0000:1b:00.0"])
    assert bound == []


INTERFACES = [Interface("lo", "127.0.0.1"), Interface("eth0", "10.0.0.1"), Interface("eth0", "fd00::1")]


@pytest.fixture
def fake_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces, "list_interfaces", lambda: INTERFACES)
    for name in (GLOO, NCCL):
        monkeypatch.delenv(name, raising=False)


def test_find_route_returns_loopback_for_this_host():
    loopback = find_route("127.0.0.1")
    assert loopback is not None
    assert loopback.loopback
    assert find_requested_interface(loopback.name) == loopback
    assert find_route("127.8.9.1") == loopback
    assert find_route("no such host.invalid") is None


@pytest.mark.usefixtures("fake_interfaces")
def test_find_requested_interface_prefers_recipe_over_gloo_over_nccl(monkeypatch: pytest.MonkeyPatch):
    assert find_requested_interface(None) is None
    monkeypatch.setenv(NCCL, "=eth0,eth1")
    assert find_requested_interface(None) == INTERFACES[1]
    monkeypatch.setenv(NCCL, "^docker")
    assert find_requested_interface(None) is None
    monkeypatch.setenv(GLOO, "lo")
    assert find_requested_interface(None) == INTERFACES[0]
    assert find_requested_interface("eth0") == INTERFACES[1]


@pytest.mark.usefixtures("fake_interfaces")
def test_find_requested_interface_lists_interfaces_when_one_is_missing(monkeypatch: pytest.MonkeyPatch):
    present = r"available: lo \(127\.0\.0\.1\), eth0 \(10\.0\.0\.1\), eth0 \(fd00::1\)"
    with pytest.raises(LaunchError, match=rf"ib0 \(parallel.interface\) does not exist; {present}"):
        find_requested_interface("ib0")
    monkeypatch.setattr(interfaces.psutil, "net_if_addrs", lambda: {"ib0": []})
    with pytest.raises(LaunchError, match=r"ib0 .* has no address or is down"):
        find_requested_interface("ib0")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "launch").mkdir()
    monkeypatch.setenv("TRAINSTONE_RUN", str(tmp_path))
    monkeypatch.setattr(launch_protocol, "SECONDARY_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(
        launch_protocol, "end_with_parent", lambda _parent: None
    )  # else it would apply to the test process
    return tmp_path


def set_rank(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setenv("RANK", str(number))
    monkeypatch.setenv("WORLD_SIZE", "4")


def test_report_exit_code_returns_0_to_the_engine_after_a_normal_end(run: Path):
    assert report_exit_code(75) == 0
    assert read_exit_code(run) == 75
    assert report_exit_code(130) == 0
    assert read_exit_code(run) == 75  # only the launcher knows that it was Ctrl-C
    assert report_exit_code(130, "bench") == 0
    assert read_exit_code(run) == 130  # bench cannot be resumed
    assert report_exit_code(3) == 3


def test_begin_attempt_of_another_verb_ignores_the_launch(run: Path):
    begin_attempt("report")  # removes the launch variables
    assert "TRAINSTONE_RUN" not in os.environ
    assert report_exit_code(75) == 75
    assert read_exit_code(run) is None
    write_failure(DataError("x"))
    begin_attempt("train")
    assert list((run / "launch").iterdir()) == []


def test_read_failures_sorts_causes_first_and_begin_attempt_removes_its_own(run: Path, monkeypatch: pytest.MonkeyPatch):
    set_rank(monkeypatch, 0)
    write_failure(PeerLostError("another rank died"))
    set_rank(monkeypatch, 2)
    write_failure(DataError("no data", hint="make some"))
    (run / "launch/failed-rank0003.json").write_text("{")
    assert [(failure.rank, failure.secondary, failure.exit_code) for failure in read_failures(run)] == [
        (2, False, 3),
        (0, True, 5),
    ]
    (run / "launch/cause.txt").touch()
    begin_attempt("train")
    assert [failure.rank for failure in read_failures(run)] == [0]
    assert (run / "launch/cause.txt").exists()
    set_rank(monkeypatch, 0)
    begin_attempt("train")
    assert [path.name for path in (run / "launch").iterdir()] == ["failed-rank0003.json"]


def test_begin_attempt_rejects_a_wrong_world_size(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRAINSTONE_RANKS", "4")
    with pytest.raises(LaunchError, match=r"wrong world size on .*: 1; the launcher starts 4 ranks"):
        begin_attempt("train")
    set_rank(monkeypatch, 3)
    begin_attempt("train")


def test_main_ends_normally_on_a_signal_during_imports(run: Path, tmp_path: Path):
    program = (
        "import os, signal, sys\n"
        "from trainstone.cli import main\n"
        "main.app = lambda: os.kill(os.getpid(), signal.SIGUSR1)\n"
        "sys.argv[1:] = ['train']\n"
        "main.main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], timeout=LIMIT, check=False)
    assert ended.returncode == 0
    assert read_exit_code(run) == 75


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stop_signals_records_the_first_signal_and_raises_on_a_second_ctrl_c(number: signal.Signals):
    before = signal.getsignal(number)
    with StopSignals() as signals:
        assert signals.received is None
        os.kill(os.getpid(), number)
        assert signals.received == number.name
        if number == signal.SIGINT:
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)  # not a second Ctrl-C
    assert signal.getsignal(number) is before
