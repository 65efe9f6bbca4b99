"""The libraries that count right and wrong boxes as COCO does, behind one signature: arrays in, two arrays out.

hotcoco first: it takes the arrays as they are, and other Python threads run while it evaluates and accumulates. Only
while it takes over the found boxes, 0.25 s for a million, does it hold the interpreter (benchmarks/coco_eval.py; the
longest pause of a thread beside it). It uses all cores unless RAYON_NUM_THREADS says how many.
faster-coco-eval where that is missing: the same numbers, fourteen times slower, and pauses of 3 s for a million boxes.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainstone.errors import MachineError

Numbers = NDArray[np.float64]
Integers = NDArray[np.int64]

AREAS = {"all": 0, "small": 1, "medium": 2, "large": 3}
"""Size of the true boxes -> place in the arrays below."""


class Counted(NamedTuple):
    """What every evaluator gives; -1 where there is no true box."""

    precision: Numbers
    """(10 overlaps, 101 recalls, classes, 4 AREAS, 3 numbers of found boxes that count)."""
    recall: Numbers
    """(10 overlaps, classes, 4 AREAS, 3 numbers of found boxes that count)."""


Count = Callable[[Integers, Integers, Numbers, Numbers], Counted]
"""Numbers of the classes, of the pictures; true boxes (picture, left, top, width, height, class, area, 1 for a crowd);
found boxes (picture, left, top, width, height, score, class)."""


def choose_evaluator(name: str | None = None) -> tuple[str, Count]:
    """Return name and version, and the function, of the one asked for or of the first that can be imported."""
    wanted = EVALUATORS if name is None else {name: EVALUATORS[name]}
    for package, (module, count) in wanted.items():
        try:
            import_module(module)
        except ImportError:
            continue
        return f"{package} {version(package)}", count
    raise MachineError(
        f"boxes cannot be scored: {' and '.join(wanted)} cannot be imported", hint="pip install " + next(iter(wanted))
    )


def _count_hotcoco(classes: Integers, pictures: Integers, true: Numbers, found: Numbers) -> Counted:
    from hotcoco import COCO, COCOeval

    truth = COCO.from_arrays(
        [{"id": int(picture)} for picture in pictures],
        [{"id": int(number), "name": str(number)} for number in classes],
        true[:, 0].astype(np.int64),
        true[:, 5].astype(np.int64),
        true[:, 1:5],
        area=true[:, 6],
        iscrowd=true[:, 7].astype(np.bool_),
    )
    evaluation = COCOeval(truth, truth.load_res(found), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    arrays = evaluation.eval
    assert arrays is not None
    return Counted(arrays["precision"], arrays["recall"])


def _count_faster(classes: Integers, pictures: Integers, true: Numbers, found: Numbers) -> Counted:
    from faster_coco_eval import COCO, COCOeval_faster

    annotations = [
        {
            "id": place,
            "image_id": int(row[0]),
            "category_id": int(row[5]),
            "bbox": row[1:5],
            "area": row[6],
            "iscrowd": int(row[7]),
        }
        for place, row in enumerate(true.tolist(), start=1)
    ]
    truth = COCO(
        {
            "images": [{"id": int(picture)} for picture in pictures],
            "categories": [{"id": int(number), "name": str(number)} for number in classes],
            "annotations": annotations,
        }
    )
    evaluation = COCOeval_faster(truth, truth.loadRes(found), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    return Counted(np.asarray(evaluation.eval["precision"]), np.asarray(evaluation.eval["recall"]))


EVALUATORS: dict[str, tuple[str, Count]] = {
    "hotcoco": ("hotcoco", _count_hotcoco),
    "faster-coco-eval": ("faster_coco_eval", _count_faster),
}
"""Package -> its module, and the function; the best first."""
