"""Writes mlperf.log of a training run line by line while it goes on: the keys of MLPerf's rules 0.7.0 to 4.0.0.

Of many ranks the first writes. What stands before run_start is made by mllog_head.py; a resumed run's lines are cut by
mllog_resume.py, and not before the run has done something new.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from trainstone.files import write_atomically
from trainstone.formats.mllog import Event, format_line
from trainstone.measure.sink import Sink
from trainstone.results.quality import Evaluation
from trainstone.results.schema import FINISHED, Status
from trainstone.results.steps import StepRecord
from trainstone.train.cadence import Cadence
from trainstone.train.original.mllog_head import Submission, list_head, make_event
from trainstone.train.original.mllog_resume import RESUMED, Kept, keep_times, keep_until, read_whole

log = logging.getLogger(__name__)

MLPERF_LOG = "mlperf.log"


class MlperfLog(Sink):
    """The log of one run. Steps are counted as done; events after run_start carry them, so that they can be cut."""

    def __init__(
        self, path: Path | None, cadence: Cadence, submission: Submission, *, now: Callable[[], float] = time.time
    ) -> None:
        """Write into `path`; None: nowhere, on other ranks than the first."""
        self._path, self._cadence, self._submission, self._now = path, cadence, submission, now
        self._scores_late = submission.config.eval.async_
        self._file: IO[str] | None = None
        self._done = 0
        """Steps, of all starts."""
        self._before: list[Event] | None = None
        """What stays of a resumed run's log, as long as the run has not done anything new."""
        self._waiting: list[Event] = []
        """What is to follow it then."""
        self._judged_ms: int | None = None
        """When the last evaluation was over."""
        self._epoch: int | None = None
        """The one that goes on, from 1."""
        self._block: int | None = None
        """First epoch of those between two evaluations."""
        self._stopped = False
        self._first_seconds: float | None = None
        """When the first step of this epoch, of this start, began."""
        self._images = 0
        self._resumed = False
        """A later start goes on, and its first step or evaluation is still to come."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._file is None:
            return
        if kind is not None and not self._stopped:
            with suppress(OSError, ValueError):  # what broke the run may be this very file
                self._stop("aborted", "failed" if issubclass(kind, Exception) else "interrupted")
        with suppress(OSError):
            self._file.close()

    def begin(self) -> None:
        """The run starts: training data is touched from here on."""
        if self._path is not None:
            self._file = self._path.open("w", encoding="utf-8")
            self._write(list_head(self._submission, self._now_ms()))

    def go_on(self, done: int, *, judged: bool) -> None:
        """Take up the log of a run that has done some steps; `judged`: and an evaluation after them.

        The file is left as it is until there is something new. Values of the head are today's, its times the old ones:
        run_start stays, so that the pause is counted, and the event `resumed` tells that there was one.
        """
        if self._path is None:
            return
        self._done = done
        before = read_whole(self._path)
        kept = keep_until(before, done, judged=judged)
        if kept is None:
            log.warning("%s is missing or damaged: it begins anew, run_start and all", self._path.name)
            kept = Kept()
        self._before = [*keep_times(list_head(self._submission, self._now_ms()), before), *kept.events]
        self._epoch, self._block, self._stopped, self._judged_ms = kept.epoch, kept.block, kept.stopped, kept.judged_ms
        self._resumed = True

    def begin_steps(self, done: int) -> None:
        """Steps are about to be made."""
        self._tell_resumed(done)
        epoch = self._cadence.whole_epochs_after(done) + 1
        if self._block is None:
            self._block = self._epoch or epoch
            count = self._next_judged(self._block) - self._block + 1
            self._add("block_start", done, first_epoch_num=self._block, epoch_count=count)
        if self._epoch is None:
            self._epoch = epoch
            self._add("epoch_start", done, epoch_num=epoch)

    def step(self, record: StepRecord) -> None:
        """Take in a step, when the device has finished it."""
        if self._epoch is None:
            self.begin_steps(record.step)
        self._commit()
        if self._first_seconds is None:
            self._first_seconds = record.start_seconds
        self._images += record.images * self._submission.sizes.ranks
        self._done = done = record.step + 1
        if self._epoch is not None and self._cadence.whole_epochs_after(done) >= self._epoch:
            self._end_epochs(self._epoch, done)
            self._tell_rate(done, record.start_seconds + record.step_seconds - self._first_seconds)
            self._epoch, self._first_seconds, self._images = None, None, 0

    def begin_evaluation(self, done: int) -> None:
        """Validation pictures are about to be judged."""
        self._tell_resumed(done)
        self._add("eval_start", done, epoch_num=self._epoch_judged(done))

    def end_evaluation(self, done: int) -> None:
        """All validation images have been evaluated; the end is written now only if the scores follow later."""
        if self._scores_late:
            self._commit()
            self._add("eval_stop", done, epoch_num=self._epoch_judged(done))
            self._end_block(done)

    def evaluation(self, evaluation: Evaluation) -> None:
        """Write the scores; the run's time ends with those that reach the target."""
        self._commit()
        step, config = evaluation.step, self._submission.config.eval
        epoch, value = self._epoch_judged(step), evaluation.metrics[config.metric]
        if not self._scores_late:
            self._add("eval_stop", step, epoch_num=epoch)
        self._add("eval_accuracy", step, value, epoch_num=epoch, metric=config.metric)
        if not self._scores_late:
            self._end_block(step)
        if config.target is not None and value >= config.target:
            self._end_block(self._done)
            self._stop("success", "target_reached", self._done)

    def finish(self, status: Status) -> None:
        """Write the end, unless an evaluation has done so."""
        self._commit()
        if self._stopped:
            return
        # A start that was killed after its last evaluation lost these lines.
        at_ms = self._judged_ms if status == "target_reached" else None
        if status in FINISHED:  # the last epochs may not have been judged
            self._end_block(self._done, at_ms)
        self._stop("success" if status == "target_reached" else "aborted", status, self._done, at_ms)

    def _end_block(self, done: int, at_ms: int | None = None) -> None:
        if self._block is not None:
            self._add("block_stop", done, at_ms=at_ms, first_epoch_num=self._block)
        self._block = None

    def _stop(self, status: str, ended: str, done: int | None = None, at_ms: int | None = None) -> None:
        self._add("run_stop", done, at_ms=at_ms, status=status, ended=ended)
        self._stopped = True

    def _tell_resumed(self, done: int) -> None:
        if self._resumed:
            self._add(RESUMED, done)
        self._resumed = False

    def _end_epochs(self, first: int, done: int) -> None:
        """End an epoch, and those that began and ended within the same step, which takes more than one epoch has."""
        self._add("epoch_stop", done, epoch_num=first)
        for epoch in range(first + 1, self._cadence.whole_epochs_after(done) + 1):
            self._add("epoch_start", done - 1, epoch_num=epoch)
            self._add("epoch_stop", done, epoch_num=epoch)

    def _tell_rate(self, done: int, seconds: float) -> None:
        """The original's two lines of an epoch's speed, pauses within it included."""
        config, images = self._submission.config, float(self._images)
        if config.original_defects and config.original.name == "mlperf" and config.schedule.pictures:
            # It counted so many an epoch, whatever the data set has.
            images *= config.schedule.pictures / self._cadence.pictures
        if seconds > 0:
            rate = images / seconds
            self._add("tracked_stats", done, {"imgs_sec": rate})
            self._add("throughput", done, rate)

    def _epoch_judged(self, done: int) -> int:
        """Return the epoch that an evaluation after so many steps follows, or lies in."""
        completed = self._cadence.whole_epochs_after(done)
        return max(1, completed if completed > self._cadence.whole_epochs_after(done - 1) else completed + 1)

    def _next_judged(self, epoch: int) -> int:
        """Return the epoch that the next evaluation is of, this one or a later one."""
        return max(epoch, self._epoch_judged(self._cadence.next_evaluation(epoch - 1)))

    def _add(self, key: str, done: int | None, value: Any = None, at_ms: int | None = None, **metadata: Any) -> None:
        if done is not None:
            metadata["step"] = done
        event = make_event(key, value, self._now_ms() if at_ms is None else at_ms, up=2, **metadata)
        if self._before is not None:
            self._waiting.append(event)
        else:
            self._write([event])

    def _now_ms(self) -> int:
        return int(self._now() * 1000)

    def _commit(self) -> None:
        """Cut the log of a resumed run, now that it goes on."""
        if self._before is None or self._path is None:
            return
        events = [*self._before, *self._waiting]
        write_atomically(self._path, [format_line(event) + "\n" for event in events])
        self._file = self._path.open("a", encoding="utf-8")
        self._before, self._waiting = None, []

    def _write(self, events: Sequence[Event]) -> None:
        if self._file is not None:
            self._file.writelines(format_line(event) + "\n" for event in events)
            self._file.flush()
