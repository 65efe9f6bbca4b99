"""What an evaluation found beside its metric: charts and tables it brought along, and pictures with boxes."""

from trainstone.report.blocks import Block, Prose, Section
from trainstone.report.quality_charts import draw_quality_table
from trainstone.report.quality_pictures import read_gallery
from trainstone.report.view import RunView
from trainstone.results.learning import describe_metric, find_best, format_epochs
from trainstone.results.quality import Quality


def build(view: RunView) -> Section | None:
    """Everything in the order of the result; a run without any has no such section."""
    quality = view.result.quality
    if quality is None or not (quality.tables or quality.pictures):
        return None
    gallery, notes = read_gallery(view.path, quality.pictures)
    blocks: list[Block] = [gallery] if gallery is not None else []
    blocks += [Prose(note) for note in notes]
    for number, table in enumerate(quality.tables):
        blocks += draw_quality_table(number, table)
    return Section("quality", "What was found", blocks, tell_lead(quality)) if blocks else None


def tell_lead(quality: Quality) -> str:
    """Say which evaluation this is."""
    best = find_best(quality)
    if best is None or quality.value is None:
        return ""
    after = next((found.epoch for found in quality.history if found.metrics.get(quality.metric) == quality.value), None)
    when = "" if after is None else f", after {format_epochs(after)}"
    return f"Of the evaluation with {describe_metric(quality.metric, quality.value, quality.target)}{when}."
