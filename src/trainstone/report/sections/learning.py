"""Did it learn? Loss, accuracy against the target, the time to it, and every evaluation."""

from trainstone.errors import ResultError
from trainstone.report.blocks import Block, Section, Table
from trainstone.report.learning_charts import draw_over_epochs, draw_over_time, draw_time_to_target
from trainstone.report.loss_charts import draw_loss
from trainstone.report.view import RunView
from trainstone.results.learning import (
    describe_metric,
    find_best,
    find_reached,
    format_epoch,
    format_epochs,
    format_metric,
    format_target,
    name_metric,
    thin_history,
)
from trainstone.results.losscurve import LossCurve, read_loss
from trainstone.results.quality import Quality
from trainstone.results.schema import Phases
from trainstone.units import format_count, format_seconds

MOST_ROWS = 60
MOST_METRICS = 6


def build(view: RunView) -> Section | None:
    """Charts of what there is; a run that was no training has none."""
    result, quality = view.result, view.result.quality
    if result.kind != "train" or result.repeated:  # sections/trainings.py draws those
        return None
    curve = read_curve(view)
    blocks: list[Block] = []
    lead = []
    if quality is not None:
        lead.append(tell_lead(quality))
        blocks += [drawn for drawn in (draw_over_epochs(quality), draw_over_time(quality)) if drawn]
    if curve is not None:
        blocks.append(draw_loss(curve, quality))
        if curve.num_not_finite:
            lead.append(f"The loss was not a finite number in {format_count(curve.num_not_finite, 'step')}.")
    if quality is not None:
        blocks += draw_time(quality, result.phases)
        blocks += [tabulate(quality)] if quality.history else []
    return Section("learning", "Learning", blocks, " ".join(lead)) if blocks else None


def draw_time(quality: Quality, phases: Phases | None) -> list[Block]:
    """What the time to the target went into; without one sections/phases.py tells where the time went."""
    seconds = quality.seconds_to_target
    return [draw_time_to_target(phases, seconds)] if phases is not None and seconds else []


def read_curve(view: RunView) -> LossCurve | None:
    """Read the losses of the first rank; None when absent, empty or damaged."""
    file = view.path / "steps-rank0000.csv"
    try:
        return read_loss(file) if file.is_file() else None
    except ResultError as err:
        view.doubts.append(err.message)
        return None


def tell_lead(quality: Quality) -> str:
    """Say how good it got, when, and by how many starts."""
    best = find_best(quality)
    starts = f", in {quality.starts} starts" if quality.starts > 1 else ""
    trained = f"Trained for {format_epochs(quality.epochs)}{starts}"
    if best is None:
        return f"{trained}; not evaluated."
    found = quality.history[best]
    value = describe_metric(quality.metric, found.metrics[quality.metric], quality.target)
    told = f"{trained}; the best evaluation found {value} after {format_epochs(found.epoch)}"
    if quality.target is None:
        return f"{told}; there was no target."
    reached = "is reached" if find_reached(quality) is not None else "is not reached"
    return f"{told}: the target of {format_target(quality.metric, quality.target)} {reached}."


def tabulate(quality: Quality) -> Table:
    """One row an evaluation; of many, some are left out."""
    shown = thin_history(quality, MOST_ROWS)
    # Those of the first, in its order, so that the one that counts is not lost among many
    metrics = list(dict.fromkeys([quality.metric, *(name for found in shown for name in found.metrics)]))[:MOST_METRICS]
    best, reached = find_best(quality), find_reached(quality)
    notes = {quality.history[at].step: note for at, note in ((best, "best"), (reached, "target")) if at is not None}
    if best is not None and best == reached:
        notes[quality.history[best].step] = "best, target"
    rows = [
        [
            format_epoch(found.epoch),
            f"{found.step:,}",
            *(
                format_metric(name, found.metrics[name], quality.target if name == quality.metric else None)
                if name in found.metrics
                else ""
                for name in metrics
            ),
            format_seconds(found.seconds),
            format_seconds(found.eval_seconds),
            f"{found.images:,}",
            notes.get(found.step, ""),
        ]
        for found in shown
    ]
    heads = ["epochs", "steps", *(name_metric(name) for name in metrics), "run's clock", "evaluation", "images", ""]
    left_out = len(quality.history) - len(shown)
    caption = f"{format_count(left_out, 'evaluation')} between these left out." if left_out else ""
    return Table(heads, rows, caption=caption, numeric=[True] * (len(heads) - 1) + [False])
