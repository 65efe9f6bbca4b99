"""What `trainstone mlperf` prints: verdicts on logs, a package and what was said of it, tables of runs."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainstone.cli.mlperftimes import make_times_table
from trainstone.errors import DataError
from trainstone.launch.checkers import PACKAGE_LOG, Checked
from trainstone.results.mlperf.complaints import Complaint, tell
from trainstone.results.mlperf.find import LOG_NAME
from trainstone.results.mlperf.logged import LoggedRun
from trainstone.results.mlperf.package import Plan
from trainstone.results.mlperf.rules import Choice
from trainstone.results.mlperf.summary import Group, document_group
from trainstone.results.mlperf.verdicts import Step, read_steps
from trainstone.text import printable
from trainstone.units import count_decimals, format_count, format_rate

SHOWN_COMPLAINTS = 20
WIDEST = 10_000


@dataclass(frozen=True)
class Verdict:
    """What the compliance checker said of a log, or why it could not be asked."""

    path: Path
    run: LoggedRun | None = None
    choice: Choice | None = None
    passed: bool = False
    complaints: tuple[Complaint, ...] = ()
    fault: str = ""
    """Why the checker fell over."""
    kept: Path | None = None
    error: DataError | None = None


def print_verdicts(verdicts: Sequence[Verdict]) -> None:
    """Two lines a log, and under them what is wrong with it."""
    console = make_console()
    for verdict in verdicts:
        print_verdict(console, verdict)
    if len(verdicts) > 1:
        console.print(Text(tell_count(verdicts), style="bold"))


def tell_count(verdicts: Sequence[Verdict]) -> str:
    """Return 4 of 5 logs pass, 1 not read."""
    unread = sum(verdict.error is not None for verdict in verdicts)
    read = len(verdicts) - unread
    told = (
        f"{len(verdicts) - count_failed(verdicts)} of {format_count(read, 'log')} {'passes' if read == 1 else 'pass'}"
    )
    return f"{told}, {unread} not read" if unread else told


def print_verdict(console: Console, verdict: Verdict) -> None:
    """SUCCESS or FAILED, the log, by which rules; complaints below."""
    path = printable(str(verdict.path))
    if verdict.error is not None:
        console.print(Text.assemble(("NOT READ ", "yellow"), printable(verdict.error.message)), soft_wrap=True)
        return
    assert verdict.run is not None
    assert verdict.choice is not None
    word = ("SUCCESS  ", "green") if verdict.passed else ("FAILED   ", "red")
    console.print(Text.assemble(word, path), soft_wrap=True)
    what = f"{verdict.run.benchmark or 'no benchmark'}, {verdict.run.division or 'no division'}"
    rules = f"ruleset {verdict.choice.ruleset}: {verdict.choice.reason}"
    console.print(Text(printable(f"         {what}; {rules}"), style="dim"), soft_wrap=True)
    if verdict.fault:
        console.print(Text(f"         the checker itself fell over: {verdict.fault}"), soft_wrap=True)
    for complaint in verdict.complaints[:SHOWN_COMPLAINTS]:
        mark = "-" if complaint.fatal else "warning:"
        console.print(Text(f"         {mark} {tell(complaint)}"), soft_wrap=True)
    more = len(verdict.complaints) - SHOWN_COMPLAINTS
    if more > 0:
        console.print(Text(f"         - and {more} more: --json"))
    if verdict.kept is not None:
        console.print(Text(f"         checker's log: {printable(str(verdict.kept))}", style="dim"), soft_wrap=True)


def document_verdict(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as JSON."""
    if verdict.error is not None:
        return {"path": str(verdict.path), "passed": False, "error": verdict.error.message}
    assert verdict.run is not None
    assert verdict.choice is not None
    document = {
        "path": str(verdict.path),
        "passed": verdict.passed,
        "benchmark": verdict.run.benchmark,
        "division": verdict.run.division,
        "ruleset": verdict.choice.ruleset,
        "ruleset_reason": verdict.choice.reason,
        "complaints": [complaint._asdict() for complaint in verdict.complaints],
        "checker_fault": verdict.fault or None,
        "checker_log": str(verdict.kept) if verdict.kept else None,
    }
    return {key: value for key, value in document.items() if value is not None}


def print_package(
    plan: Plan, out: Path, choice: Choice, verdicts: Sequence[Verdict], checked: Checked, group: Group
) -> None:
    """The tree, what nobody told, and what each checker says."""
    console = make_console()
    console.print(Text(printable(str(out)), style="bold"), soft_wrap=True)
    for name in sorted(plan.files):
        console.print(Text(f"  {printable(name)}"), soft_wrap=True)
    if plan.unknown:
        told = "mlperf.org of the recipe tells the submitter, --field NAME=TEXT the others"
        console.print(Text(f'said to be "unknown": {", ".join(plan.unknown)}; {told}'), soft_wrap=True)
    console.print()
    for verdict in verdicts:
        if not verdict.passed or verdict.complaints:
            print_verdict(console, verdict)
    for step in list_steps(plan, verdicts, checked):
        word = {True: ("passed   ", "green"), False: ("FAILED   ", "red"), None: ("not run  ", "dim")}[step.passed]
        word = ("accepted ", "yellow") if step.accepted else word
        console.print(Text.assemble(word, f"{step.name}: {step.told}"), soft_wrap=True)
    if checked.fault:
        console.print(Text(f"the package checker itself fell over: {checked.fault}"), soft_wrap=True)
    for line in tell_result(group):
        console.print(Text(printable(line)), soft_wrap=True)
    word, failed = ("SUCCESS", "green"), count_failed(verdicts)
    if not checked.passed:
        word = ("FAILED", "red")
    elif failed:
        word = (f"ACCEPTED with {format_count(failed, 'log')} that failed", "yellow")
    log = printable(str(out / PACKAGE_LOG))
    console.print(
        Text.assemble(word, f": MLPerf's package checker, ruleset {choice.ruleset}; log {log}"), soft_wrap=True
    )


def list_steps(plan: Plan, verdicts: Sequence[Verdict], checked: Checked) -> list[Step]:
    """Return the checks of a package."""
    return read_steps(checked.log, plan.runs[0].division, count_failed(verdicts))


def count_failed(verdicts: Sequence[Verdict]) -> int:
    """Return how many logs do not pass by themselves."""
    return sum(not verdict.passed for verdict in verdicts)


def document_package(
    plan: Plan, out: Path, choice: Choice, verdicts: Sequence[Verdict], checked: Checked, group: Group
) -> dict[str, Any]:
    """Return a package and what was said of it as JSON."""
    return {
        "folder": str(out),
        "passed": checked.passed and not count_failed(verdicts),
        "accepted": checked.passed,
        "system": plan.system,
        "files": sorted(plan.files),
        "unknown_fields": plan.unknown,
        "ruleset": choice.ruleset,
        "ruleset_reason": choice.reason,
        "checks": [step._asdict() for step in list_steps(plan, verdicts, checked)],
        "checker_log": str(out / PACKAGE_LOG),
        **({"checker_fault": checked.fault} if checked.fault else {}),
        "logs": [document_verdict(verdict) for verdict in verdicts],
        "result": document_group(group),
    }


def print_groups(groups: Sequence[Group]) -> None:
    """A table a group, its score below."""
    console = make_console()
    for number, group in enumerate(groups):
        if number:
            console.print()
        first = group.runs[0]
        batch = f"batch {first.global_batch:,}" if first.global_batch else None
        title = " · ".join(part for part in (group.name, first.benchmark, first.org, first.division, batch) if part)
        console.print(Text(printable(title), style="bold"), soft_wrap=True)
        console.print(make_table(group))
        for line in tell_result(group):
            console.print(Text(printable(line)), soft_wrap=True)
        if times := make_times_table(group.runs, name_runs(group.runs)):
            console.print(times)


def make_table(group: Group) -> Table:
    """One row a run."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("log", no_wrap=True)
    for head in ("minutes", "epochs", "accuracy", "images/s"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    decimals = count_minute_decimals(group)
    for at, (run, name) in enumerate(zip(group.runs, name_runs(group.runs), strict=True)):
        ended = {"success": "", None: "not ended"}.get(run.ended, str(run.ended))
        resumed = "resumed: the pause is counted" if run.resumed else ""
        notes = ", ".join(note for note in (ended, "left out" if at in group.score.dropped else "", resumed) if note)
        table.add_row(
            Text(printable(name)),
            "–" if run.minutes is None else f"{run.minutes:.{decimals}f}",
            "–" if run.epochs is None else f"{run.epochs:g}",
            "–" if run.accuracy is None else f"{run.accuracy:.4f}",
            "–" if run.images_per_second is None else format_rate(run.images_per_second),
            Text(printable(notes), style="dim"),
        )
    return table


def name_runs(runs: Sequence[LoggedRun]) -> list[str]:
    """Return names of logs; runs of trainstone all call theirs the same, so their seeds, else their folders."""
    if any(run.path.name != LOG_NAME for run in runs):
        return [run.path.name for run in runs]
    seeds = [run.seeds for run in runs]
    if len(set(seeds)) == len(seeds) and all(len(seed) == 1 for seed in seeds):
        return [f"seed {seed[0]}" for seed in seeds]
    return [run.path.absolute().parent.name for run in runs]


def count_minute_decimals(group: Group) -> int:
    """Return the decimals of all minutes of a group: 39.78; where all runs are short, three digits of the longest."""
    longest = max((run.minutes for run in group.runs if run.minutes is not None), default=0.0)
    return 2 if longest >= 1 or longest <= 0 else count_decimals(longest, 3)


def tell_result(group: Group) -> list[str]:
    """Score, or mean and why there is no score; then the reference."""
    score, decimals = group.score, count_minute_decimals(group)
    mean = "" if score.mean_minutes is None else f"; mean to the target {score.mean_minutes:.{decimals}f} min"
    if score.minutes is not None:
        told = f"score      {score.minutes:.{decimals}f} min, {score.note}"
    else:
        told = f"score      none: {score.note.removeprefix('no score: ')}{mean}"
    return [told, f"reference  {group.reference_note}"]


def make_console() -> Console:
    """Print on stdout; no colour when it is not a terminal. Lines are left to it to wrap: no name is cut or folded."""
    return Console(file=sys.stdout, highlight=False, width=WIDEST)


def warn(told: str) -> None:
    """Say it on stderr, on one line."""
    print(f"warning: {printable(told)}", file=sys.stderr)
