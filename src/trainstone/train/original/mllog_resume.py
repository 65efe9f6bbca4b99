"""What of a run's mlperf.log stays when the run goes on from a checkpoint: events of later steps are made again."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainstone.errors import DataError
from trainstone.formats.files import read_lines
from trainstone.formats.mllog import Event, parse_line

RESUMED = "resumed"
"""Our own key: a later start goes on here. One that made up for an evaluation stands before it."""
AFTER_STEPS = ("epoch_stop", "tracked_stats", "throughput")
OF_EVALUATION = ("eval_start", "eval_stop", "eval_accuracy", "block_stop", RESUMED)


@dataclass
class Kept:
    """Events after the head, and how they leave the run."""

    events: list[Event] = field(default_factory=list)
    epoch: int | None = None
    """The one that goes on."""
    block: int | None = None
    """First epoch of the block that goes on."""
    stopped: bool = False
    judged_ms: int | None = None


def read_whole(path: Path) -> list[Event]:
    """Read a log up to its end or to the first line that cannot be read; nothing where there is no file."""
    events: list[Event] = []
    try:
        for _, line in read_lines(path):
            if event := parse_line(line):
                events.append(event)
    except (DataError, ValueError):  # a line was cut when the machine went down: the rest is made again
        pass
    return events


def keep_until(events: Sequence[Event], done: int, *, judged: bool) -> Kept | None:
    """Return what belongs to the first `done` steps, and to an evaluation after them if there was one.

    None: the log does not say how the run started.
    """
    if not any(event.key == "run_start" for event in events):
        return None
    kept = Kept()
    for event in events:
        if stays(event, done, judged=judged):
            kept.events.append(event)
            follow(kept, event)
    if kept.events and kept.events[-1].key == RESUMED and kept.events[-1].metadata["step"] == done:
        kept.events.pop()  # nothing is left of what that start did
    return kept


def stays(event: Event, done: int, *, judged: bool) -> bool:
    """Say whether an event was before the checkpoint; those of the head have no step."""
    step = event.metadata.get("step")
    if not isinstance(step, int) or step > done:
        return False
    if event.key == "run_stop":
        return step == done and judged and event.metadata.get("status") == "success"
    if step < done or event.key in AFTER_STEPS:
        return True
    return judged and event.key in OF_EVALUATION


def follow(kept: Kept, event: Event) -> None:
    """Note what begins and ends with an event."""
    metadata = event.metadata
    match event.key:
        case "epoch_start":
            kept.epoch = as_epoch(metadata.get("epoch_num"))
        case "epoch_stop":
            kept.epoch = None
        case "block_start":
            kept.block = as_epoch(metadata.get("first_epoch_num"))
        case "block_stop":
            kept.block = None
        case "eval_accuracy":
            kept.judged_ms = event.time_ms
        case "run_stop":
            kept.stopped = True


def as_epoch(value: Any) -> int | None:
    """Return a number of an epoch, None for anything else."""
    return value if isinstance(value, int) and value > 0 else None


def keep_times(head: Iterable[Event], before: Iterable[Event]) -> list[Event]:
    """Return the head with the times that its lines had, and with what was done to the caches then.

    A line that was not there has the time of the one before it: the run started as long ago.
    """
    old: dict[tuple[str, Any], Event] = {}
    for event in before:
        old.setdefault(name(event), event)
    begun = any(key == "run_start" for key, _ in old)
    merged: list[Event] = []
    for event in head:
        missing = merged[-1] if begun and merged else event
        was = old.get(name(event), missing)
        kept = event.key == "cache_clear" and was.key == event.key
        merged.append(was if kept else event._replace(time_ms=was.time_ms))
    return merged


def name(event: Event) -> tuple[str, str]:
    """What tells a line of the head from others."""
    return event.key, str(event.metadata.get("tensor"))
