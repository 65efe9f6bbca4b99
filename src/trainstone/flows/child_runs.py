"""Runs one after the other as child processes: bench --runs, train --runs, sweep.

A process for each, because a CPU out of memory is a SIGKILL and two runs must not share a warm process. A child's run
folder is chosen here, so that its progress, exit code and failure record are found there as those of a launched rank.
Of --runs the first child resolves every auto, the others repeat its configuration; train --runs can be resumed.
"""

import logging
import shlex
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from trainstone.config.load import load_config
from trainstone.errors import EXIT_INTERRUPTED, EXIT_RESUMABLE, LaunchError, TrainstoneError, error_of_child
from trainstone.flows.lifecycle import Lifecycle
from trainstone.machine.launch_protocol import FOLDER, RUN, forget_attempt, read_code, read_failures
from trainstone.machine.signals import StopSignals
from trainstone.machine.supervisor import describe_exit, hint_at_memory, supervise
from trainstone.results.combine import BegunRun, assess_repeated, combine_runs, combine_trainings
from trainstone.results.progress import Progress
from trainstone.results.run_folder import find_runs, is_locked, name_run, read_if_there, read_result
from trainstone.results.schema.quality import Repeated
from trainstone.results.schema.run import Point, Result, Status

log = logging.getLogger(__name__)

TRAINSTONE = (sys.executable, "-P", "-m", "trainstone")
OUTPUT = "output.log"
# For a child to end that was told to when its parent was killed: it writes a checkpoint first.
LEFTOVER_SECONDS = 60.0


class ChildRun(NamedTuple):
    label: str
    command: list[str]
    folder: Path  # its run folder; it is there where the run is resumed


class ChildEnd(NamedTuple):
    code: int  # exit code, or minus the signal that ended the process
    error: TrainstoneError | None = None  # why it failed, of its class and with its hint; None: it did not

    def check(self, label: str) -> None:
        if self.error:
            raise type(self.error)(f"{label}: {self.error.message}", hint=self.error.hint)


def child_command(verb: str, config_file: Path, out: Path, *, strict: bool, seed: int | None = None) -> list[str]:
    command = [*TRAINSTONE, verb, str(config_file), "--out", str(out), *(["--strict"] if strict else [])]
    return command if seed is None else [*command, "--seed", str(seed)]


def run_children(
    life: Lifecycle, children: Iterable[ChildRun], conclude: Callable[[ChildRun, ChildEnd], None]
) -> Generator[Progress | str, None, None]:
    """Run children one after the other; `conclude` takes each end. `children` may depend on how earlier ones ended.

    First wait until those of a killed parent, which end with it, have written what they had: they would disturb.
    """
    end = time.monotonic() + LEFTOVER_SECONDS
    while busy := [path for path in find_runs(life.run.path / "points") if is_locked(path)]:
        life.check_stop()
        if time.monotonic() > end:
            pid = read_result(busy[0]).process.pid
            raise LaunchError(f"{busy[0]} is still in use by process {pid} of an earlier start", hint=f"kill {pid}")
        yield Progress(f"waiting for the end of {busy[0].name}")
        time.sleep(0.1)
    for child in children:
        life.check_stop()
        yield Progress(child.label)
        ended = yield from run_child(child, life.signals)
        if ended.code in (EXIT_INTERRUPTED, EXIT_RESUMABLE) or (life.signals.received and ended.code < 0):
            raise KeyboardInterrupt(life.signals.received or "SIGTERM")
        conclude(child, ended)


def run_child(child: ChildRun, signals: StopSignals) -> Generator[str, None, ChildEnd]:
    log.info("starting %s", shlex.join(child.command))
    folder = child.folder.absolute()
    forget_attempt(folder)
    ended = yield from supervise(
        child.command, {RUN: str(folder)}, folder / FOLDER / OUTPUT, signals, label=child.label
    )
    code = ended.code or read_code(folder) or 0
    log.info("%s ended with %d", child.label, code)
    return ChildEnd(code, explain_end(folder, code, ended.output) if ended.code else None)


def explain_end(folder: Path, code: int, output: str) -> TrainstoneError:
    """Return the error that a child ended with: the one it left in its run folder, else what its exit code says."""
    for left in read_failures(folder)[:1]:
        return error_of_child(left.exit_code, left.message, left.hint)
    said = f": {output.strip()[-500:]}" if code >= 0 else ""
    return error_of_child(code, describe_exit(code) + said, hint_at_memory(code))


def repeat_bench(life: Lifecycle, num_runs: int, *, strict: bool) -> Generator[Progress | str, None, Status]:
    """Measure the same configuration num_runs times with seeds counted up; write the combined result.

    The first child resolves every auto, the others repeat its resolved configuration.
    """
    run, first_seed = life.run, life.config.seed
    results: list[Result] = []

    def list_children() -> Iterator[ChildRun]:
        for number in range(num_runs):
            life.completed = f"{number} of {num_runs} runs"
            file, points = run.path / "config.toml", run.path / "points"
            command = child_command("bench", file, points, strict=strict, seed=first_seed + number)
            yield ChildRun(f"run {number + 1} of {num_runs}", command, points / name_run(life.config.name))

    def conclude(child: ChildRun, ended: ChildEnd) -> None:
        ended.check(child.label)
        result = read_result(child.folder)
        results.append(result)
        if len(results) == 1:
            run.write_config(load_config(str(child.folder / "config.toml")))
            run.write_machine(result.machine, result.software)
            run.update(devices=result.devices)
        points = [Point(label=f"seed {one.config['seed']}", run=f"points/{one.run_id}") for one in results]
        run.update(points=points, **combine_runs(results))

    yield from run_children(life, list_children(), conclude)
    run.update(status="ok")
    return "ok"


def repeat_training(life: Lifecycle, repeated: Repeated) -> Generator[Progress | str, None, Status]:
    run = life.run
    run.begin()
    run.update(repeated=run.result.repeated or repeated)
    gather(life)

    def list_children() -> Iterator[ChildRun]:
        for seed in list_due(run.path, repeated):
            label = f"run {repeated.seeds.index(seed) + 1} of {repeated.num_runs}"
            yield plan_child(run.path, repeated, seed, life.config.name, label)

    def conclude(child: ChildRun, ended: ChildEnd) -> None:
        ended.check(child.label)
        result = read_if_there(child.folder)
        if result is None or not BegunRun("", result).is_over:
            raise LaunchError(f"{child.label} ended well, but left no result that says so", hint=f"see {child.folder}")
        gather(life)

    try:
        yield from run_children(life, list_children(), conclude)
    finally:  # a run that was stopped or failed is a row, too
        gather(life)
    target = run.result.quality.target if run.result.quality else None
    status = assess_repeated(run.result.repeated or repeated, target)
    run.update(status=status)
    return status


def read_children(folder: Path) -> dict[int, BegunRun]:
    """Return the runs begun, by seed; of several with one seed that which is over, else the newest."""
    found: dict[int, BegunRun] = {}
    for path in find_runs(folder / "points"):
        result = read_if_there(path)
        seed = result.config.get("seed") if result is not None else None
        if result is None or result.kind != "train" or not isinstance(seed, int):
            continue
        child = BegunRun(f"points/{path.name}", result)
        if seed not in found or not found[seed].is_over:
            found[seed] = child
    return found


def list_due(folder: Path, repeated: Repeated) -> list[int]:
    children = read_children(folder)
    return [seed for seed in repeated.seeds if seed not in children or not children[seed].is_over]


def plan_child(folder: Path, repeated: Repeated, seed: int, recipe: str, label: str = "") -> ChildRun:
    begun, points = read_children(folder).get(seed), folder / "points"
    if begun is None:
        command = child_command("train", folder / "config.toml", points, strict=repeated.strict, seed=seed)
        return ChildRun(label, command, points / name_run(recipe))
    command = [*TRAINSTONE, "train", "--resume", str(folder / begun.folder)]
    return ChildRun(label, [*command, "--strict"] if repeated.strict else command, folder / begun.folder)


def gather(life: Lifecycle) -> None:
    """Write what the runs so far make together; of the first that is over, its configuration and machine."""
    run = life.run
    repeated, children = run.result.repeated, read_children(run.path)
    assert repeated is not None
    begun = [(seed, children[seed]) for seed in repeated.seeds if seed in children]
    over = [child for _, child in begun if child.is_over]
    if over and not run.result.machine:
        settled = load_config(str(run.path / over[0].folder / "config.toml"), flags={"seed": repeated.first_seed})
        run.write_config(settled)
        run.write_machine(over[0].result.machine, over[0].result.software)
    points = [Point(label=f"seed {seed}", run=child.folder) for seed, child in begun]
    run.update(points=points, **combine_trainings(run.result, [child for _, child in begun]))
    life.completed = f"{len(over)} of {repeated.num_runs} runs"
