"""Random true and predicted boxes for tests of scoring, and their scores by pycocotools."""

import contextlib
import io
from typing import Any

import numpy as np

from trainstone.results.coco_metrics import Detections, GroundTruth


def draw_boxes(
    random: np.random.Generator, *, num_images: int, num_classes: int, true: int, found: int
) -> tuple[GroundTruth, Detections]:
    """Return boxes from below 32 to above 96 pixels in some of the images and classes, with crowds and repeated scores.

    Predicted boxes are near true ones: some are equal, some have no width, many occur twice.
    """
    images, classes = max(1, num_images - 2), max(1, num_classes - 1)  # the last ones stay empty
    corner = random.integers(0, 300, (true, 2)).astype(float)
    edges = np.hstack((corner, corner + random.choice([9.5, 20, 32, 60, 96, 150], (true, 2))))
    area = (edges[:, 2:] - edges[:, :2]).prod(axis=1) * random.choice([1.0, 0.5], true)
    truth = GroundTruth(
        random.integers(images, size=true), random.integers(classes, size=true), edges, area,
        random.random(true) < 0.15,
    )  # fmt: skip
    near = random.integers(true, size=found)
    moved = truth.edges[near] + random.choice([0, 0, 1, 5, 12], (found, 4)) * random.choice([-1, 1], (found, 4))
    moved[:, 2:] = np.maximum(moved[:, :2], moved[:, 2:])
    score = np.round(random.random(found), 1)
    away = random.random(found) < 0.2
    image = np.where(away, random.integers(num_images, size=found), truth.image[near])
    label = np.where(random.random(found) < 0.2, random.integers(num_classes, size=found), truth.label[near])
    return truth, Detections(image, label, moved, score)


def run_pycocotools(
    truth: GroundTruth, found: Detections, num_images: int, num_classes: int, added_pixels: int = 0
) -> Any:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def place(boxes: GroundTruth | Detections, at: int, added: int = 0) -> dict[str, Any]:
        left, top, right, bottom = boxes.edges[at].tolist()
        bbox = [left, top, right - left + added, bottom - top + added]
        return {"image_id": int(boxes.image[at]) + 1, "category_id": int(boxes.label[at]) + 1, "bbox": bbox}

    coco = COCO()
    coco.dataset = {
        "images": [{"id": number + 1} for number in range(num_images)],
        "categories": [{"id": number + 1} for number in range(num_classes)],
        "annotations": [
            place(truth, at) | {"id": at + 1, "area": float(truth.area[at]), "iscrowd": int(truth.crowd[at])}
            for at in range(len(truth.edges))
        ],
    }
    results = [place(found, at, added_pixels) | {"score": float(found.score[at])} for at in range(len(found.edges))]
    with contextlib.redirect_stdout(io.StringIO()):
        coco.createIndex()
        evaluation = COCOeval(coco, coco.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation
