"""Which rank this is, as each launcher tells it."""

import pytest

from trainstone.errors import LaunchError
from trainstone.machine.ranks import Rank, read_rank

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "2"}
SRUN = {"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_STEP_NUM_TASKS": "6"}


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, Rank(0, 1)),
        (TORCHRUN, Rank(3, 8)),
        (OPEN_MPI, Rank(2, 4)),
        (PMI, Rank(1, 2)),
        (SRUN, Rank(5, 6)),
        ({**SRUN, **TORCHRUN}, Rank(3, 8)),  # torchrun inside a Slurm job
        ({**SRUN, **OPEN_MPI}, Rank(2, 4)),  # mpirun inside a Slurm job
        ({**SRUN, **PMI}, Rank(1, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "6"}, Rank(0, 1)),  # a batch script runs alone
        ({"RANK": "3"}, Rank(0, 1)),
        ({"WORLD_SIZE": "8"}, Rank(0, 1)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, Rank(0, 1)),
    ],
)
def test_a_rank_is_read_from_the_environment(environment: dict[str, str], rank: Rank, monkeypatch: pytest.MonkeyPatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert read_rank() == rank


@pytest.mark.parametrize(
    ("rank", "world"),
    [("8", "8"), ("-1", "8"), ("", "8"), ("x", "8"), ("0", "0"), ("0", ""), ("1.0", "8"), (" 1", "8")],
)
def test_a_place_that_cannot_be_is_told(rank: str, world: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world)
    with pytest.raises(LaunchError) as caught:
        read_rank()
    assert caught.value.message == f"RANK={rank} of WORLD_SIZE={world} is no place among processes"
