"""trainstone sweep: bench over batch sizes or the values of a key; finds the knee. Flags -> plan -> points -> page."""

import shlex
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainstone.cli import options
from trainstone.cli.bench import finish
from trainstone.cli.opening import open_folder
from trainstone.errors import ConfigError, ResultError

if TYPE_CHECKING:
    from trainstone.launch.points import Plan
    from trainstone.results.store import RunFolder

RUNS = Path("runs")
BatchSizes = Annotated[
    str | None,
    typer.Option("--batch-sizes", metavar="N,N", help="Batches to run.", show_default="1,2,4,8,16,32,64,96,128"),
]
Over = Annotated[
    list[str],
    typer.Option(
        "--over",
        metavar="KEY=V,V",
        help="Run over the values of a recipe key instead; with --batch-sizes one curve a value.",
        show_default=False,
    ),
]
Profile = Annotated[bool, typer.Option("--profile", help="Profile each point, too: how busy the device is.")]
Cores = Annotated[bool, typer.Option("--cores", help="NVIDIA: how busy the pipes of the cores are, by ncu.")]
Seconds = Annotated[
    float | None,
    typer.Option("--seconds", help="Time budget of each point's measured steps.", show_default="the recipe's: 60"),
]


def sweep(
    recipe: Annotated[
        str, typer.Argument(help="A recipe's name, a .toml file, or an unfinished sweep to go on with.")
    ] = "resnet50",
    batch_sizes: BatchSizes = None,
    over: Over = [],  # noqa: B006
    profile: Profile = False,
    cores: Cores = False,
    settings: options.Settings = [],  # noqa: B006  (Typer reads it, nobody changes it)
    system: options.SystemName = None,
    data: options.Data = None,
    out: options.Out = RUNS,
    seconds: Seconds = None,
    seed: options.Seed = None,
    device: options.DeviceName = None,
    strict: options.Strict = False,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
    quiet: options.Quiet = 0,
) -> None:
    """Measure over batch sizes, or any key; find and explain the knee. Stopped or killed, the same command goes on."""
    from trainstone.config.load import load_config
    from trainstone.launch.points import make_plan
    from trainstone.launch.unfinished import plan_again
    from trainstone.log import configure_terminal
    from trainstone.results.store import read_result

    flags = options.collect_flags(seconds=seconds, seed=seed, device=device, data=data)
    named = find_named(recipe)
    if named:
        changes = [*settings, *flags, *over, batch_sizes, system, profile or cores or strict, out != RUNS]
        refuse_changes(named, changes)
        plan = plan_again(named, read_result(named))
    else:
        config = load_config(recipe, settings=settings, system=system, flags=flags)
        plan = make_plan(config, batch_sizes, take_one(over), profile=profile, cores=cores, strict=strict)
    if dry_run:
        print_plan(plan, named, out, as_json=as_json)
        return
    options.refuse_ranks("sweep")
    if plan.sweep.cores:
        from trainstone.launch.ncu import find_ncu

        find_ncu()  # before the work, not after it
    configure_terminal(verbose=0, quiet=quiet)
    with ExitStack() as held:
        plan, run = open_run(plan, named, out, held, quiet=bool(quiet))
        run_points(plan, run, quiet=bool(quiet))
        finish(run, as_json=as_json)


def find_named(recipe: str) -> Path | None:
    """Return the folder of a sweep where one is named instead of a recipe."""
    from trainstone.launch.unfinished import read_sweep

    path = Path(recipe)
    return path if read_sweep(path) is not None else None


def take_one(over: list[str]) -> str | None:
    """Return the one --over there may be."""
    if len(over) > 1:
        raise ConfigError(
            f"--over is given {len(over)} times: {' and '.join(over)}",
            hint="one --over; with --batch-sizes every batch size is run with every value of it",
        )
    return over[0] if over else None


def refuse_changes(path: Path, changes: list[Any]) -> None:
    """A sweep that is gone on with keeps its plan and its place."""
    if any(change is not None and change is not False for change in changes):
        raise ConfigError(
            f"{path} has its plan and its place: only --json, --quiet and --dry-run go with it",
            hint=f"for another sweep of the same recipe give {path / 'config.toml'}",
        )


def open_run(plan: "Plan", named: Path | None, out: Path, held: ExitStack, *, quiet: bool) -> "tuple[Plan, RunFolder]":
    """Take up the sweep that is named or has the same plan, or begin a new one; hold its folder until the end."""
    from trainstone.launch.unfinished import find_unfinished, hold
    from trainstone.machine.facts import read_software

    path = named or find_unfinished(out, plan)
    if path is not None:
        if held.enter_context(hold(path)):
            return take_up(plan, path, quiet=quiet)
        if named:
            raise ResultError(f"{path} is being gone on with by another process", hint="wait for its end")
    run = open_folder(out, "sweep", plan.config)
    held.enter_context(hold(run.path))
    run.update(sweep=plan.sweep, software=read_software())
    return plan, run


def take_up(plan: "Plan", path: Path, *, quiet: bool) -> "tuple[Plan, RunFolder]":
    """Go on with a sweep whose folder is held; what the first point settled stays settled."""
    from trainstone.launch.unfinished import end_orphans, find_due, load_settled
    from trainstone.results.store import read_result, reopen_run

    result = read_result(path)
    config = load_settled(path, result)
    num_points = len(plan.points)
    done = f"{num_points - len(find_due(path, result, plan))} of {num_points} points are done"
    if not quiet:
        print(f"going on with {path}: {done} (remove that folder to start anew)", file=sys.stderr)
    end_orphans(path)
    run = reopen_run(path, "sweep", result.command)
    run.begin()
    run.update(devices=result.devices)
    return replace(plan, config=config), run


def run_points(plan: "Plan", run: "RunFolder", *, quiet: bool) -> None:
    """Measure, with a line of progress."""
    from trainstone.cli.progress import ProgressLine
    from trainstone.launch.sweep import run_sweep

    with ProgressLine(quiet=quiet) as line:
        for progress in run_sweep(plan, run):
            line.show(progress)


def print_plan(plan: "Plan", named: Path | None, out: Path, *, as_json: bool) -> None:
    """--dry-run: what is to be run, in its order and by which commands; of an unfinished sweep only the rest."""
    from trainstone.cli.output import print_json
    from trainstone.config.load import write_toml
    from trainstone.launch.unfinished import find_due, find_unfinished, load_settled
    from trainstone.results.store import read_result

    path, due = named or find_unfinished(out, plan), None
    if path is not None:
        result = read_result(path)
        plan = replace(plan, config=load_settled(path, result))
        due = find_due(path, result, plan)
    rows = list_commands(plan, path or Path("RUN"), due)
    if as_json:
        config = plan.config.model_dump(mode="json", exclude_none=True)
        place = {"out": str(path.parent if path else out)} | ({"run": str(path)} if path else {})
        print_json({"config": config, **place, "points": rows})
        return
    print(write_toml(plan.config))
    where = f"go on with {path}" if path else f"write a sweep's folder RUN under {out}/"
    of = f" of {len(plan.points)}" if path else ""
    print(f"# would {where}, and run {len(rows)}{of} points, in this order:")
    for row in rows:
        print(f"# {row['order']}: {row['label']}")
        print("\n".join(f"#   {command}" for command in row["commands"]))


def list_commands(plan: "Plan", run: Path, due: dict[str, list[str]] | None) -> list[dict[str, Any]]:
    """Return the points to run with their commands; `due`: what is left of a sweep, by label."""
    from trainstone.launch.sweep import list_due, make_command

    rows: list[dict[str, Any]] = []
    for point in plan.points:
        verbs = list_due(plan, {}, point) if due is None else due.get(point.label, [])
        file = run / "launch" / f"{point.name}.toml"
        commands = [shlex.join(make_command(verb, file, run / "points", plan)) for verb in verbs]
        if verbs:
            rows.append({"order": point.order, "label": point.label, "commands": commands})
    return rows
