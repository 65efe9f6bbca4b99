"""Read and write the iteration-duration files of the SC22 GPU-variability study, and the tables of its scripts.

rank = 0, world_size = 4, device_ids = 0

Iteration Duration 0 0 : 2.0815321020025294
"""

import csv
import io
import re
import statistics
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from trainstone.errors import DataError
from trainstone.formats.files import read_lines
from trainstone.text import printable

# Ranks write without synchronisation: their output may share a line and come in any order.
DURATION = re.compile(
    r"Iteration Duration ([0-9]{1,18}) ([0-9]{1,9}) : ([0-9]{1,12}(?:\.[0-9]{1,20})?(?:e-[0-9]{1,3})?)"
)
RANK = re.compile(r"rank = ([0-9]{1,9}), world_size = ([0-9]{1,9}), device_ids = ([0-9]{1,9})")
TRAINING_TIME = re.compile(
    r"Training time: (?:([0-9]{1,7}) days?, )?([0-9]{1,2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?"
)


class Duration(NamedTuple):
    """Duration of forward and backward of one iteration on one device."""

    iteration: int
    device: int
    seconds: float


class RankPlace(NamedTuple):
    rank: int
    world_size: int
    device: int


class IterationDurations(NamedTuple):
    ranks: list[RankPlace]
    durations: list[Duration]
    """In file order."""
    train_seconds: float | None
    """None: the run did not finish."""


class DeviceRow(NamedTuple):
    """A row of all_data.csv: a device in one run. None: unknown."""

    exp: str
    reps: int
    cabinet: str
    node: str
    device: int
    train_time: float | None
    mean_iter_dur: float | None
    """Mean and median exclude the first iteration; maximum and minimum include it."""
    med_iter_dur: float | None
    max_iter_dur: float
    min_iter_dur: float


def format_rank(place: RankPlace) -> str:
    return f"rank = {place.rank}, world_size = {place.world_size}, device_ids = {place.device}\n"


def format_duration(iteration: int, device: int, seconds: float) -> str:
    return f"\nIteration Duration {iteration} {device} : {seconds}\n"


def format_training_time(seconds: float) -> str:
    return f"\nTraining time: {timedelta(seconds=seconds)}\n"


def parse_lines(lines: Iterable[str]) -> IterationDurations:
    """Parse a file's lines; other text is skipped. Of several training times the last counts."""
    ranks: list[RankPlace] = []
    durations: list[Duration] = []
    train_seconds = None
    for line in lines:
        ranks += [RankPlace(*map(int, found)) for found in RANK.findall(line)]
        durations += [Duration(int(step), int(device), float(took)) for step, device, took in DURATION.findall(line)]
        if found := TRAINING_TIME.search(line):
            days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[:4])
            train_seconds = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()
            train_seconds += float(f"0.{found[5] or 0}")
    return IterationDurations(ranks, durations, train_seconds)


def read_iterdur(path: Path) -> IterationDurations:
    found = parse_lines(text for _, text in read_lines(path))
    if not found.durations:
        raise DataError(
            f"{printable(str(path))}: no iteration duration found",
            hint="the program prints them to stdout; redirect it: `python ... > resnet_iterdur_TIME_HOST.txt`",
        )
    return found


def summarise_device(seconds: Sequence[float], host: str, device: int, train_seconds: float | None) -> DeviceRow:
    """Return the row of a device from its iterations (at least one).

    Host names such as c301-001 give cabinet and node; for other names the cabinet is empty.
    """
    later = seconds[1:]
    mean = statistics.fmean(later) if later else None
    median = statistics.median(later) if later else None
    node = printable(host.split(".")[0])
    found = re.fullmatch(r"([A-Za-z]+[0-9]+)-([0-9]{1,9})", node)
    place = (found[1], str(int(found[2]))) if found else ("", node)
    return DeviceRow("resnet", 0, *place, device, train_seconds, mean, median, max(seconds), min(seconds))


def format_devices(rows: Iterable[DeviceRow]) -> str:
    return _format_table(DeviceRow._fields, rows)


def format_aggregated(rows: Iterable[DeviceRow]) -> str:
    """Return aggregated_data.csv: mean and median over the runs of each device; here each has one run."""
    columns = ("mean_iter_dur", "train_time")
    names = [f"{column}_{how}" for column in columns for how in ("mean", "median")]
    table = [
        [row.exp, row.cabinet, row.node, row.device, *[row.mean_iter_dur] * 2, *[row.train_time] * 2] for row in rows
    ]
    return _format_table(["exp", "cabinet", "node", "device", *names], table)


def _format_table(names: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(names)
    table.writerows(rows)
    return text.getvalue()
