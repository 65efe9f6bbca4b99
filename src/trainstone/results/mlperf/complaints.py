"""What mlperf-logging's compliance checker complains of, in words: what it means and what to do. It judges nothing."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from trainstone.results.mlperf.logged import LoggedRun
from trainstone.text import printable
from trainstone.units import format_count

SEPARATOR = "\n" + "-" * 30 + "\n"
_RECORD = re.compile(r"^(DEBUG|INFO|WARNING|ERROR|CRITICAL) - ", re.MULTILINE)
_OCCURRENCE = re.compile(
    r"Required (EXACTLY_ONE|AT_LEAST_ONE|AT_LEAST\(\d+\)) occurrence of '(.+?)' but found (\d+)(.*)", re.S
)
_ALTERNATIVES = re.compile(r"Required AT_LEAST_ONE occurrence of ('.+')")
_VALUE = re.compile(r"CHECK for '(.+?)' failed in line (\d+):\n(.*?)\nfailed test: (.*?)\ncurrent context", re.S)
_NEVER = re.compile(r"Failed checks for (\S+) : (.*)", re.S)
_NO_RULES = re.compile(r"Could not find config file: .*?([^/\\]+)\.yaml")
_LOGGED = re.compile(r'"value": (.*), "metadata": ')

WEIGHT_DECAY = "0.0001 times a power of two"
TESTS = {
    "is_integer(math.log2(v['value'] / 0.0001))": f"must be {WEIGHT_DECAY}: 0.00005, 0.0001, 0.0002",
    "is_integer(10 * (v['value'][1] / 50.0 - 1))": "must be 40 and 50, each changed by tenths: [40, 50], [44, 55]",
    "v['value'] in [1, 50]": "must be 1 or 50",
    "'status' in v['metadata']": "must say its status: success or aborted",
    "'epoch_num' in v['metadata']": "must say its epoch_num",
    "ll.timestamp - s['first_init_start'] < (s['compile_time_mins']*60*1e3)": "came too late after init_start",
    "s['run_started']": "stands before run_start",
    "not s['run_started']": "stands after run_start",
    "not s['init_stopped']": "stands after init_stop",
    "s['init_started']": "stands before init_start",
    "( s['init_stopped'] == True )": "stands before init_stop",
    "'value' in v": "must have a value",
}
"""Tests of the rules that do not tell themselves."""
MISSING = {
    "run_stop": "the run did not end: it was killed, or it still runs; trainstone train --resume RUN goes on with it",
    "eval_accuracy": "the run was never evaluated: eval.every_epochs, or it ended before",
    "gradient_accumulation_steps": "demanded since ruleset 1.0.0; for a log of 2020: --ruleset 0.7.0",
    "weights_initialization": "rulesets 1.1.0 to 2.1.0 want a line for each tensor; resnet: --ruleset 4.0.0 does not, "
    "ssd: 1.0.0",
    "cache_clear": "the log must say that the system's file cache was cleared: mlperf.clear_caches=true",
    "seed": "every run must log its seed",
}
"""What to do about a key that is not there."""
OURS = "trainstone train writes it; was this log cut, or written by another program?"
OPEN = "or mlperf.division=open, which leaves the optimiser free"


class Complaint(NamedTuple):
    """One thing that the checker says."""

    key: str
    """What it is about; empty where it is about the whole log."""
    meaning: str
    advice: str
    text: str
    """The checker's own words."""
    fatal: bool = True
    """False: only a warning, the log passes with it."""


def read_complaints(output: str, run: LoggedRun, ruleset: str) -> list[Complaint]:
    """Return what the checker's log says, in its order; lines that could not be parsed first."""
    found = []
    for text in _messages(output):
        complaint = explain(text.strip(), run, ruleset)
        if complaint.text and complaint not in found:
            found.append(complaint)
    return found


def split_records(output: str) -> list[tuple[str, str]]:
    """Return level and text of everything that a checker logged."""
    pieces = _RECORD.split(output)[1:]
    return list(zip(pieces[::2], (text.strip() for text in pieces[1::2]), strict=True))


def _messages(output: str) -> Iterator[str]:
    for level, text in split_records(output):
        if level == "WARNING" and not text.startswith(("Found parsing errors", ":::MLL")):
            yield from text.split(SEPARATOR)


def explain(text: str, run: LoggedRun, ruleset: str) -> Complaint:
    """Say what one message means."""
    if found := _NEVER.match(text):
        return _explain_never(found[1], found[2], text, run, ruleset)
    if found := _VALUE.match(text):
        return _explain_value(found, text, run)
    if found := _OCCURRENCE.match(text):
        return _explain_occurrence(found, text)
    if found := _ALTERNATIVES.match(text):
        return Complaint("", f"the log says neither of {found[1].replace(' or ', ', ')}", OURS, text)
    if found := _NO_RULES.search(text):
        return Complaint("submission_benchmark", f"ruleset {ruleset} has no {found[1]}", "another --ruleset", text)
    if text.startswith("^^"):
        return Complaint("", f"a line cannot be parsed: {text[2:].strip()}", OURS, text)
    return Complaint("", text.splitlines()[0] if text else "", "", text)


def _explain_occurrence(found: re.Match[str], text: str) -> Complaint:
    rule, key, count, rest = found.groups()
    if count == "0":
        return Complaint(key, f"{key} is missing", MISSING.get(key, OURS), text)
    if rule != "EXACTLY_ONE":
        return Complaint(
            key, f"{key} stands there {format_count(int(count), 'time')}, too few", MISSING.get(key, OURS), text
        )
    told = f"{key} stands there {count} times instead of once"
    if "different values" not in rest:
        return Complaint(key, f"{told}, always the same", "only one rank should log", text, fatal=False)
    return Complaint(key, f"{told}, with different values", "one log is one run of one rank", text)


def _explain_value(found: re.Match[str], text: str, run: LoggedRun) -> Complaint:
    key, _, line, test = found.groups()
    test = test.strip()
    logged = _LOGGED.search(line)
    value = f" is {logged[1]}" if logged else ""
    if test in TESTS:
        meaning = f"{key}{value if 'must be' in TESTS[test] else ''}: it {TESTS[test]}"
    else:
        meaning = f"{key}{value}; the rules ask for {test.replace(chr(34), '').replace(_V, key)}"
    tuned = run.division == "closed" and re.match(r"(lars|sgd|opt|model|max_samples)", key)
    return Complaint(key, meaning, f"set it so, {OPEN}" if tuned else "", text)


_V = "v['value']"


def _explain_never(key: str, test: str, text: str, run: LoggedRun, ruleset: str) -> Complaint:
    limit = re.search(r">= ?([0-9.]+)", test)
    if key != "eval_accuracy" or limit is None:
        return Complaint(key, f"no {key} meets {test.strip().replace(_V, key)}", "", text)
    best = f"{max(run.accuracies):g}" if run.accuracies else "(none)"
    meaning = f"eval_accuracy {best} never reached {float(limit[1]):g}"
    if run.division == "closed":
        return Complaint(
            key, f"{meaning}: the closed division demands it", "train for longer; mlperf.division=open does not", text
        )
    return Complaint(
        key, f"{meaning}: ruleset {ruleset} demands it of open logs, too", "rulesets from 1.0.0 on do not", text
    )


def tell(complaint: Complaint) -> str:
    """Return meaning and advice on one line."""
    advice = f" ({complaint.advice})" if complaint.advice else ""
    return printable(f"{complaint.meaning}{advice}")
