"""Many ranks of which the first cannot begin (its run folder is refused): the others end at once, with its code."""

from contextlib import suppress

from trainstone.config.schema import Config
from trainstone.errors import TrainstoneError
from trainstone.machine.ranks import read_rank
from trainstone.train.preflight.roll import call_roll


def tell_refusal(config: Config, err: TrainstoneError) -> None:
    """Meet the other ranks only to tell them of it; what hinders that is not worth another message."""
    with suppress(TrainstoneError, RuntimeError):
        call_roll(config, read_rank(), None, trouble=err)
