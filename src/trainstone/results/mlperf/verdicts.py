"""What mlperf-logging's package checker said of a submission, step by step and in words. It judges nothing."""

import re
from typing import NamedTuple

from trainstone.results.mlperf.complaints import split_records
from trainstone.text import printable


class Step(NamedTuple):
    """One of its checks."""

    name: str
    passed: bool | None
    """None: it was not made."""
    told: str


def read_steps(log: str, division: str | None) -> list[Step]:
    """Return what it said of system, logs, seeds and convergence."""
    records = split_records(log)
    errors = [text for level, text in records if level == "ERROR"]
    return [_read_system(records), _read_logs(records, errors), *_read_closed(records, errors, division)]


def _read_system(records: list[tuple[str, str]]) -> Step:
    for level, text in records:
        if found := re.match(r"System description checker failed for (.*)", text, re.S):
            return Step("system", False, printable(found[1]))
        if level == "INFO" and text.startswith("System description checker passed"):
            return Step("system", True, "its description has all fields")
    return Step("system", None, "not looked at by this ruleset")


def _read_logs(records: list[tuple[str, str]], errors: list[str]) -> Step:
    told = [text for text in errors if re.search(r"files? do(es)? not comply|Incorrect number of files", text)]
    if told:
        return Step("logs", False, printable("; ".join(told)))
    accepted = [text for _, text in records if "does not comply, accepting" in text]
    return Step("logs", True, accepted[0] if accepted else "their number is right and all comply")


def _read_closed(records: list[tuple[str, str]], errors: list[str], division: str | None) -> list[Step]:
    if division != "closed":
        told = f"not asked of the {division or 'unnamed'} division"
        return [Step("seeds", None, told), Step("convergence", None, told)]
    seeds = [text.partition("errors: ")[2] for text in errors if text.startswith("Seed checker failed and")]
    steps = [Step("seeds", not seeds, printable("; ".join(seeds)) or "each run has its own")]
    for _, text in records:
        if found := re.match(r"RCP Test (Passed|Failed): (.*)", text, re.S):
            return [
                *steps,
                Step("convergence", found[1] == "Passed", explain_rcp(found[2].strip(), found[1] == "Passed")),
            ]
    return [*steps, Step("convergence", None, "the checker did not come to it")]


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
