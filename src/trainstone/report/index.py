"""The index page of many runs: a table to filter and sort, and charts of speed over time by machine."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import altair as alt

from trainstone.errors import ResultError
from trainstone.report import charts
from trainstone.report.blocks import FactsBlock, Figure, Section
from trainstone.report.charts import PALETTE, Rows
from trainstone.report.page import PAGE_NAME, Page, write_page
from trainstone.report.view import relative_url
from trainstone.results.knee import find_knee_row, label_row
from trainstone.results.run_folder import read_result
from trainstone.results.schema.run import Result
from trainstone.results.tables import Table, build_sortable_table
from trainstone.results.training import describe_metric
from trainstone.units import format_count, format_percent, format_rate, format_seconds

MAX_TRENDS = 6
NUMERIC = ("batch", "quality", "images/s", "±", "step")


def write_index(paths: Sequence[Path], target: Path) -> int:
    """Write the index page of these runs; return how many of them could not be read."""
    page, num_broken = build_index(paths, target.parent)
    write_page(page, target)
    return num_broken


def build_index(paths: Sequence[Path], base: Path) -> tuple[Page, int]:
    """Build the index page: the table, a trend per repeated configuration, and a list of damaged runs.

    Returns the page and the number of damaged runs.
    """
    read, broken = [], []
    for path in paths:
        try:
            read.append((path, read_result(path)))
        except ResultError as err:
            broken.append((str(path), err.message))
    sections = [Section("runs", "Runs", [build_runs_table(read, base)], "Intervals (±) are at 95 %.")] if read else []
    if trends := draw_trends([result for _, result in read]):
        lead = "Each point is a run with its 95 % interval; colours are machines."
        sections.append(Section("trends", "Speed over time", trends, lead))
    if broken:
        sections.append(Section("unreadable", "Runs that cannot be read", [FactsBlock(broken)]))
    machines = format_count(len({result.process.host for _, result in read}), "machine")
    recipes = format_count(len({result.recipe.name for _, result in read}), "recipe")
    runs = format_count(len(read), "run")
    page = Page(f"trainstone: {runs}", "index of runs", f"{runs} of {recipes} on {machines}", sections, wide=True)
    return page, len(broken)


def build_runs_table(runs: Sequence[tuple[Path, Result]], base: Path) -> Table:
    """Return one row per run, newest first; formatted cells sort by their number."""
    newest = sorted(runs, key=lambda run: run[1].process.started_utc, reverse=True)
    described = [describe_run(result) for _, result in newest]
    # Only training runs have a quality.
    columns = [name for name in described[0][0] if name != "quality" or any(result.quality for _, result in runs)]
    cells = [[(texts[name], numbers.get(name) or texts[name]) for name in columns] for texts, numbers in described]
    files = [path / PAGE_NAME if (path / PAGE_NAME).is_file() else path / "result.json" for path, _ in newest]
    table = build_sortable_table({name: name in NUMERIC for name in columns}, cells)
    return replace(table, links=[relative_url(file, base) for file in files], filterable=True)


def describe_run(result: Result) -> tuple[dict[str, str], dict[str, float | None]]:
    """Return a run's cells and their sort keys."""
    train = result.config.get("train", {})
    batch, best = str(train.get("batch_size", "")), None
    if sweep := result.sweep:  # shown by the knee of its fastest curve, or its fastest point
        knee = max(sweep.knees, key=lambda knee: knee.best_images_per_second, default=None)
        rated = [row for row in sweep.rows if row.images_per_second is not None]
        best = (find_knee_row(sweep, knee) if knee else None) or max(rated, key=lambda row: row.rate, default=None)
        batch = f"sweep {sweep.describe_batches() or sweep.key}" + (f": {label_row(sweep, best)}" if best else "")
    measured = best if result.sweep else result.throughput
    rate = measured.images_per_second if measured else None
    half = measured.half_width if measured else None
    step = result.step_seconds.median if result.step_seconds else None
    evaluated = result.quality and (result.quality.history or result.repeated)
    quality = result.quality if evaluated else None
    value = quality.value if quality else None
    texts = {
        "run": result.run_id,
        "date": result.process.started_utc[:16].replace("T", " "),
        "recipe": f"{result.recipe.name} v{result.recipe.version}",
        "machine": result.process.host,
        "device": describe_devices(result),
        "batch": batch,
        "precision": str(train.get("precision", "")),
        "quality": "" if quality is None or value is None else describe_metric(quality.metric, value, quality.target),
        "images/s": "" if rate is None else format_rate(rate),
        "±": "" if half is None else format_percent(half),
        "step": "" if step is None else format_seconds(step),
        "noise": result.noise.grade if result.noise else "",
        "status": result.status,
    }
    return texts, {"quality": value, "images/s": rate, "±": half, "step": step}


def describe_devices(result: Result) -> str:
    """Return the devices as text, e.g. `4 × NVIDIA A100`."""
    names = [device.name for device in result.devices]
    return f"{len(names)} × {names[0]}" if len(names) > 1 else "".join(names)


def draw_trends(results: Sequence[Result]) -> list[Figure]:
    """Draw speed over time per configuration (recipe, batch, precision) with at least two runs, most runs first."""
    groups: dict[str, Rows] = {}
    for result in results:
        if result.throughput is None:
            continue
        train, rate = result.config.get("train", {}), result.throughput.images_per_second
        low, high = result.throughput.ci95 or (rate, rate)
        what = f"{result.recipe.name} v{result.recipe.version}{', trained' if result.kind == 'train' else ''}"
        row = {"date": result.process.started_utc, "rate": rate, "low": low, "high": high}
        row |= {"machine": f"{result.process.host}, {describe_devices(result)}", "run": result.run_id}
        label = f"{what}, batch {train.get('batch_size')}, {train.get('precision')}"
        groups.setdefault(label, []).append(row)
    repeated = sorted((item for item in groups.items() if len(item[1]) > 1), key=lambda item: -len(item[1]))
    figures = []
    for number, (label, rows) in enumerate(repeated[:MAX_TRENDS]):
        machines = sorted({row["machine"] for row in rows})
        kinds = dict(zip(machines, itertools.cycle(PALETTE), strict=False))
        color = charts.colour_scale(kinds, "machine", columns=1, labelLimit=300)
        x = alt.X("date:T", title=None, axis=alt.Axis(labelOverlap=True))
        y = charts.y_axis("images/s", "rate", zero=False, nice=True, padding=8)
        tooltip = charts.tooltips("run", "machine", "date:T", rate="images/s")
        points = charts.points(rows, 60, x=x, y=y, color=color, tooltip=tooltip)
        layers = [charts.intervals(rows, x, y, color), points]
        figures.append(charts.build_figure(f"trend-{number}", label, "", layers, height=220))
    return figures
