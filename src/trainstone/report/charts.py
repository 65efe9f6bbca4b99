"""Chart builders for the report, on top of Altair: lines, dots, bars, stacked bars, panels, axes and colours.

A chart's tooltips are also its table and its alt text.
Colours are the page's CSS variables, so that charts follow the light, dark and print styles without a redraw;
report/page.py replaces them with the light theme's values for PNG, SVG and PDF.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import altair as alt

from trainstone.report.blocks import Figure
from trainstone.results.step_parts import shorten
from trainstone.results.tables import Table, is_number
from trainstone.stats.downsample import choose_evenly
from trainstone.text import printable
from trainstone.units import format_percent, format_seconds

INK, MUTED, GRID = "var(--ink)", "var(--muted)", "var(--grid)"
BLUE, ORANGE, TEAL, PURPLE, RED, GREY = (f"var(--chart-{n})" for n in range(1, 7))
PALETTE = [BLUE, ORANGE, TEAL, PURPLE, RED, GREY]
SHADE = "var(--shade)"
DASHED = {"strokeDash": [5, 3], "strokeWidth": 1.5}
LEFT: dict[str, Any] = {"minExtent": 62, "maxExtent": 62}
"""Fixed width of vertical axes, so that stacked panels are aligned."""
SCALE_OPTIONS = ("type", "base", "domain", "nice", "zero", "padding")
OWN_COLOUR = alt.Color("colour:N", scale=None)  # each row has its own colour
NAMED_BAR_HEIGHT = 42
MANY_POINTS = 120  # with more rows, points are drawn smaller, because they would touch
MAX_TABLE_ROWS, MAX_ALT_ROWS = 40, 20
"""Limits of a chart's table (rows evenly chosen) and of its alt text."""
NAME_LENGTH, CELL_LENGTH, TOOLTIP_LENGTH = 36, 72, 600
"""Lengths in characters: above a bar (fits 390 pixels), in a table or text, in a tooltip."""

Rows = list[dict[str, Any]]
Layers = list[Any]
Axis = TypeVar("Axis", alt.X, alt.Y)

CONFIG: dict[str, Any] = {
    "background": "transparent",
    "padding": 4,
    "font": "system-ui, sans-serif",
    "view": {"stroke": "transparent"},
    "axis": {
        "labelColor": MUTED,
        "titleColor": INK,
        "gridColor": GRID,
        "domainColor": GRID,
        "tickColor": GRID,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
    "legend": {"labelColor": INK, "titleColor": INK, "labelFontSize": 12, "titleFontSize": 12, "orient": "bottom"},
    "title": {"color": INK, "fontSize": 13, "anchor": "start", "fontWeight": "normal"},
    "text": {"color": INK, "fontSize": 12},
    "range": {"category": PALETTE},
    "bar": {"color": BLUE},
    "line": {"color": BLUE},
    "point": {"color": BLUE},
}


def build_figure(
    name: str, title: str, alt_text: str, chart: Any, data: Table | None = None, *, height: float | None = None
) -> Figure:
    """Turn a chart, or layers and a height, into a figure that fills the page's width.

    Without `alt_text` or `data`, the alt text and the table are made from the tooltips.
    """
    spec = clean_spec((chart if height is None else build_layered(chart, height)).to_dict())
    spec["config"] = CONFIG
    spec.pop("$schema", None)
    if "vconcat" not in spec:  # templates/page.js sets the width of panels
        spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    titles, cells = read_tooltips(spec)
    if data is None and cells:
        chosen = [cells[index] for index in choose_evenly(len(cells), MAX_TABLE_ROWS)]
        texts = [[format_cell(cell) for cell in row] for row in chosen]
        data = Table(titles, texts, numeric=list(map(is_number, cells[0])))
    return Figure(name=name, title=title, alt=alt_text or describe_rows(titles, cells), spec=spec, data=data)


def read_tooltips(part: dict[str, Any], inherited: Rows | None = None) -> tuple[list[str], list[list[Any]]]:
    """Return titles and values of the first layer with a tooltip; `inherited` are the rows of its parent."""
    rows = part.get("data", {}).get("values", inherited)
    tooltip = part.get("encoding", {}).get("tooltip")
    if isinstance(tooltip, list):
        titles = [each.get("title", each["field"]) for each in tooltip]
        return titles, [[row.get(each["field"]) for each in tooltip] for row in rows or ()]
    found = (read_tooltips(inner, rows) for inner in (*part.get("layer", ()), *part.get("vconcat", ())))
    return next((shown for shown in found if shown[1]), ([], []))


def describe_rows(titles: Sequence[str], cells: list[list[Any]]) -> str:
    """Return a chart's rows as text; of many rows only the first and the last."""
    rows = cells if len(cells) <= MAX_ALT_ROWS else [cells[0], cells[-1]]
    described = []
    for first, *rest in rows:
        pairs = zip(titles[1:], map(format_cell, rest), strict=True)
        parts = [f"{title} {text}" for title, text in pairs if text]
        described.append(f"{shorten(format_cell(first), CELL_LENGTH)}: {', '.join(parts)}")
    many = "" if rows is cells else f"{len(cells)} values; first and last: "
    return f"{many}{'; '.join(described)}."


def format_cell(cell: Any) -> str:
    """Return a value as text; empty if it was not measured."""
    return "" if cell is None else f"{cell:.4g}" if is_number(cell) else str(cell)


def clean_spec(value: Any) -> Any:
    """Make all text in a spec printable, because labels come from files; reject NaN and infinity."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {key: clean_spec(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [clean_spec(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"value is not finite: {value}")
    return value


def round_digits(value: float) -> float:
    """Round to five significant digits, which is enough for a chart."""
    return float(f"{value:.5g}")


def choose_unit(seconds: float) -> tuple[str, float]:
    """Return the unit for durations up to `seconds`, and the factor from seconds to it."""
    if seconds < 120:
        return ("ms", 1e3) if seconds < 1 else ("seconds", 1.0)
    return ("minutes", 1 / 60) if seconds < 5 * 3600 else ("hours", 1 / 3600)


def height_of(num_rows: int, step: int) -> int:
    return max(1, num_rows) * step


def build_layered(layers: Layers, height: float) -> Any:
    return alt.layer(*layers).properties(width="container", height=height)


def stack_panels(stacked_panels: Sequence[Any]) -> Any:
    return alt.vconcat(*stacked_panels, spacing=10).resolve_scale(x="shared", color="independent")


def x_axis(title: str | None, field: str = "x", **options: Any) -> alt.X:
    """Return a horizontal axis; `options` are Vega-Lite's scale and axis properties."""
    return _make_axis(alt.X, title, field, {"labelOverlap": True, **options})


def y_axis(title: str | None, field: str = "y", **options: Any) -> alt.Y:
    return _make_axis(alt.Y, title, field, options)


def _make_axis(channel: type[Axis], title: str | None, field: str, options: dict[str, Any]) -> Axis:
    scale = {name: options.pop(name) for name in SCALE_OPTIONS if name in options}
    title = None if title is None else clean_title(title)
    return channel(f"{field}:Q", title=title, scale=alt.Scale(**scale), axis=alt.Axis(**options))


def clean_title(title: str) -> str:
    """Replace characters that would need escaping, because Vega-Lite parses titles as expressions."""
    return re.sub(r"[\\\"'`]", "?", printable(title))


def with_field(axis: Any, field: str) -> Any:
    """Return a copy of the axis for another field."""
    copied = axis.copy()
    copied["shorthand"] = f"{field}:Q"
    return copied


def name_axis(*, limit: int = 180, **options: Any) -> alt.Y:
    """Return a vertical axis of names, in row order."""
    return alt.Y("what:N", title=None, sort=None, axis=alt.Axis(labelLimit=limit, **options))


def colour_scale(kinds: Mapping[str, str], field: str = "what", *, legend: bool = True, **look: Any) -> alt.Color:
    """Return a colour encoding with a colour per name, and its legend."""
    scale = alt.Scale(domain=list(kinds), range=list(kinds.values()))
    shown = alt.Legend(**({"columns": 3, "labelLimit": 260} | look)) if legend else None
    return alt.Color(f"{field}:N", title=None, sort=list(kinds), scale=scale, legend=shown)


def tooltips(*fields: str, **titles: str) -> list[alt.Tooltip]:
    """Return tooltips: fields under their own name, then fields with a title."""
    given = [(field, field.partition(":")[0]) for field in fields] + list(titles.items())
    return [alt.Tooltip(field if ":" in field else f"{field}:N", title=clean_title(title)) for field, title in given]


def mark(kind: str, rows: Rows, look: Mapping[str, Any] | None = None, **channels: Any) -> Any:
    """Return one layer of marks; `look` holds their properties, channels that are None are skipped."""
    data = alt.Data(values=rows)  # type: ignore[no-untyped-call]
    drawn = getattr(alt.Chart(data), f"mark_{kind}")(**(look or {}))
    return drawn.encode(**{name: channel for name, channel in channels.items() if channel is not None})


def points(rows: Rows, size: float = 30, look: Mapping[str, Any] | None = None, **channels: Any) -> Any:
    return mark("point", rows, {"filled": True, "size": size, "opacity": 1, **(look or {})}, **channels)


def lines(rows: Rows, *, size: float | None = None, width: float = 1.5, **channels: Any) -> Layers:
    """Return a line per colour or detail, and points that carry the tooltips."""
    pointed = {name: channel for name, channel in channels.items() if name != "detail"}
    drawn = {name: channel for name, channel in channels.items() if name != "tooltip"}
    size = size or (30 if len(rows) <= MANY_POINTS else 4)
    line = mark("line", rows, {"strokeWidth": width, "opacity": 1.0}, **drawn)
    return [line, points(rows, size, **pointed)]


def intervals(rows: Rows, x: alt.X, y: alt.Y, color: Any) -> Any:
    """Return error bars from low to high for the rows that have both."""
    known = [row for row in rows if "low" in row and row["low"] < row["high"]]
    look = {"ticks": alt.MarkConfig(size=9), "thickness": 1.5}
    return mark("errorbar", known, look, x=x, y=with_field(y, "low"), y2="high:Q", color=color)


def dot_plot(
    rows: Rows, x: alt.X, *, step: int, tooltip: Sequence[Any] | None = None, size: float = 80, limit: int = 180,
    under: Sequence[Any] = (),
) -> Any:  # fmt: skip
    """Return a dot plot: a named row each with a point at x and, if known, its interval from low to high."""
    y = name_axis(limit=limit)
    layers = [*under]
    if known := [row for row in rows if "low" in row]:
        layers.append(
            mark("rule", known, {"strokeWidth": 3}, y=y, x=with_field(x, "low"), x2="high:Q", color=OWN_COLOUR)
        )
    layers.append(
        points(rows, size, y=y, x=x, color=OWN_COLOUR, tooltip=tooltip or tooltips(what="name", shown=x["title"]))
    )
    return build_layered(layers, height_of(len(rows), step))


def bar_chart(
    rows: Rows, x: alt.X, *, step: int, tooltip: Sequence[Any] | None = None, color: Any = None, limit: int = 190,
    label: str | None = None, over: Sequence[Any] = (),
) -> Any:  # fmt: skip
    """Return a horizontal bar chart; `label` is beside each bar, intervals from low to high are drawn if known."""
    y = name_axis(limit=limit, ticks=False, domain=False, labelPadding=5)
    tooltip, color = tooltip or tooltips(what="name", shown=x["title"]), color or alt.value(BLUE)
    layers = [mark("bar", rows, {"height": {"band": 0.72}}, y=y, x=x, color=color, tooltip=tooltip)]
    if label:
        ends = [row | {"end": row.get("high", row["x"])} for row in rows]
        layers.append(mark("text", ends, {"align": "left", "dx": 5}, y=y, x=with_field(x, "end"), text=f"{label}:N"))
    if known := [row for row in rows if "low" in row]:
        look = {"strokeWidth": 2, "color": ORANGE}
        layers.append(mark("rule", known, look, y=y, x=with_field(x, "low"), x2="high:Q"))
    return build_layered([*layers, *over], height_of(len(rows), step))


def pad_domain(lengths: Sequence[float], share: float = 0.22) -> list[float]:
    """Return the domain of a bar axis with room for a label beside the longest bar."""
    low, high = min(0.0, *lengths), max(0.0, *lengths)
    return [round_digits(low), round_digits(high + (share * (high - low) or 1.0))]


def share_bars(
    name: str, title: str, axis: str, shares: Sequence[tuple[str, float, str]], kinds: Mapping[str, str], *,
    digits: int = 1, end: float | None = None, rule: float | None = None,
) -> Figure:  # fmt: skip
    """Return bars in percent from (name, share, kind); names are above their bars, so that they fit a phone.

    `kinds` maps each kind to a colour. The axis reaches at least `end`, bars are cut at twice of it. `rule` is the
    position of a vertical line.
    """
    rows: Rows = []
    for index, (full_name, share, kind) in enumerate(shares):
        shown, percent = format_percent(share, digits), round_digits(max(0.0, 100 * share))
        label = f"{shorten(full_name, NAME_LENGTH)}: {shown}"
        row = {"row": index, "label": label, "whole": shorten(full_name, TOOLTIP_LENGTH), "share": shown, "kind": kind}
        rows.append(row | {"percent": min(percent, 2 * end) if end else percent})
    top = max([row["percent"] for row in rows] + [end or 0.0]) or 1.0
    x = x_axis(axis, "percent", domain=[0, top], nice=end is None or top > end, tickCount=6)
    used = {kind: colour for kind, colour in kinds.items() if any(row["kind"] == kind for row in rows)}
    color = colour_scale(used, "kind", legend=len(kinds) > 1, labelLimit=200)
    tooltip = tooltips(whole="name", share=axis, kind="kind") if len(kinds) > 1 else tooltips(whole="name", share=axis)
    where = {"y": alt.Y("row:O", axis=None), "tooltip": tooltip}
    layers = [
        mark("bar", rows, {"height": 13, "yOffset": 8}, x=x, color=color, **where),
        mark("text", rows, {"align": "left", "dy": -9, "limit": 0}, x=alt.value(1), text="label:N", **where),
    ]
    if rule is not None:
        layers.insert(0, mark("rule", [{"percent": rule}], {**DASHED, "color": INK}, x=x))
    return build_figure(name, title, "", layers, height=height_of(len(rows), NAMED_BAR_HEIGHT))


def stacked_bars(
    name: str, title: str, seconds: Mapping[str, Mapping[str, float]], kinds: Mapping[str, str] | None = None
) -> Figure:
    """Return stacked bars, one per name; the legend of a single bar shows the shares."""
    totals = {bar: sum(parts.values()) or 1e-9 for bar, parts in seconds.items()}
    unit, factor = choose_unit(max(totals.values()))
    used = list(dict.fromkeys(part for parts in seconds.values() for part in parts))
    kinds = kinds or dict(zip(used, itertools.cycle(PALETTE)))
    labels = {part: part for part in used}
    if len(seconds) == 1:
        ((bar, parts),) = seconds.items()
        labels = {part: f"{part} {format_percent(parts[part] / totals[bar], 0)}" for part in used}
    rows: Rows = [
        {"what": bar, "part": labels[part], "x": round_digits(spent * factor), "order": used.index(part)}
        | {"shown": format_seconds(spent), "share": format_percent(spent / totals[bar])}
        for bar, parts in seconds.items()
        for part, spent in parts.items()
    ]
    x = x_axis(unit, domain=[0, round_digits(max(totals.values()) * factor)], nice=False, tickCount=8)
    x["stack"] = "zero"
    several = len(seconds) > 1
    chart = mark(
        "bar", rows, {} if several else {"height": 34}, x=x, y=name_axis(labelOverlap=False) if several else None,
        color=colour_scale({labels[part]: kinds[part] for part in used}, "part", columns=5 if several else 3),
        order="order:Q",
        tooltip=tooltips(**{"what": "bar"} if several else {}, part="part", shown="takes", share="share"),
    )  # fmt: skip
    height = height_of(len(seconds), 26) if several else 44
    return build_figure(name, title, "", chart.properties(width="container", height=height))
