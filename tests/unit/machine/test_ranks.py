"""Which rank this is and where ranks meet, as each launcher tells it."""

import zlib

import pytest

from trainstone.errors import LaunchError
from trainstone.machine.ranks import Meeting, Rank, read_first_host, read_meeting, read_rank

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
HERE = {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}


def port_of(job: str) -> int:
    return 20000 + zlib.crc32(job.encode()) % 12000


def launch(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MPI_LOCALRANKID", "MPI_LOCALNRANKS", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, Rank(0, 1, 0)),
        (TORCHRUN, Rank(3, 8, 1)),
        (OPEN_MPI, Rank(2, 4, 2)),
        (PMI, Rank(1, 2, 1)),
        (SRUN, Rank(5, 6, 3)),
        ({**SRUN, **TORCHRUN}, Rank(3, 8, 1)),  # torchrun inside a Slurm job
        ({**SRUN, **OPEN_MPI}, Rank(2, 4, 2)),  # mpirun inside a Slurm job
        ({**SRUN, **PMI}, Rank(1, 2, 1)),
        ({**SRUN, "PMI_RANK": "5", "PMI_SIZE": "6"}, Rank(5, 6, 3)),  # srun --mpi=pmi2: the local number is Slurm's
        ({**SRUN, "RANK": "5", "WORLD_SIZE": "6"}, Rank(5, 6, 3)),
        ({"RANK": "5", "WORLD_SIZE": "6"}, Rank(5, 6, 0)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "6"}, Rank(0, 1, 0)),  # a batch script runs alone
        ({"SLURM_LOCALID": "3", "LOCAL_RANK": "2"}, Rank(0, 1, 0)),
        ({"RANK": "3"}, Rank(0, 1, 0)),
        ({"WORLD_SIZE": "8"}, Rank(0, 1, 0)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, Rank(0, 1, 0)),
    ],
)
def test_a_rank_is_read_from_the_environment(environment: dict[str, str], rank: Rank, monkeypatch: pytest.MonkeyPatch):
    launch(environment, monkeypatch)
    assert read_rank() == rank


@pytest.mark.parametrize(
    ("rank", "world"),
    [("8", "8"), ("-1", "8"), ("", "8"), ("x", "8"), ("0", "0"), ("0", ""), ("1.0", "8"), (" 1", "8")],
)
def test_a_place_that_cannot_be_is_told(rank: str, world: str, monkeypatch: pytest.MonkeyPatch):
    launch({"RANK": rank, "WORLD_SIZE": world}, monkeypatch)
    with pytest.raises(LaunchError) as caught:
        read_rank()
    assert caught.value.message == f"RANK={rank} of WORLD_SIZE={world} is no place among processes"


def test_a_local_number_that_cannot_be_is_told(monkeypatch: pytest.MonkeyPatch):
    launch({**TORCHRUN, "LOCAL_RANK": "-1"}, monkeypatch)
    with pytest.raises(LaunchError, match="LOCAL_RANK=-1 is no number of a process on its host"):
        read_rank()


@pytest.mark.parametrize(
    ("environment", "meeting"),
    [
        (TORCHRUN, Meeting("head", 29500)),
        ({**SRUN, **TORCHRUN}, Meeting("head", 29500)),
        (SRUN, Meeting("n02", port_of("4711.2"))),
        ({**SRUN, "SLURM_STEP_NODELIST": ""}, Meeting("n01", port_of("4711.2"))),
        ({**SRUN, "MASTER_PORT": "1234"}, Meeting("n02", 1234)),
        ({**SRUN, "MASTER_ADDR": "head"}, Meeting("head", port_of("4711.2"))),
        # mpirun inside a Slurm job: its daemons' step lacks the first host and is not all ranks' step
        ({**SRUN, **OPEN_MPI, "OMPI_MCA_ess_base_jobid": "9"}, Meeting("n01", port_of("9"))),
        ({**SRUN, **OPEN_MPI}, Meeting("n01", port_of("4711"))),
        ({**HERE, "OMPI_MCA_ess_base_jobid": "9"}, Meeting("127.0.0.1", port_of("9"))),
        ({**HERE, "PMIX_NAMESPACE": "prterun-h-1@1"}, Meeting("127.0.0.1", port_of("prterun-h-1@1"))),
        ({**PMI, "MPI_LOCALNRANKS": "2", "MASTER_PORT": "1234"}, Meeting("127.0.0.1", 1234)),
    ],
)
def test_where_ranks_meet(environment: dict[str, str], meeting: Meeting, monkeypatch: pytest.MonkeyPatch):
    launch(environment, monkeypatch)
    assert read_meeting() == meeting


def test_ports_lie_below_those_that_the_system_hands_out():
    assert all(20000 <= port_of(str(job)) < 32000 for job in range(1000))
    assert len({port_of(str(job)) for job in range(1000)}) > 900


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "nothing says where the ranks meet: MASTER_ADDR is not set"),
        (PMI, "nothing says where the ranks meet: MASTER_ADDR is not set"),
        (HERE, "nothing says at which port of 127.0.0.1 the ranks meet"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "head"}, "nothing says at which port of head the ranks meet"),
        ({**TORCHRUN, "MASTER_PORT": "65536"}, "MASTER_PORT=65536 is no port: 1 to 65535 are"),
        ({**TORCHRUN, "MASTER_PORT": "http"}, "MASTER_PORT=http is no port: 1 to 65535 are"),
    ],
)
def test_no_place_to_meet_is_told(environment: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch):
    launch(environment, monkeypatch)
    with pytest.raises(LaunchError) as caught:
        read_meeting()
    assert caught.value.message == message
    if message.startswith("nothing"):
        assert "MASTER_ADDR" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("n[01-03,7],gpu5", "n01"),
        ("gpu5,n[01-03]", "gpu5"),
        ("gpu5", "gpu5"),
        ("n[7]", "n7"),
        ("n[3,5-9]", "n3"),
        ("rack[2-3]-n[010-012]", "rack2-n010"),
        ("n[1-2].example.org,x", "n1.example.org"),
    ],
)
def test_the_first_host_of_a_slurm_list(nodes: str, host: str):
    assert read_first_host("SLURM_JOB_NODELIST", nodes) == host


@pytest.mark.parametrize("nodes", [",n1", "n[1-", "n[a-b]", "n[]", "n]1", "n 1", "[", "n[1-2]]"])
def test_a_list_of_hosts_that_is_none_is_told(nodes: str):
    with pytest.raises(LaunchError, match="is no list of hosts such as"):
        read_first_host("SLURM_JOB_NODELIST", nodes)
