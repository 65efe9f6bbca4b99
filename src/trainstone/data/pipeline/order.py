"""Which images a batch is made of: pure arithmetic of step and rank, so that work can go on from any step.

Training images are one endless row, epoch after epoch, each shuffled anew; a step of all ranks takes the next
world x batch of them, rank 0 first. So the images of a step do not depend on how many ranks share them.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from trainstone.data.pipeline.random_draws import make_key, shuffle
from trainstone.errors import DataError
from trainstone.machine.ranks import SINGLE_RANK, Rank

Last = Literal["carry", "drop", "fill", "fill_even"]


class SampleIndex(NamedTuple):
    """One appearance of an image."""

    epoch: int
    image: int
    """Its number in its source."""


@dataclass(frozen=True)
class TrainOrder:
    count: int
    batch_size: int
    seed: int
    rank: Rank = SINGLE_RANK
    last: Last = "carry"
    """What becomes of images that do not fill an epoch's last step: as loader.last says."""
    parts: int = 1
    """Batches a step: epochs that are cut or filled up have whole steps."""
    steps: ClassVar[None] = None
    """Training goes on for ever."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise DataError("there is no training image")
        if self.last == "drop" and self.count < self._step_images:
            raise DataError(
                f"{self.count:,} images do not fill a batch of {self._step_images:,} (all ranks)",
                hint="--set loader.last=carry, or a smaller train.batch_size",
            )

    @property
    def global_batch(self) -> int:
        return self.batch_size * self.rank.world

    @property
    def epoch_images(self) -> int:
        """Images an epoch, of all ranks; where it is filled up, some come twice."""
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
            wanted = shuffle(self.count, make_key(self.seed, epoch)).take(range(at, end), mode="wrap")
            places += [SampleIndex(epoch, index) for index in wanted.tolist()]
        return places


@dataclass(frozen=True)
class EvalOrder:
    """Every image once, in its own order: each rank has a stretch, the first ranks one more where it does not divide.

    All ranks make as many steps; batches at the end may be short or empty.
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
