"""How charts look, and how an Altair chart becomes a figure.

Colours are the page's CSS variables, so that a chart follows light, dark and print without being drawn again;
for PNG, SVG and PDF report/figures.py puts the light theme's values in their place.
"""

from typing import Any

import altair as alt

from trainstone.report.blocks import Figure, Table
from trainstone.text import printable

INK, MUTED, GRID = "var(--ink)", "var(--muted)", "var(--grid)"
BLUE, ORANGE, TEAL, PURPLE, RED, GREY = (f"var(--chart-{n})" for n in range(1, 7))
PALETTE = [BLUE, ORANGE, TEAL, PURPLE, RED, GREY]
SHADE = "var(--shade)"
LEFT: dict[str, Any] = {"minExtent": 62, "maxExtent": 62}
"""Room for the labels of a vertical axis: the same in all, so that panels stand exactly below each other."""

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


def values(rows: list[dict[str, Any]]) -> alt.Data:
    """Return rows as inline data."""
    return alt.Data(values=rows)  # type: ignore[no-untyped-call]


def figure(name: str, title: str, alt_text: str, chart: Any, data: Table | None = None) -> Figure:
    """Turn a chart into a figure: as wide as its place, in the house colours, text made harmless."""
    spec = clean(chart.to_dict())
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
