"""How well boxes are found: COCO's twelve numbers, and what tables and pictures need beside them.

The counting is done by libraries that agree with pycocotools to the last digit (results/evaluators.py, which also says
what that means to threads beside it).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainstone.errors import DataError
from trainstone.results.evaluators import AREAS, Counted, choose_evaluator

Numbers = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

RECALLS = np.linspace(0.0, 1.0, 101)
"""Where precision is read off."""
MOST_FOUND = 100
"""Found boxes of a picture and class that count, by their score."""

_ALL, _FIFTY, _SEVENTY_FIVE = slice(None), slice(0, 1), slice(5, 6)
PRECISIONS = {
    "map": (_ALL, "all"),
    "map50": (_FIFTY, "all"),
    "map75": (_SEVENTY_FIVE, "all"),
    "map_small": (_ALL, "small"),
    "map_medium": (_ALL, "medium"),
    "map_large": (_ALL, "large"),
}
"""Metric -> places among the overlaps 0.5, 0.55 ... 0.95, and the size of the true boxes."""
MOST_COUNTED = (1, 10, MOST_FOUND)
RECALLED = {
    "recall_1": (0, "all"),
    "recall_10": (1, "all"),
    "recall_100": (2, "all"),
    "recall_small": (2, "small"),
    "recall_medium": (2, "medium"),
    "recall_large": (2, "large"),
}
"""Metric -> place in MOST_COUNTED, and the size of the true boxes."""
METRICS = (*PRECISIONS, *RECALLED)
"""In COCO's order."""


@dataclass(frozen=True)
class Truth:
    """True boxes, one a place of each array."""

    picture: Integers
    label: Integers
    edges: Numbers
    """(n, 4): left, top, right, bottom in pixels."""
    area: Numbers
    """Of the thing itself where that is known, in pixels: what makes it small or large."""
    crowd: Flags
    """Many things in one box: nothing to find, and nothing wrong found in it."""


@dataclass(frozen=True)
class Found:
    """Boxes a network found."""

    picture: Integers
    label: Integers
    edges: Numbers
    """(n, 4): left, top, right, bottom in pixels."""
    score: Numbers


@dataclass(frozen=True)
class ClassScore:
    """Average precision of a class that has true boxes."""

    label: int
    average_precision: float
    """Mean of the overlaps 0.5, 0.55 ... 0.95."""
    average_precision_50: float
    num_true: int


@dataclass(frozen=True)
class SizeScore:
    """How well the true boxes of a size are found; None where there are none."""

    name: str
    average_precision: float | None
    recall: float | None
    num_true: int


@dataclass(frozen=True)
class BoxScores:
    """What score_boxes found out."""

    metrics: dict[str, float]
    """Those of METRICS that are defined: without a large true box there is no map_large."""
    curves: dict[str, Numbers]
    """map50, map75, map -> precision at each of RECALLS, mean of the classes that have true boxes."""
    classes: list[ClassScore]
    """By label."""
    sizes: list[SizeScore]
    num_pictures: int
    num_true: int
    """Without crowds."""
    num_found: int
    evaluator: str
    """Name and version of the library that counted."""


def score_boxes(
    truth: Truth,
    found: Found,
    *,
    pictures: Integers,
    num_classes: int,
    inclusive_edges: bool = False,
    evaluator: str | None = None,
) -> BoxScores:
    """Return COCO's numbers over the pictures judged, which are named by their numbers; those without boxes as well.

    Equal scores count in the order of the pictures' numbers (COCO's: of their ids), in one picture in the order given.
    Found boxes with an edge or score that is not finite are left out. inclusive_edges: found boxes are one pixel wider
    and higher than their edges say. evaluator: one of results/evaluators.py; the first that is installed otherwise.
    """
    pictures = np.unique(pictures)
    _check(truth, found, pictures, num_classes)
    name, count = choose_evaluator(evaluator)
    found = _drop_not_finite(found)
    classes = np.arange(1, num_classes + 1)
    counted = count(classes, pictures + 1, _tell_truth(truth), _tell_found(found, inclusive_edges))
    asked = ~truth.crowd
    return BoxScores(
        metrics=_list_metrics(counted),
        curves={metric: _draw_curve(counted, PRECISIONS[metric][0]) for metric in ("map50", "map75", "map")},
        classes=_score_classes(counted, np.bincount(truth.label[asked], minlength=num_classes)),
        sizes=_score_sizes(counted, truth.area[asked]),
        num_pictures=len(pictures),
        num_true=int(asked.sum()),
        num_found=len(found.score),
        evaluator=name,
    )


def _check(truth: Truth, found: Found, pictures: Integers, num_classes: int) -> None:
    if not (~truth.crowd).any():
        raise DataError(
            f"no box to find in {len(pictures)} validation pictures, so that nothing can be scored",
            hint="trainstone data info DIR counts the boxes of a data set; boxes marked as crowds do not count",
        )
    for boxes in (truth, found):  # both would be counted wrongly without a word
        assert np.isin(boxes.picture, pictures).all(), "a box of a picture that was not judged"
        assert ((boxes.label >= 0) & (boxes.label < num_classes)).all(), "a box of a class that is not there"


def _drop_not_finite(found: Found) -> Found:
    good = np.isfinite(found.edges).all(axis=1) & np.isfinite(found.score)
    if good.all():
        return found
    return Found(found.picture[good], found.label[good], found.edges[good], found.score[good])


def _tell_truth(truth: Truth) -> Numbers:
    """Return rows for an evaluator; pictures and classes are counted from 1, as some take 0 for none."""
    sides = _measure(truth.edges, 0)
    return np.column_stack((truth.picture + 1, sides, truth.label + 1, truth.area, truth.crowd)).astype(np.float64)


def _tell_found(found: Found, inclusive_edges: bool) -> Numbers:
    sides = _measure(found.edges, int(inclusive_edges))
    return np.column_stack((found.picture + 1, sides, found.score, found.label + 1)).astype(np.float64)


def _measure(edges: Numbers, added_pixels: int) -> Numbers:
    edges = edges.astype(np.float64).reshape(-1, 4)
    return np.column_stack((edges[:, :2], edges[:, 2:] - edges[:, :2] + added_pixels))


def _list_metrics(counted: Counted) -> dict[str, float]:
    found: dict[str, float | None] = {}
    for metric, (overlaps, size) in PRECISIONS.items():
        found[metric] = _average(counted.precision[overlaps, :, :, AREAS[size], -1])
    for metric, (most, size) in RECALLED.items():
        found[metric] = _average(counted.recall[:, :, AREAS[size], most])
    return {metric: value for metric, value in found.items() if value is not None}


def _average(values: Numbers) -> float | None:
    """Return the mean of what is defined; the evaluators say -1 where there is no true box."""
    defined = values[values > -1]
    return float(defined.mean()) if defined.size else None


def _draw_curve(counted: Counted, overlaps: slice) -> Numbers:
    precision = counted.precision[overlaps, :, :, AREAS["all"], -1]
    has_truth = (precision > -1).all(axis=(0, 1))
    curve: Numbers = precision[:, :, has_truth].mean(axis=(0, 2))
    return curve


def _score_classes(counted: Counted, num_true: Integers) -> list[ClassScore]:
    scores = []
    for label in np.flatnonzero(num_true):
        precision = counted.precision[:, :, label, AREAS["all"], -1]
        scores.append(
            ClassScore(int(label), float(precision.mean()), float(precision[_FIFTY].mean()), int(num_true[label]))
        )
    return scores


def _score_sizes(counted: Counted, areas: Numbers) -> list[SizeScore]:
    metrics = _list_metrics(counted)
    edges = {"small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, np.inf)}
    return [
        SizeScore(
            name,
            metrics.get(f"map_{name}"),
            metrics.get(f"recall_{name}"),
            int(((areas >= least) & (areas < most)).sum()),
        )
        for name, (least, most) in edges.items()
    ]


def match_boxes(truth: Truth, found: Found, overlap: float = 0.5) -> tuple[Flags, Flags]:
    """Return which found boxes are right and which true ones are found: within a picture and class, the surest first.

    A box is found once: a second one on it is wrong. Boxes that lie in a crowd of their class are right, and so is the
    crowd found, as often as it likes. Meant for some pictures to look at, not for a whole data set.
    """
    is_right, is_found = np.zeros(len(found.score), np.bool_), np.zeros(len(truth.label), np.bool_)
    true_of: dict[tuple[int, int], list[int]] = {}
    for place, key in enumerate(zip(truth.picture.tolist(), truth.label.tolist(), strict=True)):
        true_of.setdefault(key, []).append(place)
    for place in np.argsort(-found.score, kind="stable").tolist():
        near = np.array(true_of.get((int(found.picture[place]), int(found.label[place])), []), np.int64)
        near = near[~is_found[near] | truth.crowd[near]]
        shares = _share(found.edges[place], truth.edges[near], truth.crowd[near])
        good = shares >= overlap
        good &= ~truth.crowd[near] | ~(good & ~truth.crowd[near]).any()  # a thing of its own comes before a crowd
        if good.any():
            chosen = near[np.argmax(np.where(good, shares, -1.0))]
            is_right[place] = is_found[chosen] = True
    return is_right, is_found


def _share(box: Numbers, edges: Numbers, crowd: Flags) -> Numbers:
    """Return intersection over union with each; of a crowd, the share of the box that lies in it."""
    sides = np.minimum(box[2:], edges[:, 2:]) - np.maximum(box[:2], edges[:, :2])
    common = sides.clip(0).prod(axis=1)
    own, theirs = (box[2:] - box[:2]).prod(), (edges[:, 2:] - edges[:, :2]).prod(axis=1)
    whole = np.where(crowd, own, own + theirs - common)
    shares: Numbers = np.divide(common, whole, out=np.zeros(len(edges)), where=whole > 0)
    return shares
