"""Writes mlperf.log of a training run line by line while it goes on: the keys of MLPerf's rules 0.7.0 to 4.0.0.

Rank 0 writes. Before run_start stands who runs what with which values, in the original's order but for init_start: it
comes first, as it is of the program's start, and so times rise. When a run is resumed from a checkpoint, events of
later steps are cut and made again, and not before the run has done something new.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from trainstone.config.schema import Config
from trainstone.errors import DataError
from trainstone.files import write_atomically
from trainstone.formats.files import read_lines
from trainstone.formats.mllog import Event, format_line, kind_of, parse_line
from trainstone.machine.pagecache import CacheCleared
from trainstone.measure.sink import Sink
from trainstone.results.quality import Evaluation
from trainstone.results.schema import FINISHED, Status
from trainstone.results.steps import StepRecord
from trainstone.train.decision import Cadence
from trainstone.workloads.workload import Mllog, RunSizes

log = logging.getLogger(__name__)

MLPERF_LOG = "mlperf.log"
RESUMED = "resumed"
"""Our own key: a later start goes on here. One that made up for an evaluation stands before it."""
AFTER_STEPS = ("epoch_stop", "tracked_stats", "throughput")
OF_EVALUATION = ("eval_start", "eval_stop", "eval_accuracy", "block_stop", RESUMED)
Division = Literal["closed", "open"]


@dataclass(frozen=True)
class Submission:
    """What is known of a run before it starts."""

    config: Config
    """Fitted: no auto is left in it."""
    mllog: Mllog
    sizes: RunSizes
    division: Division
    device_name: str
    tensors: list[str]
    cleared: CacheCleared
    init_ms: int
    """When the program started."""
    built_ms: int
    """When the network was on its device."""


def judge_division(config: Config, mllog: Mllog, sizes: RunSizes) -> tuple[Division, list[str]]:
    """Return the division, and what speaks against the closed one."""
    departures = mllog.find_departures(config, sizes)
    asked = config.mlperf.division
    if asked != "auto":
        return asked, departures
    return "open" if departures else "closed", departures


def list_head(told: Submission, now_ms: int) -> list[Event]:
    """Return the lines up to the start of the run, which is now, and its numbers of pictures."""
    config, sizes = told.config, told.sizes
    bn_span = (config.train.batch_size, config.parallel.bn_ranks)
    assert isinstance(bn_span[0], int)  # train/fit.py resolved it
    cleared, built_ms = told.cleared, told.built_ms
    # Caches are cleared before the network is built; another host's clock may differ.
    cleared_ms = built_ms if cleared.at_seconds is None else min(int(cleared.at_seconds * 1000), built_ms)
    values = told.mllog.list_values(config, sizes)
    submitted = {
        "benchmark": told.mllog.benchmark,
        "org": config.mlperf.org,
        "division": told.division,
        "status": config.mlperf.status,
        "platform": config.mlperf.platform or f"{sizes.ranks}x{told.device_name}",
    }
    return [
        make_event("init_start", None, told.init_ms),
        *(make_event(f"submission_{key}", value, cleared_ms) for key, value in submitted.items()),
        make_event("cache_clear", cleared.done, cleared_ms, told=cleared.told),
        make_event("seed", config.seed, built_ms),
        make_event("model_bn_span", bn_span[0] * bn_span[1], built_ms),
        *(make_event("weights_initialization", None, built_ms, tensor=name) for name in told.tensors),
        make_event("init_stop", None, now_ms),
        *(make_event(key, value, now_ms) for key, value in values.items()),
        make_event("run_start", None, now_ms),
        make_event("train_samples", sizes.train_pictures, now_ms),
        make_event("eval_samples", sizes.val_pictures, now_ms),
    ]


def make_event(key: str, value: Any, time_ms: int, *, up: int = 1, **metadata: Any) -> Event:
    """Make an event that says where it comes from, as MLPerf's logger does: the caller, or one `up` calls above."""
    frame = sys._getframe(up)
    file = f"{frame.f_globals['__name__'].replace('.', '/')}.py"
    return Event(key, value, kind_of(key), time_ms, {"file": file, "lineno": frame.f_lineno, **metadata})


@dataclass
class Kept:
    """Events after the head, and how they leave the run."""

    events: list[Event] = field(default_factory=list)
    epoch: int | None = None
    """The one that goes on."""
    block: int | None = None
    """First epoch of the block that goes on."""
    stopped: bool = False
    judged_ms: int | None = None


def read_whole(path: Path) -> list[Event]:
    """Read a log up to its end or to the first line that cannot be read; nothing where there is no file."""
    events: list[Event] = []
    try:
        for _, line in read_lines(path):
            if event := parse_line(line):
                events.append(event)
    except (DataError, ValueError):  # a line was cut when the machine went down: the rest is made again
        pass
    return events


def keep_until(events: Sequence[Event], done: int, *, judged: bool) -> Kept | None:
    """Return what belongs to the first `done` steps, and to an evaluation after them if there was one.

    None: the log does not say how the run started.
    """
    if not any(event.key == "run_start" for event in events):
        return None
    kept = Kept()
    for event in events:
        if stays(event, done, judged=judged):
            kept.events.append(event)
            follow(kept, event)
    if kept.events and kept.events[-1].key == RESUMED and kept.events[-1].metadata["step"] == done:
        kept.events.pop()  # nothing is left of what that start did
    return kept


def stays(event: Event, done: int, *, judged: bool) -> bool:
    """Say whether an event was before the checkpoint; those of the head have no step."""
    step = event.metadata.get("step")
    if not isinstance(step, int) or step > done:
        return False
    if event.key == "run_stop":
        return step == done and judged and event.metadata.get("status") == "success"
    if step < done or event.key in AFTER_STEPS:
        return True
    return judged and event.key in OF_EVALUATION


def follow(kept: Kept, event: Event) -> None:
    """Note what begins and ends with an event."""
    metadata = event.metadata
    match event.key:
        case "epoch_start":
            kept.epoch = as_epoch(metadata.get("epoch_num"))
        case "epoch_stop":
            kept.epoch = None
        case "block_start":
            kept.block = as_epoch(metadata.get("first_epoch_num"))
        case "block_stop":
            kept.block = None
        case "eval_accuracy":
            kept.judged_ms = event.time_ms
        case "run_stop":
            kept.stopped = True


def as_epoch(value: Any) -> int | None:
    """Return a number of an epoch, None for anything else."""
    return value if isinstance(value, int) and value > 0 else None


def keep_times(head: Iterable[Event], before: Iterable[Event]) -> list[Event]:
    """Return the head with the times that its lines had, and with what was done to the caches then.

    A line that was not there has the time of the one before it: the run started as long ago.
    """
    old: dict[tuple[str, Any], Event] = {}
    for event in before:
        old.setdefault(name(event), event)
    begun = any(key == "run_start" for key, _ in old)
    merged: list[Event] = []
    for event in head:
        missing = merged[-1] if begun and merged else event
        was = old.get(name(event), missing)
        kept = event.key == "cache_clear" and was.key == event.key
        merged.append(was if kept else event._replace(time_ms=was.time_ms))
    return merged


def name(event: Event) -> tuple[str, str]:
    """What tells a line of the head from others."""
    return event.key, str(event.metadata.get("tensor"))


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
