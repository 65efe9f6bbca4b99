"""Iteration-duration files of the SC22 GPU-variability study, and the tables its scripts made of them.

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

# Ranks write without waiting for each other: what they print may stand on one line, and in any order.
DURATION = re.compile(
    r"Iteration Duration ([0-9]{1,18}) ([0-9]{1,9}) : ([0-9]{1,12}(?:\.[0-9]{1,20})?(?:e-[0-9]{1,3})?)"
)
RANK = re.compile(r"rank = ([0-9]{1,9}), world_size = ([0-9]{1,9}), device_ids = ([0-9]{1,9})")
TRAINING_TIME = re.compile(
    r"Training time: (?:([0-9]{1,7}) days?, )?([0-9]{1,2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?"
)


class Duration(NamedTuple):
    """Forward and backward of one iteration on one device."""

    iteration: int
    device: int
    seconds: float


class RankPlace(NamedTuple):
    rank: int
    world_size: int
    device: int


class IterDur(NamedTuple):
    ranks: list[RankPlace]
    durations: list[Duration]
    """As they stand there."""
    train_seconds: float | None
    """None: the run did not come to its end."""


class DeviceRow(NamedTuple):
    """A row of all_data.csv: a device in one run. None: not known."""

    exp: str
    reps: int
    cabinet: str
    node: str
    device: int
    train_time: float | None
    mean_iter_dur: float | None
    """Without the first iteration, and so the median; the others with it."""
    med_iter_dur: float | None
    max_iter_dur: float
    min_iter_dur: float


def format_rank(place: RankPlace) -> str:
    return f"rank = {place.rank}, world_size = {place.world_size}, device_ids = {place.device}\n"


def format_duration(iteration: int, device: int, seconds: float) -> str:
    return f"\nIteration Duration {iteration} {device} : {seconds}\n"


def format_training_time(seconds: float) -> str:
    return f"\nTraining time: {timedelta(seconds=seconds)}\n"


def parse_lines(lines: Iterable[str]) -> IterDur:
    """Read a file's lines; anything else in them is passed over. Of several training times the last counts."""
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
    return IterDur(ranks, durations, train_seconds)


def read_iterdur(path: Path) -> IterDur:
    message = parse_lines(text for _, text in read_lines(path))
    if not message.durations:
        raise DataError(
            f"{printable(str(path))}: no iteration duration in it",
            hint="the program prints them to stdout: redirect it, as in `python ... > resnet_iterdur_TIME_HOST.txt`",
        )
    return message


def summarise_device(seconds: Sequence[float], host: str, device: int, train_seconds: float | None) -> DeviceRow:
    """Return the row of a device by its iterations, of which there is one at least.

    Of a host called as c301-001 the name says cabinet and node; another is in no cabinet.
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
    """Return aggregated_data.csv: mean and median over the runs of each device, of which there is one here."""
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
