"""Where a profiled step goes: its parts, what lies across them, what profiling cost, and the trace itself."""

from trainstone.report.blocks import Block, Facts, Links, Prose, Section, Table
from trainstone.report.profile_charts import draw_steps
from trainstone.report.view import RunView
from trainstone.results.breakdown import ADDED_UP, BESIDE, average_parts, mean_step, tell_overhead
from trainstone.results.profiled import Timeline
from trainstone.units import format_count, format_percent, format_seconds

MEANINGS = {
    "compute": "operators run",
    "optimiser": "its operators run",
    "communication": "not hidden",
    "copies": "memory moves",
    "waiting for data": "host waits for its batch",
    "synchronising": "host waits for the device",
    "launching": "host gives out work",
    "Python": "host is between operators",
    "unaccounted": "none of these",
}
"""Short: a phone has little room in a table."""
MOST_SECONDS = 1e6
"""Of a step; a damaged file may say anything."""
HOW_TO_OPEN = "the trace: open it as it is at https://ui.perfetto.dev, or in Chrome at chrome://tracing"


def build(view: RunView) -> Section | None:
    """Bars, sentences, tables and the way to the trace."""
    timeline = view.result.timeline
    if timeline is None or not 0 < mean_step(timeline) < MOST_SECONDS:
        return None
    blocks: list[Block] = [draw_steps(timeline)]
    if timeline.told:
        blocks.append(Prose(" ".join(timeline.told)))
    blocks += [tabulate(timeline), Facts(list_facts(timeline))]
    beside = tabulate_beside(timeline)
    blocks += [beside] if beside.rows else []
    blocks += link_trace(view, timeline)
    count = format_count(len(timeline.steps), "profiled step")
    mean = format_seconds(mean_step(timeline))
    lead = f"{count}, {mean} each on average; {tell_rank(timeline)}."
    return Section("breakdown", "Where a step goes", blocks, lead)


def tell_rank(timeline: Timeline) -> str:
    """Say whose time it is."""
    rank = f", rank {timeline.rank}" if timeline.rank is not None else ""
    return f"device {timeline.device}{rank}"


def tabulate(timeline: Timeline) -> Table:
    """Means over the profiled steps, and what each part means."""
    rows = [
        [part.name, format_seconds(part.seconds), format_percent(part.share), MEANINGS[part.name]]
        for part in average_parts(timeline)
    ]
    caption = "Parts of a step; they add up"
    return Table(["part", "a step", "share", "when"], rows, caption=caption, numeric=[False, True, True, False])


def tabulate_beside(timeline: Timeline) -> Table:
    """What overlaps with the parts."""
    rows = [
        [part.name, format_seconds(part.seconds), format_percent(part.share)]
        for part in average_parts(timeline, BESIDE)
        if timeline.device != "cpu" or part.name != ADDED_UP
    ]
    return Table(["part", "a step", "share"], rows, caption="What lies across the parts", numeric=[False, True, True])


def list_facts(timeline: Timeline) -> list[tuple[str, str]]:
    """The numbers beside the parts."""
    running = "an operator runs" if timeline.device == "cpu" else "a kernel runs"
    rows = [
        ("compute utilisation", f"{format_percent(timeline.compute_utilisation)}: {running}"),
        ("time accounted for", format_percent(timeline.accounted_share)),
    ]
    if timeline.cores_used is not None:
        rows.append(("cores at work", f"{timeline.cores_used:.3g} on average"))
    if timeline.overhead is not None:
        rows.append(("cost of profiling", tell_overhead(timeline.overhead)))
    if timeline.events:
        rows.append(("events in the trace", f"{timeline.events:,}"))
    return rows


def link_trace(view: RunView, timeline: Timeline) -> list[Block]:
    """A link where the file is there, within the run folder; else its name."""
    if not timeline.trace:
        return []
    try:
        file = (view.path / timeline.trace).resolve()
        inside = file.is_relative_to(view.path.resolve()) and file.is_file()
    except (OSError, RuntimeError, ValueError):  # a name with a NUL, too long a one, links in a ring
        inside = False
    if inside:
        return [Links([(view.address(timeline.trace), HOW_TO_OPEN)])]
    return [Facts([("trace", f"{timeline.trace}, which is not in the run folder")])]
