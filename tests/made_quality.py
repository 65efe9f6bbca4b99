"""A made-up detection run: COCO's twelve over eight evaluations, tables of real scores, four pictures with boxes."""

import io
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from made_boxes import draw_boxes
from made_learning import make_evaluations, make_training, write_training
from trainstone.formats.coco import NAME_OF_ID
from trainstone.results.detection import METRICS, list_tables, score_boxes
from trainstone.results.quality import Quality, QualityPicture, QualityTable, ShownBox

MAPS = (0.031, 0.062, 0.094, 0.131, 0.158, 0.187, 0.212, 0.2317)
NAMES = list(NAME_OF_ID.values())
SIZES = ((640, 427), (640, 480), (427, 640), (500, 333))
LOOKS = {"sheep": "#e9e4da", "car": "#a3242c", "kite": "#f2b705", "boat": "#26547c", "dog": "#6b4226"}


@cache
def draw_scene(number: int) -> tuple[bytes, list[tuple[str, tuple[float, ...]]]]:
    """A meadow below a sky with some things; JPEG bytes, and labels with edges as shares."""
    width, height = SIZES[number % len(SIZES)]
    random = np.random.default_rng(number)
    rows = np.linspace(0, 1, height)[:, None, None]
    sky, meadow = np.array([120, 170, 230]) + 60 * rows, np.array([70, 120, 50]) * (0.6 + 0.6 * rows)
    pixels = np.where(rows < 0.45, sky, meadow) + random.normal(0, 9, (height, width, 3))
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    pen, things = ImageDraw.Draw(image), []
    for label in random.choice(list(LOOKS), 3 + number):
        w, h = random.uniform(0.09, 0.3, 2)
        left, top = random.uniform(0.02, 0.97 - w), random.uniform(0.02, 0.97 - h)
        place = (left * width, top * height, (left + w) * width, (top + h) * height)
        (pen.ellipse if label in ("sheep", "kite") else pen.rectangle)(place, fill=LOOKS[label], outline="black")
        things.append((str(label), (left, top, left + w, top + h)))
    written = io.BytesIO()
    image.save(written, "JPEG", quality=85)
    return written.getvalue(), things


def find_things(number: int, things: list[tuple[str, tuple[float, ...]]]) -> list[ShownBox]:
    """True boxes, the first never found; found ones near the others, one of them twice and one of another class."""
    random = np.random.default_rng(50 + number)
    shown = [box_of(label, edges, right_one=place > 0) for place, (label, edges) in enumerate(things)]
    for place, (label, edges) in enumerate(things[1:]):
        near = tuple(np.clip(np.array(edges) + random.normal(0, 0.012, 4), 0, 1))
        shown.append(box_of(label, near, score=float(0.97 - 0.18 * place), right_one=True))
    label, edges = things[1]
    moved = tuple(np.clip(np.array(edges) + 0.05, 0, 1))
    shown.append(box_of("dog" if label != "dog" else "cow", moved, score=0.44, right_one=False))
    return [*shown, box_of("bird", (0.01, 0.01, 0.12, 0.1), score=0.12, right_one=False)]


def box_of(label: str, edges: tuple[float, ...], **more: Any) -> ShownBox:
    left, top, right, bottom = edges
    return ShownBox(label=label, left=left, top=top, right=right, bottom=bottom, **more)


@cache
def make_tables() -> list[QualityTable]:
    """Real scores of made-up boxes, of 80 classes."""
    truth, found = draw_boxes(np.random.default_rng(3), num_pictures=120, num_classes=81, true=2500, found=9000)
    return list_tables(score_boxes(truth, found, pictures=np.arange(120), num_classes=81), NAMES)


def make_found(**changes: Any) -> Quality:
    """Eight evaluations; the last reaches the target of 0.23."""
    history = [
        found.model_copy(update={"metrics": {name: value * (1.7 if "50" in name else 1.0) for name in METRICS}})
        for found, value in zip(make_evaluations(MAPS), MAPS, strict=True)
    ]
    given = {
        "metric": "map", "value": MAPS[-1], "target": 0.23, "seconds_to_target": history[-1].seconds,
        "epochs": history[-1].epoch, "history": history, "tables": make_tables(), "pictures": make_pictures(),
    }  # fmt: skip
    return Quality(**(given | changes))


@cache
def make_pictures() -> list[QualityPicture]:
    return [
        QualityPicture(
            file=f"pictures/{number:012}.jpg", title=f"{number:012}.jpg", width=SIZES[number][0],
            height=SIZES[number][1], boxes=find_things(number, draw_scene(number)[1]),
        )
        for number in range(len(SIZES))
    ]  # fmt: skip


def write_found(folder: Path, quality: Quality | None = None, **changes: Any) -> Path:
    path = write_training(folder, make_training(quality=quality or make_found(), **changes))
    (path / "pictures").mkdir()
    for number in range(len(SIZES)):
        (path / f"pictures/{number:012}.jpg").write_bytes(draw_scene(number)[0])
    return path
