"""Many ranks of which the first cannot begin (its run folder is refused): the others end at once, with its code."""

from contextlib import suppress

from trainstone.config.schema import Config
from trainstone.errors import TrainstoneError
from trainstone.machine.ranks import read_rank
from trainstone.train.distributed import World, barrier, broadcast_dict, join_world
from trainstone.train.fit import choose_rank_device


def tell_refusal(config: Config, err: TrainstoneError) -> None:
    """Meet the other ranks only to tell them of it; what hinders that is not worth another message."""
    with (
        suppress(TrainstoneError, RuntimeError),
        join_world(config.parallel, choose_rank_device(config.device, read_rank())) as world,
    ):
        broadcast_dict(world, {"exit_code": err.exit_code})
        barrier(world)  # who leaves early takes the meeting place away


def hear_refusal(world: World) -> None:
    """End this rank where the first one could not begin: it has said why."""
    told = broadcast_dict(world, {"exit_code": 0})
    if told["exit_code"]:
        barrier(world)
        raise SystemExit(told["exit_code"])
