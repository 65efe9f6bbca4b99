"""Where the time of a logged run went: initialisation, epochs, evaluations, as MLPerf's mll-status told it of SSD."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from trainstone.formats.mllog import Event

KEYS = ("init_start", "init_stop", "epoch_start", "epoch_stop", "eval_start", "eval_stop")
"""Events that are needed beside run_start, run_stop and eval_accuracy."""
OWN = "trainstone/"
"""How the file that writes our lines begins; others name none, or theirs."""


class JudgedAt(NamedTuple):
    """One evaluation."""

    epoch: float | None
    seconds: float | None
    """From eval_start to eval_stop, or to its accuracy."""
    accuracy: float


class Times(NamedTuple):
    """Seconds; None is what the log does not say."""

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


UNKNOWN = Times()


def measure_times(events: Sequence[Event]) -> Times:
    """Return the times of a run. Of lines that every rank wrote the first counts."""
    starts = [event for event in events if event.key == "init_start"]
    first = _find(events, "init_start")
    run = _span(_find(events, "run_start"), _find(events, "run_stop"))
    epochs = _measure_epochs(events)
    evaluations = tuple(_list_evaluations(events))
    whole = sorted(epochs)
    return Times(
        devices=_count_devices(events, len(starts)),
        total=_span(first, _find(events, "run_stop")),
        converge=run,
        init=_span(first, _find(events, "init_stop")),
        first_epoch=epochs[whole[0]] if whole else None,
        epoch=_average(epochs, evaluations),
        train=sum(epochs.values()) if epochs else None,
        evaluations=evaluations,
    )


def document_times(times: Times) -> dict[str, Any]:
    """Return the times as JSON; absent is what the log does not say."""
    seconds = {
        "total_seconds": times.total,
        "converge_seconds": times.converge,
        "init_seconds": times.init,
        "first_epoch_seconds": times.first_epoch,
        "mean_epoch_seconds": times.epoch,
        "train_seconds": times.train,
    }
    evaluations = [
        {key: value for key, value in one._asdict().items() if value is not None} for one in times.evaluations
    ]
    document = {"devices": times.devices, **seconds, "evaluations": evaluations}
    return {key: value for key, value in document.items() if value is not None}


def _average(epochs: dict[float, float], evaluations: Sequence[JudgedAt]) -> float | None:
    later = sorted(epochs)[1:]
    judged = min((one.epoch for one in evaluations if one.epoch is not None), default=None)
    before = [epoch for epoch in later if judged is None or epoch < judged] or later
    return sum(epochs[epoch] for epoch in before) / len(before) if before else None


def _measure_epochs(events: Iterable[Event]) -> dict[float, float]:
    """Return the seconds of each epoch that has both ends, by its number."""
    began: dict[float, Event] = {}
    spent: dict[float, float] = {}
    for event in events:
        epoch = _number(event.metadata.get("epoch_num"))
        if epoch is None:
            continue
        if event.key == "epoch_start":
            began.setdefault(epoch, event)
        elif event.key == "epoch_stop" and epoch in began and epoch not in spent:
            spent[epoch] = _span(began[epoch], event) or 0.0
    return spent


def _list_evaluations(events: Sequence[Event]) -> Iterable[JudgedAt]:
    """Evaluations in order; their ends may stand beside the next epoch, so they are matched by number."""
    ends = {key: _by_epoch(events, key) for key in ("eval_start", "eval_stop")}
    seen: set[float] = set()
    for event in events:
        accuracy = _number(event.value)
        if event.key != "eval_accuracy" or accuracy is None:
            continue
        epoch = _number(event.metadata.get("epoch_num"))
        if epoch is not None and epoch in seen:
            continue
        begin, end = (None, None) if epoch is None else (ends[key].get(epoch) for key in ("eval_start", "eval_stop"))
        seen |= {epoch} if epoch is not None else set()
        yield JudgedAt(epoch, _span(begin, end or event), accuracy)


def _by_epoch(events: Iterable[Event], key: str) -> dict[float, Event]:
    found: dict[float, Event] = {}
    for event in events:
        epoch = _number(event.metadata.get("epoch_num")) if event.key == key else None
        if epoch is not None:
            found.setdefault(epoch, event)
    return found


def _count_devices(events: Iterable[Event], starts: int) -> int | None:
    """Every rank of the originals wrote init_start; ours writes one, and the platform's name begins with the ranks."""
    if starts > 1:
        return starts
    platform = _find(events, "submission_platform")
    if platform is None or not str(platform.metadata.get("file", "")).startswith(OWN):
        return None
    counted = re.match(r"([0-9]{1,9})x", str(platform.value))
    return int(counted[1]) if counted else None


def _find(events: Iterable[Event], key: str) -> Event | None:
    return next((event for event in events if event.key == key), None)


def _span(begin: Event | None, end: Event | None) -> float | None:
    if begin is None or end is None or end.time_ms < begin.time_ms:
        return None
    return (end.time_ms - begin.time_ms) / 1000


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
