"""Speed of COCO evaluation: trainstone's score_boxes and pycocotools on the same arrays, alternating.

    python benchmarks/coco_eval.py [--images 5000] [--rounds 1] [--evaluator hotcoco]

The data is generated, similar to COCO val2017: 80 classes of uneven frequency, 7.3 ground-truth boxes per image (36
thousand in 5,000 images), 1 % of them crowds, 200 detections per image: several near each ground-truth box, the rest
anywhere with low scores. Both sides start from numpy arrays and compute the twelve metrics, which must agree.
pycocotools needs minutes, so the sides alternate by rounds; the time it needs to read the same boxes from JSON files is
measured separately. Needs pycocotools (extra dev).
Goal: at least 20 x pycocotools.
"""

import argparse
import contextlib
import io
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainstone.results.coco_metrics import BoxScores, Detections, GroundTruth, score_boxes

MIN_RATIO = 20.0
NUM_CLASSES = 80
TRUE_PER_IMAGE = 7.3
FOUND_PER_IMAGE = 200
WIDTH, HEIGHT = 640.0, 480.0


def make_boxes(num_images: int, seed: int = 0) -> tuple[GroundTruth, Detections]:
    """Draw ground-truth boxes, and detections of medium quality."""
    random = np.random.default_rng(seed)
    shares = 1.0 / np.arange(1, NUM_CLASSES + 1)
    count = int(num_images * TRUE_PER_IMAGE)
    image = np.sort(random.integers(num_images, size=count))
    label = random.choice(NUM_CLASSES, size=count, p=shares / shares.sum())
    edges = _draw_edges(random, count)
    area = 0.7 * (edges[:, 2] - edges[:, 0]) * (edges[:, 3] - edges[:, 1])
    truth = GroundTruth(image, label, edges, area, random.random(count) < 0.01)
    return truth, _find_some(random, truth, num_images, shares / shares.sum())


def _draw_edges(random: np.random.Generator, count: int) -> np.ndarray:
    sides = np.exp(random.normal(np.log(60.0), 1.0, (count, 2))).clip(4.0, (WIDTH, HEIGHT))
    corner = random.random((count, 2)) * (np.array((WIDTH, HEIGHT)) - sides)
    return np.hstack((corner, corner + sides))


def _find_some(random: np.random.Generator, truth: GroundTruth, num_images: int, shares: np.ndarray) -> Detections:
    """Draw several boxes near each true one, some of another class, and random ones up to the number per image."""
    near = np.repeat(np.arange(len(truth.image)), 6)
    sides = (truth.edges[:, 2:] - truth.edges[:, :2])[near]
    noise = random.normal(0.0, 0.12, (len(near), 4)) * np.hstack((sides, sides))
    quality = np.exp(-np.abs(noise / np.hstack((sides, sides))).sum(axis=1))
    other = random.choice(NUM_CLASSES, size=len(near), p=shares)
    label = np.where(random.random(len(near)) < 0.3, other, truth.label[near])
    score = quality * random.random(len(near))
    missing = np.maximum(0, FOUND_PER_IMAGE - np.bincount(truth.image[near], minlength=num_images))
    anywhere = np.repeat(np.arange(num_images), missing)
    return Detections(
        np.concatenate((truth.image[near], anywhere)),
        np.concatenate((label, random.choice(NUM_CLASSES, size=len(anywhere), p=shares))),
        np.vstack((truth.edges[near] + noise, _draw_edges(random, len(anywhere)))),
        np.concatenate((score, 0.1 * random.random(len(anywhere)))),
    )


def describe(truth: GroundTruth, num_images: int) -> dict[str, Any]:
    """Return the ground-truth boxes in the structure of an annotation file."""
    rows = zip(truth.image, truth.label, _sides(truth.edges).tolist(), truth.area, truth.crowd, strict=True)
    return {
        "images": [{"id": number + 1, "width": WIDTH, "height": HEIGHT} for number in range(num_images)],
        "categories": [{"id": number + 1, "name": str(number)} for number in range(NUM_CLASSES)],
        "annotations": [
            {
                "id": place,
                "image_id": int(image) + 1,
                "category_id": int(label) + 1,
                "bbox": box,
                "area": float(area),
                "iscrowd": int(crowd),
            }
            for place, (image, label, box, area, crowd) in enumerate(rows, start=1)
        ],
    }


def _sides(edges: np.ndarray) -> np.ndarray:
    return np.hstack((edges[:, :2], edges[:, 2:] - edges[:, :2]))


def run_pycocotools(truth: GroundTruth, found: Detections, num_images: int) -> np.ndarray:
    """Evaluate arrays with pycocotools."""
    from pycocotools.coco import COCO

    coco = COCO()
    coco.dataset = describe(truth, num_images)
    coco.createIndex()
    rows = np.column_stack((found.image + 1, _sides(found.edges), found.score, found.label + 1))
    return _summarise(coco, coco.loadRes(rows))


def _summarise(truth: Any, found: Any) -> np.ndarray:
    from pycocotools.cocoeval import COCOeval

    evaluation = COCOeval(truth, found, "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return np.asarray(evaluation.stats)


def time_json(truth: GroundTruth, found: Detections, num_images: int) -> float:
    """Return the time that pycocotools needs to read the same boxes from two JSON files."""
    from pycocotools.coco import COCO

    rows = zip(found.image, found.label, _sides(found.edges).tolist(), found.score, strict=True)
    results = [
        {"image_id": int(image) + 1, "category_id": int(label) + 1, "bbox": box, "score": float(score)}
        for image, label, box, score in rows
    ]
    with tempfile.TemporaryDirectory() as folder:
        paths = Path(folder, "truth.json"), Path(folder, "found.json")
        paths[0].write_text(json.dumps(describe(truth, num_images)))
        paths[1].write_text(json.dumps(results))
        del results
        return time_call(lambda: COCO(str(paths[0])).loadRes(str(paths[1])))[0].seconds


class Took(NamedTuple):
    """Duration of a call; the processor time of all threads depends less on other load."""

    seconds: float
    cpu_seconds: float


def time_call(work: Callable[[], Any]) -> tuple[Took, Any]:
    """Return the duration and the result of a call; its output is discarded."""
    with contextlib.redirect_stdout(io.StringIO()):
        start, cpu_start = time.perf_counter(), time.process_time()
        answer = work()
        return Took(time.perf_counter() - start, time.process_time() - cpu_start), answer


def measure_pause(work: Callable[[], Any]) -> float:
    """Return the longest pause of another Python thread that polls the clock during the work.

    Its throughput would depend more on the cores' load than on the interpreter lock.
    """
    stop, ready, longest = threading.Event(), threading.Event(), [0.0]

    def poll_clock() -> None:
        last = time.perf_counter()
        ready.set()
        while not stop.is_set():
            now = time.perf_counter()
            longest[0] = max(longest[0], now - last)
            last = now

    thread = threading.Thread(target=poll_clock)
    thread.start()
    ready.wait()
    work()
    stop.set()
    thread.join()
    return longest[0]


def main() -> int:
    """Measure, print, and check the goal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--evaluator", help="hotcoco or faster-coco-eval; the first that is installed otherwise")
    options = parser.parse_args()
    count = options.images
    truth, found = make_boxes(count)

    def ours() -> BoxScores:
        images = np.arange(count)
        return score_boxes(truth, found, images=images, num_classes=NUM_CLASSES, evaluator=options.evaluator)

    took: dict[str, list[Took]] = {"ours": [], "pycocotools": []}
    for _ in range(options.rounds):
        for side, work in (
            ("ours", ours),
            ("pycocotools", lambda: run_pycocotools(truth, found, count)),
            ("ours", ours),
        ):
            spent, answer = time_call(work)
            took[side].append(spent)
            if side == "pycocotools":
                theirs = answer
            else:
                scores = answer
    print(f"{count} images, {len(truth.label)} ground-truth boxes, {len(found.label)} detections; {scores.evaluator}")
    middle = {side: np.median(spent, axis=0) for side, spent in took.items()}
    for side, spent in took.items():
        each = ", ".join(f"{one.seconds:.2f}" for one in spent)
        print(f"{side:12} {middle[side][0]:8.2f} s ({each}), {middle[side][1]:8.2f} s of processor time")
    print(f"pycocotools needs {time_json(truth, found, count):.1f} s more to read the same boxes from JSON")
    difference = float(np.abs(np.array(list(scores.metrics.values())) - theirs).max())
    print(f"mAP {scores.metrics['map']:.4f}; the twelve metrics differ by at most {difference:.1e}")
    print(f"another Python thread is blocked for at most {measure_pause(ours):.2f} s at a time")
    ratio, cpu_ratio = middle["pycocotools"] / middle["ours"]
    print(f"ours is {ratio:.0f} times as fast, {cpu_ratio:.0f} by processor time (goal: at least {MIN_RATIO:.0f})")
    return 0 if ratio >= MIN_RATIO and difference < 1e-9 else 1


if __name__ == "__main__":
    sys.exit(main())
