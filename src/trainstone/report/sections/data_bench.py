"""`trainstone data bench`: images/s by threads, stages, the cores a training needs, how it was measured."""

from collections.abc import Callable
from typing import Any

import altair as alt

from trainstone.report.blocks import Block, Facts, Figure, Prose, Section
from trainstone.report.charts import (
    BLUE,
    DASHED,
    GREY,
    ORANGE,
    Layers,
    Rows,
    across,
    bars,
    colours,
    figure,
    intervals,
    lines,
    mark,
    round_sensibly,
    tips,
    up,
)
from trainstone.report.view import RunView
from trainstone.results.feeding import (
    WORK,
    Feeding,
    best_point,
    cores_needed,
    describe_cores,
    describe_covers,
    find_one_thread,
    format_cores,
    format_microseconds,
    largest_stage,
)
from trainstone.results.tables import stage_table, thread_table
from trainstone.units import format_bytes, format_count, format_interval, format_percent, format_rate

METHOD = (
    "A picture's whole way into a batch was timed: its bytes are read as they are stored, decoded, cropped and "
    "resized, and put into a batch. Nothing trains meanwhile. Images/s are pictures over time, for each number of "
    "threads.",
    "Images/s a core are images/s over the cores kept busy: the CPU seconds that the whole process used in a second, "
    "or the threads where that is not known, and never more than the cores there are.",
    "The cores that a training needs are its images/s over the images/s a core with the most threads measured, "
    "because the rate a core usually falls as threads get more: they share caches, memory and power.",
)
STAGES_METHOD = (
    "A stage's time is that of one picture on a thread, with the fewest threads measured; shares are of the sum of all."
)
MEASURED, IDEAL, DEMAND = "measured, with its 95 % interval", "ideal: as many times one thread", "demanded"
HEADROOM = 1.5
"""The ideal is drawn up to so many times the best that was measured: beyond, it would flatten that."""
FARTHEST_DEMAND, LEAST_DEMAND = 2.0, 0.02
"""A demand is drawn from this share of the best (below it lies on the axis) up to so many times it."""


def of_data_bench(build: Callable[[Feeding], Section | None]) -> Callable[[RunView], Section | None]:
    """Make a section of a data bench; other kinds of runs have none."""
    return lambda view: None if view.result.data_bench is None else build(view.result.data_bench)


@of_data_bench
def build_overview(feeding: Feeding) -> Section:
    """Tiles of what people ask first."""
    best, stage, needed = best_point(feeding), largest_stage(feeding), cores_needed(feeding)
    tiles = [
        (f"images/s, {format_count(best.threads, 'thread')}", format_rate(best.images_per_second)),
        ("images/s a core", format_rate(best.images_per_second_per_core)),
    ]
    if stage is not None:
        tiles.append((f"of the time: {WORK.get(stage.name, stage.name)}", format_percent(stage.share, 0)))
    if feeding.demand is not None and needed is not None:
        demanded = format_rate(feeding.demand.images_per_second)
        tiles.append((f"cores for {demanded} images/s", format_cores(needed)))
    tiles.append(("cores here", f"{feeding.cores:,}"))
    if feeding.skipped:
        tiles.append(("pictures passed over", f"{feeding.skipped:,}"))
    return Section("overview", "At a glance", [Facts(tiles, big=True)])


@of_data_bench
def build_threads(feeding: Feeding) -> Section:
    """Chart and table of all points; one alone needs no chart."""
    best = best_point(feeding)
    fastest = f"{format_rate(best.images_per_second)} images/s with {format_count(best.threads, 'thread')}"
    lead = f"{fastest}; {'; '.join(describe_covers(feeding))}."
    drawn: list[Block] = [draw_threads(feeding)] if len(feeding.points) > 1 else []
    return Section("threads", "Speed by threads", [*drawn, thread_table(feeding)], lead)


def draw_threads(feeding: Feeding) -> Figure:
    """Points with their intervals, the ideal as a line, and a rule where the demand lies in the picture."""
    demand, one = find_demand(feeding), find_one_thread(feeding)
    most = max(point.threads for point in feeding.points)
    top = find_top(feeding, demand, one)
    threads = sorted({point.threads for point in feeding.points})
    ends = [0, round_sensibly(most + max(0.5, 0.06 * most))]
    x = across("threads", domain=ends, nice=False, values=threads, labelSeparation=6, grid=False)
    y = up("images/s", domain=[0, round_sensibly(top)], nice=False)
    kinds, ideal, rule = {MEASURED: BLUE}, list[dict[str, Any]](), list[dict[str, Any]]()
    if one is not None and most > 1:
        kinds[IDEAL] = GREY
        last = min(float(most), top / one)
        ideal = [{"x": at, "y": round_sensibly(at * one), "what": IDEAL} for at in (0.0, last)]
    if demand is not None:
        named = f"{DEMAND}: {format_rate(demand)} images/s"
        kinds[named] = ORANGE
        rule = [{"y": round_sensibly(demand), "what": named}]
    color = colours(kinds, legend=len(kinds) > 1, labelLimit=300, symbolType="circle")
    layers = [mark("line", ideal, DASHED, x=x, y=y, color=color)] if ideal else []
    layers += [mark("rule", rule, {"strokeWidth": 2}, y=y, color=color)] if rule else []
    layers += mark_points(feeding, x, y, color)
    told = "; ".join(f"{point.threads}: {_show_rate(point)}" for point in feeding.points)
    demanded = f" {format_rate(demand)} are demanded." if demand is not None else ""
    told = f"Images per second by threads: {told}.{demanded}"
    return figure("threads", "Images/s by threads", told, layers, height=280)


def mark_points(feeding: Feeding, x: alt.X, y: alt.Y, color: alt.Color) -> Layers:
    """A line through the points, intervals, and points that say more when they are pointed at."""
    rows: Rows = []
    for point in sorted(feeding.points, key=lambda point: point.threads):
        low, high = (round_sensibly(max(0.0, end)) for end in point.ci95) if point.ci95 else (None, None)
        rows.append(
            {
                "x": point.threads,
                "y": round_sensibly(point.images_per_second),
                "told": _show_rate(point),
                "core": format_rate(point.images_per_second_per_core),
                "what": MEASURED,
            }
            | ({} if low is None else {"low": low, "high": high})
        )
    tooltip = tips(x="threads", told="images/s", core="images/s a core")
    line, dotted = lines(rows, size=36, x=x, y=y, color=color, tooltip=tooltip)
    return [line, intervals(rows, x, y, color), dotted]


def _show_rate(point: Any) -> str:
    interval = f" ({format_interval(point.ci95)})" if point.ci95 else ""
    return f"{format_rate(point.images_per_second)}{interval}"


def find_demand(feeding: Feeding) -> float | None:
    """Return the demanded rate if it can be shown beside what was measured."""
    if feeding.demand is None:
        return None
    times = feeding.demand.images_per_second / best_point(feeding).images_per_second
    return feeding.demand.images_per_second if LEAST_DEMAND <= times <= FARTHEST_DEMAND else None


def find_top(feeding: Feeding, demand: float | None, one: float | None) -> float:
    """Return where the vertical axis ends: above all that was measured and demanded, and most of the ideal."""
    best = best_point(feeding).images_per_second
    most = max(point.threads for point in feeding.points)
    highest = max(point.ci95[1] if point.ci95 else point.images_per_second for point in feeding.points)
    return 1.06 * max(best, highest, demand or 0.0, min(most * (one or 0.0), HEADROOM * best))


@of_data_bench
def build_stages(feeding: Feeding) -> Section | None:
    """Chart and table of a picture's way; left out where it was not taken apart."""
    stage = largest_stage(feeding)
    if stage is None:
        return None
    total = format_microseconds(sum(part.seconds_per_image for part in feeding.stages))
    lead = f"Of {total} µs an image, {WORK.get(stage.name, stage.name)} takes {format_percent(stage.share, 0)}."
    return Section("stages", "Where the time goes", [draw_stages(feeding), stage_table(feeding)], lead)


def draw_stages(feeding: Feeding) -> Figure:
    """A bar for each stage, in the order of a picture's way, with its share."""
    rows: Rows = []
    for stage in feeding.stages:
        spent = format_microseconds(stage.seconds_per_image)
        micro = round_sensibly(stage.seconds_per_image * 1e6)
        rows.append({"what": stage.name, "x": micro, "told": spent, "share": format_percent(stage.share, 0)})
    # Room for the longest bar's share beside it; all stages may have taken no time that a clock could see
    top = 1.15 * max(row["x"] for row in rows) or 1.0
    x = across("µs an image", domain=[0, top], nice=False, tickCount=5, labelSeparation=8)
    tooltip = tips("share", what="stage", told="µs an image")
    chart = bars(rows, x, step=34, limit=160, label="share", tooltip=tooltip)
    told = "; ".join(f"{row['what']}: {row['told']} µs, {row['share']}" for row in rows)
    return figure("stages", "What a picture's stages take", f"Microseconds an image: {told}.", chart)


@of_data_bench
def build_cores(feeding: Feeding) -> Section:
    """What a training needs, as a lead: that breaks names of devices however long they are."""
    return Section("cores", "Cores a training needs", [], describe_cores(feeding))


@of_data_bench
def build_method(feeding: Feeding) -> Section:
    """What was fed, on what, and what the numbers mean."""
    facts = [
        ("data", feeding.path),
        ("stored as", feeding.storage),
        ("split", f"{feeding.split}, {format_count(feeding.pictures, 'picture')}"),
        ("a picture", f"{format_bytes(feeding.picture_bytes)} as stored, the mean of those read"),
        ("made of it", f"{feeding.transform}; {feeding.image_size} × {feeding.image_size} pixels"),
        ("batch", format_count(feeding.batch_size, "picture")),
        ("decoder", feeding.decode),
        ("CPU", f"{feeding.cpu}, {format_count(feeding.cores, 'core')} that may be used"),
        ("passed over", f"{format_count(feeding.skipped, 'picture')} that could not be used"),
    ]
    told = [*METHOD, *([STAGES_METHOD] if feeding.stages else [])]
    return Section("method", "How it was measured", [*(Prose(text) for text in told), Facts(facts)])
