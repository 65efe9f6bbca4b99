"""Read MLPerf training logs of versions 0.5 to today, and write lines of 0.7 and later; no checks of the rules.

:::MLLOG {"namespace": "", "time_ms": 1592669189098, "event_type": ..., "key": "seed", "value": 1, "metadata": {...}}
:::MLL 1558570829.749 global_batch_size: {"value": 960, "metadata": {...}}                       (0.6)
:::MLPv0.5.0 resnet 1541660914.300546646 (resnet/resnet_main.py:551) input_batch_size: 1024      (0.5)
"""

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from trainstone.errors import DataError
from trainstone.formats.files import damaged_line, read_lines
from trainstone.text import printable

Kind = Literal["POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"]
HINT = "give an unchanged log: RUN/mlperf.log of trainstone, or result_*.txt of a submission"
MAX_EVENTS = 1_000_000  # a run logs hundreds of events, with time tags some hundred thousand

# Any text may precede the token; of several tokens in a line the last counts, as in MLPerf's checker.
_TOKEN = re.compile(r".*:::(MLLOG|MLL|MLPv[0-9.]{1,20}) ")
_SECONDS = r"([0-9]{1,15}(?:\.[0-9]{1,20})?)"
_LINE_06 = re.compile(_SECONDS + r" ([^\s:]{1,200}): (.+)")
_LINE_05 = re.compile(r"(\S{1,200}) " + _SECONDS + r" \(([^)]{0,1000}):([0-9]{1,9})\) ([^\s:]{1,200})(?:: (.+))?")
# Keys of 0.5 that have another name today.
_KEYS_05 = {
    "run_clear_caches": "cache_clear",
    "run_set_random_seed": "seed",
    "input_batch_size": "global_batch_size",
    "preproc_num_train_examples": "train_samples",
    "preproc_num_eval_examples": "eval_samples",
    "train_epoch": "epoch_start",
}


class _Value(msgspec.Struct):
    value: Any
    metadata: dict[str, Any] | None = None


class _Line(msgspec.Struct):
    time_ms: Annotated[float, msgspec.Meta(ge=0, lt=2.0**63)]
    key: str
    value: Any
    event_type: Kind | None = None
    namespace: Any = ""
    metadata: dict[str, Any] | None = None


class Event(NamedTuple):
    key: str
    value: Any
    kind: Kind
    time_ms: int
    """Since 1970-01-01 UTC."""
    metadata: dict[str, Any]
    namespace: str = ""
    """Mostly empty; in 0.5 the benchmark's name, which later logs have as submission_benchmark."""


def format_line(event: Event) -> str:
    """Format a log line with the key order of MLPerf's logger."""
    fields = {"namespace": event.namespace, "time_ms": event.time_ms, "event_type": event.kind, "key": event.key}
    return ":::MLLOG " + json.dumps(fields | {"value": event.value, "metadata": event.metadata}, allow_nan=False)


def scan_mllog(path: Path) -> Iterator[Event]:
    lines = read_lines(path)
    for number, line in lines:
        try:
            event = parse_line(line)
        except ValueError as err:
            # A complete line ends with a line break.
            if next(lines, None) is None and not path.read_bytes().endswith((b"\n", b"\r")):
                raise DataError(
                    f"{printable(str(path))}, line {number} (last): truncated; the run was killed or is still writing",
                    hint="wait until the run ends; resume a killed run with `trainstone train --resume RUN`",
                ) from err
            raise damaged_line(path, number, str(err), HINT) from err
        if event is not None:
            yield event


def read_mllog(path: Path) -> list[Event]:
    events = list(islice(scan_mllog(path), MAX_EVENTS + 1))
    if len(events) > MAX_EVENTS:
        raise DataError(f"{printable(str(path))}: more than {MAX_EVENTS} MLPerf events", hint=HINT)
    if not events:
        raise DataError(f"{printable(str(path))}: no MLPerf log line found (:::MLLOG, :::MLL, :::MLPv0.5)", hint=HINT)
    return events


def parse_line(line: str) -> Event | None:
    """Return the event of a line, None if it has none; raise ValueError for an invalid line."""
    found = _TOKEN.match(line)
    if found is None:
        return None
    rest = line[found.end() :].strip()
    if found[1] == "MLLOG":
        fields = _decode(rest, _Line)
        kind = fields.event_type or find_event_kind(fields.key)  # 0.7 logs of TensorFlow's models lack the type
        namespace = fields.namespace if isinstance(fields.namespace, str) else ""
        return Event(fields.key, fields.value, kind, int(fields.time_ms), fields.metadata or {}, namespace)
    if found[1] != "MLL":
        return _parse_05(rest)
    found = _LINE_06.fullmatch(rest)
    if found is None:
        raise ValueError("invalid line of MLPerf 0.6; expected time, key, colon and JSON")
    seconds, key, written = found.groups()
    content = _decode(written, _Value)
    return Event(key, content.value, find_event_kind(key), _milliseconds(seconds), content.metadata or {})


def _parse_05(text: str) -> Event:
    found = _LINE_05.fullmatch(text)
    if found is None:
        raise ValueError("invalid line of MLPerf 0.5; expected benchmark, time, (file:line), key and an optional value")
    benchmark, seconds, file, line, old_key, rest = found.groups()
    value = None if rest is None else _decode(rest, Any)
    key = _KEYS_05.get(old_key, old_key)
    metadata: dict[str, Any] = {"file": file, "lineno": int(line)}
    if key == "epoch_start":
        value, metadata["epoch_num"] = None, value
    elif key == "cache_clear" and value is None:
        value = True  # the line has no value: it means true
    elif key == "eval_accuracy" and isinstance(value, dict):
        metadata["epoch_num"] = value.get("epoch")
        value = value.get("value")
    elif key == "run_stop" and isinstance(value, dict):
        succeeded = str(value.get("success")).lower() == "true"
        value, metadata["status"] = None, "success" if succeeded else "aborted"
    return Event(key, value, find_event_kind(key), _milliseconds(seconds), metadata, benchmark)


def find_event_kind(key: str) -> Kind:
    """Return the type of an event from the suffix of its key."""
    if key.endswith("_start"):
        return "INTERVAL_START"
    return "INTERVAL_END" if key.endswith("_stop") else "POINT_IN_TIME"


def _milliseconds(seconds: str) -> int:
    whole, _, fraction = seconds.partition(".")
    return int(whole) * 1000 + int(fraction[:3].ljust(3, "0"))


def _decode(text: str, form: Any) -> Any:
    try:
        return msgspec.json.decode(text, type=form)
    except RecursionError as err:
        raise ValueError("JSON is nested too deeply") from err
