"""Sweeps that did not come to their end: found by the plan they follow, and taken up by one process at a time."""

import fcntl
import logging
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from trainstone.config.load import load_config
from trainstone.errors import LaunchError, ResultError
from trainstone.launch.points import Plan, lay_out, read_versions
from trainstone.launch.sweep import KEPT
from trainstone.machine.facts import read_software
from trainstone.results.schema import Result
from trainstone.results.store import find_runs, read_result

log = logging.getLogger(__name__)

UNFINISHED = ("killed", "interrupted", "failed")
LOCK = "launch/lock"
ORPHAN_SECONDS = 60.0


def find_unfinished(out: Path, plan: Plan) -> Path | None:
    """Return the newest unfinished sweep below a folder that follows the same plan."""
    found = []
    for path in find_runs(out):
        result = read_sweep(path)
        if result is not None and is_same(result, plan) and is_unfinished(result):
            found.append((result.process.started_utc, path))
    return max(found)[1] if found else None


def read_sweep(path: Path) -> Result | None:
    """Read a run if it is a sweep; None for anything else, damage included."""
    try:
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


def is_unfinished(result: Result) -> bool:
    """Say whether something is left to do."""
    sweep = result.sweep
    if sweep is None or result.status not in UNFINISHED:
        return False
    # One that failed at all points would do so again; one that was stopped is at least to be concluded.
    return result.status != "failed" or count_done(result) < sweep.num_points


def count_done(result: Result) -> int:
    """Return how many points need not be run again."""
    return sum(row.status in KEPT for row in result.sweep.rows) if result.sweep else 0


def plan_again(path: Path, result: Result) -> Plan:
    """Return the plan of a sweep that is named to be gone on with; refuse one that is over or from elsewhere."""
    if result.status == "running":
        raise ResultError(
            f"{path} is still running: process {result.process.pid} on {result.process.host}", hint="wait for its end"
        )
    if result.sweep is None or not is_unfinished(result):
        raise ResultError(
            f"{path} has come to its end: its status is {result.status}",
            hint=f"start anew: trainstone sweep {path / 'config.toml'}; or see it: trainstone report {path}",
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
    return lay_out(load_config(str(path / "config.toml")), result.sweep)


@contextmanager
def hold(path: Path) -> Iterator[bool]:
    """Hold a sweep's folder for this process, until the end even if that is a kill; False: another has it."""
    file = path / LOCK
    file.parent.mkdir(exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
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
    """Stop points that outlived their killed sweep: they would disturb what is measured next."""
    for folder in find_runs(path / "points"):
        result = _read_alive(folder)
        if result is None:
            continue
        log.warning("point %s of the killed sweep still runs (process %d): stopping it", folder, result.process.pid)
        os.kill(result.process.pid, signal.SIGTERM)
        end = time.monotonic() + ORPHAN_SECONDS
        while _read_alive(folder) is not None:
            if time.monotonic() > end:
                raise LaunchError(f"process {result.process.pid} of {folder} does not stop", hint="end it, then go on")
            time.sleep(0.1)


def _read_alive(folder: Path) -> Result | None:
    try:
        result = read_result(folder)
    except ResultError:
        return None
    if result.status != "running" or result.process.host != socket.gethostname():
        return None
    try:
        command = psutil.Process(result.process.pid).cmdline()
    except psutil.Error:
        return None
    # Only a process that was started for this very sweep
    return result if any(folder.parent.parent.name in word for word in command) else None
