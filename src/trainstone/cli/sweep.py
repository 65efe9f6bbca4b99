"""trainstone sweep: measure over batch sizes or the values of a key. Flags -> plan -> points -> page."""

import shlex
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainstone.cli import options
from trainstone.cli.execute import RunOptions, execute, find_earlier_attempt, print_resolved
from trainstone.cli.render.output import print_stderr
from trainstone.errors import ConfigError, ResultError
from trainstone.machine.launch_protocol import get_launch_name

if TYPE_CHECKING:
    from trainstone.flows.sweep.plan import SweepPlan

RUNS = Path("runs")
BatchSizes = Annotated[
    str | None,
    typer.Option(
        "--batch-sizes", metavar="N,N", help="Batch sizes to measure.", show_default="1,2,4,8,16,32,64,96,128"
    ),
]
Over = Annotated[
    list[str],
    typer.Option(
        "--over",
        metavar="KEY=V,V",
        help="Sweep these values of a recipe key at the recipe's batch size; with --batch-sizes, one curve per value.",
    ),
]
Profile = Annotated[bool, typer.Option("--profile", help="Also profile each point: how busy the device is.")]
Cores = Annotated[
    bool,
    typer.Option("--cores", help="Also measure the compute units of an NVIDIA GPU with ncu: FMA, FP16, tensor cores."),
]
Resume = Annotated[
    Path | None, typer.Option("--resume", metavar="RUN", help="Continue a sweep that was stopped or killed.")
]
Seconds = Annotated[
    float | None,
    typer.Option(
        "--seconds",
        help="Time budget of each point in seconds, once torch is loaded: trials (the first time), peaks and steps.",
        show_default="from the recipe, else 60",
    ),
]


def sweep(
    recipe: Annotated[
        str | None, typer.Argument(help="Recipe name or recipe file (.toml).", show_default="resnet50")
    ] = None,
    batch_sizes: BatchSizes = None,
    over: Over = [],  # noqa: B006
    profile: Profile = False,
    cores: Cores = False,
    resume: Resume = None,
    settings: options.Settings = [],  # noqa: B006  (never mutated)
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
    """Measure speed over batch sizes, or the values of any recipe key; find and explain the knee of the curve."""
    from trainstone.config.load import load_config
    from trainstone.flows.sweep.plan import plan_from_flags, resume_plan
    from trainstone.flows.sweep.run import find_due, run_sweep
    from trainstone.results.run_folder import read_result

    flags = options.collect_flags({"measure.seconds": seconds, "seed": seed, "device": device}, data)
    if resume:
        changes = [recipe, *settings, *flags, *over, batch_sizes, system, profile or cores or strict, out != RUNS]
        check_resumable(resume, changes)
    else:
        resume = find_earlier_sweep()
    if resume:
        plan = resume_plan(resume, read_result(resume))
    else:
        config = load_config(recipe or "resnet50", settings=settings, system=system, flags=flags)
        if len(over) > 1:
            raise ConfigError(
                f"{len(over)} --over options: {' and '.join(over)}; expected one",
                hint="remove one; with --batch-sizes, every batch size is measured with every value",
            )
        plan = plan_from_flags(
            config, batch_sizes, over[0] if over else None, profile=profile, cores=cores, strict=strict
        )
    if dry_run:
        print_plan(plan, resume, out, as_json=as_json)
        return
    options.check_single_process("sweep")
    if plan.sweep.cores:
        from trainstone.flows.profile.ncu import find_ncu

        find_ncu()  # raises now, not after hours of work
    options.prepare_process(quiet=quiet)
    if resume and not quiet:
        done = len(plan.points) - len(find_due(resume, read_result(resume), plan))
        print_stderr(f"resuming {resume}: {done} of {len(plan.points)} points are done")
    execute("sweep", plan.config, lambda life: run_sweep(life, plan), RunOptions(out, as_json, quiet, resume))


def find_earlier_sweep() -> Path | None:
    """Return the unfinished sweep of an earlier attempt of this launch on this host, if any."""
    from trainstone.results.run_folder import read_result

    earlier = find_earlier_attempt()
    if earlier is None:
        return None
    result = read_result(earlier)
    here = result.process.host == socket.gethostname() and result.process.launch == get_launch_name()
    return earlier if here and result.sweep is not None and result.status != "ok" else None


def check_resumable(path: Path, changes: list[Any]) -> None:
    """Raise for flags that --resume does not allow, and for a run that is not a stopped sweep."""
    from trainstone.results.run_folder import read_result
    from trainstone.results.step_summary import format_repeat_command

    if any(change is not None and change is not False for change in changes):
        raise ConfigError(
            f"--resume {path} cannot change recipe, plan or folder; allowed are --json, --quiet and --dry-run",
            hint=f"start a new sweep: trainstone sweep {shlex.quote(str(path / 'config.toml'))}",
        )
    result = read_result(path)
    if result.kind != "sweep":
        raise ResultError(f"{path} is a {result.kind} run, not a sweep", hint="trainstone sweep --resume RUN")
    if result.status == "running":
        writer = result.process
        raise ResultError(
            f"{path} is still running: process {writer.pid} on {writer.host}",
            hint="wait until it ends",
        )
    if result.status == "ok":
        show = f"trainstone report {shlex.quote(str(path))}"
        raise ResultError(
            f"{path} is complete: its status is {result.status}",
            hint=f"show it: {show}; repeat it: {format_repeat_command(result, path)}",
        )


def print_plan(plan: "SweepPlan", path: Path | None, out: Path, *, as_json: bool) -> None:
    """Print the commands of --dry-run in their order; of a resumed sweep, the remaining ones."""
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
        where = f"write the run folder RUN of the sweep under {out}/, and run {len(rows)}"
    lines.insert(0, f"# would {where} points, in this order:")
    place = {"out": str(path.parent), "run": str(path)} if path else {"out": str(out)}
    print_resolved(plan.config, lines, as_json=as_json, **place, points=rows)
