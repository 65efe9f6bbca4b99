"""trainstone sweep: bench over batch sizes or the values of a key; finds the knee. Flags -> plan -> points -> page."""

import shlex
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainstone.cli import options
from trainstone.cli.execute import RunOptions, execute, find_begun, print_resolved
from trainstone.cli.render.output import print_stderr
from trainstone.errors import ConfigError, ResultError
from trainstone.machine.launch_protocol import launch_name

if TYPE_CHECKING:
    from trainstone.flows.sweep.plan import SweepPlan

RUNS = Path("runs")
Over = Annotated[
    list[str],
    typer.Option(
        "--over",
        metavar="KEY=V,V",
        help="Run over the values of a recipe key instead; with --batch-sizes one curve a value.",
    ),
]
Profile = Annotated[bool, typer.Option("--profile", help="Profile each point, too: how busy the device is.")]
Cores = Annotated[bool, typer.Option("--cores", help="NVIDIA: how busy the pipes of the cores are, by ncu.")]
Resume = Annotated[
    Path | None, typer.Option("--resume", metavar="RUN", help="Continue a sweep that was stopped or killed.")
]
Seconds = Annotated[
    float | None,
    typer.Option("--seconds", help="Time budget of each point's measured steps.", show_default="the recipe's: 60"),
]


def sweep(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe's name or a .toml file.", show_default="resnet50")
    ] = None,
    batch_sizes: Annotated[
        str | None,
        typer.Option("--batch-sizes", metavar="N,N", help="Batches to run.", show_default="1,2,4,8,16,32,64,96,128"),
    ] = None,
    over: Over = [],  # noqa: B006
    profile: Profile = False,
    cores: Cores = False,
    resume: Resume = None,
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
    """Measure over batch sizes, or any key; find and explain the knee."""
    from trainstone.config.load import load_config
    from trainstone.flows.sweep.plan import make_plan, resume_plan
    from trainstone.flows.sweep.run import find_due, run_sweep
    from trainstone.results.run_folder import read_result

    flags = options.collect_flags({"measure.seconds": seconds, "seed": seed, "device": device}, data)
    if resume:
        changes = [recipe, *settings, *flags, *over, batch_sizes, system, profile or cores or strict, out != RUNS]
        check_resumed(resume, changes)
    else:
        resume = find_begun_sweep()
    if resume:
        plan = resume_plan(resume, read_result(resume))
    else:
        config = load_config(recipe or "resnet50", settings=settings, system=system, flags=flags)
        if len(over) > 1:
            raise ConfigError(
                f"--over is given {len(over)} times: {' and '.join(over)}",
                hint="one --over; with --batch-sizes every batch size is run with every value of it",
            )
        plan = make_plan(config, batch_sizes, over[0] if over else None, profile=profile, cores=cores, strict=strict)
    if dry_run:
        print_plan(plan, resume, out, as_json=as_json)
        return
    options.refuse_ranks("sweep")
    if plan.sweep.cores:
        from trainstone.flows.profile.ncu import find_ncu

        find_ncu()  # before the work, not after it
    options.prepare_process(quiet=quiet)
    if resume and not quiet:
        done = len(plan.points) - len(find_due(resume, read_result(resume), plan))
        print_stderr(f"resuming {resume}: {done} of {len(plan.points)} points are done")
    execute("sweep", plan.config, lambda life: run_sweep(life, plan), RunOptions(out, as_json, quiet, resume))


def find_begun_sweep() -> Path | None:
    """Return the sweep that an earlier attempt of this launch has begun on this host; None: it starts from scratch."""
    from trainstone.results.run_folder import read_result

    begun = find_begun()
    if begun is None:
        return None
    result = read_result(begun)
    here = result.process.host == socket.gethostname() and result.process.launch == launch_name()
    return begun if here and result.sweep is not None and result.status != "ok" else None


def check_resumed(path: Path, changes: list[Any]) -> None:
    """Refuse flags that --resume does not go with, and a run that is no stopped sweep."""
    from trainstone.results.run_folder import read_result
    from trainstone.results.step_summary import describe_repeat

    if any(change is not None and change is not False for change in changes):
        raise ConfigError(
            f"--resume {path} keeps its recipe, plan and folder: only --json, --quiet and --dry-run go with it",
            hint=f"for another sweep of the same recipe give {path / 'config.toml'}",
        )
    result = read_result(path)
    if result.kind != "sweep":
        raise ResultError(f"{path} is a {result.kind} run, not a sweep", hint="trainstone sweep --resume RUN")
    if result.status == "running":
        writer = result.process
        raise ResultError(f"{path} is still running: process {writer.pid} on {writer.host}", hint="wait for its end")
    if result.status == "ok":
        raise ResultError(
            f"{path} has come to its end: its status is {result.status}",
            hint=f"see it: trainstone report {path}; or start again: {describe_repeat(result, path)}",
        )


def print_plan(plan: "SweepPlan", path: Path | None, out: Path, *, as_json: bool) -> None:
    """--dry-run: what is to be run, in its order and by which commands; of a resumed sweep only the rest."""
    from trainstone.flows.sweep.run import find_due, list_due, make_command
    from trainstone.results.run_folder import read_result

    run = path or Path("RUN")
    every = {point.label: list_due(plan, {}, point) for point in plan.points}
    due = find_due(path, read_result(path), plan) if path else every
    rows, lines = [], []
    for point in plan.points:
        if verbs := due.get(point.label):
            file = run / "launch" / f"{point.name}.toml"
            commands = [shlex.join(make_command(verb, file, run / "points", plan)) for verb in verbs]
            rows.append({"order": point.order, "label": point.label, "commands": commands})
            lines += [f"# {point.order}: {point.label}", *(f"#   {command}" for command in commands)]
    where = f"resume {path}, and run {len(rows)} of {len(plan.points)}"
    if not path:
        where = f"write a sweep's folder RUN under {out}/, and run {len(rows)}"
    lines.insert(0, f"# would {where} points, in this order:")
    place = {"out": str(path.parent), "run": str(path)} if path else {"out": str(out)}
    print_resolved(plan.config, lines, as_json=as_json, **place, points=rows)
