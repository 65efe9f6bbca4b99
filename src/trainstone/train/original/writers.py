"""Files that a recipe's original wrote, written again while the run goes on: original/ of the run folder.

Each format is a file beside this one; the first rank writes them. mlperf.log is in mllog.py.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Protocol

from trainstone.results.quality import Evaluation
from trainstone.results.schema import Status
from trainstone.results.steps import StepRecord
from trainstone.train.original.facts import Facts
from trainstone.train.original.iterdur import DurationFile
from trainstone.train.original.nvlog import BenchmarkLog, TrainingLog
from trainstone.train.original.result_line import ResultLine, open_detector_result
from trainstone.train.original.ssd_lines import TrainingLines
from trainstone.train.original.timehistory import LoopLog, ThroughputLog


class Writer(Protocol):
    """One format. It may raise OSError, as any file."""

    def step(self, record: StepRecord) -> None:
        """Take in a step, when the device has finished it."""

    def evaluation(self, evaluation: Evaluation) -> None:
        """Take in an evaluation, when it is over."""

    def flush(self) -> None:
        """Let nothing be unwritten: a checkpoint may only count steps that are told."""

    def finish(self, status: Status) -> None:
        """Write what stands at the end; not called where the run was killed."""

    def close(self) -> None:
        """Close files."""


class Writers:
    """All formats of a run; none on other ranks than the first."""

    def __init__(self, writers: Iterable[Writer] = ()) -> None:
        self._writers = tuple(writers)

    def watch(self, steps: Iterable[StepRecord]) -> Iterator[StepRecord]:
        """Pass steps on, written."""
        for record in steps:
            self.step(record)
            yield record

    def step(self, record: StepRecord) -> None:
        """Write a step."""
        for writer in self._writers:
            writer.step(record)

    def evaluation(self, evaluation: Evaluation) -> None:
        """Write an evaluation."""
        for writer in self._writers:
            writer.evaluation(evaluation)

    def flush(self) -> None:
        """Let nothing be unwritten, before a checkpoint: a run resumed from it goes on behind it."""
        for writer in self._writers:
            writer.flush()

    def finish(self, status: Status) -> None:
        """Write the end."""
        for writer in self._writers:
            writer.finish(status)

    def __enter__(self) -> "Writers":
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as files:
            for writer in self._writers:
                files.callback(writer.close)


MAKERS: dict[tuple[str, str], tuple[Callable[[Facts], Writer], ...]] = {
    ("wmlce", "train"): (TrainingLog,),
    ("wmlce", "bench"): (BenchmarkLog,),
    ("sc22", "train"): (DurationFile,),
    ("sc22", "bench"): (DurationFile,),
    ("tbd", "train"): (LoopLog,),
    ("tbd", "bench"): (ThroughputLog,),
    ("mlperf", "train"): (ResultLine,),  # of a bench the original had no log
    ("mlperf_ssd", "train"): (TrainingLines, open_detector_result),
}


def open_writers(facts: Facts) -> Writers:
    """Open what the recipe's original wrote; for the first rank only."""
    makers = MAKERS.get((facts.config.original.name, facts.kind), ())
    return Writers([maker(facts) for maker in makers])
