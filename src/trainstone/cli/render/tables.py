"""Print tables and named rows on a terminal of any width."""

import itertools
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trainstone.cli.render.sparkline import draw_bars
from trainstone.results import tables
from trainstone.text import printable

OUTCOMES = {"faster": "green", "slower": "red", "no difference shown": "dim", "not assessed": "dim"}
BAR_WIDTH = 16
LONGEST_CELL = 200
INDENT = 2
NARROW_WIDTH = 60
Rows = Iterator[tuple[str, str | Text]]


def print_rows(console: Console, rows: Sequence[tuple[str, str | Text]]) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        shown = value if isinstance(value, Text) else Text(printable(value))
        if console.width < NARROW_WIDTH:
            console.print(Text(printable(name), style="dim"))
            print_indented(console, shown)
        table.add_row(Text(printable(name)), shown)
    if console.width >= NARROW_WIDTH:
        print_indented(console, table)


def print_indented(console: Console, shown: Table | Text) -> None:
    console.print(Padding(shown, (0, 0, 0, INDENT), expand=False))


def print_lines(console: Console, lines: Iterable[str], style: str = "", *, wrap: bool = True) -> None:
    for line in lines:
        console.print(Text(printable(line), style=style), soft_wrap=not wrap)


def build_rich_table(
    table: tables.Table, *, bars: Sequence[str] = (), styles: Sequence[str] = (), pad_edge: bool = True
) -> Table:
    """Return a table without borders, numbers right-aligned; `bars` follow the rows, `styles` apply to them."""
    laid = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=pad_edge)
    for head, numeric in zip(table.columns, table.numeric, strict=True):
        laid.add_column(Text(printable(head)), justify="right" if numeric else "left")
    for row, style, bar in itertools.zip_longest(table.rows, styles, bars, fillvalue=""):
        cells = [shorten_cell(cell) for cell in row]
        drawn = [Text(bar, style="cyan")] if bars else []
        laid.add_row(*(Text(cell, style=OUTCOMES.get(cell, style)) for cell in cells), *drawn)
    return laid


def print_table(
    console: Console, table: tables.Table, *, lengths: Sequence[float] = (), styles: Sequence[str] = ()
) -> None:
    """Print a table with a bar per row; if it is too wide, without bars, and then as lines."""
    unlimited = console.options.update(max_width=10_000)
    for bars in (draw_bars(lengths, BAR_WIDTH, encoding=console.encoding), []):
        laid = build_rich_table(table, bars=bars, styles=styles)
        if Measurement.get(console, unlimited, laid).maximum + INDENT <= console.width:
            print_indented(console, laid)
            return
    for row, style in itertools.zip_longest(table.rows, styles, fillvalue=""):
        first, *cells = (shorten_cell(cell) for cell in row)
        console.print(Text(f"{printable(table.columns[0])} {first}".strip(), style=style or "bold"))
        for head, cell in zip(table.columns[1:], cells, strict=True):
            if cell:
                named = Text.assemble((f"{printable(head)}  ", "dim"), (cell, OUTCOMES.get(cell, "")))
                print_indented(console, named)


def shorten_cell(text: str, longest: int = LONGEST_CELL) -> str:
    """Cut a long cell; the findings have the full text."""
    text = printable(text)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
