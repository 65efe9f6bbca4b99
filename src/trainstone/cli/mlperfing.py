"""What `trainstone mlperf` prints: the checker's verdicts and lines, tables of runs."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from trainstone.cli.tables import lay_out
from trainstone.results.mlperf import summary
from trainstone.text import printable

SHOWN_LINES = 40
WIDEST = 10_000
"""Lines are left to the terminal to wrap: no name is cut or folded."""


def print_verdicts(verdicts: Sequence[Mapping[str, Any]]) -> None:
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
        lines += [f"and {more} more lines: --json"] if more > 0 else []
        lines += [f"checker's log: {verdict['checker_log']}"] if "checker_log" in verdict else []
        for line in lines:
            console.print(Text(f"{'':9}{printable(line)}"))
    if len(verdicts) > 1:
        passed = sum(verdict["passed"] for verdict in verdicts)
        console.print(Text(f"{passed} of {len(verdicts)} logs pass", style="bold"))


def print_groups(groups: Sequence[summary.Group]) -> None:
    console = Console(file=sys.stdout, highlight=False, width=WIDEST)
    for number, group in enumerate(groups):
        if number:
            console.print()
        console.print(Text(printable(summary.format_title(group)), style="bold"))
        console.print(lay_out(summary.run_table(group), pad_edge=False))
        console.print(Text(printable(f"score      {summary.format_score(group)}")))
        console.print(Text(printable(f"reference  {group.reference_note}")))
        if times := summary.time_table(group):
            console.print(lay_out(times, pad_edge=False))
