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


class Choice(NamedTuple):
    """A ruleset, and the reason for it."""

    ruleset: str
    reason: str


CHOSEN = {
    "resnet": Choice("4.0.0", "the last with ResNet"),
    "ssd": Choice("1.0.0", "the last for SSD300 without a list of weights; from 2.0.0 on ssd is RetinaNet"),
}


def choose_ruleset(run: LoggedRun, known: Rulesets, requested: str | None = None) -> Choice:
    """Return the ruleset to check a log by; refuse one that cannot read it."""
    name, rulesets = printable(str(run.path)), sorted(known, key=order)
    if run.form == "0.5":
        raise DataError(
            f"{name}: a log of MLPerf 0.5 (:::MLPv0.5.0), which no ruleset of mlperf-logging reads",
            hint=f"trainstone mlperf summary reads it; the oldest ruleset is {OLD_FORM}",
        )
    having = [ruleset for ruleset in rulesets if run.benchmark in known[ruleset]]
    if not having:
        raise DataError(
            f"{name}: no ruleset has rules for benchmark {printable(str(run.benchmark))}",
            hint="submission_benchmark is resnet or ssd in logs of trainstone",
        )
    usual = CHOSEN.get(run.benchmark or "", Choice(having[-1], f"the last with rules for {run.benchmark}"))
    if requested is None:
        return Choice(OLD_FORM, "the log is of MLPerf 0.6 (:::MLL)") if run.form == "0.6" else usual
    if requested not in known:
        raise ConfigError(f"unknown --ruleset {requested}", hint=f"one of {', '.join(rulesets)}")
    if (requested == OLD_FORM) != (run.form == "0.6"):
        wanted = OLD_FORM if run.form == "0.6" else "0.7.0 or later"
        raise DataError(
            f"{name}: ruleset {requested} does not read lines of MLPerf {run.form}", hint=f"--ruleset {wanted}, or none"
        )
    if requested not in having:
        raise ConfigError(
            f"--ruleset {requested} has no {run.benchmark}: rules are in {', '.join(having)}",
            hint=f"--ruleset {usual.ruleset}",
        )
    return Choice(requested, "requested")


def order(ruleset: str) -> tuple[int, ...]:
    """Sort 1.10.0 after 1.9.0."""
    return tuple(int(part) for part in ruleset.split(".") if part.isdecimal())
