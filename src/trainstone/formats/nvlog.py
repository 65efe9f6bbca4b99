"""NVLOG lines, the log of NVIDIA's and IBM's TensorFlow ResNet-50: written as they were, read from any log.

:::NVLOGv0.2.3 resnet 1605627671.803228855 (training_hooks.py:100) iteration: 10
Read, too, where a terminal 80 columns wide has broken the lines.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from trainstone.formats.files import read_log
from trainstone.text import printable

VERSION = "0.2.3"
STARTING_TRAINING = "Starting Model Training..."
ENDING_TRAINING = "Ending Model Training ..."
STARTING_EVALUATION = "Starting Model Evaluation..."
ENDING_EVALUATION = "Ending Model Evaluation ..."
SYNTHETIC = "Using Synthetic Data ..."
COSINE = "Using cosine learning rate schedule"
XLA = "XLA is activated - Experimental Feature"
MESSAGES = (
    *("Model HParams:", STARTING_TRAINING, ENDING_TRAINING, STARTING_EVALUATION, ENDING_EVALUATION),
    *(SYNTHETIC, COSINE, XLA),
)
"""What is said without a value."""

HEAD = re.compile(
    r":::NVLOGv([0-9.]{1,20}) (\S{1,200}) ([0-9]{1,12}\.[0-9]{9}) \(([^:()\s]{1,200}):([0-9]{1,9})\) ?(.*)", re.DOTALL
)
COLUMNS = 80
MOST_ROWS = 16
"""Of one line; what is longer is taken for something else."""
_KNOWN = {message.replace(" ", ""): message for message in MESSAGES}


class Entry(NamedTuple):
    """One line: a key with its value, or a key alone."""

    version: str
    model: str | None
    """None: not named yet."""
    time_seconds: float
    """Since 1970."""
    file: str
    line: int
    key: str
    value: Any = None
    """Of JSON; None where the key is all that was said."""


def format_line(entry: Entry) -> str:
    message = "" if entry.value is None else f": {json.dumps(entry.value)}"
    head = f":::NVLOGv{entry.version} {entry.model} {entry.time_seconds:.9f} ({entry.file}:{entry.line})"
    return printable(f"{head} {entry.key}{message}")


def parse_lines(lines: Iterable[str]) -> Iterator[Entry]:
    """Yield the entries of a log; lines of anything else are passed over."""
    rows: list[str] = []
    indent = ""
    for line in lines:
        if found := HEAD.search(line):
            if rows:
                yield _read_rows(rows)
            rows, indent = [found.group()], line[: found.start()]
        # A space at the end of a row is often lost, as one at the beginning.
        elif rows and COLUMNS - 1 <= len(rows[-1]) <= COLUMNS and len(rows) < MOST_ROWS:
            rows[-1] = rows[-1].ljust(COLUMNS)
            rows.append(line.removeprefix(indent))
        elif rows:
            yield _read_rows(rows)
            rows = []
    if rows:
        yield _read_rows(rows)


def read_nvlog(path: Path) -> list[Entry]:
    hint = "the program prints them to stdout: redirect it, as in `python main.py ... |& tee FILE`"
    return read_log(path, parse_lines, ":::NVLOG line", hint)


def _read_rows(rows: list[str]) -> Entry:
    """Join as many of the rows as make sense together: a full row may be followed by something else."""
    for number in range(len(rows), 1, -1):
        entry = _read_entry("".join(rows[:number]))
        known = _KNOWN.get(entry.key.replace(" ", ""))
        if entry.value is not None or known:
            return entry._replace(key=known or entry.key)
    return _read_entry(rows[0])


def _read_entry(text: str) -> Entry:
    found = HEAD.match(text)
    assert found  # rows begin with one
    version, model, seconds, file, line, message = found.groups()
    key, _, rest = message.strip().partition(":")
    try:
        value = json.loads(rest)
    except (ValueError, RecursionError):  # thousands of digits or brackets, too
        value = None
    shown = (message.strip(), None) if value is None else (key.rstrip(), value)
    return Entry(version, None if model == "None" else model, float(seconds), file, int(line), *shown)
