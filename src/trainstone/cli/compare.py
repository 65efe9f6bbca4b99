"""trainstone compare: how many times as fast, with an interval. Paths -> results/compare.py -> table, page, gate."""

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
"""A larger --fail-below is a percentage by mistake."""
MANY_RUNS = 3
"""With fewer on a side, more runs are what tells more."""

FailBelow = Annotated[
    float | None,
    typer.Option(
        "--fail-below",
        metavar="RATIO",
        help="Leave with exit code 9 if a row's ratio is below this, such as 0.95, and it is judged slower, has no "
        "interval or stands against a published figure (for a RATIO above 1 also: its whole interval is below); or if "
        "a run of A has no number, or B has what A lacks.",
    ),
]


class ManyWordsCommand(TyperCommand):
    """Gives an option WORD... every word up to the next option, so that a shell pattern can stand after it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for parameter in self.params:
            if (parameter.metavar or "").endswith("..."):
                args = spread_to(args, parameter.opts[0])
        return super().parse_args(ctx, args)


def spread_to(args: list[str], option: str) -> list[str]:
    """Turn `--to B1 B2 --json` into `--to B1 --to B2 --json`; after -- nothing is an option."""
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
            help="Side B, the baseline: the same, or published figures: published for all that fit, or one's name.",
        ),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Compare unlike runs, too, and judge drifting ones; it is listed.")
    ] = False,
    fail_below: FailBelow = None,
    page: Annotated[
        Path | None, typer.Option("--page", metavar="FILE", help="Write an HTML page with the comparison.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Compare runs: how many times as fast A is as B, with an interval; unlike runs are refused."""
    from rich.console import Console

    from trainstone.cli.render.run import print_comparison
    from trainstone.cli.render.tables import print_lines
    from trainstone.results import compare as results

    if fail_below is not None:
        check_limit(fail_below)
    comparison, lost = results.compare(runs, to, force=force)
    for message in comparison.left_out:
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
            passes = "not established, so it passes; measure both sides with --runs 5"
            print(f"warning: {printable(message)}: {passes}", file=sys.stderr)
        for message in failed:
            print(f"gate:    {printable(message)}", file=sys.stderr)
        if failed:
            raise typer.Exit(EXIT_GATE)


def check_limit(limit: float) -> None:
    if not math.isfinite(limit) or limit <= 0:
        raise ConfigError(f"--fail-below {limit:g}: a ratio is above 0", hint="for example --fail-below 0.95")
    if limit >= LARGEST_GATE:
        hint = f"did you mean --fail-below {limit / 100:g}?"
        raise ConfigError(f"--fail-below {limit:g} is a ratio, not a percentage", hint=hint)


def suggest_next(comparison: "Comparison") -> str:
    """Return the command that would show more: repeated runs where a side has few, else the page of A."""
    row = comparison.rows[0]
    few = [side.runs[0] for side in (row.a, row.b) if 0 < len(side.runs) < MANY_RUNS]
    if few:
        config = shlex.quote(str(Path(few[0]) / "config.toml"))
        return f"trainstone bench {config} --runs 5, and compare its folder: that interval covers run-to-run changes"
    return f"trainstone report {shlex.quote(row.a.runs[0])}, to see what limits it"
