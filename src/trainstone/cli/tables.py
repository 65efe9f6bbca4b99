"""The tables of results/tables.py on the terminal, with bars where there is room, and as lines where it is narrow."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from trainstone.cli.sparkline import draw_bars
from trainstone.results import tables
from trainstone.results.anchors import is_published
from trainstone.results.feeding import Feeding, describe_cores, describe_covers
from trainstone.results.schema import Comparison
from trainstone.results.sweep import Sweep
from trainstone.text import printable
from trainstone.units import format_bytes, format_count, format_ratio

MAX_NOTED = 5
"""With more published figures than this, their sources and differences are left to --json and --page."""
STYLES = {"faster": "green", "slower": "red", "no difference shown": "dim", "not judged": "dim"}
BAR_WIDTH = 16
LONGEST_NOTE, LONGEST_CELL = 32, 200
INDENT = 2
NARROW_WIDTH = 60


def print_indented(console: Console, shown: RichTable | Text) -> None:
    console.print(Padding(shown, (0, 0, 0, INDENT), expand=False))


def print_dim(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(Text(printable(line), style="dim"))


def lay_out(
    table: tables.Table,
    *,
    bars: Sequence[str] = (),
    styles: Sequence[str] = (),
    longest: int = LONGEST_CELL,
    pad_edge: bool = True,
) -> RichTable:
    """Return a table without lines, numbers flush right, with a bar after each row; `styles` are those of the rows."""
    laid = RichTable(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=pad_edge)
    for head, numeric in zip(table.columns, table.numeric, strict=True):
        laid.add_column(Text(printable(head)), justify="right" if numeric else "left")
    for row, style, bar in zip_longest(table.rows, styles, bars, fillvalue=""):
        cells = [_shorten(cell, longest) for cell in row]
        drawn = [Text(bar, style="cyan")] if bars else []
        laid.add_row(*(Text(cell, style=STYLES.get(cell, style)) for cell in cells), *drawn)
    return laid


def print_table(
    console: Console,
    table: tables.Table,
    *,
    lengths: Sequence[float] = (),
    styles: Sequence[str] = (),
    longest: int = LONGEST_CELL,
) -> None:
    """Print a table, with a bar of each row's length; without bars, and then as lines, where it is too wide.

    `styles` are those of the rows; cells longer than `longest` are cut.
    """
    unlimited = console.options.update(max_width=10_000)
    for bars in (draw_bars(lengths, BAR_WIDTH, encoding=console.encoding), []):
        laid = lay_out(table, bars=bars, styles=styles, longest=longest)
        if Measurement.get(console, unlimited, laid).maximum + INDENT <= console.width:
            print_indented(console, laid)
            return
    for row, style in zip_longest(table.rows, styles, fillvalue=""):
        first, *cells = (_shorten(cell, longest) for cell in row)
        console.print(Text(f"{printable(table.columns[0])} {first}".strip(), style=style or "bold"))
        for head, cell in zip(table.columns[1:], cells, strict=True):
            if cell:
                print_indented(console, Text.assemble((f"{printable(head)}  ", "dim"), (cell, STYLES.get(cell, ""))))


def _shorten(text: str, longest: int) -> str:
    """Cut what is too long for a table; the whole text is in the findings."""
    text = printable(text)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def print_comparison(console: Console, comparison: Comparison) -> None:
    published = [row for row in comparison.rows if is_published(row)]
    judged = [row for row in comparison.rows if not is_published(row)]
    if published:
        print_table(console, tables.share_table(published))
        few = len(published) <= MAX_NOTED
        more = "sources and differences of each: --json, --page, or --to with its name"
        print_dim(console, tables.list_comparison_notes(published) if few else [more])
    if judged:
        print_table(console, tables.comparison_table(judged))
        print_dim(console, tables.list_comparison_notes(judged))
    if comparison.geometric_mean is not None:
        print_dim(console, [f"geometric mean of A / B: {format_ratio(comparison.geometric_mean)}"])


def print_sweep(console: Console, sweep: Sweep) -> None:
    """Print the points so far, the knee in bold, then what they mean."""
    if sweep.rows:
        styles = ["bold" if tables.is_knee(sweep, row) else "" for row in sweep.rows]
        lengths = [row.rate for row in sweep.rows]
        print_table(console, tables.sweep_table(sweep), lengths=lengths, styles=styles, longest=LONGEST_NOTE)
    if sweep.told:
        console.print()
    for sentence in sweep.told:
        console.print(Text(printable(sentence)))


def print_feeding(console: Console, feeding: Feeding) -> None:
    """Print what `data bench` measured: what was loaded, threads, stages, the cores that a training needs."""
    pictures = f"{format_count(feeding.pictures, 'picture')} in {feeding.split}"
    console.print(Text(printable(f"{feeding.path}: {pictures}, {feeding.storage}"), style="bold"))
    made = f"{feeding.image_size} x {feeding.image_size}, batches of {feeding.batch_size:,}"
    told = [
        f"{format_bytes(feeding.picture_bytes)} a picture; {feeding.transform}; to {made}",
        f"decoder: {feeding.decode}; {feeding.cpu}, {format_count(feeding.cores, 'core')}",
    ]
    if feeding.skipped:
        told.append(f"passed over: {format_count(feeding.skipped, 'picture')} that could not be used")
    print_dim(console, told)
    console.print()
    print_table(console, tables.thread_table(feeding), lengths=[point.images_per_second for point in feeding.points])
    print_dim(console, describe_covers(feeding))
    if feeding.stages:
        console.print()
        lengths = [*(stage.seconds_per_image for stage in feeding.stages), 0.0]
        print_table(console, tables.stage_table(feeding), lengths=lengths)
    console.print()
    console.print(Text(printable(describe_cores(feeding))))
