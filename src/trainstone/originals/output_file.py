"""How a file of an original grows: lines are rendered from steps and evaluations, and appended while the run goes on.

What a format renders hangs on no clock and no file: the same steps always give the same text. When a run is resumed,
its file is written whole again, from the step file and the evaluations before the checkpoint.
"""

import itertools
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TextIO

from trainstone.config.schema import Config, OptimizerConfig
from trainstone.errors import ResultError
from trainstone.files import write_atomically
from trainstone.measure.recorder import Sink
from trainstone.results.schema.quality import Evaluation
from trainstone.results.schema.run import Status
from trainstone.results.steps import StepRecord, as_stored, read_records

log = logging.getLogger(__name__)

STEPS = "steps-rank0000.csv"


class RankPlacement(NamedTuple):
    """Where a rank computes."""

    host: str
    device: int
    """By its number on the host."""


@dataclass(frozen=True)
class RunFacts:
    """What the files say of a run beside its steps."""

    kind: Literal["bench", "train"]
    config: Config
    """Fitted: no auto is left in it."""
    folder: Path
    """The run's."""
    ranks: int
    global_batch: int
    """Images per step, of all ranks."""
    train_images: int
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
    placements: tuple[RankPlacement, ...] = ()
    """Of all ranks, where there are several."""

    @property
    def place(self) -> Path:
        return self.folder / "original"

    def choose_every(self, usual: int) -> int:
        """Return how many steps are between two lines: as requested, else the original's number."""
        requested = self.config.original.every_steps
        return usual if requested == "auto" else requested


def has_decay(optimizer: OptimizerConfig) -> bool:
    """Return whether weight decay is a part of the loss."""
    return optimizer.decay_in == "loss" and optimizer.weight_decay > 0


class OriginalFile(Sink):
    """One file, to which lines are appended at once. A format overrides the rendering of what it has lines of."""

    file: str
    """Its name below original/."""
    in_log = False
    """Whether the original printed the lines as well: they go to log.txt, too."""

    def __init__(self, facts: RunFacts) -> None:
        """Begin the file, or write it whole; what a format needs to render must be there before."""
        self.facts = facts
        self.path = facts.place / self.file
        self._file: TextIO | None = None
        if facts.first_step:
            self.write_whole(list_events(facts))
        else:
            self.path.unlink(missing_ok=True)  # of a start that was killed before its first checkpoint
            self._write(self.render_start())

    def render_start(self) -> str:
        """Return what is there before the first step."""
        return ""

    def render_step(self, record: StepRecord) -> str:  # noqa: ARG002
        return ""

    def render_evaluation(self, evaluation: Evaluation) -> str:  # noqa: ARG002
        return ""

    def render_end(self, status: Status) -> str:  # noqa: ARG002
        return ""

    def write_whole(self, events: Iterable[StepRecord | Evaluation]) -> None:
        """Write the file from its beginning; later lines follow."""
        self.close()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = (self.render_step(e) if isinstance(e, StepRecord) else self.render_evaluation(e) for e in events)
        write_atomically(self.path, itertools.chain([self.render_start()], lines))

    def step(self, record: StepRecord) -> None:
        """Write the lines of a step, with the digits that the step file has."""
        self._write(self.render_step(as_stored(record)))

    def evaluation(self, evaluation: Evaluation) -> None:
        self._write(self.render_evaluation(evaluation))

    def finish(self, status: Status) -> None:
        self._write(self.render_end(status))

    def _write(self, text: str) -> None:
        if text and self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a", buffering=1, encoding="utf-8", newline="")
        if self._file is not None:
            self._file.write(text)
        if self.in_log:
            for line in text.splitlines():
                log.info("%s", line)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


def list_events(facts: RunFacts) -> Iterator[StepRecord | Evaluation]:
    """Yield the steps and evaluations before this start, as they came; log.txt says where the step file lacks some."""
    waiting = list(facts.history)
    number = 0
    try:
        for record in read_records(facts.folder / STEPS):
            # With eval.async the scores came some steps later: their time says when.
            while waiting and waiting[0].seconds <= record.start_seconds + record.step_seconds / 2:
                yield waiting.pop(0)
            yield record
            number += 1
    except ResultError as err:
        log.warning("%s", err.message)
    if number < facts.first_step:
        log.warning("original/ lacks %d steps: %s has only %d", facts.first_step - number, STEPS, number)
    yield from waiting
