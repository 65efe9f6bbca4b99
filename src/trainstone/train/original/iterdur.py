"""Iteration durations as the SC22 study recorded them: original/resnet_iterdur_<seconds since 1970>_<host>.txt.

Forward and backward of each step: while the run goes on those of rank 0. At the end all ranks' are written from their
step files, a file per host as each host of the study printed one, with the tables that its scripts made of it.
"""

import logging
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainstone.errors import ResultError
from trainstone.files import write_atomically
from trainstone.formats.iterdur import (
    Duration,
    RankPlace,
    format_aggregated,
    format_devices,
    format_duration,
    format_rank,
    format_training_time,
    summarise_device,
)
from trainstone.results.schema import FINISHED, Status
from trainstone.results.steps import StepRecord, read_columns
from trainstone.train.original.facts import Facts, Seat
from trainstone.train.original.lines import Lines, OriginalFile

log = logging.getLogger(__name__)


class DurationLines(Lines):
    """A line for each step of rank 0."""

    def __init__(self, facts: Facts, host: str) -> None:
        self.file = name_file(facts, host)
        self._place = RankPlace(0, facts.ranks, facts.device)

    def start(self) -> str:
        """Return which rank has which device."""
        return format_rank(self._place)

    def step(self, record: StepRecord) -> str:
        """Return its duration."""
        return format_duration(Duration(record.step, self._place.device, measure(record._asdict())))


class DurationFile(OriginalFile):
    """Writes rank 0's lines live, and at the end all files."""

    def __init__(self, facts: Facts) -> None:
        self._host = socket.gethostname()
        if not facts.config.engine.split_phases:
            log.info("iteration durations hold the update, too: engine.split_phases=true would time it apart")
        remove_files(facts)  # an earlier start may have had other hosts
        super().__init__(facts, DurationLines(facts, self._host))

    def finish(self, status: Status) -> None:
        """Write all hosts' files and the tables; without the training time where the run did not come to its end."""
        super().finish(status)
        facts = self._facts
        ranks = read_ranks(facts, facts.seats or (Seat(self._host, facts.device),))
        began, ended = ranks[0].span
        train_seconds = ended - began if status in FINISHED and len(ranks[0].seconds) else None
        remove_files(facts)
        for host in dict.fromkeys(rank.host for rank in ranks):
            here = [rank for rank in ranks if rank.host == host]
            write_atomically(facts.place / name_file(facts, host), format_ranks(here, train_seconds))
        rows = [
            summarise_device(rank.seconds.tolist(), rank.host, rank.place.device, train_seconds)
            for rank in ranks
            if len(rank.seconds)
        ]
        if rows:
            write_atomically(facts.place / "all_data.csv", format_devices(rows))
            write_atomically(facts.place / "aggregated_data.csv", format_aggregated(rows))


def name_file(facts: Facts, host: str) -> str:
    """Return the name of a host's file."""
    return f"resnet_iterdur_{int(facts.began)}_{re.sub(r'[^A-Za-z0-9.-]+', '-', host) or 'host'}.txt"


def remove_files(facts: Facts) -> None:
    """Remove the files of all hosts."""
    for path in facts.place.glob("resnet_iterdur_*_*.txt"):
        path.unlink(missing_ok=True)


class RankDurations(NamedTuple):
    """The iterations of one rank."""

    place: RankPlace
    host: str
    iterations: NDArray[np.int64]
    seconds: NDArray[np.float64]
    """None of either where its file cannot be read."""
    span: tuple[float, float]
    """When the first began and the last ended, on the run's clock."""


def read_ranks(facts: Facts, seats: Sequence[Seat]) -> list[RankDurations]:
    """Read the step files of all ranks; log.txt says which cannot be read, or lack steps."""
    found = []
    for rank, seat in enumerate(seats):
        place = RankPlace(rank, facts.ranks, seat.device)
        try:
            durations = read_durations(facts.folder / f"steps-rank{rank:04d}.csv")
        except ResultError as err:
            log.warning("%s; iteration durations of rank %d are left out", err.message, rank)
            durations = np.empty(0, np.int64), np.empty(0), (0.0, 0.0)
        found.append(RankDurations(place, seat.host, *durations))
    last = max((int(one.iterations[-1]) for one in found if len(one.iterations)), default=-1)
    for one in found:
        lacking = last + 1 - len(one.iterations)
        if len(one.iterations) and lacking:
            log.warning("iteration durations of rank %d: its step file lacks %d steps", one.place.rank, lacking)
    return found


def read_durations(path: Path) -> tuple[NDArray[np.int64], NDArray[np.float64], tuple[float, float]]:
    """Return a rank's iterations, how long each took, and when the first began and the last ended."""
    columns = read_columns(path)
    if not columns or not len(columns["step"]):
        raise ResultError(f"{path} holds no step")
    steps, seconds, starts = columns["step"], measure(columns), columns["start_seconds"]
    # A number beyond 2**53 is none that a step could have.
    whole = np.isfinite(steps).all() and (steps == np.floor(steps)).all() and steps[0] >= 0 and steps[-1] < 2**53
    if not whole or (np.diff(steps) <= 0).any() or not np.isfinite(seconds).all() or (seconds < 0).any():
        raise ResultError(f"{path}: steps are out of order, or take no time that could be")
    return steps.astype(np.int64), seconds, (float(starts[0]), float(starts[-1] + columns["step_seconds"][-1]))


def measure(columns: Mapping[str, Any]) -> Any:
    """Return forward and backward, of a step or of all; where they were not timed apart, all but the wait for data."""
    if columns.get("forward_seconds") is not None:
        return columns["forward_seconds"] + columns["backward_seconds"]
    return columns["step_seconds"] - columns["data_seconds"]


def format_ranks(found: Sequence[RankDurations], train_seconds: float | None) -> Iterator[str]:
    """Yield a host's file: its ranks, then their lines by iteration and rank."""
    for one in found:
        yield format_rank(one.place)
    iterations = np.concatenate([one.iterations for one in found])
    numbers = np.concatenate([np.full(len(one.iterations), number) for number, one in enumerate(found)])
    seconds = np.concatenate([one.seconds for one in found])
    for at in np.lexsort((numbers, iterations)):
        device = found[int(numbers[at])].place.device
        yield format_duration(Duration(int(iterations[at]), device, float(seconds[at])))
    if train_seconds is not None:
        yield format_training_time(train_seconds)
