"""`trainstone data bench`: images/s by threads, stages, the cores a training needs, how it was measured."""

from trainstone.report.blocks import Facts, Prose, Section, Table
from trainstone.report.feeding_charts import draw_stages, draw_threads, find_one_thread
from trainstone.report.view import RunView
from trainstone.results.feeding import (
    WORK,
    ThreadPoint,
    best_point,
    cores_needed,
    describe_cores,
    describe_covers,
    format_cores,
    format_microseconds,
    largest_stage,
)
from trainstone.units import format_bytes, format_count, format_percent, format_rate

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


def build_overview(view: RunView) -> Section | None:
    """Tiles of what people ask first."""
    feeding = view.result.data_bench
    if feeding is None:
        return None
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


def build_threads(view: RunView) -> Section | None:
    """Chart and table of all points; one alone needs no chart."""
    feeding = view.result.data_bench
    if feeding is None:
        return None
    one = find_one_thread(feeding)
    rows = [tell_point(point, one) for point in feeding.points]
    columns = ("threads", "images/s", "95 % interval", "busy CPUs", "images/s a core", "of the ideal")
    shown = [place for place in range(len(columns)) if any(row[place] for row in rows)]
    table = Table(
        [columns[place] for place in shown],
        [[row[place] for place in shown] for row in rows],
        numeric=[True] * len(shown),
    )
    best = best_point(feeding)
    fastest = f"{format_rate(best.images_per_second)} images/s with {format_count(best.threads, 'thread')}"
    lead = f"{fastest}; {'; '.join(describe_covers(feeding))}."
    drawn = [draw_threads(feeding)] if len(feeding.points) > 1 else []
    return Section("threads", "Speed by threads", [*drawn, table], lead)


def tell_point(point: ThreadPoint, one: float | None) -> list[str]:
    """Return a point's cells."""
    ideal = one * point.threads if one is not None else None
    return [
        f"{point.threads:,}",
        format_rate(point.images_per_second),
        f"{format_rate(point.ci95[0])} … {format_rate(point.ci95[1])}" if point.ci95 else "",
        "" if point.cpu_cores is None else f"{point.cpu_cores:.2f}",
        format_rate(point.images_per_second_per_core),
        "" if ideal is None else format_percent(point.images_per_second / ideal, 0),
    ]


def build_stages(view: RunView) -> Section | None:
    """Chart and table of a picture's way; left out where it was not taken apart."""
    feeding = view.result.data_bench
    if feeding is None:
        return None
    stage = largest_stage(feeding)
    if stage is None:
        return None
    rows = [
        [part.name, format_microseconds(part.seconds_per_image), format_percent(part.share)] for part in feeding.stages
    ]
    total = format_microseconds(sum(part.seconds_per_image for part in feeding.stages))
    table = Table(
        ("stage", "µs an image", "share"), [*rows, ["all", total, format_percent(1)]], numeric=(False, True, True)
    )
    longest = WORK.get(stage.name, stage.name)
    lead = f"Of {total} µs an image, {longest} takes {format_percent(stage.share, 0)}."
    return Section("stages", "Where the time goes", [draw_stages(feeding), table], lead)


def build_cores(view: RunView) -> Section | None:
    """What a training needs, as a lead: that breaks names of devices however long they are."""
    feeding = view.result.data_bench
    if feeding is None:
        return None
    return Section("cores", "Cores a training needs", [], describe_cores(feeding))


def build_method(view: RunView) -> Section | None:
    """What was fed, on what, and what the numbers mean."""
    feeding = view.result.data_bench
    if feeding is None:
        return None
    facts = [
        ("data", feeding.path),
        ("stored as", feeding.storage),
        ("split", f"{feeding.split}, {format_count(feeding.pictures, 'picture')}"),
        ("a picture", f"{format_bytes(feeding.picture_bytes)} as stored, the mean of those read"),
        ("made of it", f"{feeding.transform}; {feeding.image_size} × {feeding.image_size} pixels"),
        ("batch", format_count(feeding.batch_size, "picture")),
        ("engine", feeding.engine),
        ("decoder", feeding.decode),
        ("CPU", f"{feeding.cpu}, {format_count(feeding.cores, 'core')} that may be used"),
        ("passed over", f"{format_count(feeding.skipped, 'picture')} that could not be used"),
    ]
    told = [*METHOD, *([STAGES_METHOD] if feeding.stages else [])]
    return Section("method", "How it was measured", [*(Prose(text) for text in told), Facts(facts)])
