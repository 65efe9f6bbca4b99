"""The tables of results/tables.py on the terminal: comparisons, sweeps, data benches; lines where it is narrow."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from trainstone.cli.sparkline import draw_bars
from trainstone.results.anchors import describe_share
from trainstone.results.feeding import Feeding, describe_cores, describe_covers, describe_spread
from trainstone.results.schema import Comparison, ComparisonRow
from trainstone.results.sides import ON_BOTH
from trainstone.results.sweep import Sweep, SweepRow, format_setting, name_key
from trainstone.results.tables import (
    Table,
    comparison_table,
    format_side,
    is_knee,
    stage_table,
    sweep_table,
)
from trainstone.text import printable
from trainstone.units import format_bytes, format_count, format_percent, format_rate, format_ratio

MAX_SOURCES = 5
"""With more published figures than this, their sources are left to --json and --page."""
JUDGEMENTS = {"faster": "green", "slower": "red", "no difference shown": "dim", "not judged": "dim"}
SWEEP_BAR, THREAD_BAR, LEAST_BAR = 16, 30, 4
"""Width of bars; a shorter one than the last tells nothing."""
LONGEST_NOTE = 32
INDENT = 2
NARROW_WIDTH = 60


def print_indented(console: Console, shown: RichTable | Text) -> None:
    """Print with some room on the left."""
    console.print(Padding(shown, (0, 0, 0, INDENT), expand=False))


def print_dim(console: Console, lines: Iterator[str] | Sequence[str]) -> None:
    """Print lines that explain."""
    for line in lines:
        console.print(Text(printable(line), style="dim"))


def lay_out(table: Table, rows: Sequence[Sequence[Text]] | None = None, *, pad_edge: bool = True) -> RichTable:
    """Return a table without lines, numbers flush right; `rows` are its cells where they have a style."""
    laid = RichTable(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=pad_edge)
    for head, numeric in zip(table.columns, table.numeric, strict=True):
        laid.add_column(Text(printable(head)), justify="right" if numeric else "left", overflow="fold")
    for row in rows or [[Text(printable(cell)) for cell in row] for row in table.rows]:
        laid.add_row(*row)
    return laid


def fits(console: Console, table: RichTable, indent: int = 0) -> bool:
    """Say whether a table can be printed without folding its cells."""
    unlimited = console.options.update(max_width=10_000)
    return Measurement.get(console, unlimited, table).maximum + indent <= console.width


def print_comparison(console: Console, comparison: Comparison, *, verdict: bool = True) -> None:
    """Print rows that hold runs against runs, what else differs and, unless it stands elsewhere, the verdict."""
    rows, table = comparison.rows, comparison_table(comparison.rows)
    styled = [
        [Text(printable(cells[0]), style="bold"), *(Text(printable(cell)) for cell in cells[1:-1]), _style(row)]
        for row, cells in zip(rows, table.rows, strict=True)
    ]
    laid = lay_out(table, styled)
    if fits(console, laid):
        console.print(laid)
    else:
        for row, cells in zip(rows, table.rows, strict=True):
            console.print(Text(printable(row.label), style="bold"))
            named = [("A", format_side(row.a)), ("B", format_side(row.b))]
            named += zip(table.columns[3:-1], cells[3:-1], strict=True)
            for name, told in named:
                print_indented(console, Text.assemble((f"{name}  ", "dim"), printable(told)))
            print_indented(console, _style(row))
    print_dim(console, list_notes(comparison))
    if verdict:
        console.print()
        console.print(Text(printable(comparison.verdict), style="bold"))


def _style(row: ComparisonRow) -> Text:
    return Text(row.judgement, style=JUDGEMENTS[row.judgement])


def print_shares(console: Console, rows: list[ComparisonRow]) -> None:
    """Print what share of each published figure was reached, device by device; fastest figures first."""
    ranked = sorted(rows, key=lambda row: -row.b.images_per_second)
    cells = [
        [row.label, format_rate(row.b.images_per_second), format_rate(row.a.images_per_second), describe_share(row)]
        for row in ranked
    ]
    table = Table(["images/s a device", "published", "A", "A / published"], cells, numeric=[False, True, True, True])
    styled = [[Text(printable(first), style="bold"), *map(Text, others)] for first, *others in cells]
    laid = lay_out(table, styled)
    if fits(console, laid):
        console.print(laid)
    else:
        for label, published, reached, share in cells:
            console.print(Text(printable(label), style="bold"))
            console.print(Text(f"  {reached} of {published} images/s a device\n  {share}"))
    print_dim(console, list_sources(rows))
    console.print()


def list_sources(rows: list[ComparisonRow]) -> Iterator[str]:
    """What the intervals cover and, of a few figures, where they stand and how they were got."""
    yield from (f"interval: {covers}" for covers in dict.fromkeys(row.ci_covers for row in rows))
    if len(rows) > MAX_SOURCES:
        yield "sources and differences of each: --json, --page, or --to with its name"
        return
    for row in rows:
        prefix = f"{row.label}: " if len(rows) > 1 else ""
        yield f"{prefix}source: {row.b.source}"
        yield from (f"{prefix}{format_difference(difference)}" for difference in row.differences)


def format_difference(difference: str) -> str:
    """Return differs: host: x | y, or what both have: steady: no on both sides."""
    return difference if difference.endswith(ON_BOTH) else f"differs: {difference}"


def list_notes(comparison: Comparison) -> Iterator[str]:
    """What the intervals cover, noise floors, differences; the row is named where there are several."""
    several = len(comparison.rows) > 1
    for covers in dict.fromkeys(row.ci_covers for row in comparison.rows):
        labels = ", ".join(row.label for row in comparison.rows if row.ci_covers == covers)
        shared = all(row.ci_covers == covers for row in comparison.rows)
        yield f"interval {covers}" if shared else f"{labels}: interval {covers}"
    floors = sorted({row.noise_floor for row in comparison.rows if row.noise_floor is not None})
    if floors:
        yield f"noise floor {' to '.join(format_percent(floor) for floor in dict.fromkeys((floors[0], floors[-1])))}"
    for row in comparison.rows:
        prefix = f"{row.label}: " if several else ""
        yield from (f"{prefix}{format_difference(difference)}" for difference in row.differences)
    if comparison.geometric_mean is not None:
        yield f"geometric mean of A / B: {format_ratio(comparison.geometric_mean)}"


def print_sweep(console: Console, sweep: Sweep) -> None:
    """Print the rows so far; without bars, and then as lines, where it is narrow; then what they mean."""
    if sweep.rows:
        bars = draw_bars([row.images_per_second or 0 for row in sweep.rows], SWEEP_BAR, encoding=console.encoding)
        tables = (lay_out_sweep(sweep, bars), lay_out_sweep(sweep, None))
        fitting = next((table for table in tables if fits(console, table, INDENT)), None)
        if fitting is not None:
            print_indented(console, fitting)
        else:
            for line in list_points(sweep):
                console.print(line)
    if sweep.told:
        console.print()
    for sentence in sweep.told:
        console.print(Text(printable(sentence)))


def lay_out_sweep(sweep: Sweep, bars: Sequence[str] | None) -> RichTable:
    """A line a point, the knee in bold, bars after the speed."""
    table = sweep_table(sweep)
    keys = [sweep.key] if sweep.curve_key is None else [sweep.curve_key, sweep.key]
    cut = list(table.columns).index("±" if "±" in table.columns else "images/s") + 1
    between = [""] if bars else []
    columns = [*map(name_key, keys), *table.columns[2:cut], *between, *table.columns[cut:]]
    flags = table.numeric
    numeric = [*([False] * (len(keys) - 1)), True, *flags[2:cut], *([False] * len(between)), *flags[cut:]]
    rows = []
    for place, (row, cells) in enumerate(zip(sweep.rows, table.rows, strict=True)):
        style = "bold" if is_knee(sweep, row) else ""
        before, after = ([Text(shorten(text), style=style) for text in part] for part in (cells[2:cut], cells[cut:]))
        setting = [Text(text, style=style) for text in _list_settings(sweep, row)]
        rows.append([*setting, *before, *([Text(bars[place], style="cyan")] if bars else []), *after])
    return lay_out(Table(columns, [], numeric=numeric), rows)


def list_points(sweep: Sweep) -> Iterator[Text]:
    """The same for a narrow terminal."""
    table = sweep_table(sweep)
    for row, cells in zip(sweep.rows, table.rows, strict=True):
        point = ", ".join(reversed(_list_settings(sweep, row)))
        yield Text(f"{printable(name_key(sweep.key))} {point}", style="bold" if is_knee(sweep, row) else "")
        named = zip(table.columns[2:], cells[2:], strict=True)
        yield Text("  " + ", ".join(f"{name} {shorten(text)}" for name, text in named if text))


def shorten(text: str) -> str:
    """Cut what does not belong into a table; the whole stands in the findings."""
    text = printable(text)
    return text if len(text) <= LONGEST_NOTE else f"{text[: LONGEST_NOTE - 1]}…"


def _list_settings(sweep: Sweep, row: SweepRow) -> list[str]:
    told = [printable(format_setting(row.value))]
    return told if sweep.curve_key is None else [printable(format_setting(row.curve)), *told]


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
    print_threads(console, feeding)
    if feeding.stages:
        console.print()
        stages = stage_table(feeding)
        shown = Table(stages.columns, stages.rows[:-1], numeric=stages.numeric)
        print_with_bars(console, shown, [stage.seconds_per_image for stage in feeding.stages])
    console.print()
    console.print(Text(printable(describe_cores(feeding))))


def print_threads(console: Console, feeding: Feeding) -> None:
    """A row for each number of threads; the spread stands beside the rate, to save a column."""
    busy = console.width >= NARROW_WIDTH and any(point.cpu_cores for point in feeding.points)
    rates = [format_rate(point.images_per_second) for point in feeding.points]
    width = max(map(len, rates))
    rows = [
        [
            str(point.threads),
            f"{rate:>{width}} {describe_spread(point)}".rstrip(),
            format_rate(point.images_per_second_per_core),
            *(["" if point.cpu_cores is None else f"{point.cpu_cores:.1f}"] if busy else []),
        ]
        for rate, point in zip(rates, feeding.points, strict=True)
    ]
    columns = ["threads", "images/s", "a core", *(["busy CPUs"] if busy else [])]
    table = Table(columns, rows, numeric=[name != "images/s" for name in columns])
    print_with_bars(console, table, [point.images_per_second for point in feeding.points])
    for line in describe_covers(feeding):
        print_indented(console, Text(printable(line), style="dim"))


def print_with_bars(console: Console, table: Table, lengths: Sequence[float]) -> None:
    """Print a table, with a bar at the end of each row where there is room."""
    widths = [max(map(cell_len, map(printable, column))) for column in zip(table.columns, *table.rows, strict=True)]
    used = INDENT + sum(2 + width for width in widths)
    room = min(THREAD_BAR, console.width - used)
    rows = [[Text(printable(cell)) for cell in row] for row in table.rows]
    columns, numeric = list(table.columns), list(table.numeric)
    if room >= LEAST_BAR:
        bars = draw_bars(lengths, room, encoding=console.encoding)
        rows = [[*row, Text(bar, style="cyan", no_wrap=True)] for row, bar in zip(rows, bars, strict=True)]
        columns, numeric = [*columns, ""], [*numeric, False]
    print_indented(console, lay_out(Table(columns, [], numeric=numeric), rows, pad_edge=False))
