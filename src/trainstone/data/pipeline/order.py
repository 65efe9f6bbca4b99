"""Sampling order: the images of each batch, computed from step and rank alone, so training can resume at any step.

Training images form one endless sequence of epochs, each shuffled with its own seed. A step takes the next
world size x batch size of them, rank 0 first, so the images of a step do not depend on the number of ranks.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from trainstone.data.pipeline.random_draws import derive_key, shuffle
from trainstone.errors import DataError
from trainstone.machine.ranks import SINGLE_RANK, Rank

Last = Literal["carry", "drop", "fill", "fill_even"]


class SampleIndex(NamedTuple):
    """An image in an epoch."""

    epoch: int
    image: int
    """Index in the source."""


@dataclass(frozen=True)
class TrainOrder:
    """Shuffled, endless order of training images."""

    count: int
    batch_size: int
    seed: int
    rank: Rank = SINGLE_RANK
    last: Last = "carry"
    """What happens to the images that do not fill an epoch's last step: the recipe's loader.last."""
    parts: int = 1
    """Batches per step: epochs that drop or repeat images have whole steps."""
    steps: ClassVar[None] = None
    """Training batches never end."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise DataError("the data set has no training images")
        if self.last == "drop" and self.count < self._step_images:
            raise DataError(
                f"{self.count:,} images do not fill one step of {self._step_images:,} images (all ranks)",
                hint="--set loader.last=carry, or a smaller train.batch_size",
            )

    @property
    def global_batch(self) -> int:
        return self.batch_size * self.rank.world

    @property
    def epoch_images(self) -> int:
        """Images per epoch of all ranks; with `fill` some images repeat."""
        if self.last == "carry":
            return self.count
        if self.last == "drop":
            return self.count // self._step_images * self._step_images
        share = math.ceil(self.count / self.rank.world) if self.last == "fill" else self.count // self.rank.world
        return max(1, math.ceil(share / (self.batch_size * self.parts))) * self._step_images

    @property
    def _step_images(self) -> int:
        return self.global_batch * self.parts

    def epoch_of(self, step: int) -> int:
        return step * self.global_batch // self.epoch_images

    def batch(self, step: int) -> list[SampleIndex]:
        begin = step * self.global_batch + self.rank.number * self.batch_size
        places: list[SampleIndex] = []
        while len(places) < self.batch_size:
            epoch, at = divmod(begin + len(places), self.epoch_images)
            end = min(self.epoch_images, at + self.batch_size - len(places))
            wanted = shuffle(self.count, derive_key(self.seed, epoch)).take(range(at, end), mode="wrap")
            places += [SampleIndex(epoch, index) for index in wanted.tolist()]
        return places


@dataclass(frozen=True)
class EvalOrder:
    """Each image once, in source order: each rank has a contiguous part; sizes differ by at most one image.

    All ranks have the same number of steps; the last batches may be short or empty.
    """

    count: int
    batch_size: int
    rank: Rank = SINGLE_RANK

    @property
    def steps(self) -> int:
        return math.ceil(math.ceil(self.count / self.rank.world) / self.batch_size)

    def batch(self, step: int) -> list[SampleIndex]:
        share, more = divmod(self.count, self.rank.world)
        number = self.rank.number
        first = number * share + min(number, more)
        end = first + share + (number < more)
        begin = first + step * self.batch_size
        return [SampleIndex(0, index) for index in range(begin, min(end, begin + self.batch_size))]
