"""trainstone mlperf: check MLPerf training logs with MLPerf's own checker, and summarise them."""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainstone.cli import options
from trainstone.cli.render.output import print_json, print_stderr
from trainstone.errors import EXIT_GATE, DataError
from trainstone.text import printable

if TYPE_CHECKING:
    from trainstone.results.mlperf.summary import Rulesets

app = typer.Typer(name="mlperf", help="Check and summarise MLPerf training logs.", no_args_is_help=True)

SHOWN_LINES = 40
WIDEST = 10_000
"""Console width: the terminal wraps long lines, so that no name is cut."""

Logs = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE|RUN|DIR", help="Log files, run folders of train (with mlperf.log), or folders with result_*.txt."
    ),
]


@app.command()
def check(
    paths: Logs,
    ruleset: Annotated[
        str | None,
        typer.Option(
            "--ruleset",
            metavar="X.Y.0",
            help="Version of the MLPerf training rules.",
            show_default="resnet 4.0.0, ssd 1.0.0",
        ),
    ] = None,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Save the checker's own logs to this folder.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Run MLPerf's compliance checker on logs; exit with code 9 if one fails."""
    from trainstone.originals.mlperf.checker import list_rulesets
    from trainstone.results.mlperf.logs import find_logs

    known = list_rulesets()
    logs, errors = find_logs(paths)
    verdicts = []
    for number, log in enumerate(logs):
        try:
            verdicts.append(check_one_log(log, known, ruleset, keep, number))
        except DataError as err:
            errors[log] = err
    if not verdicts and len(errors) == 1:
        raise next(iter(errors.values()))
    failed = any(not verdict["passed"] for verdict in verdicts)
    verdicts += [{"path": str(path), "passed": False, "error": err.message} for path, err in errors.items()]
    if as_json:
        print_json({"passed": not (failed or errors), "logs": verdicts})
    else:
        print_verdicts(verdicts)
    if failed or errors:
        raise typer.Exit(EXIT_GATE if failed else DataError.exit_code)


@app.command()
def summary(paths: Logs, as_json: options.Json = False) -> None:
    """Summarise logs: time, epochs and accuracy of each run, the MLPerf score, epochs relative to the reference."""
    from rich.console import Console

    from trainstone.cli.render.tables import build_rich_table, print_lines
    from trainstone.results.mlperf import summary as results
    from trainstone.results.mlperf.logs import find_logs, read_logs

    logs, empty = find_logs(paths)
    logged, errors = read_logs(logs)
    errors += empty.values()
    if not logged and len(errors) == 1:
        raise errors[0]
    for err in errors:
        print_stderr(f"warning: not read: {printable(err.message)}")
    groups = results.group_runs(logged)
    console = Console(file=sys.stdout, highlight=False, width=WIDEST)
    if as_json:
        print_json(
            {"groups": [results.build_group_document(g) for g in groups], "not_read": [err.message for err in errors]}
        )
    else:
        for number, group in enumerate(groups):
            if number:
                console.print()
            print_lines(console, [results.format_title(group)], "bold")
            console.print(build_rich_table(results.build_run_table(group), pad_edge=False))
            print_lines(console, [f"score      {results.format_score(group)}", f"reference  {group.reference_note}"])
            if times := results.build_time_table(group):
                console.print(build_rich_table(times, pad_edge=False))
    if errors:
        raise typer.Exit(DataError.exit_code)


def check_one_log(log: Path, known: "Rulesets", ruleset: str | None, keep: Path | None, number: int) -> dict[str, Any]:
    """Check a log; return the verdict as --json prints it. `keep` is the folder for the checker's own log."""
    from trainstone.originals.mlperf.checker import check_log
    from trainstone.results.mlperf.logs import read_logged
    from trainstone.results.mlperf.summary import choose_ruleset

    name = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(log.absolute().parts[-3:])).strip("-.")[:100]
    kept = keep / f"{number}-{name}.log" if keep else None
    run = read_logged(log)
    choice = choose_ruleset(run, known, ruleset)
    checked = check_log(log, choice.ruleset, kept)
    document = {
        "path": str(log),
        "passed": checked.passed,
        "benchmark": run.benchmark,
        "division": run.division,
        "ruleset": choice.ruleset,
        "ruleset_reason": choice.reason,
        "complaints": checked.complaints,
        "checker_fault": checked.fault or None,
        "checker_log": str(kept) if kept else None,
    }
    return {key: value for key, value in document.items() if value is not None}


def print_verdicts(verdicts: Sequence[Mapping[str, Any]]) -> None:
    from rich.console import Console
    from rich.text import Text

    from trainstone.cli.render.tables import print_lines

    console = Console(file=sys.stdout, highlight=False, width=WIDEST)
    for verdict in verdicts:
        if "error" in verdict:
            console.print(Text.assemble(("NOT READ ", "yellow"), printable(verdict["error"])))
            continue
        word = ("SUCCESS  ", "green") if verdict["passed"] else ("FAILED   ", "red")
        console.print(Text.assemble(word, printable(verdict["path"])))
        what = f"{verdict.get('benchmark', 'no benchmark')}, {verdict.get('division', 'no division')}"
        lines = [f"{what}; ruleset {verdict['ruleset']}: {verdict['ruleset_reason']}"]
        if "checker_fault" in verdict:
            lines.append(f"the checker itself crashed: {verdict['checker_fault']}")
        lines += verdict["complaints"][:SHOWN_LINES]
        more = len(verdict["complaints"]) - SHOWN_LINES
        lines += [f"and {more} more lines; --json prints all"] if more > 0 else []
        lines += [f"checker's log: {verdict['checker_log']}"] if "checker_log" in verdict else []
        print_lines(console, [f"{'':9}{line}" for line in lines])
    if len(verdicts) > 1:
        passed = sum(verdict["passed"] for verdict in verdicts)
        print_lines(console, [f"{passed} of {len(verdicts)} logs pass"], "bold")
