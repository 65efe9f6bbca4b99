"""trainstone bench: training speed on this machine. Arguments -> config -> run -> result -> page and summary."""

import logging
import re
import shlex
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from trainstone.cli import options
from trainstone.cli.opening import open_folder
from trainstone.errors import EXIT_INTERRUPTED, ConfigError, TrainstoneError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from trainstone.cli.progress import ProgressLine
    from trainstone.config.schema import Config
    from trainstone.results.progress import Progress
    from trainstone.results.schema import Kind, Status
    from trainstone.results.store import RunFolder

log = logging.getLogger(__name__)

Against = Annotated[
    list[str],
    typer.Option(
        "--against",
        metavar="RECIPE|KEY=VALUE",
        help="Compare with another recipe, or with this one and a key changed (repeatable), run in turn.",
        show_default=False,
    ),
]


class Rival(NamedTuple):
    """What --against names."""

    config: "Config"
    same_recipe: bool
    """It is the recipe itself with some keys changed."""


def bench(
    recipe: Annotated[
        str, typer.Argument(help="A recipe's name, a .toml file, or the config.toml of a run.")
    ] = "resnet50",
    settings: options.Settings = [],  # noqa: B006  (Typer reads it, nobody changes it)
    system: options.SystemName = None,
    data: options.Data = None,
    out: options.Out = Path("runs"),
    seconds: options.Seconds = None,
    iterations: Annotated[
        int | None,
        typer.Option("--iterations", help="Run exactly so many steps instead of a time.", show_default=False),
    ] = None,
    against: Against = [],  # noqa: B006
    runs: options.Runs = 1,
    seed: options.Seed = None,
    device: options.DeviceName = None,
    strict: options.Strict = False,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
    verbose: options.Verbose = 0,
    quiet: options.Quiet = 0,
) -> None:
    """Measure how fast this machine trains, with an error bar, and say what limits it."""
    from trainstone.config.load import load_config
    from trainstone.log import configure_terminal
    from trainstone.machine.allocator import restart_keeping_memory

    flags = options.collect_flags(seconds=seconds, seed=seed, device=device, iterations=iterations, data=data)
    load = partial(load_config, system=system, flags=flags)
    config = load(recipe, settings=settings)
    rival = load_rival(load, recipe, settings, against, config, runs)
    if dry_run:
        print_plan(config, rival, out, list_commands(config, runs, strict=strict), as_json=as_json)
        return
    check_ranks(rival, runs)
    if config.engine.keep_memory and runs == 1:
        restart_keeping_memory()
    configure_terminal(verbose=verbose, quiet=quiet)
    run = open_first(out, "bench", config)
    with ending_together(run):
        if run and runs > 1:
            repeat_run(config, run, runs, strict=strict, quiet=bool(quiet))
            status = run.result.status
        else:
            status = run_here(config, rival, run, strict=strict, quiet=bool(quiet))
    leave(run, status, as_json=as_json)


def check_ranks(rival: Rival | None, runs: int) -> None:
    """Refuse what several ranks cannot do together, before any work."""
    from trainstone.machine.ranks import read_rank

    if rival:
        options.refuse_ranks("bench --against")
    if runs > 1 and read_rank().world > 1:
        raise ConfigError(
            f"--runs starts its runs itself, one after the other; here {read_rank().world} ranks would each do so",
            hint="start it without a launcher; or each run by itself: torchrun ... -m trainstone bench --seed N",
        )


def open_first(out: Path, kind: "Kind", config: "Config") -> "RunFolder | None":
    """Make the run folder on the first rank; None on others, which hear of it from the first."""
    from trainstone.cli.train import telling_ranks
    from trainstone.machine.ranks import read_rank

    if read_rank().number:
        return None
    with telling_ranks(config):
        return open_folder(out, kind, config)


@contextmanager
def ending_together(run: "RunFolder | None") -> "Iterator[None]":
    """End with the code of an interrupted run where it was interrupted before there was a result."""
    try:
        yield
    except KeyboardInterrupt:
        if run:
            print(f"interrupted; what there is lies in {run.path}", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def leave(run: "RunFolder | None", status: "Status", *, as_json: bool) -> None:
    """Let the first rank show the product; all leave with the run's exit code."""
    if run:
        finish(run, as_json=as_json)
    elif status == "interrupted":
        raise typer.Exit(EXIT_INTERRUPTED)


def load_rival(
    load: "Callable[..., Config]", recipe: str, settings: list[str], against: list[str], config: "Config", runs: int
) -> Rival | None:
    """--against: another recipe with the same --set, or the same recipe; then the keys changed for it alone."""
    if not against:
        return None
    apart = "run each by itself, then: trainstone compare RUN RUN"
    changes = [value for value in against if re.match(r"[\w.]+\s*=", value)]
    recipes = [value for value in against if value not in changes]
    if len(recipes) > 1:
        named = f"--against names {len(recipes)} recipes: {', '.join(recipes)}; it takes one"
        raise ConfigError(named, hint="compare two at a time; a change of key is KEY=VALUE")
    if runs > 1:
        raise ConfigError("--against runs both in one process, --runs each in processes of its own", hint=apart)
    other = load(recipes[0] if recipes else recipe, settings=[*settings, *changes])
    if other.engine.keep_memory != config.engine.keep_memory:
        raise ConfigError("--against cannot change engine.keep_memory: it is of the whole process", hint=apart)
    if any(change.startswith("measure.") for change in changes):
        whole = "--against cannot change the measure section: it is of the whole run"
        raise ConfigError(whole, hint="change it for both with --set")
    return Rival(other.model_copy(update={"measure": config.measure}), same_recipe=not recipes)


def run_here(config: "Config", rival: Rival | None, run: "RunFolder | None", *, strict: bool, quiet: bool) -> "Status":
    """Measure in this process, by itself or in turn with a rival; return how it ended."""
    from trainstone.cli.progress import ProgressLine
    from trainstone.results.progress import Progress

    with ProgressLine(quiet=quiet or run is None) as line:
        line.show(Progress("loading torch"))
        from trainstone.train.against import run_against
        from trainstone.train.run import run_bench

        if rival is None:
            return follow(run_bench(config, run, strict=strict), line)
        assert run is not None  # two in turn are for one rank
        live = sys.stderr.isatty()
        for progress in run_against(config, rival.config, run, same_recipe=rival.same_recipe, strict=strict):
            # Off a terminal each new phase is a line, and two in turn change several times a second.
            line.show(progress if live else progress._replace(phase=progress.phase.partition(":")[0]))
        return run.result.status


def follow(going: "Generator[Progress, None, Status]", line: "ProgressLine") -> "Status":
    """Show the progress of a run to its end; return how it ended."""
    while True:
        try:
            line.show(next(going))
        except StopIteration as end:
            status: Status = end.value
            return status


def repeat_run(config: "Config", run: "RunFolder", num_runs: int, *, strict: bool, quiet: bool) -> None:
    """Measure in child processes, one after the other, each with its own seed."""
    from trainstone.cli.progress import ProgressLine
    from trainstone.launch.children import repeat_bench

    with ProgressLine(quiet=quiet) as line:
        for progress in repeat_bench(config, run, num_runs, strict=strict):
            line.show(progress)


def list_commands(config: "Config", runs: int, *, strict: bool) -> list[str]:
    """Return the command lines of --runs."""
    from trainstone.launch.children import seeded_command

    file, points = Path("RUN/config.toml"), Path("RUN/points")
    seeds = range(config.seed, config.seed + runs if runs > 1 else config.seed)
    return [shlex.join(seeded_command("bench", file, points, seed, strict=strict)) for seed in seeds]


def print_plan(
    config: "Config", rival: Rival | None, out: Path, children: "Sequence[str]" = (), *, as_json: bool
) -> None:
    """--dry-run: what would be run, and by which commands, where it is children that do."""
    from trainstone.cli.output import print_json
    from trainstone.config.load import write_toml

    if as_json:
        plan = {
            "config": config.model_dump(mode="json", exclude_none=True),
            "out": str(out),
            "commands": list(children),
        }
        if rival:
            plan["against"] = rival.config.model_dump(mode="json", exclude_none=True)
        print_json(plan)
        return
    print(write_toml(config))
    if rival:
        print(f"# against, in turn A B B A in one process:\n\n{write_toml(rival.config)}")
    print(f"# would write a run folder RUN under {out}/")
    if children:
        print("# would start, one after the other:")
        print("\n".join(f"#   {command}" for command in children))


def finish(run: "RunFolder", *, as_json: bool) -> None:
    """Show the product and leave with the run's exit code."""
    show(run, as_json=as_json)
    if run.result.status == "interrupted":
        raise typer.Exit(EXIT_INTERRUPTED)


def show(run: "RunFolder", *, as_json: bool) -> None:
    """Write the page and print the product."""
    from trainstone.cli.output import print_json
    from trainstone.cli.summary import print_result

    write_page(run)
    if as_json:
        print_json(run.result.model_dump(mode="json", exclude_none=True))
    else:
        print_result(run.result, run.path)


def write_page(run: "RunFolder") -> None:
    """Write report.html of a run and of points that have none; a failure is a warning, the result is as good."""
    from trainstone.report.page import PAGE_NAME, write_report
    from trainstone.report.vega import Scripts

    folders = [run.path / point.run for point in run.result.points]
    try:
        with Scripts() as scripts:
            for folder in (*folders, run.path):
                if folder == run.path or not (folder / PAGE_NAME).exists():
                    write_report(folder, scripts)
        run.update()  # `files` names the page, too
    except (OSError, TrainstoneError) as err:
        log.warning("no report: %s; trainstone report writes it later", err)
