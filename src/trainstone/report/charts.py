"""The kit that all charts are made of: lines, dots, bars, stacked bars, bars of shares, panels; axes and colours.

What a chart shows when its marks are pointed at is also its table and its text for readers who cannot see it.
Colours are the page's CSS variables, so that a chart follows light, dark and print without being drawn again;
for PNG, SVG and PDF report/page.py puts the light theme's values in their place.
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
"""Room for the labels of a vertical axis: the same in all, so that panels stand exactly below each other."""
SCALE_OPTIONS = ("type", "base", "domain", "nice", "zero", "padding")
OWN_COLOUR = alt.Color("colour:N", scale=None)  # each row names its colour
NAME_HEIGHT = 42
MANY_POINTS = 120  # points of more rows would touch, and are drawn smaller
MOST_ROWS, MOST_NAMED = 40, 20
"""Of a chart's table, evenly chosen; of its text."""
NAME_LENGTH, CELL_LENGTH, WHOLE_LENGTH = 36, 72, 600
"""In characters: above a bar (what 390 pixels hold), in a table or text, pointed at."""

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


def figure(
    name: str, title: str, alt_text: str, chart: Any, data: Table | None = None, *, height: float | None = None
) -> Figure:
    """Turn a chart, or layers and a height, into a figure: as wide as its place, in the page's colours.

    Without a text or a table of its own it gets them from what its marks show when they are pointed at.
    """
    spec = clean((chart if height is None else layered(chart, height)).to_dict())
    spec["config"] = CONFIG
    spec.pop("$schema", None)
    if "vconcat" not in spec:  # templates/page.js gives those their width
        spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    titles, cells = read_shown(spec)
    if data is None and cells:
        chosen = [cells[place] for place in choose_evenly(len(cells), MOST_ROWS)]
        data = Table(titles, [[show(cell) for cell in row] for row in chosen], numeric=list(map(is_number, cells[0])))
    return Figure(name=name, title=title, alt=alt_text or describe(titles, cells), spec=spec, data=data)


def read_shown(part: dict[str, Any], around: Rows | None = None) -> tuple[list[str], list[list[Any]]]:
    """Return titles and values of the tooltip of the first layer that has one; layers may share the rows around."""
    rows = part.get("data", {}).get("values", around)
    tooltip = part.get("encoding", {}).get("tooltip")
    if isinstance(tooltip, list):
        titles = [each.get("title", each["field"]) for each in tooltip]
        return titles, [[row.get(each["field"]) for each in tooltip] for row in rows or ()]
    found = (read_shown(inner, rows) for inner in (*part.get("layer", ()), *part.get("vconcat", ())))
    return next((shown for shown in found if shown[1]), ([], []))


def describe(titles: Sequence[str], cells: list[list[Any]]) -> str:
    """Say what a chart shows: every row of a few, the first and the last of many."""
    rows = cells if len(cells) <= MOST_NAMED else [cells[0], cells[-1]]
    message = []
    for first, *rest in rows:
        parts = [f"{title} {show(cell)}" for title, cell in zip(titles[1:], rest, strict=True) if show(cell)]
        message.append(f"{shorten(show(first), CELL_LENGTH)}: {', '.join(parts)}")
    many = "" if rows is cells else f"{len(cells)} values; the first and the last: "
    return f"{many}{'; '.join(message)}."


def show(cell: Any) -> str:
    """Return a value as text; nothing for one that was not measured."""
    return "" if cell is None else f"{cell:.4g}" if is_number(cell) else str(cell)


def clean(value: Any) -> Any:
    """Make every text in a chart printable: host names and labels come from files. No number is NaN or infinite."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {key: clean(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [clean(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} cannot be drawn")
    return value


def round_sensibly(value: float) -> float:
    """Five digits: enough for any image, and short."""
    return float(f"{value:.5g}")


def choose_unit(seconds: float) -> tuple[str, float]:
    """Return the unit in which durations up to this are drawn, and how many of it a second has."""
    if seconds < 120:
        return ("ms", 1e3) if seconds < 1 else ("seconds", 1.0)
    return ("minutes", 1 / 60) if seconds < 5 * 3600 else ("hours", 1 / 3600)


def height_of(num_rows: int, step: int) -> int:
    return max(1, num_rows) * step


def layered(layers: Layers, height: float) -> Any:
    return alt.layer(*layers).properties(width="container", height=height)


def panels(stacked_panels: Sequence[Any]) -> Any:
    return alt.vconcat(*stacked_panels, spacing=10).resolve_scale(x="shared", color="independent")


def across(title: str | None, field: str = "x", **options: Any) -> alt.X:
    """Return a horizontal axis; options are those of Vega-Lite's scale and of its axis, both by their names there."""
    return _make_axis(alt.X, title, field, {"labelOverlap": True, **options})


def up(title: str | None, field: str = "y", **options: Any) -> alt.Y:
    return _make_axis(alt.Y, title, field, options)


def _make_axis(channel: type[Axis], title: str | None, field: str, options: dict[str, Any]) -> Axis:
    scale = {name: options.pop(name) for name in SCALE_OPTIONS if name in options}
    title = None if title is None else make_safe(title)
    return channel(f"{field}:Q", title=title, scale=alt.Scale(**scale), axis=alt.Axis(**options))


def make_safe(title: str) -> str:
    """Return a title without what would need escaping: Vega-Lite makes expressions of them."""
    return re.sub(r"[\\\"'`]", "?", printable(title))


def another(axis: Any, field: str) -> Any:
    """Return the same axis for another field."""
    copied = axis.copy()
    copied["shorthand"] = f"{field}:Q"
    return copied


def names_down(*, limit: int = 180, **options: Any) -> alt.Y:
    """Return a vertical axis of names, in the order of the rows."""
    return alt.Y("what:N", title=None, sort=None, axis=alt.Axis(labelLimit=limit, **options))


def colours(kinds: Mapping[str, str], field: str = "what", *, legend: bool = True, **look: Any) -> alt.Color:
    """Return a colour for each name, with a legend unless there is nothing to tell apart."""
    scale = alt.Scale(domain=list(kinds), range=list(kinds.values()))
    shown = alt.Legend(**({"columns": 3, "labelLimit": 260} | look)) if legend else None
    return alt.Color(f"{field}:N", title=None, sort=list(kinds), scale=scale, legend=shown)


def tips(*fields: str, **titles: str) -> list[alt.Tooltip]:
    """Return what is shown when a mark is pointed at: fields by their name, then fields with a title."""
    given = [(field, field.partition(":")[0]) for field in fields] + list(titles.items())
    return [alt.Tooltip(field if ":" in field else f"{field}:N", title=make_safe(title)) for field, title in given]


def mark(kind: str, rows: Rows, look: Mapping[str, Any] | None = None, **channels: Any) -> Any:
    """Return one layer: marks of this kind, `look` for all, channels by row; those that are None are left out."""
    data = alt.Data(values=rows)  # type: ignore[no-untyped-call]
    drawn = getattr(alt.Chart(data), f"mark_{kind}")(**(look or {}))
    return drawn.encode(**{name: channel for name, channel in channels.items() if channel is not None})


def points(rows: Rows, size: float = 30, look: Mapping[str, Any] | None = None, **channels: Any) -> Any:
    return mark("point", rows, {"filled": True, "size": size, "opacity": 1, **(look or {})}, **channels)


def lines(rows: Rows, *, size: float | None = None, width: float = 1.5, **channels: Any) -> Layers:
    """A line through the points of each colour or detail, and points, which have the tooltip."""
    pointed = {name: channel for name, channel in channels.items() if name != "detail"}
    drawn = {name: channel for name, channel in channels.items() if name != "tooltip"}
    size = size or (30 if len(rows) <= MANY_POINTS else 4)
    line = mark("line", rows, {"strokeWidth": width, "opacity": 1.0}, **drawn)
    return [line, points(rows, size, **pointed)]


def intervals(rows: Rows, x: alt.X, y: alt.Y, color: Any) -> Any:
    """Error bars from low to high, of the rows that have both."""
    known = [row for row in rows if "low" in row and row["low"] < row["high"]]
    look = {"ticks": alt.MarkConfig(size=9), "thickness": 1.5}
    return mark("errorbar", known, look, x=x, y=another(y, "low"), y2="high:Q", color=color)


def dots(
    rows: Rows, x: alt.X, *, step: int, tooltip: Sequence[Any] | None = None, size: float = 80, limit: int = 180,
    under: Sequence[Any] = (),
) -> Any:  # fmt: skip
    """A named line for each row: its point x, and its interval from low to high where it has one; in its own colour."""
    y = names_down(limit=limit)
    layers = [*under]
    if known := [row for row in rows if "low" in row]:
        layers.append(mark("rule", known, {"strokeWidth": 3}, y=y, x=another(x, "low"), x2="high:Q", color=OWN_COLOUR))
    layers.append(
        points(rows, size, y=y, x=x, color=OWN_COLOUR, tooltip=tooltip or tips(what="name", shown=x["title"]))
    )
    return layered(layers, height_of(len(rows), step))


def bars(
    rows: Rows, x: alt.X, *, step: int, tooltip: Sequence[Any] | None = None, color: Any = None, limit: int = 190,
    label: str | None = None, over: Sequence[Any] = (),
) -> Any:  # fmt: skip
    """A named bar across for each row, `label` beside it, and its interval from low to high where it has one."""
    y = names_down(limit=limit, ticks=False, domain=False, labelPadding=5)
    tooltip, color = tooltip or tips(what="name", shown=x["title"]), color or alt.value(BLUE)
    layers = [mark("bar", rows, {"height": {"band": 0.72}}, y=y, x=x, color=color, tooltip=tooltip)]
    if label:
        ends = [row | {"end": row.get("high", row["x"])} for row in rows]
        layers.append(mark("text", ends, {"align": "left", "dx": 5}, y=y, x=another(x, "end"), text=f"{label}:N"))
    if known := [row for row in rows if "low" in row]:
        look = {"strokeWidth": 2, "color": ORANGE}
        layers.append(mark("rule", known, look, y=y, x=another(x, "low"), x2="high:Q"))
    return layered([*layers, *over], height_of(len(rows), step))


def leave_room(lengths: Sequence[float], share: float = 0.22) -> list[float]:
    """Return the ends of an axis of bars that has room for a label beside the longest."""
    low, high = min(0.0, *lengths), max(0.0, *lengths)
    return [round_sensibly(low), round_sensibly(high + (share * (high - low) or 1.0))]


def share_bars(
    name: str, title: str, axis: str, shares: Sequence[tuple[str, float, str]], kinds: Mapping[str, str], *,
    digits: int = 1, end: float | None = None, rule: float | None = None,
) -> Figure:  # fmt: skip
    """Bars of percent, each below its name, which then fits a phone whatever its length: (name, share, kind).

    `kinds` are the colours of their kinds; the axis reaches at least to `end` and no bar beyond twice of it; `rule` is
    a line down all bars.
    """
    rows: Rows = []
    for place, (whole, share, kind) in enumerate(shares):
        shown, percent = format_percent(share, digits), round_sensibly(max(0.0, 100 * share))
        label = f"{shorten(whole, NAME_LENGTH)}: {shown}"
        row = {"row": place, "label": label, "whole": shorten(whole, WHOLE_LENGTH), "share": shown, "kind": kind}
        rows.append(row | {"percent": min(percent, 2 * end) if end else percent})
    top = max([row["percent"] for row in rows] + [end or 0.0]) or 1.0
    x = across(axis, "percent", domain=[0, top], nice=end is None or top > end, tickCount=6)
    used = {kind: colour for kind, colour in kinds.items() if any(row["kind"] == kind for row in rows)}
    color = colours(used, "kind", legend=len(kinds) > 1, labelLimit=200)
    tooltip = tips(whole="name", share=axis, kind="kind") if len(kinds) > 1 else tips(whole="name", share=axis)
    where = {"y": alt.Y("row:O", axis=None), "tooltip": tooltip}
    layers = [
        mark("bar", rows, {"height": 13, "yOffset": 8}, x=x, color=color, **where),
        mark("text", rows, {"align": "left", "dy": -9, "limit": 0}, x=alt.value(1), text="label:N", **where),
    ]
    if rule is not None:
        layers.insert(0, mark("rule", [{"percent": rule}], {**DASHED, "color": INK}, x=x))
    return figure(name, title, "", layers, height=height_of(len(rows), NAME_HEIGHT))


def stacked(
    name: str, title: str, seconds: Mapping[str, Mapping[str, float]], kinds: Mapping[str, str] | None = None
) -> Figure:
    """Parts that sum up, a bar for each name; of a single bar the legend has the shares."""
    totals = {bar: sum(parts.values()) or 1e-9 for bar, parts in seconds.items()}
    unit, factor = choose_unit(max(totals.values()))
    used = list(dict.fromkeys(part for parts in seconds.values() for part in parts))
    kinds = kinds or dict(zip(used, itertools.cycle(PALETTE)))
    labels = {part: part for part in used}
    if len(seconds) == 1:
        ((bar, parts),) = seconds.items()
        labels = {part: f"{part} {format_percent(parts[part] / totals[bar], 0)}" for part in used}
    rows: Rows = [
        {"what": bar, "part": labels[part], "x": round_sensibly(spent * factor), "order": used.index(part)}
        | {"shown": format_seconds(spent), "share": format_percent(spent / totals[bar])}
        for bar, parts in seconds.items()
        for part, spent in parts.items()
    ]
    x = across(unit, domain=[0, round_sensibly(max(totals.values()) * factor)], nice=False, tickCount=8)
    x["stack"] = "zero"
    several = len(seconds) > 1
    chart = mark(
        "bar", rows, {} if several else {"height": 34}, x=x, y=names_down(labelOverlap=False) if several else None,
        color=colours({labels[part]: kinds[part] for part in used}, "part", columns=5 if several else 3),
        order="order:Q", tooltip=tips(**{"what": "bar"} if several else {}, part="part", shown="takes", share="share"),
    )  # fmt: skip
    height = height_of(len(seconds), 26) if several else 44
    return figure(name, title, "", chart.properties(width="container", height=height))
