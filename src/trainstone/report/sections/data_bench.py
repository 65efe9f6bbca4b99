"""`trainstone data bench`: images/s by threads, stages, the cores a training needs, how it was measured."""

from collections.abc import Callable
from typing import Any

import altair as alt

from trainstone.report import charts
from trainstone.report.blocks import FactsBlock, Prose, Section
from trainstone.report.view import RunView
from trainstone.results import loader_speed
from trainstone.results.schema.data_bench import DataBenchResult
from trainstone.results.tables import stage_table, thread_table
from trainstone.units import format_bytes, format_count, format_interval, format_percent, format_rate

METHOD = (
    "Reading, decoding, cropping, resizing and batching of images were timed; nothing trains meanwhile. Images/s a "
    "core are images/s over the cores kept busy: the process's CPU seconds per second (the threads where that is "
    "unknown), at most the cores there are. The cores that a training needs are its images/s over the images/s a core "
    "with the most threads, because that rate usually falls as threads share caches, memory and power. A stage's time "
    "is that of one image on one thread, with the fewest threads measured."
)
FARTHEST_DEMAND = 2.0  # A demand is drawn up to this many times the best rate: a farther one would flatten the points


def of_data_bench(build: Callable[[DataBenchResult], Section | None]) -> Callable[[RunView], Section | None]:
    return lambda view: None if view.result.data_bench is None else build(view.result.data_bench)


@of_data_bench
def build_overview(feeding: DataBenchResult) -> Section:
    best, stage, needed = (
        loader_speed.best_point(feeding),
        loader_speed.largest_stage(feeding),
        loader_speed.cores_needed(feeding),
    )
    tiles = [
        (f"images/s, {format_count(best.threads, 'thread')}", format_rate(best.images_per_second)),
        ("images/s a core", format_rate(best.images_per_second_per_core)),
    ]
    if stage is not None:
        tiles.append((f"of the time: {loader_speed.WORK.get(stage.name, stage.name)}", format_percent(stage.share, 0)))
    if feeding.demand is not None and needed is not None:
        demanded = format_rate(feeding.demand.images_per_second)
        tiles.append((f"cores for {demanded} images/s", loader_speed.format_cores(needed)))
    tiles.append(("cores here", f"{feeding.cores:,}"))
    if feeding.skipped:
        tiles.append(("images passed over", f"{feeding.skipped:,}"))
    return Section("overview", "At a glance", [FactsBlock(tiles, big=True)])


@of_data_bench
def build_threads(feeding: DataBenchResult) -> Section:
    best = loader_speed.best_point(feeding)
    fastest = f"{format_rate(best.images_per_second)} images/s with {format_count(best.threads, 'thread')}"
    lead = f"{fastest}; {'; '.join(loader_speed.describe_covers(feeding))}."
    if len(feeding.points) < 2:
        return Section("threads", "Speed by threads", [thread_table(feeding)], lead)
    rows: list[dict[str, Any]] = []
    for point in sorted(feeding.points, key=lambda point: point.threads):
        interval = f" ({format_interval(point.ci95)})" if point.ci95 else ""
        rate, shown = point.images_per_second, f"{format_rate(point.images_per_second)}{interval}"
        ends = {"low": max(0.0, point.ci95[0]), "high": point.ci95[1]} if point.ci95 else {}
        rows.append({"x": point.threads, "y": rate, "shown": shown, "core": point.images_per_second_per_core, **ends})
    most = rows[-1]["x"]
    x = charts.across("threads", domain=[0, most + 0.5], nice=False, values=[row["x"] for row in rows], grid=False)
    y, color = charts.up("images/s"), alt.value(charts.BLUE)
    tooltip = charts.tips("core", x="threads", shown="images/s")
    layers = [*charts.lines(rows, size=36, x=x, y=y, color=color, tooltip=tooltip), charts.intervals(rows, x, y, color)]
    described = "Images per second by threads: " + "; ".join(f"{row['x']}: {row['shown']}" for row in rows) + "."
    demanded = feeding.demand.images_per_second if feeding.demand else 0.0
    if 0 < demanded <= FARTHEST_DEMAND * max(row["y"] for row in rows):
        layers.append(charts.mark("rule", [{"y": demanded}], {"strokeWidth": 2, "color": charts.ORANGE}, y=y))
        described += f" The line at {format_rate(demanded)} is the demand."
    drawn = charts.figure("threads", "Images/s by threads", described, layers, height=280)
    return Section("threads", "Speed by threads", [drawn, thread_table(feeding)], lead)


@of_data_bench
def build_stages(feeding: DataBenchResult) -> Section | None:
    largest = loader_speed.largest_stage(feeding)
    if largest is None:
        return None
    rows: list[dict[str, Any]] = []
    for stage in feeding.stages:
        spent, share = loader_speed.format_microseconds(stage.seconds_per_image), format_percent(stage.share, 0)
        rows.append({"what": stage.name, "x": stage.seconds_per_image * 1e6, "shown": spent, "share": share})
    # Room for the longest bar's share beside it; all stages may have taken no time that a clock could see
    x = charts.across("µs an image", domain=[0, 1.15 * max(row["x"] for row in rows) or 1.0], nice=False, tickCount=5)
    tooltip = charts.tips("share", what="stage", shown="µs an image")
    chart = charts.bars(rows, x, step=34, limit=160, label="share", tooltip=tooltip)
    message = "; ".join(f"{row['what']}: {row['shown']} µs, {row['share']}" for row in rows)
    drawn = charts.figure("stages", "What an image's stages take", f"Microseconds an image: {message}.", chart)
    total = loader_speed.format_microseconds(sum(stage.seconds_per_image for stage in feeding.stages))
    name = loader_speed.WORK.get(largest.name, largest.name)
    lead = f"Of {total} µs an image, {name} takes {format_percent(largest.share, 0)}."
    return Section("stages", "Where the time goes", [drawn, stage_table(feeding)], lead)


@of_data_bench
def build_cores(feeding: DataBenchResult) -> Section:
    """What a training needs, as a lead: that breaks names of devices however long they are."""
    return Section("cores", "Cores a training needs", [], loader_speed.describe_cores(feeding))


@of_data_bench
def build_method(feeding: DataBenchResult) -> Section:
    facts = [
        ("data", feeding.path),
        ("stored as", feeding.storage),
        ("split", f"{feeding.split}, {format_count(feeding.images, 'image')}"),
        ("an image", f"{format_bytes(feeding.image_bytes)} as stored, the mean of those read"),
        ("made of it", f"{feeding.transform}; {feeding.image_size} × {feeding.image_size} pixels"),
        ("batch", format_count(feeding.batch_size, "image")),
        ("decoder", feeding.decode),
        ("CPU", f"{feeding.cpu}, {format_count(feeding.cores, 'core')} that may be used"),
        ("passed over", f"{format_count(feeding.skipped, 'image')} that could not be used"),
    ]
    return Section("method", "How it was measured", [Prose(METHOD), FactsBlock(facts)])
