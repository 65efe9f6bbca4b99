"""MLPerf logs found and read: when each run began and ended, how good it got, where its time went."""

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NamedTuple

from trainstone.errors import DataError
from trainstone.formats.files import read_lines
from trainstone.formats.mllog import HINT, Event, scan_mllog
from trainstone.text import printable
from trainstone.units import format_count

LOG_NAME = "mlperf.log"
RESULT_NAMES = "result_*.txt"
Form = Literal["0.5", "0.6", "0.7"]
"""Which line form: :::MLPv0.5.0, :::MLL, or :::MLLOG, which came with 0.7 and stayed."""
LOOKED_AT = frozenset(
    [
        *("submission_benchmark", "submission_division", "submission_org", "submission_platform", "global_batch_size"),
        *("train_samples", "opt_name", "seed", "run_start", "run_stop", "eval_accuracy", "resumed", "init_start"),
        *("init_stop", "epoch_start", "epoch_stop", "eval_start", "eval_stop"),
    ]
)
MOST_EVENTS = 100_000
OWN = "trainstone/"
"""How the file that writes our lines begins; others name none, or theirs."""
_FORM = re.compile(r":::(?:(MLLOG) |(MLL) |(MLPv))")


class JudgedAt(NamedTuple):
    """One evaluation."""

    epoch: float | None
    seconds: float | None
    """From eval_start to eval_stop, or to its accuracy."""
    accuracy: float


class Times(NamedTuple):
    """Where the seconds of a run went, as mll-status of MLPerf's SSD showed them; None is what the log does not say."""

    devices: int | None = None
    total: float | None = None
    """From the first init_start to run_stop."""
    converge: float | None = None
    """From run_start to run_stop."""
    init: float | None = None
    first_epoch: float | None = None
    epoch: float | None = None
    """Mean of the epochs from the second to the one before the first evaluation; where that is none, of all later."""
    train: float | None = None
    """All epochs together."""
    evaluations: tuple[JudgedAt, ...] = ()


NO_TIMES = Times()


@dataclass(frozen=True)
class LoggedRun:
    """One run, as its log tells it; None is what the log does not say."""

    path: Path
    form: Form
    benchmark: str | None
    division: str | None
    org: str | None
    platform: str | None
    global_batch: int | None
    train_samples: int | None
    optimizer: str | None
    seeds: tuple[int, ...]
    ended: str | None
    """success or aborted; None: the log stops before the run did."""
    start_ms: int
    stop_ms: int | None
    accuracies: tuple[float, ...]
    """Of every evaluation, in order."""
    epochs: float | None
    """What the last evaluation before run_stop calls its epoch: to the target, where the run reached it."""
    accuracy: float | None = None
    """Of the same evaluation."""
    resumed: int = 0
    """How often trainstone resumed it: the time in between is counted."""
    times: Times = NO_TIMES

    @property
    def converged(self) -> bool:
        """Whether it ended by reaching its target."""
        return self.ended == "success" and self.stop_ms is not None

    @property
    def minutes(self) -> float | None:
        """From run_start to run_stop."""
        return None if self.stop_ms is None else (self.stop_ms - self.start_ms) / 60_000

    @property
    def best_accuracy(self) -> float | None:
        """Of all evaluations."""
        return max(self.accuracies, default=None)

    @property
    def images_per_second(self) -> float | None:
        """Images trained on, over the whole run, evaluations included."""
        if self.train_samples is None or self.epochs is None or not self.minutes:
            return None
        return self.train_samples * self.epochs / (60 * self.minutes)


def find_logs(given: Sequence[Path]) -> tuple[list[Path], dict[Path, DataError]]:
    """Return every log once, in the order given and, below a folder, by name with numbers as numbers.

    And of each folder without a log the error that says so.
    """
    found: dict[str, Path] = {}
    errors: dict[Path, DataError] = {}
    for path in given:
        try:
            logs = _find_in_folder(path) if path.is_dir() else [path]
        except DataError as err:
            errors[path] = err
            continue
        for log in logs:
            found.setdefault(os.path.realpath(log), log)  # the same log twice would be two runs
    return list(found.values()), errors


def find_run_logs(run: Path) -> list[Path]:
    """Return the log of a run folder, or those of its points; none where it has none."""
    if (run / LOG_NAME).is_file():
        return [run / LOG_NAME]
    return sorted((run / "points").glob(f"*/{LOG_NAME}"), key=_order)


def read_logs(paths: Sequence[Path]) -> tuple[list[LoggedRun], list[DataError]]:
    """Read all that can be read; the errors of the others."""
    runs, errors = [], []
    for path in paths:
        try:
            runs.append(read_logged(path))
        except DataError as err:
            errors.append(err)
    return runs, errors


def read_logged(path: Path) -> LoggedRun:
    """Read a log; refuse one that is none, that never started a run or that holds several."""
    form = _read_form(path)
    events, namespace = _gather(path)
    name = printable(str(path))
    starts, stops = _named(events, "run_start"), _named(events, "run_stop")
    if not starts:
        raise DataError(f"{name}: no run_start in it, so no run", hint="a run that fell over while it was built?")
    if len(starts) > 1 or len(stops) > 1:
        raise DataError(
            f"{name}: several runs in one log: {format_count(len(starts), 'time')} run_start, "
            f"{format_count(len(stops), 'time')} run_stop",
            hint=HINT,
        )
    if stops and stops[0].time_ms < starts[0].time_ms:
        raise DataError(f"{name}: run_stop comes before run_start", hint=HINT)
    judged = _list_judged(events)
    # Images may be evaluated again after the target was reached: what counts is before run_stop.
    in_time = _list_judged(itertools.takewhile(lambda event: event.key != "run_stop", events))
    last = next(reversed(in_time or judged), None)
    status = stops[0].metadata.get("status") if stops else None
    return LoggedRun(
        path=path,
        form=form,
        benchmark=_text(events, "submission_benchmark") or namespace or None,
        division=_text(events, "submission_division"),
        org=_text(events, "submission_org"),
        platform=_text(events, "submission_platform"),
        global_batch=_count(events, "global_batch_size"),
        train_samples=_count(events, "train_samples"),
        optimizer=_text(events, "opt_name"),
        seeds=tuple(e.value for e in _named(events, "seed") if type(e.value) is int),
        ended=status if isinstance(status, str) else None,
        start_ms=starts[0].time_ms,
        stop_ms=stops[0].time_ms if stops else None,
        accuracies=tuple(float(event.value) for event in judged),
        epochs=_number(last.metadata.get("epoch_num")) if last else None,
        accuracy=float(last.value) if last else None,
        resumed=len(_named(events, "resumed")),
        times=measure_times(events),
    )


def measure_times(events: Sequence[Event]) -> Times:
    """Return the times of a run. Of lines that every rank wrote the first counts."""
    first = {event.key: event for event in reversed(events)}
    begun, over = _by_epoch(events, "epoch_start"), _by_epoch(events, "epoch_stop")
    measured = {epoch: _span(begun[epoch], over.get(epoch)) for epoch in sorted(begun)}
    epochs = {epoch: seconds for epoch, seconds in measured.items() if seconds is not None}
    evaluations = tuple(_list_evaluations(events))
    later = list(epochs)[1:]
    judged = min((one.epoch for one in evaluations if one.epoch is not None), default=None)
    before = [epoch for epoch in later if judged is None or epoch < judged] or later
    return Times(
        devices=_count_devices(events, first.get("submission_platform")),
        total=_span(first.get("init_start"), first.get("run_stop")),
        converge=_span(first.get("run_start"), first.get("run_stop")),
        init=_span(first.get("init_start"), first.get("init_stop")),
        first_epoch=next(iter(epochs.values()), None),
        epoch=sum(epochs[epoch] for epoch in before) / len(before) if before else None,
        train=sum(epochs.values()) if epochs else None,
        evaluations=evaluations,
    )


def _find_in_folder(folder: Path) -> list[Path]:
    logs = find_run_logs(folder) or sorted(_walk(folder), key=_order)
    if logs:
        return logs
    name = printable(str(folder))
    if (folder / "result.json").is_file():
        raise DataError(f"no {LOG_NAME} in run {name}", hint="trainstone train writes one, other verbs do not")
    raise DataError(
        f"no {LOG_NAME} or {RESULT_NAMES} in {name} or below", hint="give a log, a run, or a folder of logs"
    )


def _walk(folder: Path) -> Iterator[Path]:
    """Links to folders are not followed: they may lead round in a circle."""
    for place, _, names in os.walk(folder):
        yield from (Path(place, name) for name in names if name == LOG_NAME or fnmatchcase(name, RESULT_NAMES))


def _order(path: Path) -> list[tuple[int, str]]:
    """Sort result_10 after result_2."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"([0-9]{1,9})", str(path))]


def _read_form(path: Path) -> Form:
    """Return the form of the first line that is one of MLPerf's."""
    for _, line in read_lines(path):
        if found := _FORM.search(line):
            return "0.7" if found[1] else "0.6" if found[2] else "0.5"
    raise DataError(f"{printable(str(path))}: no MLPerf log line in it", hint=HINT)


def _gather(path: Path) -> tuple[list[Event], str]:
    """Return the events that are looked at, and the first namespace; a log may hold millions of others."""
    kept: list[Event] = []
    namespace = ""
    for event in scan_mllog(path):
        namespace = namespace or event.namespace
        if event.key in LOOKED_AT:
            kept.append(event)
        if len(kept) > MOST_EVENTS:
            raise DataError(f"{printable(str(path))}: more than {MOST_EVENTS} events that one run has once", hint=HINT)
    return kept, namespace


def _list_judged(events: Iterable[Event]) -> list[Event]:
    return [event for event in _named(events, "eval_accuracy") if _number(event.value) is not None]


def _list_evaluations(events: Sequence[Event]) -> Iterator[JudgedAt]:
    """Evaluations in order; their ends may stand beside the next epoch, so they are matched by number."""
    starts, stops = _by_epoch(events, "eval_start"), _by_epoch(events, "eval_stop")
    seen: set[float] = set()
    for event in _list_judged(events):
        accuracy, epoch = float(event.value), _number(event.metadata.get("epoch_num"))
        if epoch in seen:
            continue
        if epoch is None:
            yield JudgedAt(None, None, accuracy)
        else:
            seen.add(epoch)
            yield JudgedAt(epoch, _span(starts.get(epoch), stops.get(epoch, event)), accuracy)


def _count_devices(events: Iterable[Event], platform: Event | None) -> int | None:
    """Every rank of the originals wrote init_start; ours writes one, and the platform's name begins with the ranks."""
    starts = len(_named(events, "init_start"))
    if starts > 1:
        return starts
    if platform is None or not str(platform.metadata.get("file", "")).startswith(OWN):
        return None
    counted = re.match(r"([0-9]{1,9})x", str(platform.value))
    return int(counted[1]) if counted else None


def _named(events: Iterable[Event], key: str) -> list[Event]:
    return [event for event in events if event.key == key]


def _by_epoch(events: Iterable[Event], key: str) -> dict[float, Event]:
    """Return the first event of a key by its epoch."""
    found: dict[float, Event] = {}
    for event in _named(events, key):
        epoch = _number(event.metadata.get("epoch_num"))
        if epoch is not None:
            found.setdefault(epoch, event)
    return found


def _text(events: Iterable[Event], key: str) -> str | None:
    return next((e.value for e in events if e.key == key and isinstance(e.value, str) and e.value), None)


def _count(events: Iterable[Event], key: str) -> int | None:
    values = (_number(event.value) for event in _named(events, key))
    return next((int(value) for value in values if value is not None and value >= 1), None)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _span(begin: Event | None, end: Event | None) -> float | None:
    if begin is None or end is None or end.time_ms < begin.time_ms:
        return None
    return (end.time_ms - begin.time_ms) / 1000
