"""The data set that needs no download: drawn pictures of shapes, as real JPEGs, for classification and detection.

Every picture follows from (seed, split, number) alone, so nothing need be stored and any process can make any of them.
The class is told by form and surface, never by colour, place or size.
"""

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from trainstone.config.schema import Config
from trainstone.data.generated.scenes import (
    SHAPES,
    SURFACES,
    Canvas,
    Drawn,
    Points,
    Thing,
    draw_blob,
    outline,
    paint_background,
    paint_thing,
    photograph,
    pick_unlike,
    place_thing,
    rotate,
)
from trainstone.data.manifest import Storage, read_manifest
from trainstone.data.parallel import Progress
from trainstone.data.picture.decode import encode_jpeg
from trainstone.data.plan import Plan, make_plan
from trainstone.data.prepare import prepare
from trainstone.data.sample import Box, ClassName, DataSet, Sample, Split
from trainstone.errors import ConfigError
from trainstone.files import cache_folder
from trainstone.machine.ranks import ALONE

KINDS = ("classify", "detect")
MAX_OBJECTS, FEW_OBJECTS = 8, 4
LEAST_VISIBLE = 0.4
GENERATOR = 1  # raised when the same numbers give other pictures
Owner = np.ndarray[tuple[int, int], np.dtype[np.uint8]]


@dataclass(frozen=True)
class GeneratedSource:
    """One split of generated pictures; holds only numbers, so it goes to other processes for nothing."""

    kind: str
    split: str
    count: int
    width: int = 96
    height: int = 96
    num_classes: int = 10
    seed: int = 0
    clutter: bool = True
    """Draw other things around and over the object; without, it is large and alone."""
    is_drawn: ClassVar[bool] = True
    """By Python, which has one lock: processes serve better than threads."""

    def __post_init__(self) -> None:
        most = len(SHAPES) * (len(SURFACES) if self.kind == "classify" else 1)
        if self.kind not in KINDS:
            raise ConfigError(f"generated data of kind {self.kind!r}; {' and '.join(KINDS)} are allowed")
        for name, value, low, high in (
            ("num_classes", self.num_classes, 1 if self.kind == "detect" else 2, most),
            ("count", self.count, 0, 10**9),
            ("width", self.width, 16, 4096),
            ("height", self.height, 16, 4096),
            ("seed", self.seed, 0, 2**63),
        ):
            if not low <= value <= high:
                raise ConfigError(f"generated data with {name} {value}; {low} to {high} are allowed for {self.kind}")

    def __len__(self) -> int:
        return self.count

    @property
    def classes(self) -> list[ClassName]:
        """Class names in the order of labels, which is that of their folders' names."""
        return [ClassName(name, text) for name, text, _, _ in list_classes(self.kind, self.num_classes)]

    def fingerprint(self) -> str:
        return f"{self!r} of generator {GENERATOR}"

    def read(self, index: int) -> Sample:
        name = self.name(index)
        entropy = (self.seed, zlib.crc32(f"{self.kind} {self.split}".encode()), index)
        rng = np.random.default_rng(np.random.SeedSequence(entropy))
        quality = int(rng.integers(75, 96))
        canvas = paint_background(rng, self.height, self.width)
        if self.kind == "detect":
            boxes = draw_many(rng, canvas, list_classes(self.kind, self.num_classes), clutter=self.clutter)
            return Sample(name, encode_jpeg(photograph(rng, canvas), quality), boxes=boxes, id=index + 1)
        label = self.label(index)
        assert label is not None
        _, _, shape, surface = list_classes(self.kind, self.num_classes)[label]
        draw_one(rng, canvas, shape, surface, clutter=self.clutter)
        return Sample(name, encode_jpeg(photograph(rng, canvas), quality), label=label)

    def name(self, index: int) -> str:
        """Return circle-dotted/0000123.jpg, or 000000000124.jpg as COCO's are, from 1."""
        if not 0 <= index < self.count:
            raise IndexError(f"picture {index} of {self.count}")
        if self.kind == "detect":
            return f"{index + 1:012d}.jpg"
        return f"{list_classes(self.kind, self.num_classes)[index % self.num_classes][0]}/{index:07d}.jpg"

    def where(self, index: int) -> str:
        return f"generated picture {index} of {self.split}, seed {self.seed}"

    def label(self, index: int) -> int | None:
        """Return the class without drawing: all in turn, so that any stretch holds equally many of each."""
        return None if self.kind == "detect" else index % self.num_classes


def generate(template: GeneratedSource, counts: Mapping[str, int]) -> DataSet:
    """Return a data set whose splits are like the template, with so many images each: {"train": 5000, "val": 500}."""
    splits = [Split(name, replace(template, split=name, count=count)) for name, count in counts.items()]
    return DataSet(template.kind, f"generated, seed {template.seed}", template.classes, splits, name="shapes")


@cache
def list_classes(kind: str, number: int) -> tuple[tuple[str, str, str, str], ...]:
    """Return (name, text, shape, surface) of each class, sorted by name: so folders give the same labels."""
    if kind == "detect":
        return tuple((shape, shape, shape, "") for shape in sorted(list(SHAPES)[:number]))
    num_shapes, num_surfaces = split_classes(number)
    pairs = [(shape, surface) for surface in list(SURFACES)[:num_surfaces] for shape in list(SHAPES)[:num_shapes]]
    return tuple(sorted((f"{a}-{b}", f"{b} {a}", a, b) for a, b in pairs[:number]))


def split_classes(number: int) -> tuple[int, int]:
    """Return how many shapes and surfaces make so many pairs: with the fewest left over, then as alike as can be."""
    pairs = [(math.ceil(number / surfaces), surfaces) for surfaces in range(1, len(SURFACES) + 1)]
    allowed = [(a, b) for a, b in pairs if a <= len(SHAPES)]
    return min(allowed, key=lambda pair: (pair[0] * pair[1] - number, abs(pair[0] - pair[1]), -pair[0]))


def draw_one(rng: np.random.Generator, canvas: Canvas, shape: str, surface: str, *, clutter: bool = True) -> None:
    """Draw clutter, the object anywhere, and clutter that hides a part of it; or the object alone, and large."""
    _, height, width = canvas.shape
    light = pick_light(rng)
    if clutter:
        draw_clutter(rng, canvas, int(rng.integers(2, 6)), light)
    radius = 0.5 * rng.uniform(*((0.3, 0.8) if clutter else (0.6, 0.95))) * min(height, width)
    centre = tuple(rng.uniform(min(radius, size / 2), max(size - radius, size / 2)) for size in (width, height))
    thing = make_thing(rng, canvas, outline(shape), surface, (centre[0], centre[1]), radius)
    drawn = place_thing(thing, height, width)
    assert drawn is not None
    paint_thing(canvas, thing, drawn, light)
    if clutter and rng.random() < 0.5:
        angle = rng.uniform(0, 2 * math.pi)
        aside = (centre[0] + radius * math.cos(angle), centre[1] + radius * math.sin(angle))
        blob = make_thing(rng, canvas, draw_blob(rng), "plain", aside, radius * rng.uniform(0.35, 0.6))
        paint_if_seen(canvas, blob, light)


def draw_clutter(rng: np.random.Generator, canvas: Canvas, number: int, light: tuple[float, float]) -> None:
    _, height, width = canvas.shape
    for _ in range(number):
        radius = rng.uniform(0.06, 0.28) * min(height, width)
        centre = (rng.uniform(0, width), rng.uniform(0, height))
        paint_if_seen(canvas, make_thing(rng, canvas, draw_blob(rng), "plain", centre, radius), light)


def paint_if_seen(canvas: Canvas, thing: Thing, light: tuple[float, float]) -> None:
    drawn = place_thing(thing, *canvas.shape[1:])
    if drawn is not None:
        paint_thing(canvas, thing, drawn, light)


def pick_light(rng: np.random.Generator) -> tuple[float, float]:
    angle = rng.uniform(0, 2 * math.pi)
    return math.cos(angle), math.sin(angle)


def make_thing(
    rng: np.random.Generator,
    canvas: Canvas,
    contours: list[Points],
    surface: str,
    centre: tuple[float, float],
    radius: float,
) -> Thing:
    """Turn, squeeze and colour a shape so that it can be told from what is behind it."""
    turn, skew = rng.uniform(0, 2 * math.pi), rng.uniform(0, math.pi)
    squeeze = rotate(skew) @ np.diag([1.0, rng.uniform(0.72, 1.0)]) @ rotate(-skew)
    row = min(max(int(centre[1]), 0), canvas.shape[1] - 1)
    column = min(max(int(centre[0]), 0), canvas.shape[2] - 1)
    first = pick_unlike(rng, tuple(canvas[:, row, column].tolist()))
    return Thing(
        contours=contours,
        surface=surface,
        centre=centre,
        matrix=(radius * squeeze @ rotate(turn)).astype(np.float32),
        colours=(first, pick_unlike(rng, first)),
        periods=min(rng.uniform(1.8, 3.2), max(1.2, radius / 5)),
        turn=rng.uniform(0, math.pi),
    )


def draw_many(
    rng: np.random.Generator, canvas: Canvas, classes: tuple[tuple[str, str, str, str], ...], *, clutter: bool = True
) -> tuple[Box, ...]:
    """Draw one to eight objects, small to large, over clutter; return the boxes of what is seen of each.

    Without clutter one to four, none of them small.
    """
    _, height, width = canvas.shape
    light = pick_light(rng)
    if clutter:
        draw_clutter(rng, canvas, int(rng.integers(1, 5)), light)
    most, (least, largest) = (MAX_OBJECTS, (0.045, 0.36)) if clutter else (FEW_OBJECTS, (0.12, 0.36))
    owner = np.zeros((height, width), np.uint8)  # which object a pixel shows, from 1
    labels: list[int] = []
    areas: list[int] = []
    for _ in range(int(rng.integers(1, most + 1))):
        label = int(rng.integers(len(classes)))
        radius = max(5.0, min(height, width) * least * (largest / least) ** rng.random())
        centre = tuple(
            rng.uniform(0.6 * min(radius, size / 2), size - 0.6 * min(radius, size / 2)) for size in (width, height)
        )
        surface = str(rng.choice(list(SURFACES)))
        thing = make_thing(rng, canvas, outline(classes[label][2]), surface, (centre[0], centre[1]), radius)
        drawn = place_thing(thing, height, width)
        if drawn is None or not may_cover(owner, drawn, areas):
            continue
        paint_thing(canvas, thing, drawn, light)
        owner[drawn.place][drawn.mask > 127] = len(labels) + 1
        labels.append(label)
        areas.append(int(np.count_nonzero(drawn.mask > 127)))
    return tuple(box_of(owner, number + 1, label) for number, label in enumerate(labels))


def may_cover(owner: Owner, drawn: Drawn, areas: list[int]) -> bool:
    """Say whether enough of the objects drawn before stays to be seen under a new one, which must be seen itself."""
    covers = drawn.mask > 127
    if not covers.any():
        return False
    hidden = np.bincount(owner[drawn.place][covers], minlength=len(areas) + 1)
    shown = {number: np.count_nonzero(owner == number) for number in np.flatnonzero(hidden).tolist() if number}
    return all(shown[number] - hidden[number] >= LEAST_VISIBLE * areas[number - 1] for number in shown)


def box_of(owner: Owner, number: int, label: int) -> Box:
    mine = owner == number
    rows, columns = np.flatnonzero(mine.any(axis=1)), np.flatnonzero(mine.any(axis=0))
    height, width = owner.shape
    return Box(
        label,
        float(columns[0]) / width,
        float(rows[0]) / height,
        float(columns[-1] + 1) / width,
        float(rows[-1] + 1) / height,
    )


MARGIN = 8 / 7
"""Stored pictures are larger than what is trained on, as in ImageNet's validation: 256 for 224."""


class Stored(NamedTuple):
    plan: Plan
    target: Path


def plan_stored(
    train: GeneratedSource, val: int, storage: Storage = "folder", shards: dict[str, int] | None = None
) -> Stored:
    """Plan a generated set in the cache folder: a training split, and so many images like it for validation."""
    made = generate(train, {"train": train.count, "val": val} if val else {"train": train.count})
    size = f"{train.width}x{train.height}-{train.count}-{val}-seed-{train.seed}{'' if train.clutter else '-alone'}"
    plan = make_plan(made, storage, shuffle=False, shards=shards or {})
    return Stored(plan, cache_folder() / "data" / f"{train.kind}-{train.num_classes}-classes-{size}-{storage}")


def find_stored(config: Config) -> Stored:
    data, num_classes = config.data, config.model.num_classes
    if num_classes == "auto":
        raise ConfigError("data.source = generated needs a number of classes", hint="--set model.num_classes=10")
    size = round(data.image_size * MARGIN)
    train = GeneratedSource(
        config.workload, "train", data.generated_train, size, size, num_classes, clutter=data.generated_clutter
    )
    return plan_stored(train, data.generated_val, "recordio")


def provide_stored(config: Config, workers: int) -> Iterator[Progress]:
    """Make a recipe's generated set where it is not there yet."""
    stored = find_stored(config)
    if read_manifest(stored.target) is None:
        yield from prepare(stored.plan, stored.target, ALONE, workers)
