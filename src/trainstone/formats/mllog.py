"""MLPerf's training log: one line written as of 0.7, all three generations read. It judges nothing (mlperf check does).

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
HINT = "give the log as the run wrote it: RUN/mlperf.log of trainstone, result_*.txt of a submission"
MAX_EVENTS = 1_000_000  # a run logs hundreds, its time tags included some hundred thousand

# Text before the token is anybody's; of several tokens in a line the last counts, as for MLPerf's own checker.
_TOKEN = re.compile(r".*:::(MLLOG|MLL|MLPv[0-9.]{1,20}) ")
_SECONDS = r"([0-9]{1,15}(?:\.[0-9]{1,20})?)"
_LINE_06 = re.compile(_SECONDS + r" ([^\s:]{1,200}): (.+)")
_LINE_05 = re.compile(r"(\S{1,200}) " + _SECONDS + r" \(([^)]{0,1000}):([0-9]{1,9})\) ([^\s:]{1,200})(?:: (.+))?")
# Keys of 0.5 that mean what another key means today; the others keep their name.
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
    """Since 1970."""
    metadata: dict[str, Any]
    namespace: str = ""
    """Mostly empty; of a line of 0.5 the benchmark's name, which later logs tell as submission_benchmark."""


def format_line(event: Event) -> str:
    """Return the line, its keys in the order of MLPerf's own logger."""
    fields = {"namespace": event.namespace, "time_ms": event.time_ms, "event_type": event.kind, "key": event.key}
    return ":::MLLOG " + json.dumps(fields | {"value": event.value, "metadata": event.metadata}, allow_nan=False)


def scan_mllog(path: Path) -> Iterator[Event]:
    lines = read_lines(path)
    for number, line in lines:
        try:
            event = parse_line(line)
        except ValueError as err:
            # Writers end a line with its last byte.
            if next(lines, None) is None and not path.read_bytes().endswith((b"\n", b"\r")):
                raise DataError(
                    f"{printable(str(path))}, line {number}, the last: cut off: the run was killed, or still writes",
                    hint="wait for its end; resume a killed run with trainstone train --resume RUN",
                ) from err
            raise damaged_line(path, number, str(err), HINT) from err
        if event is not None:
            yield event


def read_mllog(path: Path) -> list[Event]:
    events = list(islice(scan_mllog(path), MAX_EVENTS + 1))
    if len(events) > MAX_EVENTS:
        raise DataError(f"{printable(str(path))}: more than {MAX_EVENTS} MLPerf events in it", hint=HINT)
    if not events:
        raise DataError(f"{printable(str(path))}: no MLPerf log line in it (:::MLLOG, :::MLL, :::MLPv0.5)", hint=HINT)
    return events


def parse_line(line: str) -> Event | None:
    """Return the event of a line, None where it holds none; a ValueError says what is wrong with it."""
    found = _TOKEN.match(line)
    if found is None:
        return None
    rest = line[found.end() :].strip()
    if found[1] == "MLLOG":
        fields = _decode(rest, _Line)
        kind = fields.event_type or kind_of(fields.key)  # logs of TensorFlow's models of 0.7 have no type
        namespace = fields.namespace if isinstance(fields.namespace, str) else ""
        return Event(fields.key, fields.value, kind, int(fields.time_ms), fields.metadata or {}, namespace)
    if found[1] != "MLL":
        return _parse_05(rest)
    found = _LINE_06.fullmatch(rest)
    if found is None:
        raise ValueError("it is no line of MLPerf 0.6: time, key, colon and JSON")
    seconds, key, written = found.groups()
    content = _decode(written, _Value)
    return Event(key, content.value, kind_of(key), _milliseconds(seconds), content.metadata or {})


def _parse_05(text: str) -> Event:
    found = _LINE_05.fullmatch(text)
    if found is None:
        raise ValueError("it is no line of MLPerf 0.5: benchmark, time, (file:line), key and maybe a value")
    benchmark, seconds, file, line, old_key, rest = found.groups()
    value = None if rest is None else _decode(rest, Any)
    key = _KEYS_05.get(old_key, old_key)
    metadata: dict[str, Any] = {"file": file, "lineno": int(line)}
    if key == "epoch_start":
        value, metadata["epoch_num"] = None, value
    elif key == "cache_clear" and value is None:
        value = True  # the line itself said so
    elif key == "eval_accuracy" and isinstance(value, dict):
        metadata["epoch_num"] = value.get("epoch")
        value = value.get("value")
    elif key == "run_stop" and isinstance(value, dict):
        succeeded = str(value.get("success")).lower() == "true"
        value, metadata["status"] = None, "success" if succeeded else "aborted"
    return Event(key, value, kind_of(key), _milliseconds(seconds), metadata, benchmark)


def kind_of(key: str) -> Kind:
    """Return what an event is by its key, as MLPerf's keys are named."""
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
        raise ValueError("its JSON is nested too deeply") from err
