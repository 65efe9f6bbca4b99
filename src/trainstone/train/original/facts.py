"""What the files of an original tell of a run beside its steps. Plain values; nothing is written here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from trainstone.config.schema import Config

ORIGINAL = "original"
"""Folder of these files in a run's."""


class Seat(NamedTuple):
    """Where a rank computes."""

    host: str
    device: int
    """By its number on the host."""


@dataclass(frozen=True)
class Facts:
    """What the files tell of a run beside its steps."""

    kind: Literal["bench", "train"]
    config: Config
    """Fitted: no auto is left in it."""
    folder: Path
    """The run's."""
    ranks: int
    global_batch: int
    """Images a step, of all ranks."""
    train_pictures: int
    """Of an epoch; ImageNet's where batches are synthetic."""
    val_pictures: int | None
    steps: int | None
    """The run's last; None: until the time is over."""
    device: int
    """This rank's, by its number on the host."""
    first_step: int = 0
    """Where this start begins: 0 unless the run was resumed."""
    evaluations: int = 0
    """Made before this start, as far as it goes on from them."""
    seats: tuple[Seat, ...] = ()
    """Of all ranks, where there are several."""

    @property
    def place(self) -> Path:
        """Where the files lie."""
        return self.folder / ORIGINAL
