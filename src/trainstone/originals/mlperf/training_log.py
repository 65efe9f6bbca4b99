"""Writer of mlperf.log during a training run: the keys of MLPerf's rules 0.7.0 to 4.0.0. Rank 0 writes it.

Before run_start come submission, benchmark and hyperparameters, in the original's order except for init_start: it is
first, since its time is the program's start, and so times never decrease. When a run is resumed from a checkpoint,
events of later steps are removed, but only once the run has done something new.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import psutil
from torch import nn

from trainstone.config.schema import Config
from trainstone.engine.distributed.collectives import World, gather
from trainstone.engine.event_schedule import EventSchedule
from trainstone.engine.fit import Fitted
from trainstone.engine.lr_schedule import count_warm_up, peak_rate
from trainstone.engine.training_data import order_images
from trainstone.errors import DataError
from trainstone.files import write_atomically
from trainstone.formats.files import read_lines
from trainstone.formats.mllog import Event, find_event_kind, format_line, parse_line
from trainstone.machine.page_cache import NOT_REQUESTED, CacheCleared, clear_page_cache
from trainstone.machine.ranks import Rank
from trainstone.measure.devices import name_device
from trainstone.measure.recorder import Sink
from trainstone.originals.mlperf.rules import BENCHMARKS, RunSizes
from trainstone.results.findings import finding
from trainstone.results.run_folder import RunFolder
from trainstone.results.schema.quality import Evaluation
from trainstone.results.schema.run import FINISHED, Finding, Status
from trainstone.results.steps import StepRecord

log = logging.getLogger(__name__)

MLPERF_LOG = "mlperf.log"
SOURCE = {"file": "trainstone/originals/mlperf/training_log.py", "lineno": 1}
"""Source position of a line, as MLPerf's logger writes it."""
RESUMED = "resumed"
"""trainstone's own key: the run was resumed here. If it resumed with a pending evaluation, it precedes eval_start."""
AFTER_STEPS = ("epoch_stop", "tracked_stats", "throughput")
OF_EVALUATION = ("eval_start", "eval_stop", "eval_accuracy", "block_stop", RESUMED)
MAX_SHOWN_VIOLATIONS = 3
Division = Literal["closed", "open"]


def choose_division(config: Config, sizes: RunSizes) -> tuple[Division, list[str]]:
    """Return the division, and the violated rules of the closed one."""
    violations = BENCHMARKS[config.workload].find_violations(config, sizes)
    requested = config.mlperf.division
    if requested != "auto":
        return requested, violations
    return "open" if violations else "closed", violations


class StartTimes(NamedTuple):
    init_ms: int
    """Start of the program."""
    built_ms: int
    """The network was built and on its device."""


def list_header(
    config: Config,
    sizes: RunSizes,
    device_name: str,
    parameters: Sequence[str],
    cleared: CacheCleared,
    times: StartTimes,
    now_ms: int,
) -> list[Event]:
    """Return the events up to run_start, whose time is `now_ms`, and the two numbers of samples after it."""
    init_ms, built_ms = times
    assert isinstance(config.train.batch_size, int)  # engine/fit.py resolved it
    benchmark = BENCHMARKS[config.workload]
    # Caches are cleared before the network is built, but another host's clock may differ.
    cleared_ms = built_ms if cleared.at_seconds is None else min(int(cleared.at_seconds * 1000), built_ms)
    tensors = [benchmark.name_tensor(name) for name in parameters]
    submitted = {
        "benchmark": benchmark.name,
        "org": config.mlperf.org,
        "division": choose_division(config, sizes)[0],
        "status": config.mlperf.status,
        "platform": config.mlperf.platform or f"{sizes.ranks}x{device_name}",
    }
    return [
        make_event("init_start", None, init_ms),
        *(make_event(f"submission_{key}", value, cleared_ms) for key, value in submitted.items()),
        make_event("cache_clear", cleared.done, cleared_ms, message=cleared.message),
        make_event("seed", config.seed, built_ms),
        make_event("model_bn_span", config.train.batch_size * config.parallel.bn_ranks, built_ms),
        *(make_event("weights_initialization", None, built_ms, tensor=name) for name in tensors),
        make_event("init_stop", None, now_ms),
        *(make_event(key, value, now_ms) for key, value in benchmark.list_values(config, sizes).items()),
        make_event("run_start", None, now_ms),
        make_event("train_samples", sizes.train_images, now_ms),
        make_event("eval_samples", sizes.val_images, now_ms),
    ]


def make_event(key: str, value: Any, time_ms: int, **metadata: Any) -> Event:
    """Return an event; its kind follows from the key."""
    return Event(key, value, find_event_kind(key), time_ms, SOURCE | metadata)


def read_events(path: Path) -> list[Event]:
    """Read a log up to its end or to the first damaged line; a missing file gives an empty list."""
    events: list[Event] = []
    with suppress(DataError, ValueError):  # a line was cut when the machine crashed: the rest is written again
        for _, line in read_lines(path):
            if event := parse_line(line):
                events.append(event)
    return events


def is_before_checkpoint(event: Event, done: int, *, evaluated: bool) -> bool:
    """Return whether an event precedes the checkpoint after `done` steps; header events have no step."""
    step = event.metadata.get("step")
    if not isinstance(step, int) or step > done:
        return False
    if event.key == "run_stop":
        return step == done and evaluated and event.metadata.get("status") == "success"
    return step < done or event.key in AFTER_STEPS or (evaluated and event.key in OF_EVALUATION)


def find_unfinished(events: Sequence[Event], key: str, number: str) -> int | None:
    """Return the epoch, or the first epoch of the block, that started and has not stopped."""
    last = next((event for event in reversed(events) if event.key in (f"{key}_start", f"{key}_stop")), None)
    found = last.metadata.get(number) if last is not None and last.key == f"{key}_start" else None
    return found if isinstance(found, int) and found > 0 else None


class MlperfLog(Sink):
    """Sink that writes the mlperf.log of one run.

    Events after run_start carry the number of completed steps, so that a resumed run can remove later ones.
    """

    def __init__(
        self,
        path: Path | None,
        event_schedule: EventSchedule,
        config: Config,
        ranks: int,
        list_header: Callable[[int], list[Event]],
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`path`: None on ranks other than 0, which write nothing. `list_header(run_start_ms)` returns the header."""
        self._path, self._event_schedule, self._config, self._ranks = path, event_schedule, config, ranks
        self._list_header, self._now = list_header, now
        self._file: IO[str] | None = None
        self._done = 0
        """Completed steps, those before a resume included."""
        self._pending: list[Event] | None = None
        """The log of a resumed run until the run does something new."""
        self._evaluated_ms: int | None = None
        """End of the last evaluation."""
        self._epoch: int | None = None
        """The current epoch, from 1."""
        self._block: int | None = None
        """First epoch of the current block (the epochs between two evaluations)."""
        self._stopped = False
        self._first_seconds: float | None = None
        """Start time of this process's first step in the current epoch."""
        self._images = 0
        self._resumed = False
        """The run was resumed, and its first step or evaluation is still to come."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._file is None:
            return
        if kind is not None and not self._stopped:
            with suppress(OSError, ValueError):  # this file may be the cause of the failure
                self._stop("aborted", "failed" if issubclass(kind, Exception) else "interrupted")
        with suppress(OSError):
            self._file.close()

    def begin(self) -> None:
        """Write the header with run_start; training data must not be read before this."""
        if self._path is not None:
            self._file = self._path.open("w", encoding="utf-8")
            self._write(self._list_header(self._now_ms()))

    def resume(self, done: int, *, evaluated: bool) -> None:
        """Continue the log of a run resumed after `done` steps; `evaluated`: their evaluation is complete, too.

        The file is unchanged until the run does something new. The header gets the current values but the old times:
        run_start keeps its time, so that the pause counts, and the event `resumed` records it.
        """
        if self._path is None:
            return
        head, before = self._list_header(self._now_ms()), read_events(self._path)
        old = {event.key: event for event in reversed(before)}
        kept: list[Event] = []
        if start := old.get("run_start"):
            head = [event._replace(time_ms=old.get(event.key, start).time_ms) for event in head]
            head = [old.get(event.key, event) if event.key == "cache_clear" else event for event in head]
            kept = [event for event in before if is_before_checkpoint(event, done, evaluated=evaluated)]
        else:
            log.warning("%s is missing or damaged: it is started again, with a new run_start", self._path.name)
        if kept and kept[-1].key == RESUMED and kept[-1].metadata["step"] == done:
            kept.pop()  # everything after that resume was removed
        self._done, self._pending, self._resumed = done, [*head, *kept], True
        self._epoch, self._block = (
            find_unfinished(kept, "epoch", "epoch_num"),
            find_unfinished(kept, "block", "first_epoch_num"),
        )
        self._stopped = any(event.key == "run_stop" for event in kept)
        self._evaluated_ms = next((event.time_ms for event in reversed(kept) if event.key == "eval_accuracy"), None)

    def begin_steps(self, done: int) -> None:
        self._note_resumed(done)
        epoch = self._event_schedule.whole_epochs_after(done) + 1
        if self._block is None:
            self._block = first = self._epoch or epoch
            last = max(first, self._find_evaluated_epoch(self._event_schedule.next_evaluation(first - 1)))
            self._add("block_start", done, first_epoch_num=first, epoch_count=last - first + 1)
        if self._epoch is None:
            self._epoch = epoch
            self._add("epoch_start", done, epoch_num=epoch)

    def step(self, record: StepRecord) -> None:
        if self._epoch is None:
            self.begin_steps(record.step)
        self._commit()
        if self._first_seconds is None:
            self._first_seconds = record.start_seconds
        self._images += record.images * self._ranks
        self._done = done = record.step + 1
        over = self._event_schedule.whole_epochs_after(done)
        if self._epoch is not None and over >= self._epoch:
            self._add("epoch_stop", done, epoch_num=self._epoch)
            for epoch in range(self._epoch + 1, over + 1):  # a step may span more than one epoch
                self._add("epoch_start", done - 1, epoch_num=epoch)
                self._add("epoch_stop", done, epoch_num=epoch)
            self._add_rate(done, record.start_seconds + record.step_seconds - self._first_seconds)
            self._epoch, self._first_seconds, self._images = None, None, 0

    def begin_evaluation(self, done: int) -> None:
        self._note_resumed(done)
        self._add("eval_start", done, epoch_num=self._find_evaluated_epoch(done))

    def end_evaluation(self, done: int) -> None:
        if self._config.eval.async_:  # otherwise the end is written with the scores
            self._commit()
            self._add("eval_stop", done, epoch_num=self._find_evaluated_epoch(done))
            self._end_block(done)

    def evaluation(self, evaluation: Evaluation) -> None:
        """Write the scores; the run stops here if they reach the target."""
        self._commit()
        step, config = evaluation.step, self._config.eval
        epoch, value = self._find_evaluated_epoch(step), evaluation.metrics[config.metric]
        if not self._config.eval.async_:
            self._add("eval_stop", step, epoch_num=epoch)
        self._add("eval_accuracy", step, value, epoch_num=epoch, metric=config.metric)
        if not self._config.eval.async_:
            self._end_block(step)
        if config.target is not None and value >= config.target:
            self._end_block(self._done)
            self._stop("success", "target_reached", self._done)

    def finish(self, status: Status) -> None:
        """Write run_stop, unless an evaluation has already done so."""
        self._commit()
        if self._stopped:
            return
        # These lines are lost if a process was killed after its last evaluation.
        at_ms = self._evaluated_ms if status == "target_reached" else None
        if status in FINISHED:  # the last epochs may not have been evaluated
            self._end_block(self._done, at_ms)
        self._stop("success" if status == "target_reached" else "aborted", status, self._done, at_ms)

    def _end_block(self, done: int, at_ms: int | None = None) -> None:
        if self._block is not None:
            self._add("block_stop", done, at_ms=at_ms, first_epoch_num=self._block)
        self._block = None

    def _stop(self, status: str, ended: str, done: int | None = None, at_ms: int | None = None) -> None:
        self._add("run_stop", done, at_ms=at_ms, status=status, ended=ended)
        self._stopped = True

    def _note_resumed(self, done: int) -> None:
        if self._resumed:
            self._add(RESUMED, done)
        self._resumed = False

    def _add_rate(self, done: int, seconds: float) -> None:
        """Write the original's two lines of an epoch's speed, pauses within it included."""
        config, images = self._config, float(self._images)
        if config.original_defects and config.original.name == "mlperf" and config.schedule.images:
            # The original counted schedule.images per epoch, whatever the data set has.
            images *= config.schedule.images / self._event_schedule.images
        if seconds > 0:
            rate = images / seconds
            self._add("tracked_stats", done, {"imgs_sec": rate})
            self._add("throughput", done, rate)

    def _find_evaluated_epoch(self, done: int) -> int:
        """Return the epoch that an evaluation after `done` steps belongs to: just completed, or current."""
        completed = self._event_schedule.whole_epochs_after(done)
        return max(1, completed if completed > self._event_schedule.whole_epochs_after(done - 1) else completed + 1)

    def _add(self, key: str, done: int | None, value: Any = None, at_ms: int | None = None, **metadata: Any) -> None:
        step = {} if done is None else {"step": done}
        event = make_event(key, value, self._now_ms() if at_ms is None else at_ms, **metadata, **step)
        if self._pending is not None:
            self._pending.append(event)
        else:
            self._write([event])

    def _now_ms(self) -> int:
        return int(self._now() * 1000)

    def _commit(self) -> None:
        """Replace the file of a resumed run, now that there is something new."""
        if self._pending is not None and self._path is not None:
            write_atomically(self._path, [format_line(event) + "\n" for event in self._pending])
            self._file, self._pending = self._path.open("a", encoding="utf-8"), None

    def _write(self, events: Sequence[Event]) -> None:
        if self._file is not None:
            self._file.writelines(format_line(event) + "\n" for event in events)
            self._file.flush()


def clear_caches(config: Config, world: World, *, resumed: bool) -> tuple[CacheCleared, list[Finding]]:
    """Clear the page cache on every host if mlperf.clear_caches is set; return a finding if that failed."""
    if not config.mlperf.clear_caches:
        return NOT_REQUESTED, []
    if resumed:
        return CacheCleared(False, "page cache not cleared: the run was resumed"), []
    mine = clear_page_cache() if world.rank.local == 0 else CacheCleared(True, "")
    found = [CacheCleared(**one) for one in gather(world, mine._asdict()) or [mine._asdict()]]
    failed = [one for one in found if not one.done]
    if not failed:
        return found[0], []
    return failed[0], [finding("page-cache-kept", f"mlperf.clear_caches is set, but: {failed[0].message}")]


def open_log(
    run: RunFolder, fitted: Fitted, images: tuple[int, int], rank: Rank, network: nn.Module, cleared: CacheCleared
) -> MlperfLog:
    """Create this rank's log without writing anything yet; only rank 0 has a file. `images`: train and val.

    Call it right after building the network: the log records that time.
    """
    built_seconds = time.time()
    try:  # not this module's import time: the process may have restarted itself (engine.keep_memory)
        started_seconds = psutil.Process().create_time()
    except psutil.Error:
        started_seconds = built_seconds
    config = fitted.config
    order = order_images(config, images[0], rank)
    global_batch = order.global_batch * config.train.accumulate
    event_schedule = EventSchedule(order.epoch_images, global_batch, config.eval, config.stop, config.checkpoint)
    sizes = compute_sizes(config, *images, rank)
    division, violations = choose_division(config, sizes)
    log.info("mlperf.log: %s division%s", division, f": {'; '.join(violations)}" if violations else "")
    head = partial(
        list_header,
        config,
        sizes,
        name_device(fitted.device),
        [name for name, _ in network.named_parameters()],
        cleared,
        StartTimes(
            int(min(built_seconds, started_seconds, cleared.at_seconds or built_seconds) * 1000),
            int(built_seconds * 1000),
        ),
    )
    return MlperfLog(run.path / MLPERF_LOG if rank.number == 0 else None, event_schedule, config, rank.world, head)


def find_run_start(run: RunFolder) -> float | None:
    """Return run_start of the log in seconds since 1970; None if the log has none."""
    events = read_events(run.path / MLPERF_LOG)
    return next((event.time_ms / 1000 for event in events if event.key == "run_start"), None)


def check_division(config: Config, images: tuple[int, int], rank: Rank) -> list[Finding]:
    """Return a finding if mlperf.division is closed but its rules are violated."""
    division, violations = choose_division(config, compute_sizes(config, *images, rank))
    if division == "open" or not violations:
        return []
    shown = "; ".join(violations[:MAX_SHOWN_VIOLATIONS])
    return [finding("not-closed", f"mlperf.division is closed, but rules are violated (all in log.txt): {shown}")]


def compute_sizes(config: Config, train_images: int, val_images: int, rank: Rank) -> RunSizes:
    """Return the batch sizes and step counts of a run on a data set of this size."""
    train, schedule = config.train, config.schedule
    assert isinstance(train.batch_size, int)  # engine/fit.py resolved it
    global_batch = train.batch_size * train.accumulate * rank.world
    order = order_images(config, schedule.images or train_images, rank)
    steps_per_epoch = order.epoch_images / global_batch
    warm_up = count_warm_up(schedule, steps_per_epoch, order.count / global_batch)
    total = round(steps_per_epoch * config.stop.epochs)  # as engine/lr_schedule.py counts
    return RunSizes(
        ranks=rank.world,
        global_batch=global_batch,
        train_images=train_images,
        val_images=val_images,
        peak_rate=peak_rate(config.optimizer, global_batch=global_batch, ranks=rank.world * train.accumulate),
        decay_steps=max(0, total - (warm_up if schedule.warm_up_offset else 0)),
        warm_up_steps=warm_up,
    )
