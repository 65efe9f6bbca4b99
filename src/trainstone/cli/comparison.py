"""A comparison on the terminal: a table, or blocks where it is narrow, then differences and the verdict."""

from collections.abc import Iterator

from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trainstone.results.anchors import describe_share
from trainstone.results.schema import Comparison, ComparisonRow, Side
from trainstone.results.sides import ON_BOTH
from trainstone.text import printable
from trainstone.units import format_percent, format_rate, format_ratio

MAX_SOURCES = 5
"""With more published figures than this, their sources are left to --json and --page."""
STYLES = {"faster": "green", "slower": "red", "no difference shown": "dim", "not judged": "dim"}


def print_comparison(console: Console, comparison: Comparison, *, verdict: bool = True) -> None:
    """Print rows that hold runs against runs, what else differs and, unless it stands elsewhere, the verdict."""
    table = make_table(comparison.rows)
    if fits(console, table):
        console.print(table)
    else:
        for row in comparison.rows:
            print_block(console, row, several=len(comparison.rows) > 1)
    for note in notes(comparison):
        console.print(Text(printable(note), style="dim"))
    if verdict:
        console.print()
        console.print(Text(printable(comparison.verdict), style="bold"))


def print_shares(console: Console, rows: list[ComparisonRow]) -> None:
    """Print what share of each published figure was reached, device by device; fastest figures first."""
    ranked = sorted(rows, key=lambda row: -row.b.images_per_second)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(Text("images/s a device"), overflow="fold")
    for head in ("published", "A", "A / published"):
        table.add_column(Text(head), justify="right", overflow="fold")
    for row in ranked:
        rates = format_rate(row.b.images_per_second), format_rate(row.a.images_per_second)
        table.add_row(Text(printable(row.label), style="bold"), *rates, describe_share(row))
    if fits(console, table):
        console.print(table)
    else:
        for row in ranked:
            reached = f"{format_rate(row.a.images_per_second)} of {format_rate(row.b.images_per_second)}"
            console.print(Text(printable(row.label), style="bold"))
            console.print(Text(f"  {reached} images/s a device\n  {describe_share(row)}"))
    for line in sources(rows):
        console.print(Text(printable(line), style="dim"))
    console.print()


def sources(rows: list[ComparisonRow]) -> Iterator[str]:
    """What the intervals cover and, of a few figures, where they stand and how they were got."""
    yield from (f"interval: {covers}" for covers in dict.fromkeys(row.ci_covers for row in rows))
    if len(rows) > MAX_SOURCES:
        yield "sources and differences of each: --json, --page, or --to with its name"
        return
    for row in rows:
        prefix = f"{row.label}: " if len(rows) > 1 else ""
        yield f"{prefix}source: {row.b.source}"
        yield from (f"{prefix}{tell_difference(difference)}" for difference in row.differences)


def tell_difference(difference: str) -> str:
    """Return differs: host: x | y, or what both have: steady: no on both sides."""
    return difference if difference.endswith(ON_BOTH) else f"differs: {difference}"


def fits(console: Console, table: Table) -> bool:
    """Say whether a table can be printed without folding its cells."""
    unlimited = console.options.update(max_width=10_000)
    return Measurement.get(console, unlimited, table).maximum <= console.width


def make_table(rows: list[ComparisonRow]) -> Table:
    """One line a row; the sides are named in the head where all rows have the same ones."""
    several = len(rows) > 1
    heads = _name_side("A", [row.a for row in rows]), _name_side("B", [row.b for row in rows])
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column()
    for head in heads:
        table.add_column(Text(head), justify="right", overflow="fold")
    table.add_column(Text("A / B"), overflow="fold")
    if several:
        table.add_column(Text("p (Holm)"), no_wrap=True)
    table.add_column(Text("judgement"))
    for row in rows:
        sides = _tell_side(row.a, named=heads[0] == "A"), _tell_side(row.b, named=heads[1] == "B")
        corrected = [Text(_format_p(row.p_holm))] if several else []
        ratio = Text(describe_ratio(row))
        table.add_row(Text(printable(row.label), style="bold"), *sides, ratio, *corrected, _tell_judgement(row))
    return table


def print_block(console: Console, row: ComparisonRow, *, several: bool) -> None:
    """The same as lines, for a narrow terminal."""
    console.print(Text(printable(row.label), style="bold"))
    lines = [("A", _tell_side(row.a, named=True)), ("B", _tell_side(row.b, named=True))]
    lines.append(("A / B", Text(describe_ratio(row))))
    if several:
        lines.append(("p (Holm)", Text(_format_p(row.p_holm))))
    lines.append(("", _tell_judgement(row)))
    for name, told in lines:
        console.print(Padding(Text.assemble((f"{name}  " if name else "", "dim"), told), (0, 0, 0, 2), expand=False))


def describe_ratio(row: ComparisonRow) -> str:
    """Return 1.234 (1.201 … 1.268)."""
    interval = " … ".join(format_ratio(end) for end in row.ci95) if row.ci95 else "no interval"
    return f"{format_ratio(row.ratio)} ({interval})"


def notes(comparison: Comparison) -> Iterator[str]:
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
        yield from (f"{prefix}{tell_difference(difference)}" for difference in row.differences)
    if comparison.geometric_mean is not None:
        yield f"geometric mean of A / B: {format_ratio(comparison.geometric_mean)}"


def _name_side(letter: str, sides: list[Side]) -> str:
    labels = {side.label for side in sides}
    return f"{letter}: {printable(labels.pop())}" if len(labels) == 1 else letter


def _tell_side(side: Side, *, named: bool) -> Text:
    rate = f"{format_rate(side.images_per_second)} images/s"
    return Text(f"{printable(side.label)}: {rate}" if named else rate)


def _tell_judgement(row: ComparisonRow) -> Text:
    return Text(row.judgement, style=STYLES[row.judgement])


def _format_p(value: float | None) -> str:
    if value is None:
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
