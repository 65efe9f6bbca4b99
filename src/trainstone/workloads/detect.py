"""Detection: uint8 NHWC images and their boxes in, SSD's loss out; COCO's mean average precision says how good it is.

Rows that are judged are found boxes, true ones and the images themselves, nine numbers each: see ROW.
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
from trainstone.data.pipeline.feed import IGNORED
from trainstone.data.splits import OpenSplit
from trainstone.errors import ConfigError, DataError
from trainstone.models.boxes import FoundBoxes, default_boxes, find_boxes, match
from trainstone.models.losses import detection_loss
from trainstone.models.ssd import build_ssd
from trainstone.results import coco_metrics
from trainstone.results.coco_metrics import Truth, list_tables, match_boxes, score_boxes
from trainstone.results.findings import finding
from trainstone.results.schema.quality import QualitySample, ShownBox
from trainstone.results.schema.run import Finding
from trainstone.workloads import workload

Boxes = TypeVar("Boxes", Truth, coco_metrics.Detections)
ROW = ("image", "kind", "label", "value", "left", "top", "right", "bottom", "area")
"""Columns. image: its number in the source; label: class, negative for a row that is none; value: score of a found
box, whether a true one is a crowd; edges in pixels of the stored image, whose size those of an image's row are."""
FOUND, TRUTH, IMAGE = 0, 1, 2
"""Kinds of rows."""
IMAGES = 12
MOST_FOUND = 30
"""Boxes of an image that are kept, the best ones."""
MIN_SCORE = 0.1
LONGER_SIDE = 480
QUALITY = 85
SYNTHETIC_BOXES = 8
"""Of a random image; COCO has seven on average."""
MIN_SYNTHETIC_SIDE = 0.05


def build_model(config: Config) -> nn.Module:
    model, size = config.model, config.data.image_size
    assert isinstance(model.num_classes, int)  # engine/task.py resolved it
    try:
        return build_ssd(
            model.depth, num_classes=model.num_classes, image_size=size, width=model.width, norm=model.norm
        )
    except ValueError as err:
        raise ConfigError(f"data.image_size = {size}: {err}") from err


def synthetic_batches(config: Config, batch_size: int) -> list[workload.Batch]:
    """Random images with random boxes; the same for the same seed on every machine."""
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
    see, detect = workload.build_input(config, device), config.detect
    defaults = default_boxes(config.data.image_size).to(device)

    def loss(model: nn.Module, batch: workload.Batch) -> Tensor:
        images, boxes, labels = batch
        wanted = match(boxes, labels, defaults, min_overlap=detect.match_overlap)
        return detection_loss(*model(see(images)), *wanted, negatives=detect.negatives)

    return loss


def build_finder(config: Config, device: torch.device) -> Callable[[nn.Module, Tensor], FoundBoxes]:
    score, detect = build_scores(config, device), config.detect
    find = partial(
        find_boxes,
        defaults=default_boxes(config.data.image_size).to(device),
        min_score=detect.min_score,
        before=detect.before_nms,
        overlap=detect.nms_overlap,
        most=detect.max_found,
    )
    return lambda model, images: find(*score(model, images))


def build_evaluator(config: Config, device: torch.device) -> workload.Evaluator:
    """Return what lists, of a validation batch, the boxes that were found, those that are there, and the images."""
    find = build_finder(config, device)

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
    """Return rows of one kind, nine numbers each; those that are none have no class."""
    shape = labels.shape
    columns = [
        numbers.expand(shape),
        torch.full(shape, float(kind), device=labels.device),
        # What belongs to no image is nothing.
        torch.where(numbers >= 0, labels, IGNORED).float(),
        values.expand(shape),
        *edges.expand(*shape, 4).unbind(2),
        torch.zeros(shape, device=labels.device) if areas is None else areas,
    ]
    return torch.stack(columns, dim=2).flatten(0, 1)


def build_scores(config: Config, device: torch.device) -> workload.Scores:
    see = workload.build_input(config, device)
    return lambda model, images: model(see(images))


def build_predictor(config: Config, device: torch.device) -> workload.Look:
    find = build_finder(config, device)

    def look(model: nn.Module, images: Tensor) -> list[list[workload.Prediction]]:
        found = find(model, images)
        return [
            [
                workload.Prediction(label, score, tuple(edges))
                for label, score, edges in zip(*(part.tolist() for part in image), strict=True)
                if label != IGNORED
            ]
            for image in zip(found.labels, found.scores, found.edges, strict=True)
        ]

    return look


def finish_eval(config: Config, opened: OpenSplit, rows: Tensor) -> workload.EvalScores:
    """COCO's twelve numbers, what is behind them, and some images to look at."""
    evaluated = split_rows(rows.numpy())
    if not len(evaluated.images):
        raise DataError("no validation image could be judged", hint="trainstone data verify names what is wrong")
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
    return workload.EvalScores(scores.metrics, len(evaluated.images), tables, draw_samples(opened, evaluated, names))


def count_classes(weights: Mapping[str, Tensor]) -> int | None:
    """Return how many classes saved weights know: the finest map has four boxes a cell, each with classes, background
    and four edges."""
    bias = weights.get("heads.0.bias")
    return len(bias) // 4 - 5 if bias is not None and bias.dim() == 1 else None


def list_warnings(config: Config) -> list[Finding]:
    if config.model.pretrained or config.data.source == "generated":
        return []
    message = "the backbone starts from random weights (model.pretrained): learning takes longer, and may end lower"
    return [finding("not-pretrained", message)]


class Rows(NamedTuple):
    truth: Truth
    found: coco_metrics.Detections
    images: NDArray[np.int64]
    """Numbers of the images that were judged, rising."""
    sizes: NDArray[np.float64]
    """Their widths and heights. (images, 2)"""


def split_rows(rows: NDArray[np.float32]) -> Rows:
    """Take rows apart. An image that several ranks judged counts once."""
    rows = rows[rows[:, 2] >= 0].astype(np.float64)
    found, truth, images = (rows[rows[:, 1] == kind] for kind in (FOUND, TRUTH, IMAGE))
    numbers, first = np.unique(images[:, 0].astype(np.int64), return_index=True)
    return Rows(
        Truth(*_columns(truth), area=truth[:, 8], crowd=truth[:, 3] > 0),
        coco_metrics.Detections(*_columns(found), score=found[:, 3]),
        numbers,
        images[first, 6:8],
    )


def _columns(rows: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    return rows[:, 0].astype(np.int64), rows[:, 2].astype(np.int64), rows[:, 4:8]


def draw_samples(opened: OpenSplit, evaluated: Rows, names: list[str]) -> tuple[tuple[QualitySample, bytes], ...]:
    """Choose images that have something in them, evenly among all: the same ones at every evaluation."""
    full = np.unique(evaluated.truth.image)
    chosen = full[np.unique(np.linspace(0, len(full) - 1, min(IMAGES, len(full))).round().astype(np.int64))]
    truth, found = select_images(evaluated.truth, chosen), select_images(evaluated.found, chosen)
    is_right, is_found = match_boxes(truth, found)
    shown = []
    for number in chosen.tolist():
        width, height = evaluated.sizes[np.searchsorted(evaluated.images, number)].tolist()
        boxes = []
        for place in np.flatnonzero(truth.image == number).tolist():
            edges = shares(truth.edges[place], width, height)
            boxes.append(ShownBox(label=name(names, truth.label[place]), **edges, right_one=bool(is_found[place])))
        best = np.flatnonzero((found.image == number) & (found.score >= MIN_SCORE))
        for place in best[np.argsort(-found.score[best], kind="stable")][:MOST_FOUND].tolist():
            edges, score = shares(found.edges[place], width, height), round(float(found.score[place]), 3)
            message = name(names, found.label[place])
            boxes.append(ShownBox(label=message, **edges, score=score, right_one=bool(is_right[place])))
        try:
            image = Image.fromarray(decode(opened.source.read(number).image))
        except DataError:
            continue  # it can no longer be read
        image.thumbnail((LONGER_SIDE, LONGER_SIDE))
        jpeg = io.BytesIO()
        image.save(jpeg, "JPEG", quality=QUALITY)
        title, file = opened.source.name(number), f"samples/{number:08d}.jpg"
        made = QualitySample(file=file, title=title, width=int(width), height=int(height), boxes=boxes)
        shown.append((made, jpeg.getvalue()))
    return tuple(shown)


def select_images(boxes: Boxes, chosen: NDArray[np.int64]) -> Boxes:
    kept = np.isin(boxes.image, chosen)
    return replace(boxes, **{field.name: getattr(boxes, field.name)[kept] for field in fields(boxes)})


def name(names: list[str], label: int) -> str:
    return names[label] if label < len(names) else f"class {label}"


def shares(edges: np.ndarray, width: float, height: float) -> dict[str, float]:
    """Return edges in pixels as shares, with as many digits as a page can show."""
    sides = (("left", width), ("top", height), ("right", width), ("bottom", height))
    return {side: round(float(edge) / whole, 4) for edge, (side, whole) in zip(edges, sides, strict=True)}


DETECT = workload.Workload(
    name="detect",
    title=lambda config: f"SSD{config.data.image_size}-ResNet{config.model.depth}",
    build_model=build_model,
    synthetic_batches=synthetic_batches,
    holds="boxes",
    eval_holds="truth",
    mix=lambda _config, batches, _rank, _first_batch: iter(batches),
    build_loss=build_loss,
    build_evaluator=build_evaluator,
    build_scores=build_scores,
    build_predictor=build_predictor,
    finish_eval=finish_eval,
    min_classes=1,
    count_classes=count_classes,
    find_trunk=lambda model: model.backbone,
    list_warnings=list_warnings,
)
