"""Finds MLPerf logs: mlperf.log of a run or of its points, result_*.txt of a submission, in any folder. Reads none."""

import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from trainstone.errors import DataError
from trainstone.text import printable

LOG_NAME = "mlperf.log"
RESULT_NAMES = "result_*.txt"


def find_logs(given: Sequence[Path]) -> tuple[list[Path], dict[Path, DataError]]:
    """Return every log once, in the order given and, below a folder, by name with numbers as numbers.

    And of each folder without a log the error that says so.
    """
    found: dict[str, Path] = {}
    errors: dict[Path, DataError] = {}
    for path in given:
        try:
            logs = _in_folder(path) if path.is_dir() else [path]
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
    return sorted((run / "points").glob(f"*/{LOG_NAME}"), key=order)


def order(path: Path) -> list[tuple[int, str]]:
    """Sort result_10 after result_2."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"([0-9]{1,9})", str(path))]


def _in_folder(folder: Path) -> list[Path]:
    logs = find_run_logs(folder) or sorted(_walk(folder), key=order)
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
