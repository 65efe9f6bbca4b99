"""What mlperf-logging's package checker said of a submission, step by step and in words. It judges nothing."""

import re
from typing import NamedTuple

from trainstone.results.mlperf.complaints import split_records
from trainstone.text import printable
from trainstone.units import format_count

SKIPPED = "Skipping benchmark"
"""What the package checker says, and passes, where its ruleset has no such benchmark."""
NOT_REACHED = "the checker did not come to it"


class Step(NamedTuple):
    """One of its checks, or one complaint of a check that has several."""

    name: str
    passed: bool | None
    """None: it was not made."""
    told: str
    accepted: bool = False
    """It did not pass, and MLPerf takes the package all the same."""


def read_steps(log: str, division: str | None, num_failed: int = 0) -> list[Step]:
    """Return what it said of system, logs, seeds and convergence; `num_failed` logs did not pass by themselves."""
    records = split_records(log)
    errors = [text for level, text in records if level == "ERROR"]
    return [
        _read_system(records),
        *_read_logs(records, errors, num_failed),
        *_read_closed(records, errors, division),
    ]


def _read_system(records: list[tuple[str, str]]) -> Step:
    for level, text in records:
        if found := re.match(r"System description checker failed for (.*)", text, re.S):
            return Step("system", False, printable(found[1]))
        if level == "INFO" and text.startswith("System description checker passed"):
            return Step("system", True, "its description has all fields")
    return Step("system", None, "not looked at by this ruleset")


def _read_logs(records: list[tuple[str, str]], errors: list[str], num_failed: int) -> list[Step]:
    skipped = [text for _, text in records if text.startswith(SKIPPED)]
    told = [text for text in errors if re.search(r"files? do(es)? not comply|Incorrect number of files", text)]
    if skipped or told:
        mine = [f"{text}: the ruleset has none, so no log was looked at" for text in skipped]
        return [Step("logs", False, printable(text)) for text in [*mine, *told]]
    accepted = [text for _, text in records if "not comply, accepting" in text]
    if accepted:
        return [Step("logs", False, printable(accepted[0]), accepted=True)]
    if num_failed:
        return [Step("logs", False, f"{format_count(num_failed, 'log')} failed")]
    if not _ran(records, "Running compliance checks in dir"):
        return [Step("logs", None, NOT_REACHED)]
    return [Step("logs", True, "their number is right and all comply")]


def _ran(records: list[tuple[str, str]], begin: str) -> bool:
    return any(text.startswith(begin) for _, text in records)


def _read_closed(records: list[tuple[str, str]], errors: list[str], division: str | None) -> list[Step]:
    if division != "closed":
        told = f"not asked of the {division or 'unnamed'} division"
        return [Step("seeds", None, told), Step("convergence", None, told)]
    return [*_read_seeds(records, errors), _read_convergence(records)]


def _read_seeds(records: list[tuple[str, str]], errors: list[str]) -> list[Step]:
    told = [text.partition("errors: ")[2] for text in errors if text.startswith("Seed checker failed and")]
    complaints = [line for text in told for line in text.splitlines() if line.strip()]
    if complaints:
        return [Step("seeds", False, printable(line)) for line in complaints]
    if not _ran(records, "Running Seed Checker"):
        return [Step("seeds", None, NOT_REACHED)]
    return [Step("seeds", True, "each run has its own")]


def _read_convergence(records: list[tuple[str, str]]) -> Step:
    for _, text in records:
        if found := re.match(r"RCP Test (Passed|Failed): (.*)", text, re.S):
            passed = found[1] == "Passed"
            return Step("convergence", passed, explain_rcp(found[2].strip(), passed))
    return Step("convergence", None, NOT_REACHED)


def explain_rcp(text: str, passed: bool) -> str:
    """Say what the words of the convergence check mean."""
    fewer = "" if passed else ", and faster than that allows: fewer epochs than the reference's least"
    meanings = {
        "RCP found": f"held against the reference of this batch size{fewer}",
        "RCP Interpolation": f"held against the reference between two batch sizes{fewer}",
        "Insufficient convergence": "more than one run missed the target",
        "Missing RCP": "no reference has so large a batch, or a smaller one came faster than the smallest reference",
    }
    told = next((meaning for begin, meaning in meanings.items() if text.startswith(begin)), "")
    return printable(f"{text}: {told}" if told else text)
