"""Which of how many processes this is, as torchrun, Slurm, Open MPI or a PMI launcher tell it."""

import os
from typing import NamedTuple

from trainstone.errors import LaunchError

# (rank, number of ranks), in the order they are believed: torchrun inside a Slurm job knows better than Slurm.
# Slurm's are those of a step (srun): a batch script also has SLURM_PROCID and SLURM_NTASKS, but runs alone.
VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


class Rank(NamedTuple):
    """Number of this process, from 0, and how many there are."""

    number: int = 0
    world: int = 1


ALONE = Rank()


def read_rank() -> Rank:
    """Return this process's place; alone where no launcher says otherwise."""
    for rank_name, world_name in VARIABLES:
        rank, world = os.environ.get(rank_name), os.environ.get(world_name)
        if rank is None or world is None:
            continue
        if not (rank.isdecimal() and world.isdecimal() and int(rank) < int(world)):
            raise LaunchError(f"{rank_name}={rank} of {world_name}={world} is no place among processes")
        return Rank(int(rank), int(world))
    return ALONE
