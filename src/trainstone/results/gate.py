"""compare --fail-below: what says no, and which rows are low without its being established. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

from trainstone.results.anchors import describe_share, is_published
from trainstone.results.schema import Comparison, ComparisonRow
from trainstone.units import format_ratio


class Gate(NamedTuple):
    """A sentence for each."""

    failed: list[str]
    """What says no: rows below the limit, and what is gone."""
    doubtful: list[str]
    """Rows below the limit that pass."""


def check_gate(comparison: Comparison, limit: float, lost: Iterable[str] = ()) -> Gate:
    """Judge each row whose ratio is below the limit, and what is lost: a run of A without a number, or only in B.

    A row fails if it is judged slower or, for a limit above 1, if its whole interval lies below the limit. It also
    fails where nothing can be shown: without an interval, or against a published figure, which has none.
    """
    gate = Gate([f"{told}; the gate cannot pass without it" for told in lost], [])
    for row in comparison.rows:
        if row.ratio < limit:
            (gate.failed if _says_no(row, limit) else gate.doubtful).append(_tell(row, limit))
    return gate


def _says_no(row: ComparisonRow, limit: float) -> bool:
    if row.ci95 is None or is_published(row) or row.judgement == "slower":
        return True
    return limit > 1 and row.ci95[1] < limit


def _tell(row: ComparisonRow, limit: float) -> str:
    below = f"is below {format_ratio(limit)}"
    if is_published(row):
        return f"{row.label}: {describe_share(row)} {below}"
    interval = f"{format_ratio(row.ci95[0])} … {format_ratio(row.ci95[1])}" if row.ci95 else f"interval {row.ci_covers}"
    return f"{row.label}: {format_ratio(row.ratio)} ({interval}) {below}, {row.judgement}"
