"""Run several runs one after the other as child processes: `bench --runs`, `train --runs` and `sweep`.

Each run has its own process: running out of host memory means SIGKILL, and two runs must not share warm caches. The
parent chooses the child's run folder and reads progress, exit code and failure record there, as for a launched rank.
With --runs the first child resolves every auto and the others repeat its configuration; train --runs can be resumed.
"""

import logging
import shlex
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from trainstone.config.load import load_config
from trainstone.errors import EXIT_INTERRUPTED, EXIT_RESUMABLE, LaunchError, TrainstoneError, build_child_error
from trainstone.flows.lifecycle import Lifecycle
from trainstone.machine.launch_protocol import FOLDER, RUN, read_exit_code, read_failures, remove_attempt_files
from trainstone.machine.signals import StopSignals
from trainstone.machine.supervisor import describe_exit, format_memory_hint, supervise
from trainstone.results.combine import StartedRun, assess_repeated, combine_runs, combine_trainings
from trainstone.results.progress import Progress
from trainstone.results.run_folder import find_runs, is_locked, name_run, read_if_there, read_result
from trainstone.results.schema.quality import Repeated
from trainstone.results.schema.run import Point, Result, Status

log = logging.getLogger(__name__)

TRAINSTONE = (sys.executable, "-P", "-m", "trainstone")
OUTPUT = "output.log"
# Time limit for children of a killed parent to end; they write a checkpoint first.
LEFTOVER_SECONDS = 60.0


class ChildRun(NamedTuple):
    label: str
    command: list[str]
    folder: Path  # run folder of the child; it exists if the child run is resumed


class ChildEnd(NamedTuple):
    code: int  # exit code, or minus the signal that ended the process
    error: TrainstoneError | None = None  # None: it did not fail

    def check(self, label: str) -> None:
        if self.error:
            raise type(self.error)(f"{label}: {self.error.message}", hint=self.error.hint)


def child_command(verb: str, config_file: Path, out: Path, *, strict: bool, seed: int | None = None) -> list[str]:
    command = [*TRAINSTONE, verb, str(config_file), "--out", str(out), *(["--strict"] if strict else [])]
    return command if seed is None else [*command, "--seed", str(seed)]


def run_children(
    life: Lifecycle, children: Iterable[ChildRun], conclude: Callable[[ChildRun, ChildEnd], None]
) -> Generator[Progress | str, None, None]:
    """Run children one after the other; `conclude` receives how each ended, before the next is taken from `children`.

    First wait until children of a killed parent have ended: they would disturb the measurements.
    """
    end = time.monotonic() + LEFTOVER_SECONDS
    while busy := [path for path in find_runs(life.run.path / "points") if is_locked(path)]:
        life.check_stop()
        if time.monotonic() > end:
            pid = read_result(busy[0]).process.pid
            raise LaunchError(f"{busy[0]} is still in use by process {pid} of an earlier start", hint=f"kill {pid}")
        yield Progress(f"waiting for {busy[0].name} to end")
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
    remove_attempt_files(folder)
    ended = yield from supervise(
        child.command, {RUN: str(folder)}, folder / FOLDER / OUTPUT, signals, label=child.label
    )
    code = ended.code or read_exit_code(folder) or 0
    log.info("%s ended with %d", child.label, code)
    return ChildEnd(code, explain_end(folder, code, ended.output) if ended.code else None)


def explain_end(folder: Path, code: int, output: str) -> TrainstoneError:
    """Return the error of a failed child: the one recorded in its run folder, else one made from its exit code."""
    for failure in read_failures(folder)[:1]:
        return build_child_error(failure.exit_code, failure.message, failure.hint)
    last_output = f": {output.strip()[-500:]}" if code >= 0 else ""
    return build_child_error(code, describe_exit(code) + last_output, format_memory_hint(code))


def repeat_bench(life: Lifecycle, num_runs: int, *, strict: bool) -> Generator[Progress | str, None, Status]:
    """Measure the same configuration num_runs times with consecutive seeds; write the combined result.

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
    """Train with each seed of `repeated` in a child process; write the combined result after each."""
    run = life.run
    run.commit()
    run.update(repeated=run.result.repeated or repeated)
    update_combined(life)

    def list_children() -> Iterator[ChildRun]:
        for seed in list_due_seeds(run.path, repeated):
            label = f"run {repeated.seeds.index(seed) + 1} of {repeated.num_runs}"
            yield plan_child(run.path, repeated, seed, life.config.name, label)

    def conclude(child: ChildRun, ended: ChildEnd) -> None:
        ended.check(child.label)
        result = read_if_there(child.folder)
        if result is None or not StartedRun("", result).is_finished:
            raise LaunchError(
                f"{child.label} ended without an error, but has no final result", hint=f"ls {child.folder}"
            )
        update_combined(life)

    try:
        yield from run_children(life, list_children(), conclude)
    finally:  # a run that was stopped or failed is a row of the result, too
        update_combined(life)
    target = run.result.quality.target if run.result.quality else None
    status = assess_repeated(run.result.repeated or repeated, target)
    run.update(status=status)
    return status


def read_children(folder: Path) -> dict[int, StartedRun]:
    """Return the child runs by seed; of several with the same seed the finished one, else the newest."""
    found: dict[int, StartedRun] = {}
    for path in find_runs(folder / "points"):
        result = read_if_there(path)
        seed = result.config.get("seed") if result is not None else None
        if result is None or result.kind != "train" or not isinstance(seed, int):
            continue
        child = StartedRun(f"points/{path.name}", result)
        if seed not in found or not found[seed].is_finished:
            found[seed] = child
    return found


def list_due_seeds(folder: Path, repeated: Repeated) -> list[int]:
    children = read_children(folder)
    return [seed for seed in repeated.seeds if seed not in children or not children[seed].is_finished]


def plan_child(folder: Path, repeated: Repeated, seed: int, recipe: str, label: str = "") -> ChildRun:
    started, points = read_children(folder).get(seed), folder / "points"
    if started is None:
        command = child_command("train", folder / "config.toml", points, strict=repeated.strict, seed=seed)
        return ChildRun(label, command, points / name_run(recipe))
    command = [*TRAINSTONE, "train", "--resume", str(folder / started.folder)]
    return ChildRun(label, [*command, "--strict"] if repeated.strict else command, folder / started.folder)


def update_combined(life: Lifecycle) -> None:
    """Write the combined result of the runs so far, with configuration and machine of the first finished one."""
    run = life.run
    repeated, children = run.result.repeated, read_children(run.path)
    assert repeated is not None
    started = [(seed, children[seed]) for seed in repeated.seeds if seed in children]
    finished = [child for _, child in started if child.is_finished]
    if finished and not run.result.machine:
        resolved = load_config(str(run.path / finished[0].folder / "config.toml"), flags={"seed": repeated.first_seed})
        run.write_config(resolved)
        run.write_machine(finished[0].result.machine, finished[0].result.software)
    points = [Point(label=f"seed {seed}", run=child.folder) for seed, child in started]
    run.update(points=points, **combine_trainings(run.result, [child for _, child in started]))
    life.completed = f"{len(finished)} of {repeated.num_runs} runs"
