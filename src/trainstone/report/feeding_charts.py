"""The charts of the page about feeding: images/s by threads, and what a picture's stages take."""

from typing import Any

import altair as alt

from trainstone.report.blocks import Figure
from trainstone.report.charts import BLUE, GREY, ORANGE, figure, height_of, round_sensibly, values
from trainstone.results.feeding import Feeding, ThreadPoint, best_point, format_microseconds
from trainstone.units import format_percent, format_rate

MEASURED, IDEAL, DEMAND = "measured, with its 95 % interval", "ideal: as many times one thread", "demanded"
HEADROOM = 1.5
"""The ideal is drawn up to so many times the best that was measured: beyond, it would flatten that."""
FARTHEST_DEMAND, LEAST_DEMAND = 2.0, 0.02
"""A demand is drawn from this share of the best (below it lies on the axis) up to so many times it."""


def draw_threads(feeding: Feeding) -> Figure:
    """Points with their intervals, the ideal as a line, and a rule where the demand lies in the picture."""
    demand, one = find_demand(feeding), find_one_thread(feeding)
    top = find_top(feeding, demand, one)
    most = max(point.threads for point in feeding.points)
    kinds = {MEASURED: BLUE}
    threads = sorted({point.threads for point in feeding.points})
    ends = [0, round_sensibly(most + max(0.5, 0.06 * most))]
    x = alt.X(
        "threads:Q", title="threads", scale=alt.Scale(domain=ends, nice=False),
        axis=alt.Axis(values=threads, labelOverlap=True, labelSeparation=6, grid=False),
    )  # fmt: skip
    y = alt.Y("rate:Q", title="images/s", scale=alt.Scale(domain=[0, round_sensibly(top)], nice=False))
    under: list[tuple[Any, dict[str, Any]]] = []
    if one is not None and most > 1:
        kinds[IDEAL] = GREY
        last = min(float(most), top / one)
        line = [{"threads": at, "rate": round_sensibly(at * one), "what": IDEAL} for at in (0.0, last)]
        under.append((alt.Chart(values(line)).mark_line(strokeDash=[4, 3], strokeWidth=1.5), {"x": x, "y": y}))
    if demand is not None:
        named = f"{DEMAND}: {format_rate(demand)} images/s"
        kinds[named] = ORANGE
        rule = [{"rate": round_sensibly(demand), "what": named}]
        under.append((alt.Chart(values(rule)).mark_rule(strokeWidth=2), {"y": y}))
    legend = alt.Legend(columns=3, labelLimit=300, symbolType="circle") if len(kinds) > 1 else None
    scale = alt.Scale(domain=list(kinds), range=list(kinds.values()))
    colour = alt.Color("what:N", title=None, scale=scale, legend=legend)
    layers = [mark.encode(**where, color=colour) for mark, where in under]
    layers += mark_points(feeding, x, y, colour)
    chart = alt.layer(*layers).properties(width="container", height=280)
    return figure("threads", "Images/s by threads", tell_points(feeding), chart)


def mark_points(feeding: Feeding, x: alt.X, y: alt.Y, colour: alt.Color) -> list[Any]:
    """A line through the points, intervals, and points that say more when they are pointed at."""
    rows = [plot_point(point) for point in sorted(feeding.points, key=lambda point: point.threads)]
    chart = alt.Chart(values(rows))
    spreads = alt.Chart(values([row for row in rows if "low" in row]))
    tooltip = [
        alt.Tooltip("threads:Q"),
        alt.Tooltip("told:N", title="images/s"),
        alt.Tooltip("core:N", title="images/s a core"),
    ]
    low, high = (alt.Y(f"{end}:Q", scale=y["scale"], title="images/s") for end in ("low", "high"))
    return [
        chart.mark_line(strokeWidth=1.5).encode(x=x, y=y, color=colour),
        spreads.mark_rule(strokeWidth=2).encode(x=x, y=low, y2="high:Q", color=colour),
        *(
            spreads.mark_tick(size=14, thickness=2, opacity=1, orient="horizontal").encode(x=x, y=end, color=colour)
            for end in (low, high)
        ),
        chart.mark_point(filled=True, size=36, opacity=1).encode(x=x, y=y, color=colour, tooltip=tooltip),
    ]


def plot_point(point: ThreadPoint) -> dict[str, Any]:
    """Return a point for the chart."""
    row: dict[str, Any] = {
        "threads": point.threads,
        "rate": round_sensibly(point.images_per_second),
        "told": tell_rate(point),
        "core": format_rate(point.images_per_second_per_core),
        "what": MEASURED,
    }
    if point.ci95 is not None:
        row["low"], row["high"] = (round_sensibly(max(0.0, end)) for end in point.ci95)
    return row


def find_one_thread(feeding: Feeding) -> float | None:
    """Return the rate of one thread, if that was measured."""
    return next((point.images_per_second for point in feeding.points if point.threads == 1), None)


def find_demand(feeding: Feeding) -> float | None:
    """Return the demanded rate if it can be shown beside what was measured."""
    if feeding.demand is None:
        return None
    times = feeding.demand.images_per_second / best_point(feeding).images_per_second
    return feeding.demand.images_per_second if LEAST_DEMAND <= times <= FARTHEST_DEMAND else None


def find_top(feeding: Feeding, demand: float | None, one: float | None) -> float:
    """Return where the vertical axis ends: above all that was measured and demanded, and most of the ideal."""
    best = best_point(feeding).images_per_second
    most = max(point.threads for point in feeding.points)
    highest = max(point.ci95[1] if point.ci95 else point.images_per_second for point in feeding.points)
    return 1.06 * max(best, highest, demand or 0.0, min(most * (one or 0.0), HEADROOM * best))


def tell_rate(point: ThreadPoint) -> str:
    """Return 1,190 (1,177 to 1,203)."""
    interval = f" ({format_rate(point.ci95[0])} to {format_rate(point.ci95[1])})" if point.ci95 else ""
    return f"{format_rate(point.images_per_second)}{interval}"


def tell_points(feeding: Feeding) -> str:
    """Say what the chart shows."""
    told = "; ".join(f"{point.threads}: {tell_rate(point)}" for point in feeding.points)
    demand = find_demand(feeding)
    asked = f" {format_rate(demand)} are demanded." if demand is not None else ""
    return f"Images per second by threads: {told}.{asked}"


def draw_stages(feeding: Feeding) -> Figure:
    """A bar for each stage, in the order of a picture's way, with its share."""
    rows: list[dict[str, Any]] = [
        {
            "stage": stage.name,
            "µs": round_sensibly(stage.seconds_per_image * 1e6),
            "share": format_percent(stage.share, 0),
        }
        for stage in feeding.stages
    ]
    # Room for the longest bar's share beside it; all stages may have taken no time that a clock could see
    top = 1.15 * max(row["µs"] for row in rows) or 1.0
    axis = alt.Axis(labelLimit=160, ticks=False, domain=False, labelPadding=6)
    y = alt.Y("stage:N", title=None, sort=None, axis=axis)
    x = alt.X(
        "µs:Q",
        title="µs an image",
        scale=alt.Scale(domain=[0, top], nice=False),
        axis=alt.Axis(tickCount=5, labelOverlap=True, labelSeparation=8),
    )
    tooltip = ["stage:N", alt.Tooltip("µs:Q", title="µs an image", format=",.4~g"), "share:N"]
    bars = alt.Chart(values(rows)).mark_bar(color=BLUE, height={"band": 0.72}).encode(x=x, y=y, tooltip=tooltip)
    labels = alt.Chart(values(rows)).mark_text(align="left", dx=6).encode(x=x, y=y, text="share:N")
    chart = alt.layer(bars, labels).properties(width="container", height=height_of(len(rows), 34))
    told = "; ".join(
        f"{stage.name}: {format_microseconds(stage.seconds_per_image)} µs, {format_percent(stage.share, 0)}"
        for stage in feeding.stages
    )
    return figure("stages", "What a picture's stages take", f"Microseconds an image: {told}.", chart)
