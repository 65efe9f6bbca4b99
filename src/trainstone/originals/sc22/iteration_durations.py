"""Writer of iteration durations as the SC22 study recorded them, and of the tables that its scripts computed."""

import heapq
import itertools
import logging
import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from trainstone.errors import ResultError
from trainstone.files import write_atomically
from trainstone.formats import iterdur
from trainstone.formats.iterdur import RankPlace
from trainstone.originals.output_file import OriginalFile, RankPlacement, RunFacts
from trainstone.results.schema.run import FINISHED, Status
from trainstone.results.steps import Columns, StepRecord, read_columns

log = logging.getLogger(__name__)


class RankDurations(NamedTuple):
    """Iteration durations of one rank."""

    place: RankPlace
    host: str
    steps: Iterable[float]
    """Step numbers; empty if the step file cannot be read."""
    seconds: Sequence[float]


class DurationFile(OriginalFile):
    """Writes iteration durations like the SC22 study: original/resnet_iterdur_<seconds since 1970>_<host>.txt.

    A duration is the forward and backward time of a step. During the run only rank 0's are written. At the end those of
    all ranks are written from their step files, one file per host as in the study, with the tables of its scripts.
    """

    def __init__(self, facts: RunFacts) -> None:
        self._host = socket.gethostname()
        self.file = name_file(facts, self._host)
        if not facts.config.engine.split_phases:
            log.info("iteration durations include the optimiser step; engine.split_phases=true excludes it")
        remove_files(facts)  # before a resume the run may have used other hosts
        super().__init__(facts)

    def render_start(self) -> str:
        return iterdur.format_rank(RankPlace(0, self.facts.ranks, self.facts.device))

    def render_step(self, record: StepRecord) -> str:
        return iterdur.format_duration(record.step, self.facts.device, compute_durations(record._asdict()))

    def finish(self, status: Status) -> None:
        """Write all hosts' files and the tables; an unfinished run has no training time."""
        super().finish(status)
        facts, train_seconds = self.facts, None
        files = [read_steps(facts, rank) for rank in range(len(facts.placements) or 1)]
        if status in FINISHED and (first := files[0]):
            train_seconds = float(first["start_seconds"][-1] + first["step_seconds"][-1] - first["start_seconds"][0])
        placements = facts.placements or (RankPlacement(self._host, facts.device),)
        ranks = [
            RankDurations(
                RankPlace(rank, facts.ranks, placement.device),
                placement.host,
                columns.get("step", ()),
                np.asarray(compute_durations(columns)).tolist() if columns else (),
            )
            for rank, (placement, columns) in enumerate(zip(placements, files, strict=True))
        ]
        most = max(len(rank.seconds) for rank in ranks)
        for rank in ranks:
            if len(rank.seconds) < most:
                missing = most - len(rank.seconds)
                log.warning("iteration durations of rank %d: %d steps are missing", rank.place.rank, missing)
        remove_files(facts)
        for host in dict.fromkeys(placement.host for placement in placements):
            on_host = [rank for rank in ranks if rank.host == host]
            write_atomically(facts.original_folder / name_file(facts, host), format_ranks(on_host, train_seconds))
        known = [rank for rank in ranks if len(rank.seconds)]
        rows = [iterdur.summarise_device(one.seconds, one.host, one.place.device, train_seconds) for one in known]
        if rows:
            write_atomically(facts.original_folder / "all_data.csv", iterdur.format_devices(rows))
            write_atomically(facts.original_folder / "aggregated_data.csv", iterdur.format_aggregated(rows))


def name_file(facts: RunFacts, host: str) -> str:
    return f"resnet_iterdur_{int(facts.began)}_{re.sub(r'[^A-Za-z0-9.-]+', '-', host) or 'host'}.txt"


def remove_files(facts: RunFacts) -> None:
    for path in facts.original_folder.glob("resnet_iterdur_*_*.txt"):
        path.unlink(missing_ok=True)


def read_steps(facts: RunFacts, rank: int) -> Columns:
    """Read the step file of a rank; log a warning and return an empty table if that fails."""
    try:
        return read_columns(facts.folder / f"steps-rank{rank:04d}.csv")
    except ResultError as err:
        log.warning("%s; iteration durations of rank %d are skipped", err.message, rank)
        return {}


def compute_durations(columns: Mapping[str, Any]) -> Any:
    """Return forward plus backward time of a step or of columns; without phase times, step time minus data wait."""
    if columns.get("forward_seconds") is not None:
        return columns["forward_seconds"] + columns["backward_seconds"]
    return columns["step_seconds"] - columns["data_seconds"]


def format_ranks(found: Sequence[RankDurations], train_seconds: float | None) -> Iterator[str]:
    """Yield the lines of a host's file: its ranks, then the durations by iteration and rank."""
    for one in found:
        yield iterdur.format_rank(one.place)
    lines = (zip(one.steps, itertools.repeat(one.place), one.seconds, strict=False) for one in found)
    for iteration, place, seconds in heapq.merge(*lines):
        yield iterdur.format_duration(int(iteration), place.device, seconds)
    if train_seconds is not None:
        yield iterdur.format_training_time(train_seconds)
