"""Which ruleset of MLPerf a log is checked by, and why. The rulesets themselves are mlperf-logging's."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from trainstone.errors import ConfigError, DataError
from trainstone.results.mlperf.logged import LoggedRun
from trainstone.text import printable

Rulesets = Mapping[str, Collection[str]]
"""Of each ruleset the benchmarks it has rules for."""
OLD_FORM = "0.6.0"
"""The one ruleset that reads :::MLL lines, and reads no others."""
CHOSEN = {
    "resnet": ("4.0.0", "the last with ResNet"),
    "ssd": (
        "1.0.0",
        "the last whose weights need not be listed and whose ssd is SSD300; from 2.0.0 on it is RetinaNet",
    ),
}


class Choice(NamedTuple):
    """A ruleset, and the reason for it."""

    ruleset: str
    reason: str


def choose_ruleset(run: LoggedRun, known: Rulesets, asked: str | None = None) -> Choice:
    """Return the ruleset to check a log by; refuse one that cannot read it."""
    name = printable(str(run.path))
    if run.form == "0.5":
        raise DataError(
            f"{name} is a log of MLPerf 0.5 (:::MLPv0.5.0), which no ruleset of mlperf-logging reads",
            hint=f"trainstone mlperf summary reads it; the oldest ruleset is {OLD_FORM}",
        )
    if asked is not None:
        return _take_asked(run, known, asked)
    if run.form == "0.6":
        return Choice(OLD_FORM, "the log is of MLPerf 0.6 (:::MLL)")
    if run.benchmark in CHOSEN:
        return Choice(*CHOSEN[run.benchmark])
    return Choice(list_having(run, known)[-1], f"the last with rules for {run.benchmark}")


def list_having(run: LoggedRun, known: Rulesets) -> list[str]:
    """Return the rulesets with rules for the benchmark of a log, the newest last; refuse a log that has none."""
    having = [ruleset for ruleset, benchmarks in known.items() if run.benchmark in benchmarks]
    if not having:
        raise DataError(
            f"{printable(str(run.path))}: no ruleset has rules for benchmark {printable(str(run.benchmark))}",
            hint="submission_benchmark is resnet or ssd in logs of trainstone",
        )
    return sorted(having, key=order)


def _take_asked(run: LoggedRun, known: Rulesets, asked: str) -> Choice:
    if asked not in known:
        raise ConfigError(f"--ruleset {asked} is not known", hint=f"one of {', '.join(sorted(known, key=order))}")
    if (asked == OLD_FORM) != (run.form == "0.6"):
        form, wanted = (":::MLL of 0.6", OLD_FORM) if run.form == "0.6" else (":::MLLOG", "0.7.0 or later")
        raise DataError(
            f"{printable(str(run.path))}: its lines are {form}, which ruleset {asked} does not read",
            hint=f"--ruleset {wanted}, or none",
        )
    having = list_having(run, known)
    if asked not in having:
        span = " ... ".join(dict.fromkeys((having[0], having[-1])))
        raise ConfigError(
            f"--ruleset {asked} has no {run.benchmark}: {run.benchmark} has rules in {span}",
            hint=f"--ruleset {CHOSEN[run.benchmark][0] if run.benchmark in CHOSEN else having[-1]}",
        )
    return Choice(asked, "asked for")


def order(ruleset: str) -> tuple[int, ...]:
    """Sort 1.10.0 after 1.9.0."""
    return tuple(int(part) for part in ruleset.split(".") if part.isdecimal())
