"""COCO's twelve detection metrics, with the tables and the box matches for images.

Libraries that agree with pycocotools to the last digit do the scoring. hotcoco comes first: it releases the GIL while
it evaluates and accumulates (benchmarks/coco_eval.py), and uses all cores unless RAYON_NUM_THREADS limits them.
faster-coco-eval is the fallback: the same numbers, fourteen times slower.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainstone.errors import DataError, MachineError
from trainstone.results.schema.quality import QualityTable
from trainstone.results.verdicts import describe_box_tables

Numbers = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

AREAS = {"all": 0, "small": 1, "medium": 2, "large": 3}  # size of the true boxes -> index in the arrays of _evaluate
SIZE_LIMITS = {"small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, np.inf)}
RECALLS = np.linspace(0.0, 1.0, 101)  # where precision is sampled
MATCH_OVERLAP = 0.5  # of a detected and a true box, for the images in the report
MAX_DETECTIONS = 100  # per image and class; those with the highest scores count

OVERLAPS = {"map50": slice(0, 1), "map75": slice(5, 6)}
"""Metric -> index in the overlaps 0.5, 0.55 ... 0.95; all others are the mean over all overlaps."""
PRECISIONS = {
    **{"map": "all", "map50": "all", "map75": "all"},
    **{"map_small": "small", "map_medium": "medium", "map_large": "large"},
}
"""Metric -> size of the true boxes."""
DETECTION_LIMITS = (1, 10, MAX_DETECTIONS)
RECALLED = {
    **{"recall_1": (0, "all"), "recall_10": (1, "all"), "recall_100": (2, "all")},
    **{"recall_small": (2, "small"), "recall_medium": (2, "medium"), "recall_large": (2, "large")},
}
"""Metric -> index in DETECTION_LIMITS, and the size of the true boxes."""
METRICS = (*PRECISIONS, *RECALLED)  # in COCO's order
EVALUATORS = {"hotcoco": ("hotcoco", "COCOeval"), "faster-coco-eval": ("faster_coco_eval", "COCOeval_faster")}
"""Package -> its module and evaluator class, the preferred package first."""

MAX_CLASSES = 100  # rows in the table of classes
DIGITS = 4
LINES = {"map50": "overlap 0.50", "map75": "overlap 0.75", "map": "mean of 0.50 to 0.95"}
SIZES = {"small": "small: below 32² px", "medium": "medium: 32² to 96² px", "large": "large: 96² px and more"}
_OVERLAPS = {"map": "0.50:0.95", "map50": "0.50", "map75": "0.75"}
TABLES: dict[str, tuple[str, Literal["table", "bars", "lines"], list[str]]] = {
    "coco": ("COCO's twelve metrics", "table", ["measure", "value"]),
    "precision-recall": ("Precision over recall", "lines", ["recall", "precision", "line"]),
    "ap-by-size": ("Average precision by size", "table", ["size of the true boxes", "AP", "recall", "true boxes"]),
    "ap-by-class": ("Average precision by class", "bars", ["class", "AP", "AP50", "true boxes"]),
}
"""Name -> title, how it is drawn, columns."""


@dataclass(frozen=True)
class GroundTruth:
    """True boxes; each array has one entry per box."""

    image: Integers
    label: Integers
    edges: Numbers  # (n, 4): left, top, right, bottom in pixels
    area: Numbers  # of the object itself where known, in pixels; decides whether it is small or large
    crowd: Flags  # a box around many objects: it need not be detected, and detections in it are not false


@dataclass(frozen=True)
class Detections:
    image: Integers
    label: Integers
    edges: Numbers  # (n, 4): left, top, right, bottom in pixels
    score: Numbers


class ClassScore(NamedTuple):
    """Average precision of a class that has true boxes: mean of all overlaps, and at 0.5."""

    label: int
    average_precision: float
    average_precision_50: float
    num_true: int


@dataclass(frozen=True)
class BoxScores:
    metrics: dict[str, float]  # the METRICS that are defined: no map_large without a large true box
    curves: dict[str, Numbers]
    """map50, map75, map -> precision at each of RECALLS, mean over the classes that have true boxes."""
    classes: list[ClassScore]  # by label
    sizes: dict[str, int]  # small, medium, large -> number of true boxes
    num_images: int
    num_true: int  # without crowds
    num_found: int
    evaluator: str  # name and version of the scoring library


def score_boxes(
    truth: GroundTruth,
    found: Detections,
    *,
    images: Integers,
    num_classes: int,
    inclusive_edges: bool = False,
    evaluator: str | None = None,
) -> BoxScores:
    """Return COCO's metrics over `images`, the numbers of the evaluated images, including those without boxes.

    Equal scores count in the order of the image numbers (COCO: of the ids), within an image in the order given.
    Detections with a non-finite edge or score are skipped. inclusive_edges: detected boxes are one pixel wider and
    higher than their edges say. evaluator: one of EVALUATORS; by default the first that is installed.
    """
    images = np.unique(images)
    if not (~truth.crowd).any():
        hint = "count the boxes: trainstone data info DIR; boxes marked as crowd do not count"
        message = f"cannot score boxes: no true box in {len(images)} validation images"
        raise DataError(message, hint=hint)
    name = evaluator or choose_evaluator()
    single, good = ~truth.crowd, np.isfinite(found.edges).all(axis=1) & np.isfinite(found.score)
    # Images and classes are numbered from 1, since some evaluators treat 0 as none.
    true = (truth.image + 1, _list_sides(truth.edges), truth.label + 1, truth.area, truth.crowd)
    sides = _list_sides(found.edges[good], int(inclusive_edges))
    seen = (found.image[good] + 1, sides, found.score[good], found.label[good] + 1)
    rows = (np.column_stack(columns).astype(np.float64) for columns in (true, seen))
    precision, recall = _evaluate(name, np.arange(num_classes) + 1, images + 1, *rows)

    def read(metric: str, size: str = "all") -> Numbers:  # its overlaps, 101 recalls, classes
        return precision[OVERLAPS.get(metric, slice(None)), :, :, AREAS[size], -1]

    values = {metric: read(metric, size) for metric, size in PRECISIONS.items()}
    values |= {metric: recall[:, :, AREAS[size], most] for metric, (most, size) in RECALLED.items()}
    defined = {metric: value[value > -1] for metric, value in values.items()}  # -1: no true box
    by_class = {metric: read(metric).mean(axis=(0, 1)) for metric in ("map", "map50")}
    num_true, areas = np.bincount(truth.label[single], minlength=num_classes), truth.area[single]
    has_truth = {metric: (read(metric) > -1).all(axis=(0, 1)) for metric in ("map50", "map75", "map")}
    return BoxScores(
        metrics={metric: float(value.mean()) for metric, value in defined.items() if value.size},
        curves={metric: read(metric)[:, :, classes].mean(axis=(0, 2)) for metric, classes in has_truth.items()},
        classes=[
            ClassScore(label, float(by_class["map"][label]), float(by_class["map50"][label]), int(num_true[label]))
            for label in np.flatnonzero(num_true).tolist()
        ],
        sizes={name: int(((areas >= least) & (areas < most)).sum()) for name, (least, most) in SIZE_LIMITS.items()},
        num_images=len(images),
        num_true=int(single.sum()),
        num_found=int(good.sum()),
        evaluator=f"{name} {version(name)}",
    )


def _list_sides(edges: Numbers, added_pixels: int = 0) -> Numbers:
    edges = edges.astype(np.float64).reshape(-1, 4)
    return np.column_stack((edges[:, :2], edges[:, 2:] - edges[:, :2] + added_pixels))


def match_boxes(truth: GroundTruth, found: Detections) -> tuple[Flags, Flags]:
    """Return which detections are correct and which true boxes are detected; matched by descending score.

    A true box is matched once: a second detection of it is false. Detections in a crowd of their class are correct,
    any number of them. For the images shown in the report, not for a whole data set.
    """
    is_right, is_found = np.zeros(len(found.score), np.bool_), np.zeros(len(truth.label), np.bool_)
    true_of: dict[tuple[int, int], list[int]] = {}
    for place, key in enumerate(zip(truth.image.tolist(), truth.label.tolist(), strict=True)):
        true_of.setdefault(key, []).append(place)
    for place in np.argsort(-found.score, kind="stable").tolist():
        near = np.array(true_of.get((int(found.image[place]), int(found.label[place])), []), np.int64)
        near = near[~is_found[near] | truth.crowd[near]]
        box, edges = found.edges[place], truth.edges[near]
        common = (np.minimum(box[2:], edges[:, 2:]) - np.maximum(box[:2], edges[:, :2])).clip(0).prod(axis=1)
        own, theirs = (box[2:] - box[:2]).prod(), (edges[:, 2:] - edges[:, :2]).prod(axis=1)
        # Intersection over union; for a crowd, the share of the detection that is inside it.
        whole = np.where(truth.crowd[near], own, own + theirs - common)
        shares = np.divide(common, whole, out=np.zeros(len(edges)), where=whole > 0)
        good = shares >= MATCH_OVERLAP
        good &= ~truth.crowd[near] | ~(good & ~truth.crowd[near]).any()  # an object comes before a crowd
        if good.any():
            chosen = near[np.argmax(np.where(good, shares, -1.0))]
            is_right[place] = is_found[chosen] = True
    return is_right, is_found


def choose_evaluator() -> str:
    for package, (module, _) in EVALUATORS.items():
        try:
            import_module(module)
        except ImportError:
            continue
        return package
    message = f"boxes cannot be scored: {' and '.join(EVALUATORS)} cannot be imported"
    raise MachineError(message, hint="pip install hotcoco")


def _evaluate(
    package: str, classes: Integers, images: Integers, true: Numbers, found: Numbers
) -> tuple[Numbers, Numbers]:
    """Evaluate true boxes (image, left, top, width, height, class, area, 1 for a crowd) and detections (image,
    left, top, width, height, score, class).

    Return precision (10 overlaps, 101 recalls, classes, 4 AREAS, 3 DETECTION_LIMITS) and recall (the same without
    the recalls).
    """
    module, evaluator = EVALUATORS[package]
    library = import_module(module)
    annotations = [
        {"id": place, "image_id": int(row[0]), "category_id": int(row[5]), "bbox": row[1:5]}
        | {"area": row[6], "iscrowd": int(row[7])}
        for place, row in enumerate(true.tolist(), start=1)
    ]
    truth = library.COCO(
        {
            "images": [{"id": int(image)} for image in images],
            "categories": [{"id": int(number), "name": str(number)} for number in classes],
            "annotations": annotations,
        }
    )
    evaluation = getattr(library, evaluator)(truth, truth.loadRes(found), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    return np.asarray(evaluation.eval["precision"]), np.asarray(evaluation.eval["recall"])


def list_tables(scores: BoxScores, class_names: Sequence[str]) -> list[QualityTable]:
    rows: dict[str, list[list[str | float | None]]] = {"coco": [], "ap-by-class": []}
    for metric in METRICS:
        place, size = RECALLED.get(metric) or (2, PRECISIONS[metric])
        kind, overlap = "AP" if metric in PRECISIONS else "AR", _OVERLAPS.get(metric, "0.50:0.95")
        own_name = f"{kind} @[ IoU={overlap} | area={size} | maxDets={DETECTION_LIMITS[place]} ]"
        rows["coco"].append([own_name, _round(scores.metrics.get(metric))])
    rows["precision-recall"] = [
        [round(float(recall), 2), _round(float(precision)), LINES[metric]]
        for metric, curve in scores.curves.items()
        for recall, precision in zip(RECALLS, curve, strict=True)
    ]
    rows["ap-by-size"] = [
        [SIZES[name], *(_round(scores.metrics.get(f"{kind}_{name}")) for kind in ("map", "recall")), num_true]
        for name, num_true in scores.sizes.items()
    ]
    # If there are too many classes, those with the most true boxes: their scores are the most reliable.
    shown = sorted(scores.classes, key=lambda one: (-one.num_true, one.label))[:MAX_CLASSES]
    for one in sorted(shown, key=lambda one: (-one.average_precision, -one.average_precision_50, one.label)):
        name = class_names[one.label] if one.label < len(class_names) else f"class {one.label}"
        averages = _round(one.average_precision), _round(one.average_precision_50)
        rows["ap-by-class"].append([name, *averages, one.num_true])
    notes = describe_box_tables(
        (scores.num_images, scores.num_true, scores.num_found),
        scores.evaluator,
        all_sizes=len(scores.metrics) == len(METRICS),
        most_found=MAX_DETECTIONS,
        classes=(len(shown), len(scores.classes)),
    )
    return [
        QualityTable(name=name, title=title, drawn=drawn, columns=columns, rows=rows[name], note=notes[name])
        for name, (title, drawn, columns) in TABLES.items()
    ]


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)
