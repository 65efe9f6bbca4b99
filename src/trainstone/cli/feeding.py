"""What `trainstone data bench` prints: speed by threads, stages, cores."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trainstone.cli.sparkline import draw_bars
from trainstone.results.feeding import (
    Feeding,
    describe_cores,
    describe_covers,
    describe_spread,
    format_microseconds,
)
from trainstone.text import printable
from trainstone.units import format_bytes, format_count, format_percent, format_rate

BAR_WIDTH = 30
LEAST_BAR = 4
"""A shorter bar tells nothing."""
INDENT = 2
NARROW_WIDTH = 60


def print_feeding(console: Console, feeding: Feeding) -> None:
    """From what was loaded to the cores that a training needs."""
    print_heading(console, feeding)
    print_points(console, feeding)
    print_stages(console, feeding)
    console.print()
    console.print(Text(printable(describe_cores(feeding))))


def print_heading(console: Console, feeding: Feeding) -> None:
    """Name the data, and what is done to a picture."""
    pictures = f"{format_count(feeding.pictures, 'picture')} in {feeding.split}"
    console.print(Text(printable(f"{feeding.path}: {pictures}, {feeding.storage}"), style="bold"))
    made = f"{feeding.image_size} x {feeding.image_size}, batches of {feeding.batch_size:,}"
    told = [
        f"{format_bytes(feeding.picture_bytes)} a picture; {feeding.transform}; to {made}",
        f"engine: {feeding.engine}; decoder: {feeding.decode}; {feeding.cpu}, {format_count(feeding.cores, 'core')}",
    ]
    if feeding.skipped:
        told.append(f"passed over: {format_count(feeding.skipped, 'picture')} that could not be used")
    for line in told:
        console.print(Text(printable(line), style="dim"))
    console.print()


def print_points(console: Console, feeding: Feeding) -> None:
    """A row for each number of threads."""
    columns = {
        "threads": [str(point.threads) for point in feeding.points],
        "images/s": join([(format_rate(point.images_per_second), describe_spread(point)) for point in feeding.points]),
        "a core": [format_rate(point.images_per_second_per_core) for point in feeding.points],
    }
    if console.width >= NARROW_WIDTH and any(point.cpu_cores for point in feeding.points):
        busy = ["" if point.cpu_cores is None else f"{point.cpu_cores:.1f}" for point in feeding.points]
        columns["busy CPUs"] = busy
    print_with_bars(console, columns, [point.images_per_second for point in feeding.points], left="images/s")
    for line in describe_covers(feeding):
        console.print(Padding(Text(printable(line), style="dim"), (0, 0, 0, INDENT), expand=False))


def print_stages(console: Console, feeding: Feeding) -> None:
    """A row for each stage, in the order of a picture's way."""
    if not feeding.stages:
        return
    console.print()
    columns = {
        "stage": [printable(stage.name) for stage in feeding.stages],
        "µs an image": [format_microseconds(stage.seconds_per_image) for stage in feeding.stages],
        "share": [format_percent(stage.share) for stage in feeding.stages],
    }
    print_with_bars(console, columns, [stage.seconds_per_image for stage in feeding.stages], left="stage")


def join(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return numbers, flush right, each with its spread."""
    width = max(len(number) for number, _ in pairs)
    return [f"{number:>{width}} {spread}".rstrip() for number, spread in pairs]


def print_with_bars(console: Console, columns: dict[str, list[str]], lengths: Sequence[float], *, left: str) -> None:
    """Columns of numbers, the one called `left` flush left, and a bar where there is room."""
    used = INDENT + sum(2 + max(cell_len(cell) for cell in (head, *cells)) for head, cells in columns.items())
    room = min(BAR_WIDTH, console.width - used)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for head in columns:
        table.add_column(Text(head), justify="left" if head == left else "right", overflow="fold")
    bars = []
    if room >= LEAST_BAR:
        table.add_column(Text(""), no_wrap=True)
        bars.append([Text(bar, style="cyan") for bar in draw_bars(lengths, room, encoding=console.encoding)])
    cells = [[Text(cell) for cell in column] for column in columns.values()]
    for row in zip(*cells, *bars, strict=True):
        table.add_row(*row)
    console.print(Padding(table, (0, 0, 0, INDENT), expand=False))
