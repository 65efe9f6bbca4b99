"""The index of many runs: a table to filter and sort, and the speed over dates, by machine."""

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from trainstone.errors import ResultError
from trainstone.report import charts
from trainstone.report.blocks import Block, Facts, Figure, Section
from trainstone.report.charts import PALETTE
from trainstone.report.page import PAGE_NAME, Page, write_page
from trainstone.report.view import relative_address
from trainstone.results.learning import describe_metric
from trainstone.results.schema import Result, Throughput
from trainstone.results.store import read_result
from trainstone.results.sweep import Sweep, SweepRow, find_knee_row, label_row
from trainstone.results.tables import Table
from trainstone.units import format_count, format_percent, format_rate, format_seconds

MAX_TRENDS = 6
NUMERIC = ("batch", "quality", "images/s", "±", "step")


Entries = tuple[list[tuple[Path, Result]], list[tuple[str, str]]]
"""Runs with their results; folders that cannot be read, and why."""


def read_entries(paths: Iterable[Path]) -> Entries:
    """Read results; a damaged one is listed with its fault instead of ending the index."""
    runs, broken = [], []
    for path in paths:
        try:
            runs.append((path, read_result(path)))
        except ResultError as err:
            broken.append((str(path), err.message))
    return runs, broken


def write_index(paths: Sequence[Path], target: Path) -> int:
    """Write the index page of these runs; return how many of them could not be read."""
    entries = read_entries(paths)
    write_page(build_index(entries, target.parent), target)
    return len(entries[1])


def build_index(entries: Entries, base: Path) -> Page:
    """Table first, then one trend for each thing that was run more than once."""
    read, broken = entries
    sections = [Section("runs", "Runs", [tabulate(read, base)], "Intervals (±) are at 95 %.")] if read else []
    trends: list[Block] = list(draw_trends([result for _, result in read]))
    if trends:
        lead = "Each point is a run with its interval; colours are machines."
        sections.append(Section("trends", "Speed over time", trends, lead))
    if broken:
        sections.append(Section("unreadable", "Not readable", [Facts(broken)]))
    machines = format_count(len({result.process.host for _, result in read}), "machine")
    recipes = format_count(len({result.recipe.name for _, result in read}), "recipe")
    runs = format_count(len(read), "run")
    return Page(
        title=f"trainstone: {runs}",
        about="index of runs",
        verdict=f"{runs} of {recipes} on {machines}",
        sections=sections,
        wide=True,
    )


def tabulate(runs: Sequence[tuple[Path, Result]], base: Path) -> Table:
    """One row for each run, newest first; sorted by numbers where cells are formatted."""
    newest = sorted(runs, key=lambda run: run[1].process.started_utc, reverse=True)
    described = [describe_run(result) for _, result in newest]
    # Only trainings have a quality
    columns = [name for name in described[0][0] if name != "quality" or any(result.quality for _, result in runs)]
    return Table(
        columns,
        [[texts[name] for name in columns] for texts, _ in described],
        links=[address(path, base) for path, _ in newest],
        sortable=True,
        numeric=[name in NUMERIC for name in columns],
        keys=[[numbers.get(name) or texts[name] for name in columns] for texts, numbers in described],
        filterable=True,
    )


def describe_run(result: Result) -> tuple[dict[str, str], dict[str, float | None]]:
    """Return a run's cells, and the numbers behind them to sort by."""
    train = result.config.get("train", {})
    measured = find_best_row(result.sweep) if result.sweep else result.throughput
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
        "device": name_devices(result),
        "batch": describe_batches(result.sweep) if result.sweep else str(train.get("batch_size", "")),
        "precision": str(train.get("precision", "")),
        "quality": "" if quality is None or value is None else describe_metric(quality.metric, value, quality.target),
        "images/s": "" if rate is None else format_rate(rate),
        "±": "" if half is None else format_percent(half),
        "step": "" if step is None else format_seconds(step),
        "noise": result.noise.grade if result.noise else "",
        "status": result.status,
    }
    return texts, {"quality": value, "images/s": rate, "±": half, "step": step}


def find_best_row(sweep: Sweep) -> SweepRow | None:
    """Return the point that stands for a sweep: its fastest curve's knee, or its fastest point."""
    knee = max(sweep.knees, key=lambda knee: knee.best_images_per_second, default=None)
    found = find_knee_row(sweep, knee) if knee else None
    measured = [row for row in sweep.rows if row.images_per_second is not None]
    return found or max(measured, key=lambda row: row.images_per_second or 0, default=None)


def describe_batches(sweep: Sweep) -> str:
    """Return sweep 1 … 128: batch 8, or what else was swept."""
    best, batches = find_best_row(sweep), sweep.tell_batches()
    return f"sweep {batches or sweep.key}" + (f": {label_row(sweep, best)}" if best else "")


def name_devices(result: Result) -> str:
    """Return 4 × NVIDIA A100, or the one name."""
    if not result.devices:
        return ""
    number = len(result.devices)
    return f"{number} × {result.devices[0].name}" if number > 1 else result.devices[0].name


def address(path: Path, base: Path) -> str:
    file = path / PAGE_NAME if (path / PAGE_NAME).is_file() else path / "result.json"
    return relative_address(file, base)


def draw_trends(results: Sequence[Result]) -> list[Figure]:
    """Draw what was run at least twice: same recipe, batch and precision; the most often run first."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        if result.throughput is not None:
            train = result.config.get("train", {})
            what = f"{result.recipe.name} v{result.recipe.version}{', trained' if result.kind == 'train' else ''}"
            label = f"{what}, batch {train.get('batch_size')}, {train.get('precision')}"
            groups.setdefault(label, []).append(result)
    often = sorted((item for item in groups.items() if len(item[1]) > 1), key=lambda item: -len(item[1]))
    return [draw_trend(f"trend-{number}", label, group) for number, (label, group) in enumerate(often[:MAX_TRENDS])]


def draw_trend(name: str, label: str, results: Sequence[Result]) -> Figure:
    """Throughput over dates, a colour for each machine."""
    rows = [_trend_row(result, result.throughput) for result in results if result.throughput is not None]
    machines = sorted({row["machine"] for row in rows})
    kinds = dict(zip(machines, itertools.cycle(PALETTE), strict=False))
    color = charts.colours(kinds, "machine", columns=1, labelLimit=300)
    x = alt.X("date:T", title=None, axis=alt.Axis(labelOverlap=True))
    y = charts.up("images/s", "rate", zero=False, nice=True, padding=8)
    tooltip = charts.tips("run", "machine", "date:T", rate="images/s")
    points = charts.points(rows, 60, x=x, y=y, color=color, tooltip=tooltip)
    return charts.figure(name, label, "", [charts.intervals(rows, x, y, color), points], height=220)


def _trend_row(result: Result, throughput: Throughput) -> dict[str, Any]:
    low, high = throughput.ci95 or (throughput.images_per_second,) * 2
    return {
        "date": result.process.started_utc,
        "rate": throughput.images_per_second,
        "low": low,
        "high": high,
        "machine": f"{result.process.host}, {name_devices(result)}",
        "run": result.run_id,
    }
