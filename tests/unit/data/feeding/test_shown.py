"""Boxes stay true to pixels: a coloured rectangle on grey is found again, after everything, where its box says."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_pictures import save, save_sampled
from small_loaders import make_config
from small_sets import Listed
from trainstone.data.feeding.crops import Crop, Window
from trainstone.data.feeding.feed import IGNORED, NOTHING, Feed, Shown, Worker, list_boxes, pack
from trainstone.data.feeding.order import Place
from trainstone.data.feeding.transform import Transform
from trainstone.data.picture.decode import decode_upper
from trainstone.data.sample import Box, Sample

SSD = {"crop": "overlap", "aspect": (0.5, 2.0), "attempts": 1}
COLOURS = {"saturation": (0.5, 1.5), "hue_degrees": (-0.5, 0.5), "contrast": (0.5, 1.5), "brightness": (0.875, 1.125)}
KINDS = {
    "png": lambda pixels: save(pixels, "PNG"),
    "jpeg 444": lambda pixels: save_sampled(pixels, "444"),
    "jpeg 420": lambda pixels: save_sampled(pixels, "420"),
    "progressive": lambda pixels: save(pixels, quality=90, progressive=True, subsampling=0),
}
Edges = tuple[int, int, int, int]
BOX = Box(2, 0.25, 0.5, 0.75, 1.0, crowd=True, area=0.1)


def draw(width: int, height: int, edges: Edges) -> tuple[np.ndarray, Box]:
    """A magenta rectangle on grey noise, and its box."""
    noise = np.random.default_rng(width).integers(90, 150, (height, width, 1), dtype=np.uint8)
    pixels = np.repeat(noise, 3, axis=2)
    left, top, right, bottom = edges
    pixels[top:bottom, left:right] = (255, 0, 255)
    return pixels, Box(2, left / width, top / height, right / width, bottom / height)


def find_rectangle(pixels: np.ndarray) -> np.ndarray:
    """Edges of what is coloured, in pixels."""
    strength = pixels.max(axis=2).astype(np.int16) - pixels.min(axis=2)
    coloured = strength > strength.max() / 2
    columns, rows = np.flatnonzero(coloured.mean(axis=0) > 0.01), np.flatnonzero(coloured.mean(axis=1) > 0.01)
    return np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])


def show(data: bytes, boxes: Any, size: int, epochs: int, train: bool = True, **augment: Any) -> list[Any]:
    """Pixels and boxes of a picture, epoch after epoch."""
    transform = Transform(make_config(size, **augment), train=train)
    feed = Feed(Listed([Sample("drawn", data, boxes=boxes)]), transform, seed=1, num_classes=3, holds="boxes")
    seen = []
    for epoch in range(epochs):
        out = np.zeros((size, size, 3), np.uint8)
        seen.append((out, feed.fill(Place(epoch, 0), out, Worker(), []).boxes))
    return seen


@pytest.mark.parametrize("resize", ["bilinear", "antialias"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("width", "height", "size", "edges", "shrinks"),
    [
        (451, 603, 300, (30, 250, 200, 590), {1}),
        (1001, 803, 100, (240, 200, 730, 700), {2, 4}),
        (1200, 1440, 60, (60, 120, 1080, 1380), {4, 8}),
    ],
)
def test_a_rectangle_is_where_its_box_says(
    kind: str, resize: str, width: int, height: int, size: int, edges: Edges, shrinks: set[int], monkeypatch
):
    shrunk = set()

    def spy(*args, shrink, **rest):
        shrunk.add(shrink)
        return decode_upper(*args, shrink=shrink, **rest)

    monkeypatch.setattr("trainstone.data.feeding.feed.decode_upper", spy)
    pixels, box = draw(width, height, edges)
    cropped = 0
    for out, boxes in show(KINDS[kind](pixels), (box,), size, 8, resize=resize, **SSD, **COLOURS):
        assert boxes.labels.tolist() == [2]
        told = boxes.edges[0] * size
        assert np.abs(find_rectangle(out) - told).max() <= 2
        cropped += not np.allclose(told, np.array(edges) / [width, height, width, height] * size, atol=3)
    assert cropped >= 2
    assert shrinks <= shrunk


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"crop": "whole", "flip": 0.0}, [10, 10, 40, 90]),
        ({"crop": "whole", "flip": 1.0}, [60, 10, 90, 90]),
        ({"val_crop": "whole", "train": False}, [10, 10, 40, 90]),
    ],
)
def test_mirroring_takes_the_box_along_and_validation_shows_all(how: dict[str, Any], expected: list[int]):
    pixels, box = draw(200, 100, (20, 10, 80, 90))
    ((out, boxes),) = show(save(pixels, "PNG"), (box,), 100, 1, **how)
    assert boxes.edges[0] * 100 == pytest.approx(expected)
    assert np.abs(find_rectangle(out) - expected).max() <= 1


def test_a_box_of_which_nothing_is_left_is_left_out():
    found = list_boxes([BOX, Box(1, 0.0, 0.0, 0.1, 0.1)], (200, 100), Window(40, 40, 200, 100), flip=False)
    assert found.labels.tolist() == [2]


def make_row(count: int, number: int = 0) -> Shown:
    boxes = [Box(label, 0.0, 0.0, 0.5, 0.25) for label in range(count)]
    return Shown(boxes=list_boxes(boxes, (20, 40), Crop(0, 0, 20, 40), flip=False), facts=(number, 20, 40))


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6))
def test_every_box_is_packed_once_and_places_come_in_eights(counts: list[int]):
    edges, labels = pack([*(make_row(count) for count in counts), NOTHING], "boxes")
    places = labels.shape[1]
    assert places == max(8, -(-max(counts) // 8) * 8)
    assert edges.shape == (len(counts) + 1, places, 4)
    for row, count in zip(labels, [*counts, 0], strict=True):
        assert row.tolist() == [*range(count), *[IGNORED] * (places - count)]
    assert (edges[labels == IGNORED] == 0).all()


def test_truth_tells_crowds_areas_and_facts():
    edges, labels, crowds, areas, facts = pack([make_row(2, 7), NOTHING], "truth")
    assert [part.dtype for part in (edges, labels, crowds, areas, facts)] == [
        np.float32, np.int64, np.bool_, np.float32, np.int64,
    ]  # fmt: skip
    assert areas[0].tolist() == [100, 100, 0, 0, 0, 0, 0, 0]
    assert not crowds.any()
    assert facts.tolist() == [[7, 20, 40], [IGNORED, 0, 0]]
    (labels,) = pack([Shown(4), NOTHING], "class")
    assert (labels.dtype, labels.tolist()) == (np.int64, [4, IGNORED])
