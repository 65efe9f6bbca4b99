"""What the files of an original say of a run beside its steps and evaluations: plain values."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from trainstone.config.learning import OptimizerConfig
from trainstone.config.schema import Config
from trainstone.results.quality import Evaluation

ORIGINAL = "original"
"""Folder of these files in a run's."""


class Seat(NamedTuple):
    """Where a rank computes."""

    host: str
    device: int
    """By its number on the host."""


@dataclass(frozen=True)
class Facts:
    """What the files say of a run beside its steps."""

    kind: Literal["bench", "train"]
    config: Config
    """Fitted: no auto is left in it."""
    folder: Path
    """The run's."""
    ranks: int
    global_batch: int
    """Images per step, of all ranks."""
    train_pictures: int
    """Of an epoch; ImageNet's where batches are synthetic."""
    began: float
    """When the run's clock was at 0, in seconds since 1970. It stands still between two starts, and so do all times."""
    steps: int | None
    """The run's last; None: until the time is over."""
    device: int
    """This rank's, by its number on the host."""
    first_step: int = 0
    """Where this start begins: 0 unless the run was resumed."""
    history: tuple[Evaluation, ...] = ()
    """Evaluations before this start."""
    seats: tuple[Seat, ...] = ()
    """Of all ranks, where there are several."""

    @property
    def place(self) -> Path:
        """Where the files are."""
        return self.folder / ORIGINAL

    def choose_every(self, usual: int) -> int:
        """Return how many steps are between two lines: as requested, else the original's number."""
        requested = self.config.original.every_steps
        return usual if requested == "auto" else requested


def has_decay(optimizer: OptimizerConfig) -> bool:
    """Return whether weight decay is a part of the loss."""
    return optimizer.decay_in == "loss" and optimizer.weight_decay > 0
