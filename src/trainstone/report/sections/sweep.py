"""A sweep: the curve with its knee, what explains it, and every point with a link to its page."""

from trainstone.report.blocks import Block, Prose, Section, Table
from trainstone.report.sections.points import address
from trainstone.report.sweep_charts import draw_memory, draw_mfu, draw_rates, draw_step_times, draw_utilisation
from trainstone.report.view import RunView
from trainstone.results.schema import FINISHED
from trainstone.results.sweep import Sweep, SweepRow, label_row, name_key
from trainstone.results.sweptcells import describe_cells
from trainstone.units import format_count


def build(view: RunView) -> Section | None:
    """Charts of what there is, sentences, table."""
    sweep = view.result.sweep
    if sweep is None:
        return None
    blocks: list[Block] = []
    curve = draw_rates(sweep)
    blocks += [curve] if curve else []
    blocks += [Prose(sentence) for sentence in sweep.told]
    charts = (draw_step_times(sweep), draw_mfu(sweep), draw_utilisation(sweep), draw_memory(sweep))
    blocks += [chart for chart in charts if chart]
    blocks += [tabulate(view, sweep)] if sweep.rows else []
    return Section("sweep", f"Sweep over {name_key(sweep.key)}", blocks, tell_lead(view, sweep))


def tell_lead(view: RunView, sweep: Sweep) -> str:
    """Say how many points there are, and whether that is all."""
    done = len(sweep.rows)
    told = format_count(sweep.num_points, "point")
    if view.result.status not in FINISHED:
        told = f"The sweep is {view.result.status}: {done} of {told}"
    known = any(row.ci95 is not None for row in sweep.rows)
    bars = "bars are 95 % intervals" if known else "no point has an interval"
    return f"{told}, each a process of its own, run in shuffled order; {bars}."


def tabulate(view: RunView, sweep: Sweep) -> Table:
    """One row a point; columns that no point has are left out."""
    cells = [describe_cells(sweep, row) for row in sweep.rows]
    columns = [name for name in cells[0] if any(line[name] for line in cells)]
    links = {child.run: address(view, child) for child in view.children}
    return Table(
        ["point", "run as", *columns],
        [
            [label_row(sweep, row), f"no. {row.order}", *(line[name] for name in columns)]
            for row, line in zip(sweep.rows, cells, strict=True)
        ],
        links=[links.get(row.run) for row in sweep.rows],
        numeric=[False, True, *(name != "note" for name in columns)],
        sortable=True,
        keys=[sort_by(row, line, columns) for row, line in zip(sweep.rows, cells, strict=True)],
    )


def sort_by(row: SweepRow, line: dict[str, str], columns: list[str]) -> list[float | str]:
    """Return what a row is sorted by: numbers where there are any."""
    low, high = row.ci95 or (0.0, 0.0)
    numbers: dict[str, float | None] = {
        "images/s": row.images_per_second,
        "±": (high - low) / 2 / row.images_per_second if row.ci95 and row.images_per_second else None,
        "MFU": row.mfu,
        "memory": row.memory_bytes,
        "utilisation": row.compute_utilisation,
        **row.cores_percent,
    }
    value = row.value if isinstance(row.value, int | float) else str(row.value)
    return [value, row.order, *(numbers.get(name) or line[name] for name in columns)]
