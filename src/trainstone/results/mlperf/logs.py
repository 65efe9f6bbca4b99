"""MLPerf logs found and read: when each run began and ended, how good it got, where its time went."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from trainstone.errors import DataError
from trainstone.formats.files import read_lines
from trainstone.formats.mllog import HINT, Event, scan_mllog
from trainstone.text import printable

LOG_NAME = "mlperf.log"
RESULT_NAMES = "result_*.txt"
KEYS = (
    *("submission_benchmark", "submission_division", "submission_org", "submission_platform", "global_batch_size"),
    *("train_samples", "opt_name", "seed", "run_start", "run_stop", "eval_accuracy", "resumed", "init_start"),
    *("init_stop", "epoch_start", "epoch_stop", "eval_start", "eval_stop"),
)
"""Of the events that are looked at."""
IN_TIME = "eval_accuracy before run_stop"
MOST_EVENTS = 100_000
OWN = "trainstone/"  # how the file that writes our lines begins; others name none, or theirs
FORM = re.compile(r":::(MLLOG |MLL |MLPv)")
FORMS = {"MLLOG ": "0.7", "MLL ": "0.6", "MLPv": "0.5"}  # which line form: :::MLLOG came with 0.7 and stayed
Events = Mapping[str, Sequence[Event]]  # by their key


class LoggedEvaluation(NamedTuple):
    epoch: float | None
    seconds: float | None  # from eval_start to eval_stop, or to its accuracy
    accuracy: float


class Times(NamedTuple):
    """Where the seconds of a run went; None is what the log does not say."""

    devices: int | None = None
    total_seconds: float | None = None  # from the first init_start to run_stop
    converge_seconds: float | None = None  # from run_start to run_stop
    init_seconds: float | None = None
    first_epoch_seconds: float | None = None
    mean_epoch_seconds: float | None = None
    """Of the epochs from the second to the one before the first evaluation; where that is none, of all later."""
    train_seconds: float | None = None  # all epochs together
    evaluations: tuple[LoggedEvaluation, ...] = ()


NO_TIMES = Times()


@dataclass(frozen=True)
class LoggedRun:
    """One run, as its log tells it; None is what the log does not say."""

    path: Path
    form: str  # 0.5, 0.6 or 0.7
    benchmark: str | None
    division: str | None
    org: str | None
    platform: str | None
    global_batch: int | None
    train_samples: int | None
    optimizer: str | None
    seeds: tuple[int, ...]
    ended: str | None  # success or aborted; None: the log stops before the run did
    start_ms: int
    stop_ms: int | None
    epochs: float | None
    """What the last evaluation before run_stop calls its epoch: to the target, where the run reached it."""
    accuracy: float | None = None  # of the same evaluation
    resumed: int = 0  # how often trainstone resumed it: the time in between is counted
    times: Times = NO_TIMES

    @property
    def converged(self) -> bool:
        return self.ended == "success" and self.stop_ms is not None

    @property
    def minutes(self) -> float | None:
        return None if self.stop_ms is None else (self.stop_ms - self.start_ms) / 60_000

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
        logs = (find_run_logs(path) or sorted(_walk(path), key=_order)) if path.is_dir() else [path]
        for log in logs:
            found.setdefault(os.path.realpath(log), log)  # the same log twice would be two runs
        name = printable(str(path))
        if not logs and (path / "result.json").is_file():
            hint = "trainstone train writes one, other verbs do not"
            errors[path] = DataError(f"no {LOG_NAME} in run {name}", hint=hint)
        elif not logs:
            message = f"no {LOG_NAME} or {RESULT_NAMES} in {name} or below"
            errors[path] = DataError(message, hint="give a log, a run, or a folder of logs")
    return list(found.values()), errors


def find_run_logs(run: Path) -> list[Path]:
    if (run / LOG_NAME).is_file():
        return [run / LOG_NAME]
    return sorted((run / "points").glob(f"*/{LOG_NAME}"), key=_order)


def read_logs(paths: Sequence[Path]) -> tuple[list[LoggedRun], list[DataError]]:
    runs, errors = [], []
    for path in paths:
        try:
            runs.append(read_logged(path))
        except DataError as err:
            errors.append(err)
    return runs, errors


def read_logged(path: Path) -> LoggedRun:
    name = printable(str(path))
    # Nothing keeps the generator, so that an error, which keeps this frame, does not keep the file open.
    form = next((FORMS[found[1]] for _, line in read_lines(path) if (found := FORM.search(line))), None)
    if form is None:
        raise DataError(f"{name}: no MLPerf log line in it", hint=HINT)
    events, namespace = _gather(path)
    starts, stops = events["run_start"], events["run_stop"]
    if not starts:
        raise DataError(f"{name}: no run_start in it, so no run", hint="a run that fell over while it was built?")
    if len(starts) > 1 or len(stops) > 1:
        raise DataError(f"{name}: several runs in one log: run_start {len(starts)}, run_stop {len(stops)}", hint=HINT)
    if stops and stops[0].time_ms < starts[0].time_ms:
        raise DataError(f"{name}: run_stop comes before run_start", hint=HINT)
    # Images may be evaluated again after the target was reached: what counts stands before run_stop.
    scored = [event for event in events[IN_TIME] or events["eval_accuracy"] if _number(event.value) is not None]
    last = scored[-1] if scored else None
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
        seeds=tuple(e.value for e in events["seed"] if type(e.value) is int and _number(e.value) is not None),
        ended=status if isinstance(status, str) else None,
        start_ms=starts[0].time_ms,
        stop_ms=stops[0].time_ms if stops else None,
        epochs=_number(last.metadata.get("epoch_num")) if last else None,
        accuracy=float(last.value) if last else None,
        resumed=len(events["resumed"]),
        times=measure_times(events),
    )


def measure_times(events: Events) -> Times:
    """Return the times of a run. Of lines that every rank wrote the first counts."""
    first = {key: found[0] for key, found in events.items() if found}
    begun, over = _by_epoch(events["epoch_start"]), _by_epoch(events["epoch_stop"])
    spans = {epoch: _span(begun[epoch], over.get(epoch)) for epoch in sorted(begun)}
    epochs = {epoch: seconds for epoch, seconds in spans.items() if seconds is not None}
    evaluations = tuple(_list_evaluations(events))
    later = list(epochs)[1:]
    evaluated = min((one.epoch for one in evaluations if one.epoch is not None), default=None)
    before = [epoch for epoch in later if evaluated is None or epoch < evaluated] or later
    # Every rank of the originals wrote init_start; ours writes one, and the platform's name begins with the ranks.
    starts, platform = len(events["init_start"]), first.get("submission_platform")
    own = platform is not None and str(platform.metadata.get("file", "")).startswith(OWN)
    ranks = re.match(r"([0-9]{1,9})x", str(platform.value)) if platform and own else None
    return Times(
        devices=starts if starts > 1 else int(ranks[1]) if ranks else None,
        total_seconds=_span(first.get("init_start"), first.get("run_stop")),
        converge_seconds=_span(first.get("run_start"), first.get("run_stop")),
        init_seconds=_span(first.get("init_start"), first.get("init_stop")),
        first_epoch_seconds=next(iter(epochs.values()), None),
        mean_epoch_seconds=sum(epochs[epoch] for epoch in before) / len(before) if before else None,
        train_seconds=sum(epochs.values()) if epochs else None,
        evaluations=evaluations,
    )


def _walk(folder: Path) -> Iterator[Path]:
    """Links to folders are not followed: they may lead round in a circle."""
    for place, _, names in os.walk(folder):
        yield from (Path(place, name) for name in names if name == LOG_NAME or fnmatchcase(name, RESULT_NAMES))


def _order(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"([0-9]{1,9})", str(path))]


def _gather(path: Path) -> tuple[Events, str]:
    """Return the events that are looked at, and the first namespace; a log may hold millions of others."""
    kept: dict[str, list[Event]] = {key: [] for key in (*KEYS, IN_TIME)}
    namespace = ""
    for event in scan_mllog(path):
        namespace = namespace or event.namespace
        if event.key not in KEYS:
            continue
        if event.key == "run_stop":
            kept[IN_TIME] = list(kept["eval_accuracy"])
        kept[event.key].append(event)
        if len(kept[event.key]) > MOST_EVENTS:
            raise DataError(f"{printable(str(path))}: more than {MOST_EVENTS} times {event.key}", hint=HINT)
    return kept, namespace


def _list_evaluations(events: Events) -> Iterator[LoggedEvaluation]:
    """Evaluations in order; their ends may stand beside the next epoch, so they are matched by number."""
    starts, stops = _by_epoch(events["eval_start"]), _by_epoch(events["eval_stop"])
    seen: set[float] = set()
    for event in events["eval_accuracy"]:
        accuracy, epoch = _number(event.value), _number(event.metadata.get("epoch_num"))
        if epoch is None and accuracy is not None:
            yield LoggedEvaluation(None, None, accuracy)
        elif epoch is not None and accuracy is not None and epoch not in seen:
            seen.add(epoch)
            yield LoggedEvaluation(epoch, _span(starts.get(epoch), stops.get(epoch, event)), accuracy)


def _by_epoch(events: Sequence[Event]) -> dict[float, Event]:
    numbered = ((_number(event.metadata.get("epoch_num")), event) for event in reversed(events))
    return {epoch: event for epoch, event in numbered if epoch is not None}


def _text(events: Events, key: str) -> str | None:
    return next((e.value for e in events[key] if isinstance(e.value, str) and e.value), None)


def _count(events: Events, key: str) -> int | None:
    values = (_number(event.value) for event in events[key])
    return next((int(value) for value in values if value is not None and value >= 1), None)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and type(value) is not bool and abs(value) < 2**63 else None


def _span(begin: Event | None, end: Event | None) -> float | None:
    if begin is None or end is None or end.time_ms < begin.time_ms:
        return None
    return (end.time_ms - begin.time_ms) / 1000
