"""Boxes stay true to pixels: a coloured rectangle on grey is found again, after everything, where its box says."""

import numpy as np
import pytest

from made_pictures import save, save_sampled
from small_sets import Listed
from trainstone.config.pictures import AugmentConfig, LoaderConfig
from trainstone.data.feeding.crops import Crop
from trainstone.data.feeding.feed import Feed, Worker
from trainstone.data.feeding.order import Place
from trainstone.data.feeding.shown import Shown
from trainstone.data.feeding.transform import View, cut, find_part, make_transform
from trainstone.data.picture.region import Region, decode_upper
from trainstone.data.sample import Box, Sample

SSD = {"crop": "overlap", "aspect": (0.5, 2.0), "attempts": 1}
COLOURS = {
    "saturation": (0.5, 1.5),
    "hue_degrees": (-0.5, 0.5),
    "contrast": (0.5, 1.5),
    "brightness": (0.875, 1.125),
}
KINDS = {
    "png": lambda pixels: save(pixels, "PNG"),
    "jpeg 444": lambda pixels: save_sampled(pixels, "444"),
    "jpeg 420": lambda pixels: save_sampled(pixels, "420"),
    "progressive": lambda pixels: save(pixels, quality=90, progressive=True, subsampling=0),
}
Edges = tuple[int, int, int, int]


def draw(width: int, height: int, edges: Edges) -> np.ndarray:
    """A magenta rectangle on grey noise."""
    noise = np.random.default_rng(width).integers(90, 150, (height, width, 1), dtype=np.uint8)
    pixels = np.repeat(noise, 3, axis=2)
    left, top, right, bottom = edges
    pixels[top:bottom, left:right] = (255, 0, 255)
    return pixels


def make_feed(data: bytes, boxes: tuple[Box, ...], size: int, augment: AugmentConfig, train: bool = True) -> Feed:
    how = LoaderConfig() if train else LoaderConfig(decode="exact")
    transform = make_transform(augment, how, size, train=train)
    return Feed(Listed([Sample("drawn", data, boxes=boxes)]), transform, seed=1, num_classes=3, holds="boxes")


def make_box(width: int, height: int, edges: Edges) -> Box:
    left, top, right, bottom = edges
    return Box(2, left / width, top / height, right / width, bottom / height)


def find_rectangle(pixels: np.ndarray) -> np.ndarray:
    """Edges of what is coloured, in pixels."""
    strength = pixels.max(axis=2).astype(np.int16) - pixels.min(axis=2)
    coloured = strength > strength.max() / 2
    columns, rows = np.flatnonzero(coloured.mean(axis=0) > 0.01), np.flatnonzero(coloured.mean(axis=1) > 0.01)
    return np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])


def show(feed: Feed, epoch: int, size: int) -> tuple[np.ndarray, Shown]:
    out = np.zeros((size, size, 3), np.uint8)
    return out, feed.fill(Place(epoch, 0), out, Worker(), [])


@pytest.mark.parametrize("resize", ["bilinear", "antialias"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("width", "height", "size", "edges"),
    [
        (600, 450, 300, (120, 90, 420, 300)),
        (451, 603, 300, (30, 250, 200, 590)),
        (1001, 803, 100, (240, 200, 730, 700)),  # decoded at a half or a quarter
        (1200, 1440, 60, (60, 120, 1080, 1380)),  # at an eighth, too
    ],
)
def test_a_rectangle_is_where_its_box_says(kind: str, resize: str, width: int, height: int, size: int, edges: Edges):
    augment = AugmentConfig(**SSD, **COLOURS, resize=resize)
    feed = make_feed(KINDS[kind](draw(width, height, edges)), (make_box(width, height, edges),), size, augment)
    cropped = 0
    for epoch in range(8):
        pixels, shown = show(feed, epoch, size)
        assert shown.boxes is not None
        assert shown.boxes.labels.tolist() == [2]
        told = shown.boxes.edges[0] * size
        assert np.abs(find_rectangle(pixels) - told).max() <= 2, epoch
        cropped += not np.allclose(told, np.array(edges) / [width, height, width, height] * size, atol=3)
    assert cropped >= 2


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_mirroring_takes_the_box_along(flip: float):
    augment = AugmentConfig(crop="whole", flip=flip)
    data = save(draw(200, 100, (20, 10, 80, 90)), "PNG")
    pixels, shown = show(make_feed(data, (make_box(200, 100, (20, 10, 80, 90)),), 100, augment), 0, 100)
    left, right = (60, 90) if flip else (10, 40)
    assert shown.boxes is not None
    assert shown.boxes.edges[0] * 100 == pytest.approx([left, 10, right, 90])
    assert np.abs(find_rectangle(pixels) - [left, 10, right, 90]).max() <= 1


def test_smaller_decoding_is_really_tried(monkeypatch):
    shrunk = []

    def spy(*args, shrink=1, **rest):
        shrunk.append(shrink)
        return decode_upper(*args, shrink=shrink, **rest)

    monkeypatch.setattr("trainstone.data.feeding.feed.decode_upper", spy)
    edges = (100, 200, 1800, 2300)
    data = save(draw(2000, 2400, edges))
    feed = make_feed(data, (make_box(2000, 2400, edges),), 100, AugmentConfig(**SSD))
    for epoch in range(12):
        show(feed, epoch, 100)
    assert {4, 8} <= set(shrunk)


def test_validation_shows_all_of_a_picture():
    edges = (120, 90, 420, 300)
    augment = AugmentConfig(val_crop="whole")
    feed = make_feed(save(draw(600, 450, edges)), (make_box(600, 450, edges),), 100, augment, train=False)
    pixels, shown = show(feed, 0, 100)
    assert shown.boxes is not None
    assert shown.boxes.edges[0] * 100 == pytest.approx([20, 20, 70, 66.6667], rel=1e-4)
    assert np.abs(find_rectangle(pixels) - shown.boxes.edges[0] * 100).max() <= 1


@pytest.mark.parametrize("shrink", [1, 2, 4, 8])
def test_the_part_is_that_of_the_pixels_really_cut(shrink: int):
    """A smaller picture whose pixels say where they come from."""
    region = Region(np.indices((100, 90)).transpose(1, 2, 0).astype(np.uint8), shrink)
    crop = Crop(3 * shrink + 1, 5 * shrink - 1, 40 * shrink + 1, 30 * shrink + 1)
    pixels, part = cut(region, crop), find_part(region, View(crop, flip=False))
    (top, left), (bottom, right) = pixels[0, 0].tolist(), pixels[-1, -1].tolist()
    assert (part.left, part.top) == (left * shrink, top * shrink)
    assert (part.right, part.bottom) == ((right + 1) * shrink, (bottom + 1) * shrink)


def test_only_boxes_whose_centre_is_shown_are_kept_and_their_edges_cut():
    boxes = (Box(0, 0.0, 0.0, 0.2, 0.2), Box(1, 0.3, 0.3, 0.9, 0.9), Box(2, 0.8, 0.0, 1.0, 1.0))
    feed = make_feed(save(draw(300, 300, (90, 90, 270, 270)), "PNG"), boxes, 100, AugmentConfig(**SSD))
    seen = set()
    for epoch in range(60):
        _, shown = show(feed, epoch, 100)
        assert shown.boxes is not None
        edges = shown.boxes.edges
        assert ((edges >= 0) & (edges <= 1)).all()
        assert (edges[:, 2:] > edges[:, :2]).all()
        seen.add(tuple(shown.boxes.labels.tolist()))
    assert (0, 1, 2) in seen
    assert len(seen) > 3


def test_colours_do_not_change_crop_mirroring_or_boxes():
    edges = (60, 45, 210, 150)
    data, boxes = save(draw(300, 225, edges), "PNG"), (make_box(300, 225, edges),)
    plain = make_feed(data, boxes, 100, AugmentConfig(**SSD))
    coloured = make_feed(data, boxes, 100, AugmentConfig(**SSD, **COLOURS))
    for epoch in range(5):
        (one, shown), (other, again) = show(plain, epoch, 100), show(coloured, epoch, 100)
        assert shown.boxes is not None
        assert again.boxes is not None
        assert (shown.boxes.edges == again.boxes.edges).all()
        assert (one != other).any()
