"""Writes mlperf.log of a training run line by line while it goes on: the keys of MLPerf's rules 0.7.0 to 4.0.0.

Rank 0 writes. Before run_start stands who runs what with which values, in the original's order but for init_start: it
comes first, as it is of the program's start, and so times rise. When a run is resumed from a checkpoint, events of
later steps are cut and made again, and not before the run has done something new.
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
from trainstone.formats.mllog import Event, format_line, kind_of, parse_line
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
"""Where a line comes from, as MLPerf's logger says it."""
RESUMED = "resumed"
"""Our own key: a later start goes on here. One that made up for an evaluation stands before it."""
AFTER_STEPS = ("epoch_stop", "tracked_stats", "throughput")
OF_EVALUATION = ("eval_start", "eval_stop", "eval_accuracy", "block_stop", RESUMED)
MANY_DEPARTURES = 3
Division = Literal["closed", "open"]


def choose_division(config: Config, sizes: RunSizes) -> tuple[Division, list[str]]:
    """Return the division, and what speaks against the closed one."""
    departures = BENCHMARKS[config.workload].find_departures(config, sizes)
    requested = config.mlperf.division
    if requested != "auto":
        return requested, departures
    return "open" if departures else "closed", departures


class StartTimes(NamedTuple):
    init_ms: int
    """When the program started."""
    built_ms: int
    """When the network was on its device."""


def list_head(
    config: Config,
    sizes: RunSizes,
    device_name: str,
    parameters: Sequence[str],
    cleared: CacheCleared,
    times: StartTimes,
    now_ms: int,
) -> list[Event]:
    """Return the lines up to the start of the run, which is now, and its numbers of images."""
    init_ms, built_ms = times
    assert isinstance(config.train.batch_size, int)  # engine/fit.py resolved it
    benchmark = BENCHMARKS[config.workload]
    # Caches are cleared before the network is built; another host's clock may differ.
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
    """Return an event of a kind that its key says."""
    return Event(key, value, kind_of(key), time_ms, SOURCE | metadata)


def read_whole(path: Path) -> list[Event]:
    """Read a log up to its end or to the first line that cannot be read; nothing where there is no file."""
    events: list[Event] = []
    with suppress(DataError, ValueError):  # a line was cut when the machine went down: the rest is made again
        for _, line in read_lines(path):
            if event := parse_line(line):
                events.append(event)
    return events


def stays(event: Event, done: int, *, evaluated: bool) -> bool:
    """Return whether an event was before the checkpoint; those of the head have no step."""
    step = event.metadata.get("step")
    if not isinstance(step, int) or step > done:
        return False
    if event.key == "run_stop":
        return step == done and evaluated and event.metadata.get("status") == "success"
    return step < done or event.key in AFTER_STEPS or (evaluated and event.key in OF_EVALUATION)


def find_open(events: Sequence[Event], key: str, number: str) -> int | None:
    """Return the epoch, or the first of the block, that began and did not end."""
    last = next((event for event in reversed(events) if event.key in (f"{key}_start", f"{key}_stop")), None)
    found = last.metadata.get(number) if last is not None and last.key == f"{key}_start" else None
    return found if isinstance(found, int) and found > 0 else None


class MlperfLog(Sink):
    """The log of one run. Steps are counted as done; events after run_start carry them, so that they can be cut."""

    def __init__(
        self,
        path: Path | None,
        event_schedule: EventSchedule,
        config: Config,
        ranks: int,
        list_head: Callable[[int], list[Event]],
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Write into `path`; None: nowhere, on other ranks than rank 0. `list_head`: of the time of run_start."""
        self._path, self._event_schedule, self._config, self._ranks = path, event_schedule, config, ranks
        self._list_head, self._now = list_head, now
        self._file: IO[str] | None = None
        self._done = 0
        """Steps, of all starts."""
        self._pending: list[Event] | None = None
        """The log of a resumed run, as long as the run has not done anything new."""
        self._evaluated_ms: int | None = None
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
            self._write(self._list_head(self._now_ms()))

    def resume(self, done: int, *, evaluated: bool) -> None:
        """Continue the log of a run that has done some steps; `judged`: and an evaluation after them.

        The file is left as it is until there is something new. Values of the head are today's, its times the old ones:
        run_start stays, so that the pause is counted, and the event `resumed` says that there was one.
        """
        if self._path is None:
            return
        head, before = self._list_head(self._now_ms()), read_whole(self._path)
        old = {event.key: event for event in reversed(before)}
        kept: list[Event] = []
        if start := old.get("run_start"):
            head = [event._replace(time_ms=old.get(event.key, start).time_ms) for event in head]
            head = [old.get(event.key, event) if event.key == "cache_clear" else event for event in head]
            kept = [event for event in before if stays(event, done, evaluated=evaluated)]
        else:
            log.warning("%s is missing or damaged: it starts again, run_start included", self._path.name)
        if kept and kept[-1].key == RESUMED and kept[-1].metadata["step"] == done:
            kept.pop()  # nothing is left of what that start did
        self._done, self._pending, self._resumed = done, [*head, *kept], True
        self._epoch, self._block = find_open(kept, "epoch", "epoch_num"), find_open(kept, "block", "first_epoch_num")
        self._stopped = any(event.key == "run_stop" for event in kept)
        self._evaluated_ms = next((event.time_ms for event in reversed(kept) if event.key == "eval_accuracy"), None)

    def begin_steps(self, done: int) -> None:
        self._note_resumed(done)
        epoch = self._event_schedule.whole_epochs_after(done) + 1
        if self._block is None:
            self._block = first = self._epoch or epoch
            last = max(first, self._find_evaluated(self._event_schedule.next_evaluation(first - 1)))
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
            for epoch in range(self._epoch + 1, over + 1):  # a step that takes more than one epoch has
                self._add("epoch_start", done - 1, epoch_num=epoch)
                self._add("epoch_stop", done, epoch_num=epoch)
            self._add_rate(done, record.start_seconds + record.step_seconds - self._first_seconds)
            self._epoch, self._first_seconds, self._images = None, None, 0

    def begin_evaluation(self, done: int) -> None:
        self._note_resumed(done)
        self._add("eval_start", done, epoch_num=self._find_evaluated(done))

    def end_evaluation(self, done: int) -> None:
        if self._config.eval.async_:  # else the end is written with the scores
            self._commit()
            self._add("eval_stop", done, epoch_num=self._find_evaluated(done))
            self._end_block(done)

    def evaluation(self, evaluation: Evaluation) -> None:
        """Write the scores; the run's time ends with those that reach the target."""
        self._commit()
        step, config = evaluation.step, self._config.eval
        epoch, value = self._find_evaluated(step), evaluation.metrics[config.metric]
        if not self._config.eval.async_:
            self._add("eval_stop", step, epoch_num=epoch)
        self._add("eval_accuracy", step, value, epoch_num=epoch, metric=config.metric)
        if not self._config.eval.async_:
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
        """The original's two lines of an epoch's speed, pauses within it included."""
        config, images = self._config, float(self._images)
        if config.original_defects and config.original.name == "mlperf" and config.schedule.images:
            # It counted so many an epoch, whatever the data set has.
            images *= config.schedule.images / self._event_schedule.images
        if seconds > 0:
            rate = images / seconds
            self._add("tracked_stats", done, {"imgs_sec": rate})
            self._add("throughput", done, rate)

    def _find_evaluated(self, done: int) -> int:
        """Return the epoch that an evaluation after so many steps follows, or lies in."""
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
        """Cut the log of a resumed run, now that it goes on."""
        if self._pending is not None and self._path is not None:
            write_atomically(self._path, [format_line(event) + "\n" for event in self._pending])
            self._file, self._pending = self._path.open("a", encoding="utf-8"), None

    def _write(self, events: Sequence[Event]) -> None:
        if self._file is not None:
            self._file.writelines(format_line(event) + "\n" for event in events)
            self._file.flush()


def clear_caches(config: Config, world: World, *, resumed: bool) -> tuple[CacheCleared, list[Finding]]:
    """Clear the page cache on every host on request; a finding where it could not be done."""
    if not config.mlperf.clear_caches:
        return NOT_REQUESTED, []
    if resumed:
        return CacheCleared(False, "page cache not cleared: the run had begun before"), []
    mine = clear_page_cache() if world.rank.local == 0 else CacheCleared(True, "")
    found = [CacheCleared(**one) for one in gather(world, mine._asdict()) or [mine._asdict()]]
    failed = [one for one in found if not one.done]
    if not failed:
        return found[0], []
    return failed[0], [finding("caches-kept", f"mlperf.clear_caches is set, but: {failed[0].message}")]


def open_log(
    run: RunFolder, fitted: Fitted, images: tuple[int, int], rank: Rank, network: nn.Module, cleared: CacheCleared
) -> MlperfLog:
    """Return the log of this rank, with nothing written yet; only rank 0 has a file. `images`: train and val.

    To be called when the network has just been built: the log has that moment.
    """
    built_seconds = time.time()
    try:  # this process may have replaced itself since (engine.keep_memory)
        started_seconds = psutil.Process().create_time()
    except psutil.Error:
        started_seconds = built_seconds
    config = fitted.config
    order = order_images(config, images[0], rank)
    global_batch = order.global_batch * config.train.accumulate
    event_schedule = EventSchedule(order.epoch_images, global_batch, config.eval, config.stop, config.checkpoint)
    sizes = measure_sizes(config, *images, rank)
    division, departures = choose_division(config, sizes)
    log.info("mlperf.log: %s division%s", division, f": {'; '.join(departures)}" if departures else "")
    head = partial(
        list_head,
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
    """Return when the run began, in seconds since 1970, as its log says; None where it does not."""
    events = read_whole(run.path / MLPERF_LOG)
    return next((event.time_ms / 1000 for event in events if event.key == "run_start"), None)


def check_division(config: Config, images: tuple[int, int], rank: Rank) -> list[Finding]:
    """A finding where mlperf.division is closed and its rules are not kept."""
    division, departures = choose_division(config, measure_sizes(config, *images, rank))
    if division == "open" or not departures:
        return []
    shown = "; ".join(departures[:MANY_DEPARTURES])
    return [finding("not-closed", f"mlperf.division is closed, but its rules are not kept (log.txt has all): {shown}")]


def measure_sizes(config: Config, train_images: int, val_images: int, rank: Rank) -> RunSizes:
    """Return the numbers of a run on so many images."""
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
