"""Sweeps that did not come to their end: found by the plan they follow, and taken up by one process at a time.

train --runs is taken up by the same means: hold, load_settled, end_orphans.
"""

import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from trainstone.config.load import load_config
from trainstone.config.schema import Config
from trainstone.errors import LaunchError, ResultError
from trainstone.launch.points import SETTLED, Plan, lay_out, read_versions
from trainstone.launch.sweep import keep_rows, list_due
from trainstone.machine.facts import read_software
from trainstone.results.schema import Result
from trainstone.results.store import find_runs, read_result

log = logging.getLogger(__name__)

UNFINISHED = ("killed", "interrupted", "failed")
LOCK = "launch/lock"
ORPHAN_SECONDS = 60.0


def find_unfinished(out: Path, plan: Plan) -> Path | None:
    """Return the newest unfinished sweep below a folder that follows the same plan and may be written."""
    found = []
    for path in find_runs(out):
        result = read_sweep(path)
        if result is not None and is_same(result, plan) and is_unfinished(path, result, plan) and is_writable(path):
            found.append((result.process.started_utc, path))
    return max(found)[1] if found else None


def read_sweep(path: Path) -> Result | None:
    """Read a run if it is a sweep; None for anything else, damage included."""
    try:
        if not (path / "result.json").is_file():
            return None
        with (path / "result.json").open("rb") as file:
            if b'"sweep"' not in file.read(200):  # its kind stands at the beginning
                return None
        result = read_result(path)
    except (OSError, ResultError):
        return None
    return result if result.kind == "sweep" else None


def is_same(result: Result, plan: Plan) -> bool:
    """Say whether a sweep was asked for in the same way, here and with the same software."""
    return result.sweep is not None and result.sweep.plan_sha256 == plan.sweep.plan_sha256


def is_unfinished(path: Path, result: Result, plan: Plan) -> bool:
    """Say whether something is left to do."""
    if result.status not in UNFINISHED:
        return False
    # One that failed at all points would do so again; one that was stopped is at least to be concluded.
    return result.status != "failed" or bool(find_due(path, result, plan))


def find_due(path: Path, result: Result, plan: Plan) -> dict[str, list[str]]:
    """Return the verbs still to be run, by the label of their point."""
    rows = keep_rows(path, result.sweep) if result.sweep else {}
    due = {point.label: list_due(plan, rows, point) for point in plan.points}
    return {label: verbs for label, verbs in due.items() if verbs}


def is_writable(path: Path) -> bool:
    """Say whether this user can go on with a sweep: a folder that many write to holds those of others, too."""
    file = path / LOCK
    try:
        needed = [path, *(part for part in (file.parent, file) if part.exists())]
        return not file.parent.is_file() and all(_may_write(part) for part in needed)
    except OSError:
        return False


def _may_write(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def plan_again(path: Path, result: Result) -> Plan:
    """Return the plan of a sweep that is named to be gone on with; refuse one that is over or from elsewhere."""
    if result.status == "running":
        raise ResultError(
            f"{path} is still running: process {result.process.pid} on {result.process.host}", hint="wait for its end"
        )
    plan = read_plan(path, result)
    if not is_unfinished(path, result, plan):
        raise ResultError(
            f"{path} has come to its end: its status is {result.status}",
            hint=f"start anew: {result.command}; or see it: trainstone report {path}",
        )
    here, then = read_versions(read_software()), read_versions(result.software)
    differing = [
        f"{name} {then[name]} there, {here[name]} here" for name in here if then[name] not in (None, here[name])
    ]
    if result.process.host != socket.gethostname():
        differing.insert(0, f"host {result.process.host} there, {socket.gethostname()} here")
    if differing:
        raise ResultError(
            f"{path} cannot be gone on with: {'; '.join(differing)}", hint="its points would not be comparable"
        )
    return plan


def read_plan(path: Path, result: Result) -> Plan:
    """Return the plan that a sweep's folder holds."""
    sweep = result.sweep
    if sweep is None or not sweep.values or (sweep.curve_key is not None and not sweep.curves):
        raise ResultError(
            f"{path / 'result.json'} is damaged: it names no values to sweep", hint=f"start anew: {result.command}"
        )
    return lay_out(load_settled(path, result), sweep)


def load_settled(path: Path, result: Result) -> Config:
    """Read the configuration of points; refuse one that was changed, since they would not be comparable."""
    file = path / "config.toml"
    config = load_config(str(file))
    now, then = (_flatten(values) for values in (config.model_dump(mode="json", exclude_none=True), result.config))
    changed = [key for key in sorted(now.keys() | then.keys()) if now.get(key) != then.get(key)]
    # A kill while the first point was settling them: the file is written first
    settling = set() if result.machine else {key for key in SETTLED if then.get(key) == "auto"}
    changed = [key for key in changed if key not in settling]
    if changed:
        told = ", ".join(f"{key} was {then.get(key)}, is {now.get(key)}" for key in changed[:3])
        raise ResultError(
            f"{file} is not what the points of this {result.kind} were run with: {told}",
            hint=f"restore it, or start anew: move {path} away, then {result.command}",
        )
    return config


def _flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


@contextmanager
def hold(path: Path) -> Iterator[bool]:
    """Hold a run's folder for this process, until the end even if that is a kill; False: another has it."""
    file = path / LOCK
    try:
        with suppress(FileExistsError):
            file.parent.mkdir()
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as err:
        raise ResultError(f"cannot write into {path}: {file}: {err.strerror}", hint="who may write there?") from err
    try:
        yield _lock(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as err:  # a file system without locks
        log.debug("no lock: %s", err)
    return True


def end_orphans(path: Path) -> None:
    """Stop points that outlived the killed run they are of: they would disturb what is measured next."""
    orphans = find_orphans(path)
    for orphan in orphans:
        log.warning("process %d outlived the killed run %s: stopping it", orphan.pid, path)
        with suppress(psutil.Error):
            orphan.terminate()
    end = time.monotonic() + ORPHAN_SECONDS
    while orphans:
        if time.monotonic() > end:
            numbers = ", ".join(str(orphan.pid) for orphan in orphans)
            raise LaunchError(f"process {numbers} of {path} does not stop", hint="end it, then go on")
        time.sleep(0.1)
        orphans = find_orphans(path)


def find_orphans(path: Path) -> list[psutil.Process]:
    """Return the processes here that work in points/ of a run, by their command lines: one may have no folder yet."""
    points = os.path.realpath(path / "points")
    return [process for process in psutil.process_iter() if _works_in(process, points)]


def _works_in(process: psutil.Process, points: str) -> bool:
    try:
        words, folder = process.cmdline(), process.cwd()
    except psutil.Error:  # gone meanwhile, or of somebody else
        return False
    places = [os.path.realpath(Path(folder, word)) for flag, word in pairwise(words) if flag in ("--out", "--resume")]
    return any(points in (place, str(Path(place).parent)) for place in places)
