"""Files that a recipe's original wrote, written while the run goes on: original/ of the run folder. Rank 0 writes them.

The lines of MLPerf's MXNet SSD, the logs of the TBD suite, the iteration durations of the SC22 study and the log that
MLPerf's run_and_time.sh left. What WMLCE logged is in nvlog.py, mlperf.log in mllog.py.
"""

import getpass
import heapq
import itertools
import logging
import math
import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np

from trainstone.errors import ResultError
from trainstone.files import write_atomically
from trainstone.formats import iterdur
from trainstone.formats.iterdur import RankPlace
from trainstone.formats.timehistory import FEW_STEPS, Intervals, choose_every, format_line, format_prefix
from trainstone.measure.recorder import Sink
from trainstone.originals.mlperf.training_log import read_whole
from trainstone.originals.output_file import Facts, OriginalFile, Seat
from trainstone.originals.wmlce.nvlog import BenchmarkNvlog, TrainingNvlog
from trainstone.results.schema.quality import Evaluation
from trainstone.results.schema.run import FINISHED, Status
from trainstone.results.steps import Columns, StepRecord, as_stored, read_columns
from trainstone.text import printable

log = logging.getLogger(__name__)

SSD_LOG_STEPS = 100
"""The --log-interval of MLPerf's SSD."""
GAP = " " * 8
"""Between the parts of a line of TensorFlow's training loop."""
METRICS = {"loss": "test_loss", "top1": "test_accuracy"}
LATEST_MS = 10**14
"""Later than any run; a damaged log may say anything."""
DATE = "%Y-%m-%d %I:%M:%S %p"


class SsdLog(OriginalFile):
    """The lines that MLPerf's MXNet SSD printed while it trained: original/training.log, and log.txt.

    [Training] lines every 100 iterations and at the end of an epoch, [Validation] lines. Iterations and epochs are
    counted from 1; the first interval of an epoch begins with it, as there. Times are those of steps: pauses between
    them are not in.
    """

    file = "training.log"
    in_log = True

    def __init__(self, facts: Facts) -> None:
        self._every = facts.choose_every(SSD_LOG_STEPS)
        self._epoch: list[tuple[float, float]] = []
        """Seconds and loss of the steps of this epoch."""
        self._interval: list[float] = []
        """Seconds of the steps since the last line."""
        super().__init__(facts)

    def render_step(self, record: StepRecord) -> str:
        """Return a line when an interval or an epoch is complete."""
        self._epoch.append((record.step_seconds, record.loss))
        self._interval.append(record.step_seconds)
        iteration, text = record.step + 1, ""
        pictures, global_batch = self.facts.train_pictures, self.facts.global_batch
        epoch, next_epoch = (step * global_batch // pictures + 1 for step in (record.step, iteration))
        if iteration % self._every == 0:
            first, length = (math.ceil(epochs * pictures / global_batch) for epochs in (epoch - 1, 1))
            seconds, steps = sum(self._interval), len(self._interval)
            text += (
                f"[Training][Iteration {iteration}][Epoch {epoch}, Batch {iteration - first}/{length}] "
                f"lr: {record.lr:.5f}, training time: {1000 * seconds / steps:.3f} [ms], "
                f"speed: {find_speed(steps * global_batch, seconds):.3f} [imgs/sec], loss={record.loss:.3f}\n"
            )
            self._interval = []
        if next_epoch > epoch:
            seconds, steps = sum(seconds for seconds, _ in self._epoch), len(self._epoch)
            text += (
                f"[Training][Epoch {epoch}] training time: {seconds:.3f} [sec],"
                f"avg speed: {find_speed(steps * global_batch, seconds):.3f} [imgs/sec],"
                f"loss={sum(loss for _, loss in self._epoch) / steps:.3f}\n"
            )
            self._epoch, self._interval = [], []
        return text

    def render_evaluation(self, evaluation: Evaluation) -> str:
        """Return its time, from its beginning until steps could go on: what was not measured by itself
        (save_parameters, allgather, asnumpy) is not in it."""
        seconds = evaluation.eval_seconds
        speed = find_speed(evaluation.images, seconds)
        return f"[Validation] inference: {1000 * seconds:.3f} [ms], speed: {speed:.3f} [imgs/sec]\n"


def find_speed(images: int, seconds: float) -> float:
    return images / seconds if seconds > 0 else 0.0


class ThroughputLog(OriginalFile):
    """TimeHistory lines of a bench of the TBD suite's ResNet-50: original/throughput_data/batch_<n>.log.

    At any moment the lines that a run which ended now would have: from some length on fewer, of more steps each.
    """

    def __init__(self, facts: Facts) -> None:
        self.file = f"throughput_data/batch_{facts.config.train.batch_size}.log"
        self._records: list[StepRecord] = []
        self._intervals = Intervals(choose_every(facts.config.original.every_steps, 0))
        super().__init__(facts)

    def render_step(self, record: StepRecord) -> str:
        times = (record.start_seconds, record.step_seconds)
        return self._intervals.format_step(*times, record.images, self.facts.began, os.getpid())

    def step(self, record: StepRecord) -> None:
        if record.step < FEW_STEPS:
            self._records.append(as_stored(record))
        if record.step + 1 == FEW_STEPS:
            self._intervals = Intervals(choose_every(self.facts.config.original.every_steps, FEW_STEPS))
            self.write_whole(self._records)
        else:
            super().step(record)


class LoopLog(OriginalFile):
    """The training loop's log of the TBD suite's ResNet-50, original/training.log: TimeHistory, losses, evaluations.

    Intervals are made of the times of steps: pauses between them are not in.
    """

    file = "training.log"

    def __init__(self, facts: Facts) -> None:
        self._intervals = Intervals(choose_every(facts.config.original.every_steps, facts.steps or FEW_STEPS))
        self._losses: list[float] = []
        self._stats: dict[str, object] = {}
        self._stamps: list[str] = []
        self._steps, self._seconds = 0, 0.0
        self._ended = 0.0
        """When the last step or evaluation was over, on the run's clock."""
        super().__init__(facts)

    def render_step(self, record: StepRecord) -> str:
        """Return two lines when an interval is complete."""
        began, global_batch = self.facts.began, self.facts.global_batch
        if not self._stamps:  # of a resumed run whose step file was lost, the first is not step 0
            self._intervals = Intervals(self._intervals.every, record.step)
            self._stamp(record.step, record.start_seconds)
        self._losses.append(record.loss)
        # The rate is that of all ranks.
        interval = self._intervals.add(self._seconds, record.step_seconds, global_batch)
        self._steps += 1
        self._seconds += record.step_seconds
        self._ended = record.start_seconds + record.step_seconds
        if interval is None:
            return ""
        loss = {"train_loss": sum(self._losses) / len(self._losses)}
        self._stats |= loss
        self._losses = []
        self._stamp(interval.last_step, self._ended)
        per_second = (interval.last_step - interval.first_step) / interval.seconds
        line = format_line(interval, datetime.fromtimestamp(began + self._ended), os.getpid())
        return f"{line}\nstep: {interval.last_step}{GAP}steps_per_second: {per_second:.2f}{GAP}{loss}\n"

    def render_evaluation(self, evaluation: Evaluation) -> str:
        metrics, self._ended = evaluation.metrics, evaluation.seconds
        found = {name: metrics[ours] for ours, name in METRICS.items() if ours in metrics}
        renamed = {name.replace("test_", "eval_").replace("accuracy", "acc"): value for name, value in found.items()}
        self._stats = renamed | {name: value for name, value in self._stats.items() if name not in renamed}
        return f"step: {evaluation.step}{GAP}evaluation metric: {found}\n"

    def render_end(self, status: Status) -> str:
        """Return the run's statistics, where it came to its end."""
        if status not in FINISHED:
            return ""
        now = self.facts.began + self._ended
        stats = self._stats | {"step_timestamp_log": self._stamps, "train_finish_time": now}
        if self._seconds > 0:
            stats["avg_exp_per_second"] = self._steps * self.facts.global_batch / self._seconds
        return f"{format_prefix(datetime.fromtimestamp(now), os.getpid())}Run stats:\n{stats}\n"

    def _stamp(self, step: int, seconds: float) -> None:
        self._stamps.append(f"BatchTimestamp<batch_index: {step}, timestamp: {self.facts.began + seconds}>")


class RankDurations(NamedTuple):
    """The iterations of one rank."""

    place: RankPlace
    host: str
    steps: Iterable[float]
    """Their numbers; none where the step file cannot be read."""
    seconds: Sequence[float]


class DurationFile(OriginalFile):
    """Iteration durations as the SC22 study recorded them: original/resnet_iterdur_<seconds since 1970>_<host>.txt.

    Forward and backward of each step: while the run goes on those of rank 0. At the end all ranks' are written from
    their step files, a file per host as each host of the study printed one, with the tables that its scripts made.
    """

    def __init__(self, facts: Facts) -> None:
        self._host = socket.gethostname()
        self.file = name_file(facts, self._host)
        if not facts.config.engine.split_phases:
            log.info("iteration durations hold the update, too: engine.split_phases=true would time it apart")
        remove_files(facts)  # an earlier start may have had other hosts
        super().__init__(facts)

    def render_start(self) -> str:
        return iterdur.format_rank(RankPlace(0, self.facts.ranks, self.facts.device))

    def render_step(self, record: StepRecord) -> str:
        return iterdur.format_duration(record.step, self.facts.device, measure(record._asdict()))

    def finish(self, status: Status) -> None:
        """Write all hosts' files and the tables; without the training time where the run did not come to its end."""
        super().finish(status)
        facts, train_seconds = self.facts, None
        files = [read_steps(facts, rank) for rank in range(len(facts.seats) or 1)]
        if status in FINISHED and (first := files[0]):
            train_seconds = float(first["start_seconds"][-1] + first["step_seconds"][-1] - first["start_seconds"][0])
        seats = facts.seats or (Seat(self._host, facts.device),)
        ranks = [
            RankDurations(
                RankPlace(rank, facts.ranks, seat.device),
                seat.host,
                columns.get("step", ()),
                np.asarray(measure(columns)).tolist() if columns else (),
            )
            for rank, (seat, columns) in enumerate(zip(seats, files, strict=True))
        ]
        most = max(len(rank.seconds) for rank in ranks)
        for rank in ranks:
            if len(rank.seconds) < most:
                lost = most - len(rank.seconds)
                log.warning("iteration durations of rank %d: %d steps are lost", rank.place.rank, lost)
        remove_files(facts)
        for host in dict.fromkeys(seat.host for seat in seats):
            here = [rank for rank in ranks if rank.host == host]
            write_atomically(facts.place / name_file(facts, host), format_ranks(here, train_seconds))
        known = [rank for rank in ranks if len(rank.seconds)]
        rows = [iterdur.summarise_device(one.seconds, one.host, one.place.device, train_seconds) for one in known]
        if rows:
            write_atomically(facts.place / "all_data.csv", iterdur.format_devices(rows))
            write_atomically(facts.place / "aggregated_data.csv", iterdur.format_aggregated(rows))


def name_file(facts: Facts, host: str) -> str:
    return f"resnet_iterdur_{int(facts.began)}_{re.sub(r'[^A-Za-z0-9.-]+', '-', host) or 'host'}.txt"


def remove_files(facts: Facts) -> None:
    for path in facts.place.glob("resnet_iterdur_*_*.txt"):
        path.unlink(missing_ok=True)


def read_steps(facts: Facts, rank: int) -> Columns:
    """Read the step file of a rank; log.txt says that it cannot be read."""
    try:
        return read_columns(facts.folder / f"steps-rank{rank:04d}.csv")
    except ResultError as err:
        log.warning("%s; iteration durations of rank %d are left out", err.message, rank)
        return {}


def measure(columns: Mapping[str, Any]) -> Any:
    """Return forward and backward, of a step or of all; where they were not timed apart, all but the wait for data."""
    if columns.get("forward_seconds") is not None:
        return columns["forward_seconds"] + columns["backward_seconds"]
    return columns["step_seconds"] - columns["data_seconds"]


def format_ranks(found: Sequence[RankDurations], train_seconds: float | None) -> Iterator[str]:
    """Yield a host's file: its ranks, then their lines by iteration and rank."""
    for one in found:
        yield iterdur.format_rank(one.place)
    lines = (zip(one.steps, itertools.repeat(one.place), one.seconds, strict=False) for one in found)
    for iteration, place, seconds in heapq.merge(*lines):
        yield iterdur.format_duration(int(iteration), place.device, seconds)
    if train_seconds is not None:
        yield iterdur.format_training_time(train_seconds)


class ResultLine(Sink):
    """The log of MLPerf's MXNet programs as run_and_time.sh left it: all of mlperf.log, then the RESULT line.

    original/<yymmddHHMMSSNNNNNNNNN>_1.log, after the program's start (init_start), as its seconds are counted from
    there to the last event: initialisation is in them. It is written at the end, when mlperf.log is complete; of a
    detector its lines are in it, too. A run that did not come to its end has none.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def finish(self, status: Status) -> None:
        if status not in FINISHED:
            return
        facts = self._facts
        source, lines = facts.folder / "mlperf.log", facts.place / SsdLog.file
        text = source.read_text(encoding="utf-8", errors="replace") if source.is_file() else ""
        events = [event for event in read_whole(source) if event.time_ms < LATEST_MS] if text else []
        if not events:
            log.warning("no RESULT line: %s has no event", source)
            return
        milliseconds = next((event for event in events if event.key == "init_start"), events[0]).time_ms
        start, end = milliseconds // 1000, events[-1].time_ms // 1000
        began, ended = datetime.fromtimestamp(start), datetime.fromtimestamp(end)
        benchmark, printed = "IMAGE_CLASSIFICATION", ""
        try:
            user = getpass.getuser()
        except (KeyError, OSError, ImportError):  # the system has no name for it
            user = str(os.getuid())
        if facts.config.original.name == "mlperf_ssd":
            benchmark, user = "SINGLE_STAGE_DETECTOR", facts.config.mlperf.org
            printed = lines.read_text(encoding="utf-8", errors="replace") if lines.is_file() else ""
        path = facts.place / f"{began:%y%m%d%H%M%S}{milliseconds % 1000:03d}000000_1.log"
        path.parent.mkdir(exist_ok=True)
        runner = printable(user).replace(",", " ")  # commas part the fields
        pieces = [
            text,
            "" if text.endswith("\n") else "\n",
            printed,
            f"ENDING TIMING RUN AT {ended.strftime(DATE)}\n",
            f"RESULT,{benchmark},,{end - start},{runner},{began.strftime(DATE)}\n",
        ]
        write_atomically(path, pieces)


MAKERS: dict[tuple[str, str], tuple[Callable[[Facts], Sink], ...]] = {
    ("wmlce", "train"): (TrainingNvlog,),
    ("wmlce", "bench"): (BenchmarkNvlog,),
    ("sc22", "train"): (DurationFile,),
    ("sc22", "bench"): (DurationFile,),
    ("tbd", "train"): (LoopLog,),
    ("tbd", "bench"): (ThroughputLog,),
    ("mlperf", "train"): (ResultLine,),  # of a bench the original had no log
    ("mlperf_ssd", "train"): (SsdLog, ResultLine),
}


def list_writers(facts: Facts) -> Iterator[Sink]:
    """Open one file after the other of those that the recipe's original wrote; for rank 0 only."""
    for maker in MAKERS.get((facts.config.original.name, facts.kind), ()):
        yield maker(facts)
