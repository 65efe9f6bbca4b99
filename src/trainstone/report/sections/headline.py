"""The numbers people quote: quality of a training, throughput with its interval, step time, utilisation, noise."""

import math
from typing import Any

import altair as alt

from trainstone.report.blocks import Block, Facts, Figure, Section
from trainstone.report.charts import BLUE, ORANGE, figure, height_of, values
from trainstone.report.view import RunView
from trainstone.results.learning import list_facts
from trainstone.results.repeated import list_repeated_facts
from trainstone.results.schema import Result
from trainstone.results.summary import describe_interval
from trainstone.units import format_percent, format_rate, format_seconds


def build(view: RunView) -> Section | None:
    """Tiles, and the interval drawn; of a training its quality first."""
    result = view.result
    if result.throughput is None and result.quality is None:
        return None
    learned = _tell_learned(result)
    drawn = draw_interval(view)
    blocks: list[Block] = [Facts([*learned, *_tiles(result)], big=True), *([drawn] if drawn else [])]
    title = "Quality and throughput" if learned else "Throughput"
    return Section("numbers", title, blocks, _tell_rate(view))


def _tell_learned(result: Result) -> list[tuple[str, str]]:
    if result.quality is None:
        return []
    if result.repeated is not None:
        return list_repeated_facts(result.repeated, result.quality)
    return list_facts(result.quality, result.status)


def _tell_rate(view: RunView) -> str:
    result = view.result
    if result.throughput is None:
        return ""
    rate = format_rate(result.throughput.images_per_second)
    if result.points:
        how = f"the mean of {len(view.children)} runs"
    elif result.throughput.steady:
        how = "images over time of the steady window"
    else:
        how = "images over time of a window that is not steady: a number of this run, not of the machine"
    return f"{rate} images/s {describe_interval(result.throughput)}, {how}."


def _tiles(result: Result) -> list[tuple[str, str]]:
    tiles = []
    throughput, used = result.throughput, result.utilisation
    if throughput:
        tiles.append(("images/s", format_rate(throughput.images_per_second)))
        if throughput.ci95:
            low, high = throughput.ci95
            tiles.append((f"95 % interval, {throughput.ci_covers}", f"{format_rate(low)} … {format_rate(high)}"))
    if result.step_seconds:
        tiles.append(("median step", format_seconds(result.step_seconds.median)))
    if used and used.mfu is not None:
        tiles.append(("of the measured peak (MFU)", format_percent(used.mfu)))
    if used and used.limit not in (None, "unknown"):
        tiles.append(("limited by", str(used.limit)))
    if result.energy:
        tiles.append(("energy an image", f"{result.energy.joules_per_image:.3g} J"))
    if result.noise:
        tiles.append(("noise grade", result.noise.grade))
    return tiles


def draw_interval(view: RunView) -> Figure | None:
    """Draw the interval, and for repeated runs each run's own beside it."""
    rows = [_bar(label, result) for label, result in _named(view)]
    shown = [row for row in rows if row is not None]
    if not any("low" in row for row in shown):
        return None
    order = [str(row["what"]) for row in shown]
    axis = alt.Y("what:N", title=None, sort=order, axis=alt.Axis(labelLimit=180))
    spread = (
        alt.Chart()
        .mark_rule(strokeWidth=3, color=BLUE)
        .encode(
            y=axis,
            x=alt.X(
                "low:Q", title="images/s", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=8, labelOverlap=True)
            ),
            x2="high:Q",
        )
    )
    middle = (
        alt.Chart()
        .mark_point(filled=True, size=90, color=ORANGE, opacity=1)
        .encode(y=axis, x="rate:Q", tooltip=[alt.Tooltip("what:N", title="run"), alt.Tooltip("rate:Q", format=".4~g")])
    )
    chart = alt.layer(spread, middle, data=values(shown)).properties(
        width="container", height=height_of(len(shown), 30)
    )
    parts = [f"{row['what']} {_tell(row)}" for row in shown[:12]]
    return figure("throughput", "Throughput and its 95 % interval", f"Images per second: {'; '.join(parts)}.", chart)


def _tell(row: dict[str, Any]) -> str:
    """The rate with as many digits as its interval is worth."""
    if "low" not in row:
        return format_rate(row["rate"])
    width = row["high"] - row["low"]
    digits = max(0, 1 - math.floor(math.log10(width))) if width > 0 else 3
    return f"{row['rate']:.{digits}f} ({row['low']:.{digits}f} to {row['high']:.{digits}f})"


def _named(view: RunView) -> list[tuple[str, Result]]:
    children = [(child.label, child.result) for child in view.children if child.result is not None]
    return [("all runs" if children else "this run", view.result), *children]


def _bar(label: str, result: Result) -> dict[str, Any] | None:
    if result.throughput is None:
        return None
    row: dict[str, Any] = {"what": label, "rate": result.throughput.images_per_second}
    if result.throughput.ci95:
        row["low"], row["high"] = result.throughput.ci95
    return row
