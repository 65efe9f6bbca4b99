"""trainstone compare: the speed ratio of runs with an interval. Paths -> results/compare.py -> table, page, gate."""

import math
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from trainstone.cli import options
from trainstone.cli.render.output import print_json
from trainstone.errors import EXIT_GATE, ConfigError
from trainstone.text import printable

if TYPE_CHECKING:
    from trainstone.results.schema.run import Comparison

LARGEST_GATE = 50
"""A --fail-below of at least this was meant as a percentage."""
MANY_RUNS = 3
"""With fewer runs on a side, the next command suggested is to repeat the measurement."""

FailBelow = Annotated[
    float | None,
    typer.Option(
        "--fail-below",
        metavar="RATIO",
        help="Exit with code 9 if A is slower than RATIO times B, such as 0.95, beyond the noise, or if A cannot be "
        "compared: no interval, no result, or a recipe of B is missing.",
    ),
]


class MultiValueCommand(TyperCommand):
    """Command whose options with a metavar WORD... take every word up to the next option, as a shell pattern needs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for parameter in self.params:
            if (parameter.metavar or "").endswith("..."):
                args = repeat_option(args, parameter.opts[0])
        return super().parse_args(ctx, args)


def repeat_option(args: list[str], option: str) -> list[str]:
    """Turn `--to B1 B2 --json` into `--to B1 --to B2 --json`; arguments after -- are unchanged."""
    spread: list[str] = []
    words, inside = 0, False
    for position, word in enumerate(args):
        if word == "--":
            return spread + args[position:]
        if inside and not word.startswith("-"):
            spread += [option, word] if words else [word]
            words += 1
        else:
            words = int(word.startswith(f"{option}="))
            inside = word == option or words == 1
            spread.append(word)
    return spread


def compare(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN", help="Side A: run folders, result.json files, or folders of runs.")
    ],
    to: Annotated[
        list[str],
        typer.Option(
            "--to",
            metavar="RUN...",
            help="Side B, the baseline: runs as for A, the name of a published figure, or the word published for all "
            "figures that fit. A ratio above 1 means that A is faster.",
        ),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Also compare runs that executed different work or never became steady.")
    ] = False,
    fail_below: FailBelow = None,
    page: Annotated[
        Path | None, typer.Option("--page", metavar="FILE", help="Write the comparison to this HTML page.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Compare the speed of runs: the ratio A / B with an interval; runs that executed different work are refused."""
    from rich.console import Console

    from trainstone.cli.render.run import print_comparison
    from trainstone.cli.render.tables import print_lines
    from trainstone.results import compare as results

    if fail_below is not None:
        check_fail_below(fail_below)
    comparison, lost = results.compare(runs, to, force=force)
    for message in comparison.skipped:
        print(f"warning: not compared: {printable(message)}", file=sys.stderr)
    if page is not None:
        from trainstone.report.page import write_comparison_page

        write_comparison_page(comparison, page)
    if as_json:
        print_json(comparison)
    else:
        console = Console(file=sys.stdout, highlight=False)
        print_comparison(console, comparison)
        console.print()
        print_lines(console, [comparison.verdict], "bold")
        console.print()
        written = [f"page  {page}"] if page is not None else []
        print_lines(console, [*written, f"next  {suggest_next(comparison)}"], wrap=False)
    if fail_below is not None:
        failed, doubtful = results.check_gate(comparison, fail_below, lost)
        for message in doubtful:
            passes = "no difference shown, so it passes; measure both sides with --runs 5"
            print(f"warning: {printable(message)}: {passes}", file=sys.stderr)
        for message in failed:
            print(f"gate:    {printable(message)}", file=sys.stderr)
        if failed:
            raise typer.Exit(EXIT_GATE)


def check_fail_below(limit: float) -> None:
    if not math.isfinite(limit) or limit <= 0:
        raise ConfigError(
            f"invalid --fail-below {limit:g}: expected a ratio above 0", hint="for example --fail-below 0.95"
        )
    if limit >= LARGEST_GATE:
        hint = f"did you mean --fail-below {limit / 100:g}?"
        raise ConfigError(f"invalid --fail-below {limit:g}: expected a ratio, not a percentage", hint=hint)


def suggest_next(comparison: "Comparison") -> str:
    """Return the next command: repeat the runs of a side that has few, else the report of A."""
    row = comparison.rows[0]
    few = [side.runs[0] for side in (row.a, row.b) if 0 < len(side.runs) < MANY_RUNS]
    if few:
        config = shlex.quote(str(Path(few[0]) / "config.toml"))
        return f"trainstone bench {config} --runs 5, then compare its folder: the interval covers run-to-run variation"
    return f"trainstone report {shlex.quote(row.a.runs[0])}, which shows what limits A"
