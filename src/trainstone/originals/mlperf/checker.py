"""Run the compliance checker of mlperf-logging on a log, in a child process.

The checker is third-party code: it writes files into its working folder, and takes file names from the log it reads.
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
SKIPPED_PREFIXES = ("INFO - ", "ERROR - FAILED")
# The checker builds names of rule files from these values and executes the files.
RULE_FILE_KEYS = ("submission_division", "submission_benchmark", "opt_name")
_OLD_LINE = re.compile(r"[\d.]+ (\w+) ?:\s+(.+)")
_RULESET = re.compile(r"training_([0-9]+\.[0-9]+\.[0-9]+)")


class CheckedLog(NamedTuple):
    passed: bool
    complaints: tuple[str, ...]  # the lines it printed, without its notes and its verdict
    fault: str = ""  # last line of its error output if it crashed


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
    """Run the compliance checker on a log; its own log is copied to `keep`."""
    _find_checkers()
    check_paths(log)
    with tempfile.TemporaryDirectory(prefix="trainstone-mlperf-") as folder:
        link = Path(folder) / "result_0.txt"
        link.symlink_to(log.absolute())  # the checker prints this name: it must contain no control characters
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
            message = f"the compliance_checker of mlperf-logging timed out after {TIMEOUT_SECONDS:.0f} s"
            raise LaunchError(message) from err
        output = Path(folder) / "checker.log"
        written = output.read_text(encoding="utf-8", errors="replace") if output.is_file() else ""
    error_lines = [line for line in ended.stderr.splitlines() if line.strip()] or ["no error output"]
    last = printable(error_lines[-1])[:300]
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
    # Skip its INFO notes, its verdict and the separators between messages.
    complaints = tuple(line for line in lines if line.strip("-") and not line.startswith(SKIPPED_PREFIXES))
    return CheckedLog(passed, complaints, last if broken else "")


def check_paths(log: Path) -> None:
    """Raise DataError if a value in the log would make the checker load rule files from outside its own folder.

    Lines are parsed exactly as the checker does, so that this check sees every value that the checker uses.
    """
    try:
        with log.open(encoding="latin-1") as lines:
            for number, line in enumerate(lines, 1):
                for key, value in _parse(line):
                    if key in RULE_FILE_KEYS and re.search(r"[/\\]", str(value)):
                        raise DataError(
                            f"{printable(str(log))}, line {number}: invalid {key}: {printable(str(value))[:80]}; "
                            "a plain word without slashes is allowed",
                            hint="the checker would load rule files from that path: do not trust this log",
                        )
    except OSError as err:
        raise DataError(f"cannot read {printable(str(log))}: {err.strerror or err}") from err


def _parse(line: str) -> Iterator[tuple[Any, Any]]:
    """Yield key and value of a line, as the old and the new rulesets parse it."""
    with suppress(ValueError, RecursionError):  # the checker reports lines that are not valid JSON
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
