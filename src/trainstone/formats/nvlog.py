"""Read and write NVLOG lines, the log of NVIDIA's and IBM's TensorFlow ResNet-50.

:::NVLOGv0.2.3 resnet 1605627671.803228855 (training_hooks.py:100) iteration: 10
Lines that a terminal wrapped at 80 columns are read, too.
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
"""Messages without a value."""

HEAD = re.compile(
    r":::NVLOGv([0-9.]{1,20}) (\S{1,200}) ([0-9]{1,12}\.[0-9]{9}) \(([^:()\s]{1,200}):([0-9]{1,9})\) ?(.*)", re.DOTALL
)
COLUMNS = 80
MAX_ROWS = 16
"""Maximum rows of a wrapped line; longer text is not part of it."""
_KNOWN = {message.replace(" ", ""): message for message in MESSAGES}


class Entry(NamedTuple):
    """One line: a key with a value, or only a key."""

    version: str
    model: str | None
    """None: not known yet."""
    time_seconds: float
    """Since 1970-01-01 UTC."""
    file: str
    line: int
    key: str
    value: Any = None
    """Parsed from JSON; None if there is only a key."""


def format_line(entry: Entry) -> str:
    message = "" if entry.value is None else f": {json.dumps(entry.value)}"
    head = f":::NVLOGv{entry.version} {entry.model} {entry.time_seconds:.9f} ({entry.file}:{entry.line})"
    return printable(f"{head} {entry.key}{message}")


def parse_lines(lines: Iterable[str]) -> Iterator[Entry]:
    """Yield the entries of a log; other lines are skipped."""
    rows: list[str] = []
    indent = ""
    for line in lines:
        if found := HEAD.search(line):
            if rows:
                yield _read_rows(rows)
            rows, indent = [found.group()], line[: found.start()]
        # Spaces at the start and end of a row are often lost.
        elif rows and COLUMNS - 1 <= len(rows[-1]) <= COLUMNS and len(rows) < MAX_ROWS:
            rows[-1] = rows[-1].ljust(COLUMNS)
            rows.append(line.removeprefix(indent))
        elif rows:
            yield _read_rows(rows)
            rows = []
    if rows:
        yield _read_rows(rows)


def read_nvlog(path: Path) -> list[Entry]:
    hint = "the program prints them to stdout; redirect it: `python main.py ... |& tee FILE`"
    return read_log(path, parse_lines, ":::NVLOG line", hint)


def _read_rows(rows: list[str]) -> Entry:
    """Parse as many rows as form an entry: unrelated output may follow a full row."""
    for number in range(len(rows), 1, -1):
        entry = _read_entry("".join(rows[:number]))
        known = _KNOWN.get(entry.key.replace(" ", ""))
        if entry.value is not None or known:
            return entry._replace(key=known or entry.key)
    return _read_entry(rows[0])


def _read_entry(text: str) -> Entry:
    found = HEAD.match(text)
    assert found  # the first row matches HEAD
    version, model, seconds, file, line, message = found.groups()
    key, _, rest = message.strip().partition(":")
    try:
        value = json.loads(rest)
    except (ValueError, RecursionError):  # thousands of digits or brackets, too
        value = None
    shown = (message.strip(), None) if value is None else (key.rstrip(), value)
    return Entry(version, None if model == "None" else model, float(seconds), file, int(line), *shown)
