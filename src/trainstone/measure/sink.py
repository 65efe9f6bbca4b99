"""What receives the events of a run: the step file, curves, mlperf.log, the files of a recipe's original.

A run has one list of sinks and calls them in order, at every event.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Self

from trainstone.results.quality import Evaluation
from trainstone.results.schema import Status
from trainstone.results.steps import StepRecord


class Sink:
    """One receiver, used by `with`. An event that it does not override is ignored; any may raise OSError."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()

    def begin_steps(self, done: int) -> None:
        """Training starts or continues after so many steps."""

    def step(self, record: StepRecord) -> None:
        """The device has finished a step."""

    def begin_evaluation(self, done: int) -> None:
        """The validation set is about to be evaluated, after so many steps."""

    def end_evaluation(self, done: int) -> None:
        """All validation images have been evaluated; with eval.async the scores follow later."""

    def evaluation(self, evaluation: Evaluation) -> None:
        """The scores of an evaluation are known."""

    def flush(self) -> None:
        """A checkpoint is about to be written: everything received so far must be in the file."""

    def finish(self, status: Status) -> None:
        """The run has ended; not called where it was killed or has failed."""

    def close(self) -> None:
        """Close files."""


def watch(steps: Iterable[StepRecord], sinks: Sequence[Sink]) -> Iterator[StepRecord]:
    """Pass steps on after every sink has received them."""
    for record in steps:
        for sink in sinks:
            sink.step(record)
        yield record
