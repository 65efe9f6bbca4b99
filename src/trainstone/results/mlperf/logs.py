"""Find and read MLPerf logs: start and end of each run, its accuracy, where its time went."""

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
"""The event keys that are read; others are skipped."""
IN_TIME = "eval_accuracy before run_stop"
MAX_EVENTS = 100_000  # of one key
OWN = "trainstone/"  # prefix of metadata.file in our own logs
FORM = re.compile(r":::(MLLOG |MLL |MLPv)")
FORMS = {"MLLOG ": "0.7", "MLL ": "0.6", "MLPv": "0.5"}  # line prefix -> MLPerf version; 0.7 and later use :::MLLOG
Events = Mapping[str, Sequence[Event]]  # by key


class LoggedEvaluation(NamedTuple):
    epoch: float | None
    seconds: float | None  # from eval_start to eval_stop, or to its accuracy
    accuracy: float


class Times(NamedTuple):
    """Where the time of a run went; None where the log does not say."""

    devices: int | None = None
    total_seconds: float | None = None  # from the first init_start to run_stop
    converge_seconds: float | None = None  # from run_start to run_stop
    init_seconds: float | None = None
    first_epoch_seconds: float | None = None
    mean_epoch_seconds: float | None = None
    """Mean from the second epoch to the one before the first evaluation; if there are none, of all after the first."""
    train_seconds: float | None = None  # all epochs together
    evaluations: tuple[LoggedEvaluation, ...] = ()


NO_TIMES = Times()


@dataclass(frozen=True)
class LoggedRun:
    """A run read from its log; None where the log does not say."""

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
    ended: str | None  # success or aborted; None: the log has no run_stop
    start_ms: int
    stop_ms: int | None
    epochs: float | None
    """Epoch of the last evaluation before run_stop: epochs to the target, if the run reached it."""
    accuracy: float | None = None  # of the same evaluation
    resumed: int = 0  # how often trainstone resumed it; the pauses are part of the time
    times: Times = NO_TIMES

    @property
    def converged(self) -> bool:
        return self.ended == "success" and self.stop_ms is not None

    @property
    def minutes(self) -> float | None:
        return None if self.stop_ms is None else (self.stop_ms - self.start_ms) / 60_000

    @property
    def images_per_second(self) -> float | None:
        """Trained images / time of the whole run, evaluations included."""
        if self.train_samples is None or self.epochs is None or not self.minutes:
            return None
        return self.train_samples * self.epochs / (60 * self.minutes)


def find_logs(given: Sequence[Path]) -> tuple[list[Path], dict[Path, DataError]]:
    """Return each log once, in the given order and in natural order below a folder, and an error per folder without."""
    found: dict[str, Path] = {}
    errors: dict[Path, DataError] = {}
    for path in given:
        logs = (find_run_logs(path) or sorted(_walk(path), key=_order)) if path.is_dir() else [path]
        for log in logs:
            found.setdefault(os.path.realpath(log), log)  # the same log must not count as two runs
        name = printable(str(path))
        if not logs and (path / "result.json").is_file():
            hint = "write one: trainstone train demo-classify"
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
    # The generator is not bound to a name: an error, which keeps this frame, would otherwise keep the file open.
    form = next((FORMS[found[1]] for _, line in read_lines(path) if (found := FORM.search(line))), None)
    if form is None:
        raise DataError(f"{name}: no MLPerf log line found", hint=HINT)
    events, namespace = _gather(path)
    starts, stops = events["run_start"], events["run_stop"]
    if not starts:
        raise DataError(f"{name}: no run_start in it", hint="the run probably failed before training; give another log")
    if len(starts) > 1 or len(stops) > 1:
        raise DataError(f"{name}: several runs in one log: run_start {len(starts)}, run_stop {len(stops)}", hint=HINT)
    if stops and stops[0].time_ms < starts[0].time_ms:
        raise DataError(f"{name}: run_stop comes before run_start", hint=HINT)
    # A run may evaluate again after run_stop; only evaluations before it count.
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
    """Return the times of a run. Of lines written by every rank, the first counts."""
    first = {key: found[0] for key, found in events.items() if found}
    starts, stops = _by_epoch(events["epoch_start"]), _by_epoch(events["epoch_stop"])
    spans = {epoch: _span(starts[epoch], stops.get(epoch)) for epoch in sorted(starts)}
    epochs = {epoch: seconds for epoch, seconds in spans.items() if seconds is not None}
    evaluations = tuple(_list_evaluations(events))
    later = list(epochs)[1:]
    evaluated = min((one.epoch for one in evaluations if one.epoch is not None), default=None)
    before = [epoch for epoch in later if evaluated is None or epoch < evaluated] or later
    # The original programs write init_start on every rank; ours writes one, and its platform begins with the ranks.
    num_starts, platform = len(events["init_start"]), first.get("submission_platform")
    own = platform is not None and str(platform.metadata.get("file", "")).startswith(OWN)
    ranks = re.match(r"([0-9]{1,9})x", str(platform.value)) if platform and own else None
    return Times(
        devices=num_starts if num_starts > 1 else int(ranks[1]) if ranks else None,
        total_seconds=_span(first.get("init_start"), first.get("run_stop")),
        converge_seconds=_span(first.get("run_start"), first.get("run_stop")),
        init_seconds=_span(first.get("init_start"), first.get("init_stop")),
        first_epoch_seconds=next(iter(epochs.values()), None),
        mean_epoch_seconds=sum(epochs[epoch] for epoch in before) / len(before) if before else None,
        train_seconds=sum(epochs.values()) if epochs else None,
        evaluations=evaluations,
    )


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the logs below a folder. Links to folders are not followed: they may be circular."""
    for place, _, names in os.walk(folder):
        yield from (Path(place, name) for name in names if name == LOG_NAME or fnmatchcase(name, RESULT_NAMES))


def _order(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"([0-9]{1,9})", str(path))]


def _gather(path: Path) -> tuple[Events, str]:
    """Return the events of KEYS, and the first namespace; a log may have millions of other events."""
    kept: dict[str, list[Event]] = {key: [] for key in (*KEYS, IN_TIME)}
    namespace = ""
    for event in scan_mllog(path):
        namespace = namespace or event.namespace
        if event.key not in KEYS:
            continue
        if event.key == "run_stop":
            kept[IN_TIME] = list(kept["eval_accuracy"])
        kept[event.key].append(event)
        if len(kept[event.key]) > MAX_EVENTS:
            raise DataError(f"{printable(str(path))}: more than {MAX_EVENTS:,} {event.key} events", hint=HINT)
    return kept, namespace


def _list_evaluations(events: Events) -> Iterator[LoggedEvaluation]:
    """Yield evaluations in order; their start and end are matched by epoch number, since they may overlap training."""
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
