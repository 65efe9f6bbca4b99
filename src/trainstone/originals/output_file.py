"""Base class of the log writers that reproduce an original's file: render steps and evaluations, append the lines.

Rendering depends on no clock and no file: the same steps always give the same text. When a run is resumed, its file is
rewritten from the step file and the evaluations before the checkpoint.
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
    """Host and device of a rank."""

    host: str
    device: int
    """Index on the host."""


@dataclass(frozen=True)
class RunFacts:
    """Facts of a run that the files contain in addition to its steps."""

    kind: Literal["bench", "train"]
    config: Config
    """All `auto` values are resolved."""
    folder: Path
    """The run folder."""
    ranks: int
    global_batch: int
    """Images per step, all ranks together."""
    train_images: int
    """Per epoch; ImageNet's number if batches are synthetic."""
    began: float
    """When the run's clock was at 0, in seconds since 1970. The clock is paused while the run is interrupted."""
    steps: int | None
    """Total steps of the run; None if it ends by time."""
    device: int
    """This rank's device index on the host."""
    first_step: int = 0
    """First step of this process: 0 unless the run was resumed."""
    history: tuple[Evaluation, ...] = ()
    """Evaluations before the run was resumed."""
    placements: tuple[RankPlacement, ...] = ()
    """All ranks; empty for a single rank."""

    @property
    def original_folder(self) -> Path:
        return self.folder / "original"

    def choose_log_interval(self, default: int) -> int:
        """Return the steps between two lines: original.every_steps, or the original's default."""
        requested = self.config.original.every_steps
        return default if requested == "auto" else requested


def has_decay(optimizer: OptimizerConfig) -> bool:
    """Return whether weight decay is part of the loss."""
    return optimizer.decay_in == "loss" and optimizer.weight_decay > 0


class OriginalFile(Sink):
    """One file to which lines are appended immediately. A subclass overrides the render methods it has lines for."""

    file: str
    """File name below original/."""
    in_log = False
    """Whether the original also printed the lines: they then go to log.txt, too."""

    def __init__(self, facts: RunFacts) -> None:
        """Start the file, or rewrite it for a resumed run; a subclass sets its rendering state before this call."""
        self.facts = facts
        self.path = facts.original_folder / self.file
        self._file: TextIO | None = None
        if facts.first_step:
            self.rewrite(list_events(facts))
        else:
            self.path.unlink(missing_ok=True)  # left by a process that was killed before its first checkpoint
            self._write(self.render_start())

    def render_start(self) -> str:
        """Return the text before the first step."""
        return ""

    def render_step(self, record: StepRecord) -> str:  # noqa: ARG002
        return ""

    def render_evaluation(self, evaluation: Evaluation) -> str:  # noqa: ARG002
        return ""

    def render_end(self, status: Status) -> str:  # noqa: ARG002
        return ""

    def rewrite(self, events: Iterable[StepRecord | Evaluation]) -> None:
        """Replace the file's content by these events; later lines are appended."""
        self.close()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = (self.render_step(e) if isinstance(e, StepRecord) else self.render_evaluation(e) for e in events)
        write_atomically(self.path, itertools.chain([self.render_start()], lines))

    def step(self, record: StepRecord) -> None:
        """Write the lines of a step, rounded as in the step file."""
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
    """Yield the steps and evaluations before the run was resumed, in order; log a warning if steps are missing."""
    waiting = list(facts.history)
    number = 0
    try:
        for record in read_records(facts.folder / STEPS):
            # With eval.async the scores arrived some steps later: their time gives the order.
            while waiting and waiting[0].seconds <= record.start_seconds + record.step_seconds / 2:
                yield waiting.pop(0)
            yield record
            number += 1
    except ResultError as err:
        log.warning("%s", err.message)
    if number < facts.first_step:
        log.warning("original/ misses %d steps: %s has only %d", facts.first_step - number, STEPS, number)
    yield from waiting
