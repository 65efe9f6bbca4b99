"""train --runs: the same training with seeds counted up, each in a child process; stopped or killed, it can go on.

The first run resolves every auto, the others repeat its configuration.
"""

import shlex
from collections.abc import Generator, Iterator
from contextlib import closing
from functools import lru_cache
from pathlib import Path

from trainstone.config.load import load_config
from trainstone.errors import EXIT_INTERRUPTED, LaunchError, ResultError, TrainstoneError
from trainstone.launch.children import TRAINSTONE, Ended, explain_failure, run_child, seeded_command
from trainstone.launch.sweep import read_if_there
from trainstone.log import log_into
from trainstone.machine.interrupt import RESUMABLE, Interrupt
from trainstone.results.checks import finding
from trainstone.results.progress import Progress
from trainstone.results.quality import Repeated
from trainstone.results.repeated import ChildRun, combine_trainings, judge_repeated
from trainstone.results.schema import Point, Result
from trainstone.results.store import RunFolder, find_runs


def repeat_training(run: RunFolder) -> Iterator[Progress]:
    """Train what is left of --runs, write the combined result; KeyboardInterrupt names the signal that stopped it."""
    repeated = expect_repeated(run.result)
    with Interrupt(RESUMABLE) as interrupt, log_into(run.path / "log.txt"):
        try:
            gather(run)
            for seed in list_due(run.path, repeated):
                yield from train_one(run, seed, interrupt)
                gather(run)
        except KeyboardInterrupt as err:
            write_stop(run, str(err) or "SIGINT")
            raise
        except TrainstoneError as err:
            gather(run)
            failed = finding("child-failed", err.message, hint=err.hint)
            run.update(status="failed", findings=[failed, *run.result.findings])
            raise
        except OSError as err:
            raise ResultError(f"cannot write into {run.path}: {err}", hint="is the disk full?") from err
        target = run.result.quality.target if run.result.quality else None
        run.update(status=judge_repeated(expect_repeated(run.result), target))


def expect_repeated(result: Result) -> Repeated:
    """Return what --runs wrote: only such runs come here."""
    assert result.repeated is not None
    return result.repeated


def read_children(folder: Path) -> dict[int, ChildRun]:
    """Return the runs begun, by seed; of several with one seed that which is over, else the newest."""
    found: dict[int, ChildRun] = {}
    for path in find_runs(folder / "points"):
        result = read_if_there(path)
        seed = result.config.get("seed") if result is not None else None
        if result is None or result.kind != "train" or not isinstance(seed, int):
            continue
        child = ChildRun(f"points/{path.name}", result)
        if seed not in found or not found[seed].is_over:
            found[seed] = child
    return found


def list_due(folder: Path, repeated: Repeated) -> list[int]:
    """Return the seeds whose runs have not come to their end."""
    children = read_children(folder)
    return [seed for seed in repeated.seeds if seed not in children or not children[seed].is_over]


def list_commands(folder: Path, repeated: Repeated) -> list[list[str]]:
    """Return the command lines that are left to run."""
    return [make_command(folder, repeated, seed) for seed in list_due(folder, repeated)]


def make_command(folder: Path, repeated: Repeated, seed: int) -> list[str]:
    """Return the command line of a run: it is resumed where it was begun."""
    begun = read_children(folder).get(seed)
    if begun is None:
        return seeded_command("train", folder / "config.toml", folder / "points", seed, strict=repeated.strict)
    command = [*TRAINSTONE, "train", "--resume", str(folder / begun.folder), "--json", "--quiet"]
    return [*command, "--strict"] if repeated.strict else command


def train_one(run: RunFolder, seed: int, interrupt: Interrupt) -> Iterator[Progress]:
    """Train with a seed to the end."""
    repeated = expect_repeated(run.result)
    label = f"run {repeated.seeds.index(seed) + 1} of {repeated.num_runs}"
    if interrupt.asked:
        raise KeyboardInterrupt(interrupt.asked)
    yield Progress(label)
    ended = yield from watch(run, seed, label, interrupt)
    if ended.interrupted or (interrupt.asked and ended.code < 0):
        raise KeyboardInterrupt(interrupt.asked or ("SIGINT" if ended.code == EXIT_INTERRUPTED else "SIGTERM"))
    if ended.code != 0:
        raise explain_failure(label, ended)
    if seed in list_due(run.path, repeated):
        raise LaunchError(f"{label} ended well, but left no result that says so", hint=f"see {run.path / 'points'}")


def watch(run: RunFolder, seed: int, label: str, interrupt: Interrupt) -> Generator[Progress, None, Ended]:
    """Run a child to its end, telling what its result says meanwhile."""
    begun, before = read_children(run.path).get(seed), set(find_runs(run.path / "points"))
    command = make_command(run.path, expect_repeated(run.result), seed)
    with closing(run_child(command, label, interrupt)) as going:
        while True:
            try:
                progress = next(going)
            except StopIteration as end:
                ended: Ended = end.value
                return ended
            new = set(find_runs(run.path / "points")) - before
            yield glance(progress, run.path / begun.folder if begun else max(new, default=None))


def glance(progress: Progress, folder: Path | None) -> Progress:
    """Add the epochs and the metric of a run's last evaluation."""
    try:
        result = _read_once(folder, (folder / "result.json").stat().st_mtime_ns) if folder else None
    except OSError:
        return progress
    quality = result.quality if result else None
    if quality is None or not quality.history:
        return progress
    last = quality.history[-1]
    return progress._replace(epoch=last.epoch, metric=quality.metric, accuracy=last.metrics.get(quality.metric))


@lru_cache(maxsize=1)
def _read_once(folder: Path, _changed: int) -> Result | None:
    """Read a result that has changed: to do so every second would take time from the training."""
    return read_if_there(folder)


def gather(run: RunFolder) -> None:
    """Write what the runs so far make together; of the first that is over, its configuration and machine."""
    repeated, children = expect_repeated(run.result), read_children(run.path)
    begun = [(seed, children[seed]) for seed in repeated.seeds if seed in children]
    first = next((child for _, child in begun if child.is_over), None)
    if first is not None and not run.result.machine:
        settled = load_config(str(run.path / first.folder / "config.toml"), flags={"seed": repeated.first_seed})
        run.write_config(settled)
        run.write_machine(first.result.machine, first.result.software)
    points = [Point(label=f"seed {seed}", run=child.folder) for seed, child in begun]
    run.update(points=points, **combine_trainings(run.result, [child for _, child in begun]))


def write_stop(run: RunFolder, signal_name: str) -> None:
    """Write what there is, and how to go on."""
    gather(run)
    repeated = expect_repeated(run.result)
    over = repeated.num_runs - len(list_due(run.path, repeated))
    go_on = f"trainstone train --resume {shlex.quote(str(run.path))}"
    told = f"stopped by {signal_name} after {over} of {repeated.num_runs} runs"
    stopped = finding("interrupted", told, hint=f"go on with: {go_on}")
    verdict = f"{run.result.verdict}; stopped by {signal_name}; go on with {go_on}"
    run.update(status="interrupted", verdict=verdict, findings=[stopped, *run.result.findings])
