"""What `trainstone mlperf` prints: the checker's verdicts and lines, tables of runs."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainstone.errors import DataError
from trainstone.launch.checkers import Checked
from trainstone.results.mlperf import summary
from trainstone.results.mlperf.logged import LoggedRun
from trainstone.results.mlperf.rules import Choice
from trainstone.text import printable
from trainstone.units import format_count

SHOWN_LINES = 40
WIDEST = 10_000
INDENT = " " * 9


@dataclass(frozen=True)
class Verdict:
    """What the compliance checker said of a log."""

    path: Path
    run: LoggedRun
    choice: Choice
    checked: Checked
    kept: Path | None = None


@dataclass(frozen=True)
class NotRead:
    """A log that could not be checked."""

    path: Path
    error: DataError


def print_verdicts(verdicts: Sequence[Verdict | NotRead]) -> None:
    """Two lines per log, and below them what the checker printed."""
    console = make_console()
    for verdict in verdicts:
        if isinstance(verdict, NotRead):
            console.print(Text.assemble(("NOT READ ", "yellow"), printable(verdict.error.message)), soft_wrap=True)
        else:
            print_verdict(console, verdict)
    if len(verdicts) > 1:
        read = [verdict for verdict in verdicts if isinstance(verdict, Verdict)]
        passed, unread = sum(verdict.checked.passed for verdict in read), len(verdicts) - len(read)
        text = f"{passed} of {format_count(len(read), 'log')} {'passes' if len(read) == 1 else 'pass'}"
        console.print(Text(f"{text}, {unread} not read" if unread else text, style="bold"))


def print_verdict(console: Console, verdict: Verdict) -> None:
    """SUCCESS or FAILED, the log, by which rules; the checker's own lines below."""
    run, choice, checked = verdict.run, verdict.choice, verdict.checked
    word = ("SUCCESS  ", "green") if checked.passed else ("FAILED   ", "red")
    console.print(Text.assemble(word, printable(str(verdict.path))), soft_wrap=True)
    what = f"{run.benchmark or 'no benchmark'}, {run.division or 'no division'}"
    rules = f"ruleset {choice.ruleset}: {choice.reason}"
    console.print(Text(printable(f"{INDENT}{what}; {rules}"), style="dim"), soft_wrap=True)
    if checked.fault:
        console.print(Text(f"{INDENT}the checker itself crashed: {checked.fault}"), soft_wrap=True)
    for line in checked.complaints[:SHOWN_LINES]:
        console.print(Text(f"{INDENT}{printable(line)}"), soft_wrap=True)
    more = len(checked.complaints) - SHOWN_LINES
    if more > 0:
        console.print(Text(f"{INDENT}and {format_count(more, 'more line')}: --json"))
    if verdict.kept is not None:
        console.print(Text(f"{INDENT}checker's log: {printable(str(verdict.kept))}", style="dim"), soft_wrap=True)


def document_verdict(verdict: Verdict | NotRead) -> dict[str, Any]:
    """Return a verdict as JSON."""
    if isinstance(verdict, NotRead):
        return {"path": str(verdict.path), "passed": False, "error": verdict.error.message}
    document = {
        "path": str(verdict.path),
        "passed": verdict.checked.passed,
        "benchmark": verdict.run.benchmark,
        "division": verdict.run.division,
        "ruleset": verdict.choice.ruleset,
        "ruleset_reason": verdict.choice.reason,
        "complaints": verdict.checked.complaints,
        "checker_fault": verdict.checked.fault or None,
        "checker_log": str(verdict.kept) if verdict.kept else None,
    }
    return {key: value for key, value in document.items() if value is not None}


def print_groups(groups: Sequence[summary.Group]) -> None:
    """Tables of each group, its score between them."""
    console = make_console()
    for number, group in enumerate(groups):
        if number:
            console.print()
        console.print(Text(summary.format_title(group), style="bold"), soft_wrap=True)
        console.print(make_table(summary.RUN_COLUMNS, summary.list_run_rows(group)))
        for line in summary.format_result(group):
            console.print(Text(line), soft_wrap=True)
        if rows := summary.list_time_rows(group):
            console.print(make_table(summary.TIME_COLUMNS, rows))


def make_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A name, numbers, a note."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for at, head in enumerate(columns):
        table.add_column(head, justify="right" if 0 < at < len(columns) - 1 else "left", no_wrap=True)
    for *cells, note in rows:
        table.add_row(*map(Text, cells), Text(note, style="dim" if not columns[-1] else ""))
    return table


def make_console() -> Console:
    """Print on stdout; no colour when it is not a terminal. Lines are left to it to wrap: no name is cut or folded."""
    return Console(file=sys.stdout, highlight=False, width=WIDEST)
