"""Iteration durations as the SC22 study recorded them: original/resnet_iterdur_<seconds since 1970>_<host>.txt.

Forward and backward of each step: while the run goes on those of rank 0. At the end all ranks' are written from their
step files, a file per host as each host of the study printed one, with the tables that its scripts made of it.
"""

import heapq
import itertools
import logging
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from trainstone.errors import ResultError
from trainstone.files import write_atomically
from trainstone.formats import iterdur
from trainstone.formats.iterdur import RankPlace
from trainstone.results.schema import FINISHED, Status
from trainstone.results.steps import Columns, StepRecord, read_columns
from trainstone.train.original.lines import Facts, Lines, OriginalFile, Seat

log = logging.getLogger(__name__)


class DurationLines(Lines):
    """A line for each step of rank 0."""

    def __init__(self, facts: Facts, host: str) -> None:
        self.file = name_file(facts, host)
        self._place = RankPlace(0, facts.ranks, facts.device)

    def start(self) -> str:
        """Return which rank has which device."""
        return iterdur.format_rank(self._place)

    def step(self, record: StepRecord) -> str:
        """Return its duration."""
        return iterdur.format_duration(record.step, self._place.device, measure(record._asdict()))


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
        first = ranks[0].columns
        train_seconds = None
        if status in FINISHED and first:
            train_seconds = float(first["start_seconds"][-1] + first["step_seconds"][-1] - first["start_seconds"][0])
        remove_files(facts)
        for host in dict.fromkeys(rank.host for rank in ranks):
            here = [rank for rank in ranks if rank.host == host]
            write_atomically(facts.place / name_file(facts, host), format_ranks(here, train_seconds))
        rows = [
            iterdur.summarise_device(rank.seconds, rank.host, rank.place.device, train_seconds)
            for rank in ranks
            if rank.columns
        ]
        if rows:
            write_atomically(facts.place / "all_data.csv", iterdur.format_devices(rows))
            write_atomically(facts.place / "aggregated_data.csv", iterdur.format_aggregated(rows))


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
    columns: Columns
    """Of its step file; empty where that cannot be read."""

    @property
    def seconds(self) -> list[float]:
        """How long each took."""
        return np.asarray(measure(self.columns)).tolist() if self.columns else []


def read_ranks(facts: Facts, seats: Sequence[Seat]) -> list[RankDurations]:
    """Read the step files of all ranks; log.txt says which cannot be read, or lack steps."""
    found = []
    for rank, seat in enumerate(seats):
        columns: Columns = {}
        try:
            columns = read_columns(facts.folder / f"steps-rank{rank:04d}.csv")
        except ResultError as err:
            log.warning("%s; iteration durations of rank %d are left out", err.message, rank)
        found.append(RankDurations(RankPlace(rank, facts.ranks, seat.device), seat.host, columns))
    most = max(len(one.seconds) for one in found)
    for one in found:
        if len(one.seconds) < most:
            log.warning("iteration durations of rank %d: %d steps are lost", one.place.rank, most - len(one.seconds))
    return found


def measure(columns: Mapping[str, Any]) -> Any:
    """Return forward and backward, of a step or of all; where they were not timed apart, all but the wait for data."""
    if columns.get("forward_seconds") is not None:
        return columns["forward_seconds"] + columns["backward_seconds"]
    return columns["step_seconds"] - columns["data_seconds"]


def format_ranks(found: Sequence[RankDurations], train_seconds: float | None) -> Iterator[str]:
    """Yield a host's file: its ranks, then their lines by iteration and rank."""
    for one in found:
        yield iterdur.format_rank(one.place)
    lines = ((one.columns.get("step", ()), itertools.repeat(one.place), one.seconds) for one in found)
    for iteration, place, seconds in heapq.merge(*(zip(*columns, strict=False) for columns in lines)):
        yield iterdur.format_duration(int(iteration), place.device, seconds)
    if train_seconds is not None:
        yield iterdur.format_training_time(train_seconds)
