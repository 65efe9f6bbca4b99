"""What the scores of boxes say beyond one number, as tables: COCO's twelve, precision over recall, classes, sizes."""

from collections.abc import Sequence

from trainstone.results.detection import METRICS, MOST_COUNTED, MOST_FOUND, PRECISIONS, RECALLED, RECALLS, BoxScores
from trainstone.results.quality import QualityTable
from trainstone.units import format_count

MOST_CLASSES = 100
"""More rows nobody reads."""
DIGITS = 4
LINES = {"map50": "overlap 0.50", "map75": "overlap 0.75", "map": "mean of 0.50 to 0.95"}
SIZES = {"small": "small: below 32² px", "medium": "medium: 32² to 96² px", "large": "large: 96² px and more"}
_OVERLAPS = {"map": "0.50:0.95", "map50": "0.50", "map75": "0.75"}

Row = list[str | float | None]


def list_tables(scores: BoxScores, class_names: Sequence[str]) -> list[QualityTable]:
    """Return the tables in the order in which they are read; class k is called class_names[k]."""
    return [_tell_twelve(scores), _tell_curves(scores), _tell_sizes(scores), _tell_classes(scores, class_names)]


def _tell_twelve(scores: BoxScores) -> QualityTable:
    rows: list[Row] = [[_name_metric(metric), _round(scores.metrics.get(metric))] for metric in METRICS]
    counted = f"{format_count(scores.num_pictures, 'picture')} with {scores.num_true:,} true and {scores.num_found:,}"
    note = f"{counted} found boxes; counted by {scores.evaluator}."
    if len(scores.metrics) < len(METRICS):
        note += " Without a value: no true box of that size."
    return QualityTable(
        name="coco", title="COCO's twelve numbers", drawn="table", columns=["measure", "value"], rows=rows, note=note
    )


def _name_metric(metric: str) -> str:
    """Return COCO's own name: AP @[ IoU=0.50:0.95 | area=all | maxDets=100 ]."""
    place, size = RECALLED.get(metric) or (2, PRECISIONS[metric])
    kind, most = "AP" if metric in PRECISIONS else "AR", MOST_COUNTED[place]
    return f"{kind} @[ IoU={_OVERLAPS.get(metric, '0.50:0.95')} | area={size} | maxDets={most} ]"


def _tell_curves(scores: BoxScores) -> QualityTable:
    rows: list[Row] = [
        [round(float(recall), 2), _round(float(precision)), LINES[metric]]
        for metric, curve in scores.curves.items()
        for recall, precision in zip(RECALLS, curve, strict=True)
    ]
    return QualityTable(
        name="precision-recall",
        title="Precision over recall",
        drawn="lines",
        columns=["recall", "precision", "line"],
        rows=rows,
        note="Mean of all classes that have true boxes. A found box is right if its overlap with a true one of its "
        "class (intersection over union) is at least what the line is called. The area below a line is its average "
        "precision.",
    )


def _tell_classes(scores: BoxScores, class_names: Sequence[str]) -> QualityTable:
    """The classes of the most true boxes, if there are too many: their scores are the surest."""
    shown = sorted(scores.classes, key=lambda one: (-one.num_true, one.label))[:MOST_CLASSES]
    shown.sort(key=lambda one: (-one.average_precision, -one.average_precision_50, one.label))
    rows: list[Row] = [
        [
            class_names[one.label] if one.label < len(class_names) else f"class {one.label}",
            _round(one.average_precision),
            _round(one.average_precision_50),
            one.num_true,
        ]
        for one in shown
    ]
    note = "AP: mean of the overlaps 0.50 to 0.95. AP50: overlap 0.50."
    if len(shown) < len(scores.classes):
        note += f" Shown are the {MOST_CLASSES} of {len(scores.classes)} classes with the most true boxes."
    columns = ["class", "AP", "AP50", "true boxes"]
    title = "Average precision by class"
    return QualityTable(name="ap-by-class", title=title, drawn="bars", columns=columns, rows=rows, note=note)


def _tell_sizes(scores: BoxScores) -> QualityTable:
    rows: list[Row] = [
        [SIZES[name], _round(scores.metrics.get(f"map_{name}")), _round(scores.metrics.get(f"recall_{name}")), num_true]
        for name, num_true in scores.sizes.items()
    ]
    return QualityTable(
        name="ap-by-size",
        title="Average precision by size",
        drawn="table",
        columns=["size of the true boxes", "AP", "recall", "true boxes"],
        rows=rows,
        note="Size: the thing's own area, in pixels of its picture. "
        f"Recall: of at most {MOST_FOUND} found boxes a picture and class.",
    )


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)
