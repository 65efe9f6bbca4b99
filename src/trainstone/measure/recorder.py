"""Sink, the base class of everything that receives a run's events, and StepRecorder, which stores every step in memory
and in the step file.

A run calls its sinks in order at every event: step file, curves, mlperf.log, an original's files.
"""

import operator
import resource
from array import array
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from trainstone.results.schema.quality import Evaluation
from trainstone.results.schema.run import Status
from trainstone.results.steps import StepRecord, StepWriter, cut_steps, list_columns, set_aside


class Sink:
    """Context manager that receives a run's events. Methods not overridden do nothing; any may raise OSError."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()

    def begin_steps(self, done: int) -> None:
        """Training starts or continues after `done` steps."""

    def step(self, record: StepRecord) -> None:
        """The device has finished a step."""

    def begin_evaluation(self, done: int) -> None:
        """An evaluation starts after `done` steps."""

    def end_evaluation(self, done: int) -> None:
        """All validation images have been evaluated; with eval.async the scores follow later."""

    def evaluation(self, evaluation: Evaluation) -> None:
        """The scores of an evaluation are known."""

    def flush(self) -> None:
        """A checkpoint is about to be written: everything received so far must be in the file."""

    def finish(self, status: Status) -> None:
        """The run has ended; not called if it was killed or failed."""

    def close(self) -> None:
        """Close files."""


class StepRecorder(Sink):
    """Step records of one rank with their page faults (0 for steps before a resume)."""

    def __init__(self, path: Path, *, split_phases: bool, decay_loss: bool = False, first_step: int = 0) -> None:
        """Start a step file, or append to it after `first_step`; a file that misses earlier steps is moved aside."""
        self._columns = list_columns(split_phases=split_phases, decay_loss=decay_loss)
        self._pick = operator.itemgetter(*map(StepRecord._fields.index, self._columns))
        kept = cut_steps(path, first_step, split_phases=split_phases, decay_loss=decay_loss) if first_step else None
        if first_step and kept is None:
            set_aside(path)
        self.path = path
        self._first = first_step
        self._writer = StepWriter(path, split_phases=split_phases, decay_loss=decay_loss, append=kept is not None)
        self._values = array("d")  # record after record: one append per step, 8 bytes per value
        self._page_faults = array("d")
        self._faults_before = _count_page_faults()
        if kept is not None:
            self._values.extend(np.stack(list(kept.values()), axis=1).ravel())
            self._page_faults.extend([0.0] * len(kept["step"]))
            self._first -= len(kept["step"])

    def __len__(self) -> int:
        return len(self._page_faults)

    def step(self, record: StepRecord) -> None:
        self._writer.add(record)
        self._values.extend(self._pick(record))
        faults = _count_page_faults()
        self._page_faults.append(faults - self._faults_before)
        self._faults_before = faults

    def flush(self) -> None:
        """Flush the file: a checkpoint may only count steps that are in it."""
        self._writer.flush()

    def finish(self, status: Status) -> None:  # noqa: ARG002  the same at every end
        """Flush the file: the original's files are written from it."""
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def current_step(self) -> int:
        """Return the index of the current step, for the telemetry thread."""
        return self._first + len(self._page_faults)

    def column(self, name: str) -> NDArray[np.float64]:
        return self.columns()[name]

    def columns(self) -> dict[str, NDArray[np.float64]]:
        """Return every recorded field of all steps so far (copies: an array with live views cannot grow)."""
        table = np.array(self._values).reshape(-1, len(self._columns)).T
        return dict(zip(self._columns, table, strict=True))

    def page_faults(self) -> NDArray[np.float64]:
        return np.array(self._page_faults, dtype=np.float64)


def _count_page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
