"""Two sides against each other: ratio with its interval."""

from trainstone.report.blocks import Block, Facts, Figure, Prose, Section
from trainstone.report.charts import BLUE, GREY, ORANGE, TEAL, Rows, across, another, dots, figure, mark, tips
from trainstone.report.view import RunView
from trainstone.results.schema import Comparison, ComparisonRow
from trainstone.results.tables import comparison_table, format_row_ratio
from trainstone.units import format_ratio

COLOURS = {"faster": TEAL, "slower": ORANGE, "no difference shown": BLUE, "not judged": GREY}
MAX_TOLD = 20
IN_TURN = "Both were run in turn, A B B A, in one process, so that what drifts evenly cancels out."


def build(view: RunView) -> Section | None:
    """The run's own comparison (bench --against)."""
    return describe(view.result.comparison, IN_TURN) if view.result.comparison else None


def describe(comparison: Comparison, lead: str) -> Section:
    blocks: list[Block] = [draw_ratios(comparison.rows), comparison_table(comparison.rows, full=True)]
    differing = [(row.label, "; ".join(row.differences)) for row in comparison.rows if row.differences]
    if differing:
        told = "In what the two sides differ beside what is compared, and what is doubtful about both:"
        blocks += [Prose(told), Facts(differing)]
    if comparison.left_out:
        blocks += [Prose("Left out:"), Facts([("", told) for told in comparison.left_out])]
    return Section("comparison", "Comparison", blocks, lead)


def draw_ratios(rows: list[ComparisonRow]) -> Figure:
    drawn: Rows = []
    for row in rows:
        item = {"what": row.label, "x": row.ratio, "told": row.judgement, "colour": COLOURS[row.judgement]}
        item["shown"] = format_ratio(row.ratio)
        drawn.append(item | ({"low": row.ci95[0], "high": row.ci95[1]} if row.ci95 else {}))
    x = across("times as fast (A / B)", type="log", nice=False, padding=12, format="~g")
    one = mark("rule", [{"one": 1}], {"color": GREY, "strokeDash": [4, 3]}, x=another(x, "one"))
    tooltip = tips("what", shown="ratio", told="verdict")
    chart = dots(drawn, x, step=28, limit=220, tooltip=tooltip, under=[one])
    told = "; ".join(f"{row.label}: {format_row_ratio(row)}, {row.judgement}" for row in rows[:MAX_TOLD])
    return figure("comparison", "How many times as fast A is as B", f"{told}.", chart)
