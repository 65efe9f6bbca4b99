"""Object detection: uint8 NHWC images and boxes in, SSD's loss out; evaluated by COCO's mean average precision.

Evaluation collects rows of nine numbers: detections, ground-truth boxes and images, see ROW.
"""

import io
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from trainstone.config.schema import Config
from trainstone.data.image.decode import decode
from trainstone.data.pipeline.input_pipeline import IGNORED
from trainstone.data.splits import OpenSplit
from trainstone.errors import ConfigError, DataError
from trainstone.models.boxes import FoundBoxes, default_boxes, find_boxes, match
from trainstone.models.losses import detection_loss
from trainstone.models.ssd import build_ssd
from trainstone.results import coco_metrics
from trainstone.results.coco_metrics import GroundTruth, list_tables, match_boxes, score_boxes
from trainstone.results.findings import finding
from trainstone.results.schema.quality import QualitySample, ShownBox
from trainstone.results.schema.run import Finding
from trainstone.workloads import workload

Boxes = TypeVar("Boxes", GroundTruth, coco_metrics.Detections)
ROW = ("image", "kind", "label", "value", "left", "top", "right", "bottom", "area")
"""Columns. image: number in the source; label: class, negative for padding; value: score of a detection, or whether a
ground-truth box is a crowd; edges in pixels of the stored image; an image's row has its width and height there."""
FOUND, TRUTH, IMAGE = 0, 1, 2
"""Kinds of rows."""
NUM_SAMPLES = 12
MAX_SHOWN_BOXES = 30
"""Detections shown per sample image, the best ones."""
MIN_SCORE = 0.1
LONGER_SIDE = 480
QUALITY = 85
SYNTHETIC_BOXES = 8
"""Boxes per random image; COCO has seven on average."""
MIN_SYNTHETIC_SIDE = 0.05


def build_model(config: Config) -> nn.Module:
    model, size = config.model, config.data.image_size
    assert isinstance(model.num_classes, int)  # engine/task.py resolved it
    try:
        return build_ssd(
            model.depth, num_classes=model.num_classes, image_size=size, width=model.width, norm=model.norm
        )
    except ValueError as err:
        raise ConfigError(f"invalid data.image_size = {size}: {err}") from err


def synthetic_batches(config: Config, batch_size: int) -> list[workload.Batch]:
    """Draw random images with random boxes; the same for the same seed on every machine."""
    generator = torch.Generator().manual_seed(config.seed)
    size, shape = config.data.image_size, (batch_size, SYNTHETIC_BOXES)

    def draw() -> workload.Batch:
        images = torch.randint(256, (batch_size, size, size, 3), dtype=torch.uint8, generator=generator)
        sides = MIN_SYNTHETIC_SIDE + (1 - MIN_SYNTHETIC_SIDE) * torch.rand(*shape, 2, generator=generator)
        begin = (1 - sides) * torch.rand(*shape, 2, generator=generator)
        labels = torch.randint(config.model.num_classes, shape, generator=generator)
        return images, torch.cat([begin, begin + sides], dim=2), labels

    return [draw() for _ in range(config.data.num_synthetic_batches)]


def build_loss(config: Config, device: torch.device) -> workload.Loss:
    normalise, detect = workload.build_input(config, device), config.detect
    defaults = default_boxes(config.data.image_size).to(device)

    def loss(model: nn.Module, batch: workload.Batch) -> Tensor:
        images, boxes, labels = batch
        targets = match(boxes, labels, defaults, min_overlap=detect.match_iou)
        return detection_loss(*model(normalise(images)), *targets, negatives=detect.negatives)

    return loss


def build_detector(config: Config, device: torch.device) -> Callable[[nn.Module, Tensor], FoundBoxes]:
    forward, detect = build_forward(config, device), config.detect
    find = partial(
        find_boxes,
        defaults=default_boxes(config.data.image_size).to(device),
        min_score=detect.min_score,
        max_candidates=detect.before_nms,
        max_overlap=detect.nms_iou,
        max_boxes=detect.max_detections,
    )
    return lambda model, images: find(*forward(model, images))


def build_evaluator(config: Config, device: torch.device) -> workload.Evaluator:
    """Return a function from a validation batch to rows of its detections, ground-truth boxes and images."""
    find = build_detector(config, device)

    def evaluate(model: nn.Module, batch: workload.Batch) -> Tensor:
        images, boxes, labels, crowds, areas, facts = batch
        found = find(model, images)
        numbers, sides = facts[:, :1].float(), facts[:, None, [1, 2, 1, 2]].float()
        return torch.cat(
            [
                list_rows(FOUND, numbers, found.labels, found.scores, found.edges * sides),
                list_rows(TRUTH, numbers, labels, crowds.float(), boxes * sides, areas),
                list_rows(IMAGE, numbers, torch.zeros_like(facts[:, :1]), numbers[:, :1], sides),
            ]
        )

    return evaluate


def list_rows(
    kind: int, numbers: Tensor, labels: Tensor, values: Tensor, edges: Tensor, areas: Tensor | None = None
) -> Tensor:
    """Return rows of one kind, nine numbers each; padding has a negative label."""
    shape = labels.shape
    columns = [
        numbers.expand(shape),
        torch.full(shape, float(kind), device=labels.device),
        # Entries without an image are padding.
        torch.where(numbers >= 0, labels, IGNORED).float(),
        values.expand(shape),
        *edges.expand(*shape, 4).unbind(2),
        torch.zeros(shape, device=labels.device) if areas is None else areas,
    ]
    return torch.stack(columns, dim=2).flatten(0, 1)


def build_forward(config: Config, device: torch.device) -> workload.Forward:
    normalise = workload.build_input(config, device)
    return lambda model, images: model(normalise(images))


def build_predictor(config: Config, device: torch.device) -> workload.Predictor:
    find = build_detector(config, device)

    def predict(model: nn.Module, images: Tensor) -> list[list[workload.Prediction]]:
        found = find(model, images)
        return [
            [
                workload.Prediction(label, score, tuple(edges))
                for label, score, edges in zip(*(part.tolist() for part in image), strict=True)
                if label != IGNORED
            ]
            for image in zip(found.labels, found.scores, found.edges, strict=True)
        ]

    return predict


def finish_eval(config: Config, opened: OpenSplit, rows: Tensor) -> workload.EvalScores:
    """Return COCO's twelve metrics, tables of their parts, and sample images."""
    evaluated = split_rows(rows.numpy())
    if not len(evaluated.images):
        raise DataError("no validation image could be read", hint=f"trainstone data verify {config.data.root}")
    assert isinstance(config.model.num_classes, int)
    scores = score_boxes(
        evaluated.truth,
        evaluated.found,
        images=evaluated.images,
        num_classes=config.model.num_classes,
        inclusive_edges=config.detect.inclusive_edges,
    )
    names = [one.text or one.name for one in opened.dataset.classes]
    tables = tuple(list_tables(scores, names))
    return workload.EvalScores(scores.metrics, len(evaluated.images), tables, render_samples(opened, evaluated, names))


def count_classes(weights: Mapping[str, Tensor]) -> int | None:
    """Return the number of classes of saved weights: the finest map has four boxes per cell, each with the classes, the
    background and four offsets."""
    bias = weights.get("heads.0.bias")
    return len(bias) // 4 - 5 if bias is not None and bias.dim() == 1 else None


def list_warnings(config: Config) -> list[Finding]:
    if config.model.pretrained or config.data.source == "generated":
        return []
    message = "model.pretrained is not set: training from random weights takes longer and may reach a lower mAP"
    return [finding("not-pretrained", message)]


class EvalRows(NamedTuple):
    truth: GroundTruth
    found: coco_metrics.Detections
    images: NDArray[np.int64]
    """Numbers of the evaluated images, ascending."""
    sizes: NDArray[np.float64]
    """Widths and heights of the images. (images, 2)"""


def split_rows(rows: NDArray[np.float32]) -> EvalRows:
    """Split rows by kind. An image that several ranks evaluated counts once."""
    rows = rows[rows[:, 2] >= 0].astype(np.float64)
    found, truth, images = (rows[rows[:, 1] == kind] for kind in (FOUND, TRUTH, IMAGE))
    numbers, first = np.unique(images[:, 0].astype(np.int64), return_index=True)
    return EvalRows(
        GroundTruth(*_columns(truth), area=truth[:, 8], crowd=truth[:, 3] > 0),
        coco_metrics.Detections(*_columns(found), score=found[:, 3]),
        numbers,
        images[first, 6:8],
    )


def _columns(rows: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    return rows[:, 0].astype(np.int64), rows[:, 2].astype(np.int64), rows[:, 4:8]


def render_samples(opened: OpenSplit, evaluated: EvalRows, names: list[str]) -> tuple[tuple[QualitySample, bytes], ...]:
    """Render evenly spaced images that contain objects, with their boxes: the same images at every evaluation."""
    with_objects = np.unique(evaluated.truth.image)
    last = len(with_objects) - 1
    chosen = with_objects[np.unique(np.linspace(0, last, min(NUM_SAMPLES, last + 1)).round().astype(np.int64))]
    truth, found = select_images(evaluated.truth, chosen), select_images(evaluated.found, chosen)
    is_right, is_found = match_boxes(truth, found)
    shown = []
    for number in chosen.tolist():
        width, height = evaluated.sizes[np.searchsorted(evaluated.images, number)].tolist()
        boxes = []
        for place in np.flatnonzero(truth.image == number).tolist():
            edges = relative_edges(truth.edges[place], width, height)
            label = name_class(names, truth.label[place])
            boxes.append(ShownBox(label=label, **edges, correct=bool(is_found[place])))
        best = np.flatnonzero((found.image == number) & (found.score >= MIN_SCORE))
        for place in best[np.argsort(-found.score[best], kind="stable")][:MAX_SHOWN_BOXES].tolist():
            edges, score = relative_edges(found.edges[place], width, height), round(float(found.score[place]), 3)
            label = name_class(names, found.label[place])
            boxes.append(ShownBox(label=label, **edges, score=score, correct=bool(is_right[place])))
        try:
            image = Image.fromarray(decode(opened.source.read(number).image))
        except DataError:
            continue  # the file has become unreadable
        image.thumbnail((LONGER_SIDE, LONGER_SIDE))
        jpeg = io.BytesIO()
        image.save(jpeg, "JPEG", quality=QUALITY)
        title, file = opened.source.name(number), f"samples/{number:08d}.jpg"
        sample = QualitySample(file=file, title=title, width=int(width), height=int(height), boxes=boxes)
        shown.append((sample, jpeg.getvalue()))
    return tuple(shown)


def select_images(boxes: Boxes, chosen: NDArray[np.int64]) -> Boxes:
    kept = np.isin(boxes.image, chosen)
    return replace(boxes, **{field.name: getattr(boxes, field.name)[kept] for field in fields(boxes)})


def name_class(names: list[str], label: int) -> str:
    return names[label] if label < len(names) else f"class {label}"


def relative_edges(edges: np.ndarray, width: float, height: float) -> dict[str, float]:
    """Convert edges from pixels to fractions of the image, rounded to what a page can show."""
    sides = (("left", width), ("top", height), ("right", width), ("bottom", height))
    return {side: round(float(edge) / whole, 4) for edge, (side, whole) in zip(edges, sides, strict=True)}


DETECT = workload.Workload(
    name="detect",
    title=lambda config: f"SSD{config.data.image_size}-ResNet{config.model.depth}",
    build_model=build_model,
    synthetic_batches=synthetic_batches,
    target_kind="boxes",
    eval_target_kind="truth",
    mix=lambda _config, batches, _rank, _first_batch: iter(batches),
    build_loss=build_loss,
    build_evaluator=build_evaluator,
    build_forward=build_forward,
    build_predictor=build_predictor,
    finish_eval=finish_eval,
    min_classes=1,
    count_classes=count_classes,
    find_trunk=lambda model: model.backbone,
    list_warnings=list_warnings,
)
