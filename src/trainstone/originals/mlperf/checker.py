"""Runs mlperf-logging's own compliance checker on a log, as a child process; the verdict is the checker's.

It is somebody else's program: it writes files where it runs, and takes file names out of the log it reads.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from trainstone.errors import DataError, LaunchError, MachineError, ResultError
from trainstone.files import write_atomically
from trainstone.text import printable

HINT = "pip install 'trainstone[mlperf]'; in a checkout: pip install -e '.[mlperf]'"
TIMEOUT_SECONDS = 600.0
TOKEN, OLD_TOKEN = ":::MLLOG ", ":::MLL"
NOTES = ("INFO - ", "ERROR - FAILED")
# The checker makes names of rule files of these and executes what it finds there.
BECOME_FILES = ("submission_division", "submission_benchmark", "opt_name")
_OLD_LINE = re.compile(r"[\d.]+ (\w+) ?:\s+(.+)")
_RULESET = re.compile(r"training_([0-9]+\.[0-9]+\.[0-9]+)")


class CheckedLog(NamedTuple):
    passed: bool
    complaints: tuple[str, ...]  # the lines it printed beside its notes and its verdict, as they are
    fault: str = ""  # why it crashed, where it did


def list_rulesets() -> dict[str, frozenset[str]]:
    rules = {}
    folder = _find_checkers() / "compliance_checker"
    for path in folder.glob("training_*"):
        if found := _RULESET.fullmatch(path.name):
            rules[found[1]] = frozenset(file.stem.removeprefix("closed_") for file in path.glob("*.yaml"))
    if not rules:
        raise MachineError(f"no rulesets in {printable(str(folder))}", hint=HINT)
    return rules


def check_log(log: Path, ruleset: str, keep: Path | None = None) -> CheckedLog:
    """Run the compliance checker on a log; `keep` is where its own log stays."""
    _find_checkers()
    refuse_paths(log)
    with tempfile.TemporaryDirectory(prefix="trainstone-mlperf-") as folder:
        link = Path(folder) / "result_0.txt"
        link.symlink_to(log.absolute())  # a name that harms nobody in its output
        checker = [sys.executable, "-P", "-W", "ignore", "-m", "mlperf_logging.compliance_checker"]
        try:
            ended = subprocess.run(
                [*checker, "--usage", "training", "--ruleset", ruleset, "--log_output", "checker.log", link.name],
                cwd=folder,
                env={**os.environ, "PYTHONUTF8": "1"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIMEOUT_SECONDS,
            )
        except subprocess.TimeoutExpired as err:
            message = f"the compliance_checker of mlperf-logging did not end in {TIMEOUT_SECONDS:.0f} s"
            raise LaunchError(message) from err
        output = Path(folder) / "checker.log"
        written = output.read_text(encoding="utf-8", errors="replace") if output.is_file() else ""
    said = [line for line in ended.stderr.splitlines() if line.strip()] or ["it said nothing"]
    last = printable(said[-1])[:300]
    if ended.returncode and re.match("(ModuleNotFound|Import)Error", last):
        raise MachineError(f"mlperf-logging does not start: {last}", hint=HINT)
    if keep is not None:
        try:
            keep.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(keep, written + ended.stderr)
        except OSError as err:
            raise ResultError(f"cannot write {printable(str(keep))}: {err.strerror or err}") from err
    passed = ended.returncode == 0
    broken = not passed and "ERROR - FAILED" not in written
    lines = (line.rstrip() for line in written.splitlines())
    # Without its INFO notes, its verdict and the rules between messages.
    complaints = tuple(line for line in lines if line.strip("-") and not line.startswith(NOTES))
    return CheckedLog(passed, complaints, last if broken else "")


def refuse_paths(log: Path) -> None:
    """Refuse a log whose values would lead the checker to rule files outside of its own folder.

    Lines are taken apart as the checker does it, so that none is seen by it alone.
    """
    try:
        with log.open(encoding="latin-1") as lines:
            for number, line in enumerate(lines, 1):
                for key, value in _parse(line):
                    if key in BECOME_FILES and re.search(r"[/\\]", str(value)):
                        raise DataError(
                            f"{printable(str(log))}, line {number}: {key} must be a plain word, "
                            f"not {printable(str(value))[:80]}",
                            hint="the checker would take its rules from that place; who wrote this log?",
                        )
    except OSError as err:
        raise DataError(f"cannot read {printable(str(log))}: {err.strerror or err}") from err


def _parse(line: str) -> Iterator[tuple[Any, Any]]:
    """Yield key and value of a line, as the old and the new rulesets read it."""
    with suppress(ValueError, RecursionError):  # of a line that is no JSON the checker says so itself
        if TOKEN in line:
            event = json.loads(line.rpartition(TOKEN)[2])
            yield (event.get("key"), event.get("value")) if isinstance(event, dict) else (None, None)
    with suppress(ValueError, RecursionError):
        if found := _OLD_LINE.match(line.rpartition(OLD_TOKEN)[2].strip() if OLD_TOKEN in line else ""):
            event = json.loads(found[2])
            yield found[1], event.get("value") if isinstance(event, dict) else None


def _find_checkers() -> Path:
    spec = importlib.util.find_spec("mlperf_logging")
    if spec is None or not spec.submodule_search_locations:
        raise MachineError("MLPerf's checkers (mlperf-logging) are not installed", hint=HINT)
    return Path(spec.submodule_search_locations[0])
