"""SC22's iteration durations of all ranks, made of their step files at the end of a run; the first rank does it.

A file a host, as each host of the study printed one: devices are told apart by their number there.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainstone.errors import ResultError
from trainstone.files import write_atomically
from trainstone.formats.iterdur import (
    DeviceRow,
    Duration,
    RankPlace,
    format_duration,
    format_rank,
    format_training_time,
    summarise_device,
)
from trainstone.results.steps import Columns, read_columns
from trainstone.train.original.facts import Facts

log = logging.getLogger(__name__)

NAMES = ("step", "data_seconds", "step_seconds", "forward_seconds", "backward_seconds")


class RankDurations(NamedTuple):
    """The iterations of one rank."""

    place: RankPlace
    host: str
    iterations: NDArray[np.int64]
    seconds: NDArray[np.float64]
    """None of either where its file cannot be read."""


def name_file(began: str, host: str) -> str:
    """Return the name of a host's file; `began`: seconds since 1970."""
    return f"resnet_iterdur_{began}_{re.sub(r'[^A-Za-z0-9.-]+', '-', host) or 'host'}.txt"


def step_file(folder: Path, rank: int) -> Path:
    """Return where a rank's steps are."""
    return folder / f"steps-rank{rank:04d}.csv"


def write_ranks(facts: Facts, live: Path, train_seconds: float | None) -> list[DeviceRow]:
    """Write all hosts' files in place of the one that grew while the run went on; return a row a device."""
    found = read_ranks(facts)
    began = live.name.split("_")[2]
    before = set(live.parent.glob(f"resnet_iterdur_{began}_*.txt"))
    for host in dict.fromkeys(one.host for one in found):
        here = [one for one in found if one.host == host]
        path = live.parent / name_file(began, host)
        write_atomically(path, format_ranks(here, train_seconds))
        before.discard(path)
    for stale in before:  # of a host that an earlier start had
        stale.unlink(missing_ok=True)
    return [
        summarise_device(one.seconds.tolist(), one.host, one.place.device, train_seconds)
        for one in found
        if len(one.seconds)
    ]


def read_ranks(facts: Facts) -> list[RankDurations]:
    """Read the step files of all ranks; log.txt says which cannot be read, or lack steps."""
    found = []
    for rank, seat in enumerate(facts.seats):
        place = RankPlace(rank, facts.ranks, seat.device)
        try:
            iterations, seconds = read_durations(step_file(facts.folder, rank))
        except ResultError as err:
            log.warning("%s; iteration durations of rank %d are left out", err.message, rank)
            iterations, seconds = np.empty(0, np.int64), np.empty(0)
        found.append(RankDurations(place, seat.host, iterations, seconds))
    last = max((int(one.iterations[-1]) for one in found if len(one.iterations)), default=-1)
    for one in found:
        lacking = last + 1 - len(one.iterations)
        if len(one.iterations) and lacking:
            log.warning("iteration durations of rank %d: its step file lacks %d steps", one.place.rank, lacking)
    return found


def read_durations(path: Path) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return a rank's iterations and how long each took."""
    columns = read_columns(path, NAMES)
    if not columns or not len(columns["step"]):
        raise ResultError(f"{path} holds no step")
    steps, seconds = columns["step"], measure(columns)
    # A number beyond 2**53 is none that a step could have.
    whole = np.isfinite(steps).all() and (steps == np.floor(steps)).all() and steps[0] >= 0 and steps[-1] < 2**53
    if not whole or (np.diff(steps) <= 0).any() or not np.isfinite(seconds).all() or (seconds < 0).any():
        raise ResultError(f"{path}: steps are out of order, or take no time that could be")
    return steps.astype(np.int64), seconds


def measure(columns: Columns) -> NDArray[np.float64]:
    """Return forward and backward; where they were not told apart, all but the wait for data."""
    if "forward_seconds" in columns and "backward_seconds" in columns:
        return columns["forward_seconds"] + columns["backward_seconds"]
    return columns["step_seconds"] - columns["data_seconds"]


def read_end(path: Path) -> float | None:
    """Return when the last step of a file was over, on the run's clock."""
    try:
        columns = read_columns(path, ("start_seconds", "step_seconds"))
    except ResultError:
        return None
    if not columns or not len(columns["start_seconds"]):
        return None
    end = float(columns["start_seconds"][-1] + columns["step_seconds"][-1])
    return end if np.isfinite(end) and end >= 0 else None


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
