"""Two sides against each other: ratio with its interval."""

import altair as alt

from trainstone.report.blocks import Block, Facts, Figure, Prose, Section, Table
from trainstone.report.charts import BLUE, GREY, ORANGE, TEAL, figure, height_of, values
from trainstone.report.view import RunView
from trainstone.results.schema import Comparison, ComparisonRow
from trainstone.units import format_percent, format_rate, format_ratio

COLOURS = {"faster": TEAL, "slower": ORANGE, "no difference shown": BLUE, "not judged": GREY}
MAX_TOLD = 20
IN_TURN = "Both were run in turn, A B B A, in one process, so that what drifts evenly cancels out."


def build(view: RunView) -> Section | None:
    """The run's own comparison (bench --against)."""
    return describe(view.result.comparison, IN_TURN) if view.result.comparison else None


def describe(comparison: Comparison, lead: str) -> Section:
    """Chart, table, and in what the sides differ."""
    blocks: list[Block] = [draw_ratios(comparison.rows), tabulate(comparison.rows)]
    differing = [(row.label, "; ".join(row.differences)) for row in comparison.rows if row.differences]
    if differing:
        told = "In what the two sides differ beside what is compared, and what is doubtful about both:"
        blocks += [Prose(told), Facts(differing)]
    if comparison.left_out:
        blocks += [Prose("Left out:"), Facts([("", told) for told in comparison.left_out])]
    return Section("comparison", "Comparison", blocks, lead)


def draw_ratios(rows: list[ComparisonRow]) -> Figure:
    """Ratios on a logarithmic axis around 1."""
    drawn = []
    for row in rows:
        item = {"what": row.label, "ratio": row.ratio, "told": row.judgement, "colour": COLOURS[row.judgement]}
        item["shown"] = format_ratio(row.ratio)
        drawn.append(item | ({"low": row.ci95[0], "high": row.ci95[1]} if row.ci95 else {}))
    axis = alt.Y("what:N", title=None, sort=None, axis=alt.Axis(labelLimit=220))
    colour = alt.Color("colour:N", scale=None)
    scale = alt.Scale(type="log", nice=False, padding=12)
    ratio = alt.X("ratio:Q", title="times as fast (A / B)", scale=scale, axis=alt.Axis(format="~g"))
    layers = [
        alt.Chart(values([{"one": 1}])).mark_rule(color=GREY, strokeDash=[4, 3]).encode(x=alt.X("one:Q", scale=scale))
    ]
    spread = alt.Chart(values(drawn)).mark_rule(strokeWidth=3)
    layers.append(spread.encode(y=axis, x=alt.X("low:Q", scale=scale), x2="high:Q", color=colour))
    points = alt.Chart(values(drawn)).mark_point(filled=True, size=80, opacity=1)
    tooltip = ["what:N", alt.Tooltip("shown:N", title="ratio"), alt.Tooltip("told:N", title="verdict")]
    layers.append(points.encode(y=axis, x=ratio, color=colour, tooltip=tooltip))
    chart = alt.layer(*layers).properties(width="container", height=height_of(len(rows), 28))
    told = "; ".join(f"{row.label}: {tell_ratio(row)}, {row.judgement}" for row in rows[:MAX_TOLD])
    return figure("comparison", "How many times as fast A is as B", f"{told}.", chart)


def tell_ratio(row: ComparisonRow) -> str:
    """Return 1.083 (1.052 … 1.114)."""
    interval = f" ({format_ratio(row.ci95[0])} … {format_ratio(row.ci95[1])})" if row.ci95 else ""
    return f"{format_ratio(row.ratio)}{interval}"


def tabulate(rows: list[ComparisonRow]) -> Table:
    """All of it; a published figure with its source."""
    several = len(rows) > 1
    columns = [
        "what",
        "A",
        "B",
        "ratio (95 %)",
        "interval covers",
        *(["p (Holm)"] if several else []),
        "noise floor",
        "verdict",
    ]
    body = []
    for row in rows:
        source = f", {row.b.source}" if row.b.source else ""
        p_value = ["" if row.p_holm is None else f"{row.p_holm:.3g}"] if several else []
        floor = "" if row.noise_floor is None else format_percent(row.noise_floor)
        body.append(
            [
                row.label,
                f"{row.a.label}: {format_rate(row.a.images_per_second)} images/s",
                f"{row.b.label}: {format_rate(row.b.images_per_second)} images/s{source}",
                tell_ratio(row),
                row.ci_covers,
                *p_value,
                floor,
                row.judgement,
            ]
        )
    return Table(columns, body)
