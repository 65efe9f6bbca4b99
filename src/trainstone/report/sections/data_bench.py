"""Report sections of `trainstone data bench`: images/s by threads, time per stage, cores needed, method."""

from collections.abc import Callable
from typing import Any

import altair as alt

from trainstone.report import charts
from trainstone.report.blocks import FactsBlock, Prose, Section
from trainstone.report.view import RunView
from trainstone.results import loader_speed
from trainstone.results.schema.data_bench import DataBenchResult
from trainstone.results.tables import build_stage_table, build_thread_table
from trainstone.units import format_bytes, format_count, format_interval, format_percent, format_rate

METHOD = (
    "Reading, decoding, cropping, resizing and batching of images are timed; no model is trained meanwhile. Images/s "
    "per core is images/s divided by the number of busy cores: the process's CPU seconds per second (the number of "
    "threads if that is unknown), at most the number of cores. The cores that training needs are its images/s divided "
    "by the images/s per core with the most threads, because that rate usually falls as threads share caches, memory "
    "and power. A stage's time is per image on one thread, with the fewest threads measured."
)
MAX_DEMAND_RATIO = 2.0  # a demand above this many times the best rate is not drawn: it would flatten the points


def for_data_bench(build: Callable[[DataBenchResult], Section | None]) -> Callable[[RunView], Section | None]:
    return lambda view: None if view.result.data_bench is None else build(view.result.data_bench)


@for_data_bench
def build_overview(bench: DataBenchResult) -> Section:
    best, stage, needed = (
        loader_speed.find_best_point(bench),
        loader_speed.find_largest_stage(bench),
        loader_speed.cores_needed(bench),
    )
    tiles = [
        (f"images/s, {format_count(best.threads, 'thread')}", format_rate(best.images_per_second)),
        ("images/s per core", format_rate(best.images_per_second_per_core)),
    ]
    if stage is not None:
        tiles.append((f"of the time: {loader_speed.WORK.get(stage.name, stage.name)}", format_percent(stage.share, 0)))
    if bench.demand is not None and needed is not None:
        demanded = format_rate(bench.demand.images_per_second)
        tiles.append((f"cores for {demanded} images/s", loader_speed.format_cores(needed)))
    tiles.append(("cores of this machine", f"{bench.cores:,}"))
    if bench.skipped:
        tiles.append(("images skipped", f"{bench.skipped:,}"))
    return Section("overview", "At a glance", [FactsBlock(tiles, big=True)])


@for_data_bench
def build_threads(bench: DataBenchResult) -> Section:
    best = loader_speed.find_best_point(bench)
    fastest = f"{format_rate(best.images_per_second)} images/s with {format_count(best.threads, 'thread')}"
    lead = f"{fastest}; {'; '.join(loader_speed.describe_covers(bench))}."
    if len(bench.points) < 2:
        return Section("threads", "Speed by threads", [build_thread_table(bench)], lead)
    rows: list[dict[str, Any]] = []
    for point in sorted(bench.points, key=lambda point: point.threads):
        interval = f" ({format_interval(point.ci95)})" if point.ci95 else ""
        rate, shown = point.images_per_second, f"{format_rate(point.images_per_second)}{interval}"
        ends = {"low": max(0.0, point.ci95[0]), "high": point.ci95[1]} if point.ci95 else {}
        rows.append({"x": point.threads, "y": rate, "shown": shown, "core": point.images_per_second_per_core, **ends})
    most = rows[-1]["x"]
    x = charts.x_axis("threads", domain=[0, most + 0.5], nice=False, values=[row["x"] for row in rows], grid=False)
    y, color = charts.y_axis("images/s"), alt.value(charts.BLUE)
    tooltip = charts.tooltips("core", x="threads", shown="images/s")
    layers = [*charts.lines(rows, size=36, x=x, y=y, color=color, tooltip=tooltip), charts.intervals(rows, x, y, color)]
    described = "Images per second by threads: " + "; ".join(f"{row['x']}: {row['shown']}" for row in rows) + "."
    demanded = bench.demand.images_per_second if bench.demand else 0.0
    if 0 < demanded <= MAX_DEMAND_RATIO * max(row["y"] for row in rows):
        layers.append(charts.mark("rule", [{"y": demanded}], {"strokeWidth": 2, "color": charts.ORANGE}, y=y))
        described += f" The line at {format_rate(demanded)} images/s is what training needs."
    drawn = charts.build_figure("threads", "Images/s by threads", described, layers, height=280)
    return Section("threads", "Speed by threads", [drawn, build_thread_table(bench)], lead)


@for_data_bench
def build_stages(bench: DataBenchResult) -> Section | None:
    largest = loader_speed.find_largest_stage(bench)
    if largest is None:
        return None
    rows: list[dict[str, Any]] = []
    for stage in bench.stages:
        spent, share = loader_speed.format_microseconds(stage.seconds_per_image), format_percent(stage.share, 0)
        rows.append({"what": stage.name, "x": stage.seconds_per_image * 1e6, "shown": spent, "share": share})
    # Leave room for the label of the longest bar. All stages may be 0: faster than the clock's resolution.
    x = charts.x_axis("µs per image", domain=[0, 1.15 * max(row["x"] for row in rows) or 1.0], nice=False, tickCount=5)
    tooltip = charts.tooltips("share", what="stage", shown="µs per image")
    chart = charts.bar_chart(rows, x, step=34, limit=160, label="share", tooltip=tooltip)
    summary = "; ".join(f"{row['what']}: {row['shown']} µs, {row['share']}" for row in rows)
    drawn = charts.build_figure("stages", "Time per image and stage", f"Microseconds per image: {summary}.", chart)
    total = loader_speed.format_microseconds(sum(stage.seconds_per_image for stage in bench.stages))
    name = loader_speed.WORK.get(largest.name, largest.name)
    lead = f"Of {total} µs per image, {name} takes {format_percent(largest.share, 0)}."
    return Section("stages", "Where the time goes", [drawn, build_stage_table(bench)], lead)


@for_data_bench
def build_cores(bench: DataBenchResult) -> Section:
    """Say how many cores training needs; a lead, because it wraps long device names."""
    return Section("cores", "Cores needed for training", [], loader_speed.describe_cores(bench))


@for_data_bench
def build_method(bench: DataBenchResult) -> Section:
    facts = [
        ("data", bench.path),
        ("stored as", bench.storage),
        ("split", f"{bench.split}, {format_count(bench.images, 'image')}"),
        ("stored size per image", f"{format_bytes(bench.image_bytes)}, mean of the images read"),
        ("transform", f"{bench.transform}; {bench.image_size} × {bench.image_size} pixels"),
        ("batch", format_count(bench.batch_size, "image")),
        ("decoder", bench.decode),
        ("CPU", f"{bench.cpu}, {format_count(bench.cores, 'core')} available"),
        ("skipped", f"{format_count(bench.skipped, 'damaged image')}"),
    ]
    return Section("method", "How it was measured", [Prose(METHOD), FactsBlock(facts)])
