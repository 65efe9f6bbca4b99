"""What one MLPerf log says of its run: when it began and ended, how good it got, after how many epochs."""

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trainstone.errors import DataError
from trainstone.formats.files import read_lines
from trainstone.formats.mllog import HINT, Event, scan_mllog
from trainstone.results.mlperf.times import KEYS, UNKNOWN, Times, measure_times
from trainstone.text import printable
from trainstone.units import format_count

Form = Literal["0.5", "0.6", "0.7"]
"""Which line form: :::MLPv0.5.0, :::MLL, or :::MLLOG, which came with 0.7 and stayed."""
LOOKED_AT = frozenset(
    [
        *("submission_benchmark", "submission_division", "submission_org", "submission_platform", "submission_status"),
        *(
            "global_batch_size",
            "train_samples",
            "opt_name",
            "seed",
            "run_start",
            "run_stop",
            "eval_accuracy",
            "resumed",
        ),
        *KEYS,
    ]
)
MOST_EVENTS = 100_000
_FORM = re.compile(r":::(?:(MLLOG) |(MLL) |(MLPv))")


@dataclass(frozen=True)
class LoggedRun:
    """One run, as its log tells it; None is what the log does not say."""

    path: Path
    form: Form
    benchmark: str | None
    division: str | None
    org: str | None
    platform: str | None
    status: str | None
    """Of the submission: onprem, cloud ..."""
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
    """How often trainstone took it up again: the time in between is counted."""
    times: Times = UNKNOWN

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
        """Pictures trained on, over the whole run, evaluations included."""
        if self.train_samples is None or self.epochs is None or not self.minutes:
            return None
        return self.train_samples * self.epochs / (60 * self.minutes)


def read_logged(path: Path) -> LoggedRun:
    """Read a log; refuse one that is none, that never started a run or that holds several."""
    form = read_form(path)
    events, namespace = _gather(path)
    name = printable(str(path))
    starts = _named(events, "run_start")
    stops = _named(events, "run_stop")
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
    judged = [event for event in _named(events, "eval_accuracy") if _number(event.value) is not None]
    last = _last_in_time(events) or (judged[-1] if judged else None)
    return LoggedRun(
        path=path,
        form=form,
        benchmark=_text(events, "submission_benchmark") or namespace or None,
        division=_text(events, "submission_division"),
        org=_text(events, "submission_org"),
        platform=_text(events, "submission_platform"),
        status=_text(events, "submission_status"),
        global_batch=_count(events, "global_batch_size"),
        train_samples=_count(events, "train_samples"),
        optimizer=_text(events, "opt_name"),
        seeds=tuple(e.value for e in _named(events, "seed") if type(e.value) is int),
        ended=_status(stops),
        start_ms=starts[0].time_ms,
        stop_ms=stops[0].time_ms if stops else None,
        accuracies=tuple(float(event.value) for event in judged),
        epochs=_number(last.metadata.get("epoch_num")) if last else None,
        accuracy=float(last.value) if last else None,
        resumed=len(_named(events, "resumed")),
        times=measure_times(events),
    )


def read_form(path: Path) -> Form:
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


def _last_in_time(events: Iterable[Event]) -> Event | None:
    """Return the last evaluation before run_stop: pictures may be judged again after the target was reached."""
    last = None
    for event in itertools.takewhile(lambda event: event.key != "run_stop", events):
        if event.key == "eval_accuracy" and _number(event.value) is not None:
            last = event
    return last


def _named(events: Iterable[Event], key: str) -> list[Event]:
    return [event for event in events if event.key == key]


def _text(events: Iterable[Event], key: str) -> str | None:
    return next((e.value for e in events if e.key == key and isinstance(e.value, str) and e.value), None)


def _count(events: Iterable[Event], key: str) -> int | None:
    values = (_number(event.value) for event in events if event.key == key)
    return next((int(value) for value in values if value is not None and value >= 1), None)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _status(stops: Sequence[Event]) -> str | None:
    status = stops[0].metadata.get("status") if stops else None
    return status if isinstance(status, str) else None
