"""The runs of train --runs: their curves in one picture, how long each took, and a row each."""

from trainstone.report.blocks import Block, Section, Table
from trainstone.report.repeat_charts import Course, draw_courses, draw_times
from trainstone.report.sections.points import address
from trainstone.report.view import Child, RunView
from trainstone.results.learning import format_epoch, format_metric, name_metric
from trainstone.results.quality import Quality, Repeated, TrainedRun
from trainstone.results.repeated import list_notes
from trainstone.units import format_count, format_rate, format_seconds

SCORED = (
    "Olympic mean, as MLPerf scores: the fastest and the slowest are dropped, the others averaged; "
    "a single run that missed the target is the slowest."
)
COLUMNS = ("run", "epochs", "time to target", "best", "images/s", "status", "")


def build(view: RunView) -> Section | None:
    """Charts and a table; only for a training that was repeated."""
    repeated, quality = view.result.repeated, view.result.quality
    if repeated is None or not repeated.runs:
        return None
    children = {child.run: child for child in view.children}
    blocks: list[Block] = []
    if quality is not None:
        courses = [
            Course(child.label, child.result.quality)
            for child in view.children
            if child.result is not None and child.result.quality is not None
        ]
        blocks += [drawn for drawn in (draw_courses(courses, quality), draw_times(repeated)) if drawn]
    blocks.append(tabulate(view, repeated, quality, children))
    begun = "" if len(repeated.runs) == repeated.num_runs else f" of {repeated.num_runs}"
    lead = f"{format_count(len(repeated.runs), 'run')}{begun} with seeds counted up, each in its own process."
    return Section("trainings", "Learning, run by run", blocks, lead)


def tabulate(view: RunView, repeated: Repeated, quality: Quality | None, children: dict[str, Child]) -> Table:
    """A row a run, with the address of its page."""
    rows = [tell_row(run, quality, children.get(run.run), repeated) for run in repeated.runs]
    known = [children.get(run.run) for run in repeated.runs]
    links = [address(view, child) if child else None for child in known]
    heads = [f"{name_metric(quality.metric)}, best" if quality and name == "best" else name for name in COLUMNS]
    caption = SCORED if repeated.score_seconds is not None else ""
    return Table(heads, rows, caption=caption, links=links, numeric=[False, True, True, True, True, False, False])


def tell_row(run: TrainedRun, quality: Quality | None, child: Child | None, repeated: Repeated) -> list[str]:
    """Return the cells; what is not known is empty."""
    result = child.result if child else None
    rate = result.throughput.images_per_second if result and result.throughput else None
    value = format_metric(quality.metric, run.value, quality.target) if quality and run.value is not None else ""
    notes = list_notes(run)
    if repeated.score_seconds is not None and not run.counted:
        notes.insert(0, "dropped")
    return [
        f"seed {run.seed}",
        "" if run.epochs is None else format_epoch(run.epochs),
        "" if run.seconds_to_target is None else format_seconds(run.seconds_to_target),
        value,
        "" if rate is None else format_rate(rate),
        run.status.replace("_", " "),
        ", ".join(notes),
    ]
