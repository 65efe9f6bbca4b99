"""A sweep on the terminal: a table of its points with bars, the knee marked, then what they mean."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trainstone.cli.comparison import fits
from trainstone.cli.sparkline import draw_bars
from trainstone.results.sweep import Sweep, SweepRow, format_setting, name_key
from trainstone.results.sweptcells import describe_cells, is_knee
from trainstone.text import printable

BAR_WIDTH = 16
LONGEST_NOTE = 32
BAR = ""
"""The head of the bars."""


def print_sweep(console: Console, sweep: Sweep) -> None:
    """Print the rows so far; without bars, and then as lines, where it is narrow."""
    if sweep.rows:
        bars = draw_bars([row.images_per_second or 0 for row in sweep.rows], BAR_WIDTH, encoding=console.encoding)
        tables = (make_table(sweep, bars), make_table(sweep, None))
        fitting = next((table for table in tables if fits(console, table)), None)
        if fitting is not None:
            console.print(Padding(fitting, (0, 0, 0, 2), expand=False))
        else:
            for line in tell_lines(sweep):
                console.print(line)
    if sweep.told:
        console.print()
    for sentence in sweep.told:
        console.print(Text(printable(sentence)))


def make_table(sweep: Sweep, bars: Sequence[str] | None) -> Table:
    """A line a point; columns that no point has are left out."""
    cells = [describe_cells(sweep, row) for row in sweep.rows]
    columns = [name for name in cells[0] if any(line[name] for line in cells)]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    if sweep.curve_key is not None:
        table.add_column(Text(printable(name_key(sweep.curve_key))))
    table.add_column(Text(printable(name_key(sweep.key))), justify="right")
    if bars:
        after = "±" if "±" in columns else "images/s"
        columns = [part for name in columns for part in ((name, BAR) if name == after else (name,))]
    for name in columns:
        table.add_column(Text(name), justify="left" if name in ("note", BAR) else "right", no_wrap=name != "note")
    for place, (row, line) in enumerate(zip(sweep.rows, cells, strict=True)):
        style = "bold" if is_knee(sweep, row) else ""
        told = [Text(text, style=style) for text in _tell_point(sweep, row)]
        for name in columns:
            bar = bars[place] if bars and name == BAR else None
            told.append(Text(shorten(line[name]), style=style) if bar is None else Text(bar, style="cyan"))
        table.add_row(*told)
    return table


def tell_lines(sweep: Sweep) -> Iterator[Text]:
    """The same for a narrow terminal."""
    for row in sweep.rows:
        cells = describe_cells(sweep, row)
        point = ", ".join(reversed(_tell_point(sweep, row)))
        yield Text(f"{printable(name_key(sweep.key))} {point}", style="bold" if is_knee(sweep, row) else "")
        yield Text("  " + ", ".join(f"{name} {shorten(text)}" for name, text in cells.items() if text))


def shorten(text: str) -> str:
    """Cut what does not belong into a table; the whole stands in the findings."""
    text = printable(text)
    return text if len(text) <= LONGEST_NOTE else f"{text[: LONGEST_NOTE - 1]}…"


def _tell_point(sweep: Sweep, row: SweepRow) -> list[str]:
    told = [printable(format_setting(row.value))]
    return told if sweep.curve_key is None else [printable(format_setting(row.curve)), *told]
