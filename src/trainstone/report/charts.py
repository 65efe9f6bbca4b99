"""The kit that all charts are made of: lines, intervals, dots, bars, stacked bars, scatter, panels; axes and colours.

Colours are the page's CSS variables, so that a chart follows light, dark and print without being drawn again;
for PNG, SVG and PDF report/figures.py puts the light theme's values in their place.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from trainstone.report.blocks import Figure
from trainstone.results.tables import Table
from trainstone.text import printable

INK, MUTED, GRID = "var(--ink)", "var(--muted)", "var(--grid)"
BLUE, ORANGE, TEAL, PURPLE, RED, GREY = (f"var(--chart-{n})" for n in range(1, 7))
PALETTE = [BLUE, ORANGE, TEAL, PURPLE, RED, GREY]
SHADE = "var(--shade)"
DASHED = {"strokeDash": [5, 3], "strokeWidth": 1.5}
LEFT: dict[str, Any] = {"minExtent": 62, "maxExtent": 62}
"""Room for the labels of a vertical axis: the same in all, so that panels stand exactly below each other."""
SCALE_OPTIONS = ("type", "base", "domain", "nice", "zero", "padding")
MANY_POINTS = 120
"""Points of more rows would touch, and are drawn smaller."""

Rows = list[dict[str, Any]]
Layers = list[Any]

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


def values(rows: Rows) -> alt.Data:
    """Return rows as inline data."""
    return alt.Data(values=rows)  # type: ignore[no-untyped-call]


def figure(
    name: str, title: str, alt_text: str, chart: Any, data: Table | None = None, *, height: float | None = None
) -> Figure:
    """Turn a chart, or layers and a height, into a figure: as wide as its place, in the page's colours."""
    spec = clean((chart if height is None else layered(chart, height)).to_dict())
    spec["config"] = CONFIG
    spec.pop("$schema", None)
    if "vconcat" not in spec:  # templates/page.js gives those their width
        spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    return Figure(name=name, title=title, alt=alt_text, spec=spec, data=data)


def clean(value: Any) -> Any:
    """Make every text in a chart printable: host names and labels come from files."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {key: clean(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [clean(inner) for inner in value]
    return value


def round_sensibly(value: float) -> float:
    """Five digits: enough for any picture, and short."""
    return float(f"{value:.5g}")


def height_of(num_rows: int, step: int) -> int:
    """Return the height of a chart of rows, in pixels; a step in the chart itself would make Vega-Lite complain."""
    return max(1, num_rows) * step


def layered(layers: Layers, height: float) -> Any:
    """Put layers on top of each other, the first at the bottom."""
    return alt.layer(*layers).properties(width="container", height=height)


def panels(stacked_panels: Sequence[Any]) -> Any:
    """Put charts below each other, over the same horizontal axis."""
    return alt.vconcat(*stacked_panels, spacing=10).resolve_scale(x="shared", color="independent")


def across(title: str | None, field: str = "x", **options: Any) -> alt.X:
    """Return a horizontal axis; options are those of Vega-Lite's scale and of its axis, both by their names there."""
    axis: alt.X = _make_axis(alt.X, title, field, {"labelOverlap": True, **options})
    return axis


def up(title: str | None, field: str = "y", **options: Any) -> alt.Y:
    """Return a vertical axis; options as for `across`."""
    axis: alt.Y = _make_axis(alt.Y, title, field, options)
    return axis


def _make_axis(channel: Any, title: str | None, field: str, options: dict[str, Any]) -> Any:
    if title is not None:  # Vega-Lite makes expressions of axis titles: what would need escaping may not stand there
        title = re.sub(r"[\\\"'`]", "?", printable(title))
    scale = {name: options.pop(name) for name in SCALE_OPTIONS if name in options}
    return channel(f"{field}:Q", title=title, scale=alt.Scale(**scale), axis=alt.Axis(**options))


def another(axis: Any, field: str) -> Any:
    """Return the same axis for another field."""
    copied = axis.copy()
    copied["shorthand"] = f"{field}:Q"
    return copied


def names_down(field: str = "what", *, limit: int = 180, **options: Any) -> alt.Y:
    """Return a vertical axis of names, in the order of the rows."""
    return alt.Y(f"{field}:N", title=None, sort=None, axis=alt.Axis(labelLimit=limit, **options))


def colours(kinds: Mapping[str, str], field: str = "what", *, legend: bool = True, **look: Any) -> alt.Color:
    """Return a colour for each name, with a legend unless there is nothing to tell apart."""
    scale = alt.Scale(domain=list(kinds), range=list(kinds.values()))
    shown = alt.Legend(**({"columns": 3, "labelLimit": 260} | look)) if legend else None
    return alt.Color(f"{field}:N", title=None, sort=list(kinds), scale=scale, legend=shown)


OWN_COLOUR = alt.Color("colour:N", scale=None)
"""Each row names its colour."""


def tips(*fields: str, **titles: str) -> list[alt.Tooltip]:
    """Return what is shown when a mark is pointed at: fields by their name, then fields with a title."""
    given = [(field, field.partition(":")[0]) for field in fields] + list(titles.items())
    return [alt.Tooltip(field if ":" in field else f"{field}:N", title=title) for field, title in given]


def mark(kind: str, rows: Rows, look: Mapping[str, Any] | None = None, **channels: Any) -> Any:
    """Return one layer: marks of this kind, `look` for all, channels by row; those that are None are left out."""
    drawn = getattr(alt.Chart(values(rows)), f"mark_{kind}")(**(look or {}))
    return drawn.encode(**{name: channel for name, channel in channels.items() if channel is not None})


def points(rows: Rows, size: float = 30, look: Mapping[str, Any] | None = None, **channels: Any) -> Any:
    """Filled points."""
    return mark("point", rows, {"filled": True, "size": size, "opacity": 1, **(look or {})}, **channels)


def lines(
    rows: Rows, *, size: float | None = None, width: float = 1.5, opacity: float = 1.0, **channels: Any
) -> Layers:
    """A line through the points of each colour or detail, and points, which have the tooltip."""
    pointed = {name: channel for name, channel in channels.items() if name != "detail"}
    drawn = {name: channel for name, channel in channels.items() if name != "tooltip"}
    size = size or (30 if len(rows) <= MANY_POINTS else 4)
    line = mark("line", rows, {"strokeWidth": width, "opacity": opacity}, **drawn)
    return [line, points(rows, size, **pointed)]


def intervals(rows: Rows, x: alt.X, y: alt.Y, color: Any) -> Any:
    """Error bars from low to high, of the rows that have both."""
    known = [row for row in rows if "low" in row and row["low"] < row["high"]]
    look = {"ticks": alt.MarkConfig(size=9), "thickness": 1.5}
    return mark("errorbar", known, look, x=x, y=another(y, "low"), y2="high:Q", color=color)


def dots(
    rows: Rows, x: alt.X, *, step: int, tooltip: Sequence[Any], color: Any = OWN_COLOUR, size: float = 80,
    limit: int = 180, label: str | None = None, under: Sequence[Any] = (),
) -> Any:  # fmt: skip
    """A named line for each row: its point x, and its interval from low to high where it has one."""
    y = names_down(limit=limit)
    layers = [*under]
    if known := [row for row in rows if "low" in row]:
        layers.append(mark("rule", known, {"strokeWidth": 3}, y=y, x=another(x, "low"), x2="high:Q", color=color))
    layers.append(points(rows, size, y=y, x=x, color=color, tooltip=tooltip))
    if label:
        layers.append(mark("text", rows, {"align": "center", "dy": -13}, y=y, x=x, text=f"{label}:N"))
    return layered(layers, height_of(len(rows), step))


def bars(
    rows: Rows, x: alt.X, *, step: int, tooltip: Sequence[Any], color: Any = None, limit: int = 190,
    label: str | None = None, over: Sequence[Any] = (),
) -> Any:  # fmt: skip
    """A named bar across for each row, `label` beside it, and its interval from low to high where it has one."""
    y = names_down(limit=limit, ticks=False, domain=False, labelPadding=5)
    layers = [mark("bar", rows, {"height": {"band": 0.72}}, y=y, x=x, color=color or alt.value(BLUE), tooltip=tooltip)]
    if label:
        layers.append(mark("text", rows, {"align": "left", "dx": 5}, y=y, x=x, text=f"{label}:N"))
    if known := [row for row in rows if "low" in row]:
        look = {"strokeWidth": 2, "color": ORANGE}
        layers.append(mark("rule", known, look, y=y, x=another(x, "low"), x2="high:Q"))
    return layered([*layers, *over], height_of(len(rows), step))


NAME_HEIGHT = 42


def bars_below_names(
    rows: Rows, title: str, *, end: float | None = None, kinds: Mapping[str, str] | None = None,
    rule: float | None = None,
) -> Any:  # fmt: skip
    """Bars of percent, each below its label: a name of any length then fits a phone.

    `end` is the least the axis reaches to, `rule` a line down all bars, `kinds` the colours of their kinds.
    """
    placed = [{**row, "row": place} for place, row in enumerate(rows)]
    top = max([row["percent"] for row in rows] + [end or 0.0]) or 1.0
    x = across(title, "percent", domain=[0, top], nice=end is None or top > end, tickCount=6)
    tooltip = tips(whole="name", told="share")
    color: Any = alt.value(BLUE)
    if kinds:
        used = {kind: colour for kind, colour in kinds.items() if any(row["kind"] == kind for row in rows)}
        color, tooltip = colours(used, "kind", labelLimit=200), [*tooltip, *tips("kind")]
    where = {"y": alt.Y("row:O", axis=None), "tooltip": tooltip}
    look = {"align": "left", "dy": -9, "limit": 0}
    layers = [
        mark("bar", placed, {"height": 13, "yOffset": 8}, x=x, color=color, **where),
        mark("text", placed, look, x=alt.value(1), text="label:N", **where),
    ]
    if rule is not None:
        layers.insert(0, mark("rule", [{"percent": rule}], {**DASHED, "color": INK}, x=x))
    return layered(layers, height_of(len(rows), NAME_HEIGHT))


def stacked(
    rows: Rows, title: str, kinds: Mapping[str, str], total: float, *, tooltip: Sequence[Any], columns: int = 5,
    step: int | None = None,
) -> Any:  # fmt: skip
    """Parts that sum up: rows of part, x and order; one bar, or with `step` a bar of that height for each `what`."""
    x = across(title, domain=[0, round_sensibly(total)], nice=False, tickCount=8)
    x["stack"] = "zero"
    color = colours(kinds, "part", columns=columns, labelLimit=240)
    y = None if step is None else names_down(labelOverlap=False)
    look = {"height": 34} if step is None else {}
    chart = mark("bar", rows, look, x=x, y=y, color=color, order="order:Q", tooltip=tooltip)
    height = 44 if step is None else height_of(len({row["what"] for row in rows}), step)
    return chart.properties(width="container", height=height)
