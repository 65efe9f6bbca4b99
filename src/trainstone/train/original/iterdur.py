"""Iteration durations as the SC22 study recorded them: original/resnet_iterdur_<seconds since 1970>_<host>.txt.

Forward and backward of each step: while the run goes on those of rank 0. At the end all ranks' are written from their
step files, a file per host as each host of the study printed one, with the tables that its scripts made of it.
"""

import logging
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainstone.errors import ResultError
from trainstone.files import write_atomically
from trainstone.formats import iterdur
from trainstone.formats.iterdur import RankPlace
from trainstone.results.schema import FINISHED, Status
from trainstone.results.steps import Columns, StepRecord, read_columns
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
            iterdur.summarise_device(rank.seconds.tolist(), rank.host, rank.place.device, train_seconds)
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
    def seconds(self) -> NDArray[np.float64]:
        """How long each took."""
        return np.asarray(measure(self.columns)) if self.columns else np.empty(0)


def read_ranks(facts: Facts, seats: Sequence[Seat]) -> list[RankDurations]:
    """Read the step files of all ranks; log.txt says which cannot be read, or lack steps."""
    found = []
    for rank, seat in enumerate(seats):
        path = facts.folder / f"steps-rank{rank:04d}.csv"
        columns: Columns = {}
        try:
            columns = read_columns(path)
            check_columns(columns)
        except (ResultError, ValueError) as err:
            log.warning("%s: %s; iteration durations of rank %d are left out", path, err, rank)
            columns = {}
        found.append(RankDurations(RankPlace(rank, facts.ranks, seat.device), seat.host, columns))
    last = max((int(one.columns["step"][-1]) for one in found if one.columns), default=-1)
    for one in found:
        lacking = last + 1 - len(one.seconds)
        if one.columns and lacking:
            log.warning("iteration durations of rank %d: its step file lacks %d steps", one.place.rank, lacking)
    return found


def check_columns(columns: Columns) -> None:
    """Raise ValueError for steps out of order, or of a duration that cannot be."""
    seconds = measure(columns) if columns else np.empty(0)
    steps = columns.get("step", np.empty(0))
    rising = (
        len(steps) > 0 and steps[0] >= 0 and steps[-1] < 2**53 and (steps % 1 == 0).all() and (np.diff(steps) > 0).all()
    )
    if not rising or not np.isfinite(seconds).all() or (seconds < 0).any():
        raise ValueError("no steps, steps out of order, or durations that cannot be")


def measure(columns: Mapping[str, Any]) -> Any:
    """Return forward and backward, of a step or of all; where they were not timed apart, all but the wait for data."""
    if columns.get("forward_seconds") is not None:
        return columns["forward_seconds"] + columns["backward_seconds"]
    return columns["step_seconds"] - columns["data_seconds"]


def format_ranks(found: Sequence[RankDurations], train_seconds: float | None) -> Iterator[str]:
    """Yield a host's file: its ranks, then their lines by iteration and rank."""
    for one in found:
        yield iterdur.format_rank(one.place)
    iterations = np.concatenate([one.columns.get("step", np.empty(0)) for one in found])
    numbers = np.concatenate([np.full(len(one.seconds), number) for number, one in enumerate(found)])
    seconds = np.concatenate([one.seconds for one in found])
    for at in np.lexsort((numbers, iterations)):
        device = found[int(numbers[at])].place.device
        yield iterdur.format_duration(int(iterations[at]), device, float(seconds[at]))
    if train_seconds is not None:
        yield iterdur.format_training_time(train_seconds)
