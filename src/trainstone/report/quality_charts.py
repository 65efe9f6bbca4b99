"""Charts and tables of what an evaluation tells beside its metric: drawn as the table says, whatever it means."""

import re
from collections.abc import Sequence
from typing import Any

import altair as alt

from trainstone.report.blocks import Block, Figure, Prose, Table
from trainstone.report.charts import BLUE, INK, PALETTE, figure, height_of, round_sensibly, values
from trainstone.results.quality import QualityTable

HEIGHT = 280
BAR_STEP = 18
MOST_BARS = 400
MOST_ROWS = 2000
Cell = str | float | None
Rows = list[list[Cell]]
Texts = list[list[str]]


def draw_quality_table(number: int, table: QualityTable) -> list[Block]:
    """Return a chart and its note, or a table; rows that do not fit the columns are left out."""
    rows = [row for row in table.rows[:MOST_ROWS] if len(row) == len(table.columns)]
    name = f"quality-{number}-{re.sub('[^a-z0-9]+', '-', table.name.lower())}"[:60].strip("-")
    drawn: Figure | None = None
    if table.drawn == "lines" and len(table.columns) >= 3:
        drawn = draw_lines(name, table, [row for row in rows if is_number(row[0]) and is_number(row[1])])
    if table.drawn == "bars" and len(table.columns) >= 2:
        drawn = draw_bars(name, table, [row for row in rows if is_number(row[1])][:MOST_BARS])
    if drawn is not None:
        return [drawn, Prose(table.note)] if table.note else [drawn]
    caption = f"{table.title}. {table.note}" if table.note else table.title
    return [tabulate(table.columns, rows, caption)] if rows else []


def is_number(cell: Cell) -> bool:
    """Say whether a cell can be drawn."""
    return isinstance(cell, float | int)


def draw_lines(name: str, table: QualityTable, rows: Rows) -> Figure | None:
    """One line for each name in the third column; both axes from 0 to 1 where everything lies there."""
    if not rows:
        return None
    lines = list(dict.fromkeys(str(row[2]) for row in rows))[: len(PALETTE)]
    points: list[dict[str, Any]] = [
        {"x": row[0], "y": row[1], "what": str(row[2]), "told": f"{text[1]} at {text[0]}"}
        for row, text in zip(rows, format_rows(rows), strict=True)
        if str(row[2]) in lines
    ]
    whole = all(0 <= point[axis] <= 1 for point in points for axis in ("x", "y"))
    scale = alt.Scale(domain=[0, 1]) if whole else alt.Scale(zero=False, nice=True)
    x = alt.X("x:Q", title=plain_title(table.columns[0], "x"), scale=scale, axis=alt.Axis(tickCount=10))
    y = alt.Y("y:Q", title=plain_title(table.columns[1], "y"), scale=scale, axis=alt.Axis(tickCount=5))
    colours = alt.Scale(domain=lines, range=PALETTE[: len(lines)])
    colour = alt.Color("what:N", title=None, scale=colours, legend=alt.Legend(columns=3, labelLimit=260))
    chart = alt.Chart(values(points))
    tooltip = [alt.Tooltip("what:N", title="line"), alt.Tooltip("told:N", title="is")]
    layers = [
        chart.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour),
        chart.mark_point(size=60, opacity=0).encode(x=x, y=y, tooltip=tooltip),  # something to point at
    ]
    drawn = alt.layer(*layers).properties(width="container", height=HEIGHT)
    return figure(name, table.title, tell_lines(table, points), drawn, tabulate(table.columns, rows))


def tell_lines(table: QualityTable, points: list[dict[str, Any]]) -> str:
    """Say where each line begins and ends."""
    ends: dict[str, tuple[str, str]] = {}
    for point in points:
        line = point["what"]
        ends[line] = (ends[line][0] if line in ends else point["told"], point["told"])
    told = "; ".join(f"{line}: {first}, {last}" for line, (first, last) in ends.items())
    return f"{table.title}: {table.columns[1]} over {table.columns[0]}. {told}."


def draw_bars(name: str, table: QualityTable, rows: Rows) -> Figure | None:
    """One bar a row, with its value; the other columns are told when it is pointed at."""
    if not rows:
        return None
    texts = format_rows(rows)
    bars: list[dict[str, Any]] = [
        {"place": place, "x": row[1], "told": text[1], "more": tell_more(table.columns, text)}
        for place, row, text in zip(name_places(texts), rows, texts, strict=True)
    ]
    least, most = (pick(0.0, *(bar["x"] for bar in bars)) for pick in (min, max))
    room = 1.08 * (most - least) or 1.0  # for the value beside the longest bar
    base = alt.Chart(values(bars)).encode(
        x=alt.X(
            "x:Q",
            title=plain_title(table.columns[1], "value"),
            scale=alt.Scale(domain=[round_sensibly(least), round_sensibly(least + room)], nice=False),
            axis=alt.Axis(tickCount=5),
        ),
        y=alt.Y("place:N", title=None, axis=alt.Axis(labelLimit=190, ticks=False, domain=False), sort=None),
        tooltip=[alt.Tooltip("place:N", title="row"), alt.Tooltip("more:N", title="is")],
    )
    layers: list[Any] = [
        base.mark_bar(color=BLUE, height={"band": 0.75}),
        base.mark_text(align="left", dx=4, color=INK, fontSize=11).encode(text="told:N"),
    ]
    drawn = alt.layer(*layers).properties(width="container", height=height_of(len(bars), BAR_STEP))
    return figure(name, table.title, tell_bars(table, bars), drawn, tabulate(table.columns, rows))


def tell_bars(table: QualityTable, bars: list[dict[str, Any]]) -> str:
    """Say which are the longest and the shortest."""
    longest, shortest = (pick(bars, key=lambda bar: bar["x"]) for pick in (max, min))
    told = f"{table.title}: {table.columns[1]} from {longest['told']} ({longest['place']})"
    return f"{told} to {shortest['told']} ({shortest['place']})."


def name_places(texts: Texts) -> list[str]:
    """Return the first column, each name once: equal ones would be one bar."""
    seen: dict[str, int] = {}
    names = []
    for text in texts:
        name = text[0] or "?"
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return names


def tell_more(columns: Sequence[str], text: Sequence[str]) -> str:
    """Return AP 0.412, AP50 0.633, true boxes 120."""
    return ", ".join(f"{column} {cell}" for column, cell in zip(columns[1:], text[1:], strict=True) if cell)


def plain_title(text: str, otherwise: str) -> str:
    """Return a column's name for an axis, of which Vega-Lite makes an expression: odd text may not stand there."""
    return text if re.fullmatch(r"[A-Za-z0-9@., -]{1,60}", text) else otherwise


def tabulate(columns: Sequence[str], rows: Rows, caption: str = "") -> Table:
    """Return the table as it is, numbers flush right."""
    numeric = [any(is_number(row[place]) for row in rows) for place in range(len(columns))]
    return Table(columns, format_rows(rows), caption=caption, numeric=numeric)


def format_rows(rows: Rows) -> Texts:
    """Return 0.231, or 1,204 in a column of whole numbers, or the text; nothing for what was not measured."""
    columns = []
    for column in zip(*rows, strict=True):
        whole = all(float(cell).is_integer() for cell in column if isinstance(cell, float | int))
        columns.append([format_cell(cell, whole) for cell in column])
    return [list(row) for row in zip(*columns, strict=True)]


def format_cell(cell: Cell, whole: bool) -> str:
    """Return a cell's text."""
    if cell is None or isinstance(cell, str):
        return cell or ""
    if whole:
        return f"{cell:,.0f}" if abs(cell) < 1e15 else f"{cell:.4g}"
    return f"{cell:.3f}" if abs(cell) < 10 else f"{cell:,.4g}"
