"""Run folders: create them, update them atomically during the run, read them after any end, kill -9 included.

Layout and names: docs/reference/run-folder.md.
"""

import fcntl
import json
import logging
import os
import re
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from pydantic import ValidationError

from trainstone.config.load import format_toml, hash_config
from trainstone.config.schema import Config
from trainstone.errors import ResultError
from trainstone.files import dump_json, write_atomically
from trainstone.machine.launch_protocol import get_launch_name
from trainstone.results.findings import check_throughput, finding
from trainstone.results.schema.run import FINISHED, FORMAT, Kind, Process, Recipe, Result
from trainstone.results.step_summary import summarise_steps
from trainstone.results.steps import PHASE_COLUMNS, read_columns
from trainstone.results.training import check_speed, scale_throughput
from trainstone.results.verdicts import format_training_verdict, format_verdict

log = logging.getLogger(__name__)

LOG_NAME = "log.txt"
"""Log of the process that writes the result, which holds a lock on it; never replaced by another file."""
# A run on another host counts as dead when its files are older; telemetry writes twice per second.
STALE_SECONDS = 60.0
# Fields that describe only the latest start: cleared on resume, set again at the end.
START_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("throughput", "step_seconds", "utilisation", "noise", "memory", "energy", "loader", "preflight")),
    "devices": [],
}


class RunFolder:
    """A run's folder; `result` is the current content of result.json, which of the ranks only rank 0 writes."""

    def __init__(self, path: Path, result: Result, *, writes: bool = True) -> None:
        self.path = path
        self.result = result
        self._writes = writes
        self._before: tuple[Result, dict[str, bytes]] | None = None  # a resumed run and its files, before the resume

    def update(self, **changes: Any) -> None:
        self.result = self.result.model_copy(update=changes)
        if not self._writes:
            return
        files = sorted(str(p.relative_to(self.path)) for p in self.path.rglob("*") if p.is_file())
        self.result = self.result.model_copy(update={"files": [f for f in files if not f.endswith(".partial")]})
        write_atomically(self.path / "result.json", dump_json(self.result.model_dump(mode="json", exclude_none=True)))

    def write_config(self, config: Config) -> None:
        if self._writes:
            write_atomically(self.path / "config.toml", format_toml(config))
        recipe = Recipe(name=config.name, version=config.version, sha256=hash_config(config))
        self.update(config=config.model_dump(mode="json", exclude_none=True), recipe=recipe, system=config.system)

    def write_machine(self, machine: dict[str, Any], software: dict[str, Any]) -> None:
        if self._writes:
            write_atomically(self.path / "machine.json", dump_json({"machine": machine, "software": software}))
        self.update(machine=machine, software=software)

    def snapshot(self) -> None:
        """Save the state that rollback restores."""
        files = [path for path in (self.path / "config.toml", self.path / "machine.json") if path.is_file()]
        self._before = self.result, {path.name: path.read_bytes() for path in files}

    def commit(self) -> None:
        """Drop the snapshot: a resumed run has made progress and is not rolled back."""
        self._before = None

    def rollback(self) -> bool:
        """Restore a resumed run from its snapshot; return False if there is none."""
        if self._before is None:
            return False
        (result, files), self._before = self._before, None
        for name, content in files.items():
            write_atomically(self.path / name, [content])
        self.result = result
        self.update()
        return True


def name_run(recipe: str) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", recipe).strip("-.") or "run"
    return f"{datetime.now():%Y%m%d-%H%M%S}-{name}-{secrets.token_hex(2)}"


def create_run(
    out: Path,
    kind: Kind,
    config: Config,
    command: str,
    *,
    run_id: str | None = None,
    folder: str | None = None,
    exist_ok: bool = False,
) -> RunFolder:
    """Create a run folder with a first result.json of status running.

    A child run may get its id and folder name from its parent; `exist_ok`: a launcher has created the folder.
    """
    run_id = run_id or name_run(config.name)
    path = out / (folder or run_id)
    with explain_os_error(f"cannot write run folder {path}", "choose another folder with --out DIR"):
        path.mkdir(parents=True, exist_ok=exist_ok)
        result = Result(
            kind=kind,
            run_id=run_id,
            command=command,
            status="running",
            recipe=Recipe(name=config.name, version=config.version, sha256=hash_config(config)),
            process=_describe_process(),
        )
        run = RunFolder(path, result)
        run.write_config(config)
    return run


@contextmanager
def explain_os_error(message: str, hint: str) -> Iterator[None]:
    try:
        yield
    except OSError as err:
        raise ResultError(f"{message}: {err.strerror or err}", hint=hint) from err


def _describe_process(starts: int = 1) -> Process:
    return Process(
        host=socket.gethostname(),
        pid=os.getpid(),
        started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        starts=starts,
        launch=get_launch_name(),
    )


def reopen_run(path: Path, kind: Kind, command: str) -> RunFolder:
    """Resume a run of that kind that has ended in any way; its files are kept."""
    result = read_result(path)
    if result.kind != kind:
        message = f"cannot resume {path}: it is a {result.kind} run, not a {kind} run"
        raise ResultError(message, hint=f"give the folder of a {kind} run")
    launch = get_launch_name()
    # An earlier attempt of the same launch has ended: the engine starts one at a time.
    if launch is None or result.process.launch != launch:
        refuse_running(path, result)
    process = _describe_process(starts=result.process.starts + 1)
    run = RunFolder(path, result)
    with explain_os_error(f"cannot write into {path}", f"check its permissions: ls -ld {path}"):
        run.snapshot()
        run.update(status="running", process=process, command=command, findings=[], verdict=None, **START_FIELDS)
    return run


@contextmanager
def lock_run(path: Path) -> Iterator[None]:
    """Lock a run folder for this process until it ends, even by a kill; raise if another process holds the lock."""
    with explain_os_error(f"cannot write into {path}", f"check its permissions: ls -ld {path}"):
        file = (path / LOG_NAME).open("a")
    with file:
        if not _lock(file.fileno()):
            held = read_if_there(path)
            owner = f"process {held.process.pid} on {held.process.host}" if held else "another process"
            raise ResultError(f"{path} is in use by {owner}", hint="wait for it to end, or stop it first")
        yield


def is_locked(path: Path) -> bool:
    try:
        with (path / LOG_NAME).open("r+b") as file:
            return not _lock(file.fileno())
    except OSError:
        return False


def _lock(descriptor: int) -> bool:
    """Lock an open file; return False if another process holds it. On a file system without locks, return True."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as err:
        log.debug("no lock: %s", err)
    return True


def refuse_running(path: Path, result: Result) -> None:
    if result.status == "running":
        message = f"{path} is still running: process {result.process.pid} on {result.process.host}"
        raise ResultError(message, hint="wait for it, or stop it first")


def find_runs(folder: Path) -> list[Path]:
    """Return the run folders directly below a folder, without the points of a run."""
    with explain_os_error(f"cannot list the runs in {folder}", "choose a folder that you can read"):
        if folder.is_dir():
            next(folder.iterdir(), None)  # raises without read permission, where glob would return nothing
        return sorted(path.parent for path in folder.glob("*/result.json"))


def read_result(path: Path) -> Result:
    """Read a run folder or a result.json; a run with status running whose process is gone reads as killed."""
    file = path
    try:
        file = path / "result.json" if path.is_dir() else path
        document = json.loads(file.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except FileNotFoundError as err:
        missing = (
            f"no result in {path}: result.json is missing" if path.is_dir() else f"no such run folder or file: {path}"
        )
        raise ResultError(missing, hint="list the runs of a folder: trainstone report runs") from err
    except (OSError, ValueError, RecursionError) as err:
        raise ResultError(f"cannot read {file}: {err}") from err
    if not isinstance(document, dict) or not isinstance(document.get("format"), int):
        raise ResultError(f"{file} is not a trainstone result: it has no format number")
    if document["format"] != FORMAT:
        newer = document["format"] > FORMAT
        message = f"{file} has format {document['format']}: this version of trainstone reads format {FORMAT}"
        hint = "update trainstone" if newer else "read it with the version that wrote it, or repeat the run"
        raise ResultError(message, hint=hint)
    try:
        result = Result.model_validate(document)
    except ValidationError as err:
        first = err.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ResultError(f"{file} is damaged at {where}: {first['msg']}") from err
    if result.status == "running" and not is_alive(result.process, file.parent):
        return result.model_copy(update={"status": "killed"})
    return result


def read_if_there(path: Path) -> Result | None:
    try:
        return read_result(path)
    except ResultError:
        return None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")


def is_alive(process: Process, folder: Path) -> bool:
    if process.host != socket.gethostname():
        newest = max((p.lstat().st_mtime for p in folder.iterdir()), default=0.0)
        return datetime.now().timestamp() - newest < STALE_SECONDS
    try:
        started = datetime.fromisoformat(process.started_utc).timestamp()
        writer = psutil.Process(process.pid)
        # A process younger than the run only has the same pid.
        return writer.status() != psutil.STATUS_ZOMBIE and writer.create_time() <= started + 1
    except (psutil.Error, ValueError):  # gone, hidden, or an invalid time
        return False


def recover(path: Path) -> Result:
    """Read a run; if its result has no throughput, compute it from the step file."""
    result = read_result(path)
    if result.status == "killed":  # it could not write a finding
        message = "the run ended without a result: it was killed, ran out of memory, or the machine went down"
        resume = f"resume it: trainstone {result.kind} --resume RUN; dmesg shows whether memory ran out"
        killed = finding("killed", message, hint=resume if result.kind in ("train", "sweep") else None)
        result = result.model_copy(update={"findings": [*result.findings, killed]})
    if result.throughput is not None or result.points or result.kind == "sweep":
        return result
    if result.kind == "train" and result.verdict is None:
        verdict = format_training_verdict(result.quality, result.status, result.phases, result.recipe.name)
        result = result.model_copy(update={"verdict": verdict})
    file = (path if path.is_dir() else path.parent) / "steps-rank0000.csv"
    needed = ("step_seconds", "images", "data_seconds", *PHASE_COLUMNS)
    try:
        columns = read_columns(file, needed) if file.is_file() else {}
        if not columns:
            return result
        summary = summarise_steps(columns, compiled=result.config.get("engine", {}).get("compile") is True)
    except ResultError as err:
        return result.model_copy(update={"findings": [*result.findings, finding("damaged-file", err.message)]})
    throughput = scale_throughput(summary.throughput, result.world.ranks)
    found: dict[str, Any] = {"throughput": throughput, "step_seconds": summary.step_seconds, "phases": summary.phases}
    if result.kind == "train":
        findings, known = check_speed(throughput, summary.step_seconds), result.phases
        if known is not None and result.status in (*FINISHED, "interrupted"):
            found["phases"] = known
        elif known is not None:
            # The step file has the steps after the last evaluation, but may lack those of an earlier start.
            names = ("train_seconds", "data_wait_seconds")
            longer = {name: max(getattr(known, name) or 0.0, getattr(summary.phases, name) or 0.0) for name in names}
            found["phases"] = summary.phases.model_copy(update=known.model_dump(exclude_none=True) | longer)
    else:
        findings = check_throughput(throughput, summary.step_seconds)
        found["verdict"] = format_verdict(
            f"{result.recipe.name} ({result.status} after {len(columns['step_seconds'])} steps)",
            throughput,
            None,
            None,
            ranks=result.world.ranks,
        )
    return result.model_copy(update=found | {"findings": [*result.findings, *findings]})
