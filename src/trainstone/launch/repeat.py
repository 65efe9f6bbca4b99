"""train --runs: the same training with seeds counted up, each in a child process; stopped or killed, it can be resumed.

The first run resolves every auto, the others repeat its configuration.
"""

from collections.abc import Generator, Iterator
from pathlib import Path

from trainstone.config.load import load_config
from trainstone.errors import LaunchError
from trainstone.launch.child_runs import TRAINSTONE, ChildEnd, ChildRun, name_folder, run_children, seeded_command
from trainstone.results.progress import Progress
from trainstone.results.quality import Repeated
from trainstone.results.repeated import BegunRun, combine_trainings, judge_repeated
from trainstone.results.schema import Point, Result, Status
from trainstone.results.store import find_runs, read_if_there
from trainstone.train.lifecycle import Lifecycle


def repeat_training(life: Lifecycle, repeated: Repeated) -> Generator[Progress | str, None, Status]:
    """Train what is left of --runs and write the combined result."""
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
    status = judge_repeated(expect_repeated(run.result), target)
    run.update(status=status)
    return status


def expect_repeated(result: Result) -> Repeated:
    """Return what --runs wrote: only such runs come here."""
    assert result.repeated is not None
    return result.repeated


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
    """Return the seeds whose runs have not come to their end."""
    children = read_children(folder)
    return [seed for seed in repeated.seeds if seed not in children or not children[seed].is_over]


def plan_child(folder: Path, repeated: Repeated, seed: int, recipe: str, label: str = "") -> ChildRun:
    """Return the run of a seed: it is resumed where it was begun."""
    begun = read_children(folder).get(seed)
    if begun is None:
        command = seeded_command("train", folder / "config.toml", folder / "points", seed, strict=repeated.strict)
        return ChildRun(label, command, name_folder(folder, recipe))
    command = [*TRAINSTONE, "train", "--resume", str(folder / begun.folder)]
    return ChildRun(label, [*command, "--strict"] if repeated.strict else command, folder / begun.folder)


def gather(life: Lifecycle) -> None:
    """Write what the runs so far make together; of the first that is over, its configuration and machine."""
    run = life.run
    repeated, children = expect_repeated(run.result), read_children(run.path)
    begun = [(seed, children[seed]) for seed in repeated.seeds if seed in children]
    over = [child for _, child in begun if child.is_over]
    if over and not run.result.machine:
        settled = load_config(str(run.path / over[0].folder / "config.toml"), flags={"seed": repeated.first_seed})
        run.write_config(settled)
        run.write_machine(over[0].result.machine, over[0].result.software)
    points = [Point(label=f"seed {seed}", run=child.folder) for seed, child in begun]
    run.update(points=points, **combine_trainings(run.result, [child for _, child in begun]))
    life.completed = f"{len(over)} of {repeated.num_runs} runs"
