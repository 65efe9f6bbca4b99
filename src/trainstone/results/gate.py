"""compare --fail-below: which rows of a comparison say no, and which are low without its being established. Pure."""

from typing import NamedTuple

from trainstone.results.compare import describe_share, format_ratio, is_published
from trainstone.results.schema import Comparison, ComparisonRow


class Gate(NamedTuple):
    """A sentence for each row below the limit."""

    failed: list[str]
    doubtful: list[str]


def check_gate(comparison: Comparison, limit: float) -> Gate:
    """Judge each row whose ratio is below the limit.

    It fails if that is shown: judged slower or, for a limit above 1, with its whole interval below the limit. It also
    fails where nothing can be shown: without an interval, or against a published figure, which has none.
    """
    gate = Gate([], [])
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
