"""Tests of the input pipeline: targets match pixels, bad images are located, caching changes no pixel."""

import contextlib
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.builders.data_sets import SHARDS, ListSource, flip_byte, list_spans, make_set
from support.builders.images import make_samples, noisy, save, save_sampled
from support.builders.loaders import make_config
from trainstone.data.image.decode import Region, decode_top_rows, read_checked_header
from trainstone.data.pipeline.crops import Crop, CropWindow
from trainstone.data.pipeline.input_pipeline import (
    IGNORED,
    MAX_REPLACEMENTS,
    NO_TARGETS,
    OVERHEAD_BYTES,
    BadImage,
    Cache,
    InputPipeline,
    RowTargets,
    WorkerState,
    collate_targets,
    transform_boxes,
)
from trainstone.data.pipeline.order import SampleIndex
from trainstone.data.recognise import open_dataset
from trainstone.data.sample import Box, Sample, Source
from trainstone.errors import DataError

SIZE = 40
SAMPLES = make_samples(14)
BROKEN = Sample("broken.jpg", b"not an image", 1)


def make_pipeline(source: Source, num_classes: int | None = None, **keys: Any) -> InputPipeline:
    config = make_config(**{"image_size": SIZE, "seed": 5, "decode": "exact", "shrink": False, **keys})
    return InputPipeline(source, config, train=True, num_classes=num_classes)


def fill(pipeline: InputPipeline, image: int, epoch: int = 0) -> tuple[int, np.ndarray, list[BadImage]]:
    """Return label, pixels and skipped images."""
    out, bad = np.full((SIZE, SIZE, 3), 99, np.uint8), list[BadImage]()
    return pipeline.fill_row(SampleIndex(epoch, image), out, WorkerState(), bad).label, out, bad


@pytest.mark.parametrize("storage", ["recordio", "tfrecord", "wds", "folder"])
def test_fill_row_reports_file_and_byte_of_bad_image_once(storage: str, tmp_path: Path):
    root = make_set(tmp_path / "set", storage, count=6)
    where = open_dataset(root).splits[0].source.where(3)
    if storage == "folder":
        Path(where).write_bytes(b"not an image")
    else:
        path = root / SHARDS[storage]
        span = list_spans(path, storage)[3]
        for at in range(span.offset, span.offset + span.size, 7):
            flip_byte(path, at)
    with pytest.raises(DataError) as caught:
        fill(make_pipeline(open_dataset(root).splits[0].source), 3)
    assert caught.value.message.count(str(tmp_path)) == 1
    assert storage == "folder" or "byte" in caught.value.message


@pytest.mark.parametrize(
    ("sample", "message", "hint"),
    [
        (BROKEN, "listed 0: not an image", "supported formats"),
        (Sample("cut", save(noisy(80, 80))[:900], 0), "listed 0: truncated JPEG", "loader.on_bad=skip"),
        (Sample("a.jpg", SAMPLES[0].image), "listed 0: a.jpg has no class label", "one class"),
        (Sample("a.jpg", SAMPLES[0].image, 3), "listed 0: invalid class 3 of a.jpg", "model.num_classes=4"),
        (Sample("a.jpg", SAMPLES[0].image, 10**12), "listed 0: invalid class 10", "model.num_classes=1000000000001"),
        (Sample("a.jpg", SAMPLES[0].image, -1), "listed 0: invalid class -1 of a.jpg", "trainstone data verify"),
    ],
)
def test_fill_row_reports_bad_image_with_hint_or_replaces_it(sample: Sample, message: str, hint: str):
    source = ListSource([sample, *(Sample("good", good.image, 2) for good in SAMPLES[:3])])
    with pytest.raises(DataError) as caught:
        fill(make_pipeline(source, num_classes=3), 0)
    assert caught.value.message.startswith(message)
    assert hint in (caught.value.hint or "")
    label, out, bad = fill(make_pipeline(source, num_classes=3, on_bad="skip"), 0)
    assert (label, bad[0].where) == (2, "listed 0")
    again = fill(make_pipeline(source, num_classes=3, on_bad="skip"), 0)
    assert (again[0], again[2], again[1].tobytes()) == (label, bad, out.tobytes())


def test_fill_row_needs_no_label_without_num_classes_and_fails_if_all_images_are_bad():
    assert fill(make_pipeline(ListSource([Sample("a.jpg", SAMPLES[0].image)])), 0)[0] == IGNORED
    message = rf"{MAX_REPLACEMENTS} images in a row are unusable, the last one listed \d: not"
    with pytest.raises(DataError, match=message):
        fill(make_pipeline(ListSource([BROKEN] * 5), on_bad="skip"), 0)


@pytest.mark.parametrize("edge", [math.nan, math.inf, -math.inf, 1e300])
def test_fill_row_never_crashes_on_boxes_with_nan_or_infinity(edge: float):
    """WebDataset's JSON may contain NaN: the image is bad, or the box is ignored."""
    source = ListSource([Sample("a", SAMPLES[0].image, 0, (Box(0, 0.1, edge, 0.5, 0.9),))])
    with contextlib.suppress(DataError):
        assert fill(make_pipeline(source, crop="boxes"), 0)[0] == 0


def test_fill_row_raises_errors_other_than_data_error():
    class Failing(ListSource):
        def read(self, index: int) -> Sample:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fill(make_pipeline(Failing(SAMPLES), on_bad="skip"), 0)


@pytest.mark.parametrize("mode", ["off", "files", "pixels"])
@pytest.mark.parametrize("limit", [0, 30_000, 1 << 30])
def test_cached_images_are_read_once_and_give_same_pixels(mode: str, limit: int):
    source = ListSource(SAMPLES)
    plain, cached = make_pipeline(ListSource(SAMPLES)), make_pipeline(source, cache=mode, cache_bytes=limit)
    for epoch in range(3):
        for image in range(len(SAMPLES)):
            assert np.array_equal(fill(cached, image, epoch)[1], fill(plain, image, epoch)[1])
            assert cached.cache.used_bytes <= limit
    num_images = 0 if mode == "off" else {0: 0, 1 << 30: 14}.get(limit, len(cached.cache._images))
    assert source.reads == 3 * 14 - 2 * num_images
    assert limit != 30_000 or mode == "off" or 0 < num_images < 14


def test_cache_put_from_many_threads_respects_limit():
    pixels, limit = noisy(20, 20), 50 * (1_200 + OVERHEAD_BYTES)
    cache, image = Cache("pixels", limit), save(pixels)
    sample, seen = Sample("x", image, 0), read_checked_header(image)

    def work() -> None:
        for index in range(200):
            cache.put(index, sample, seen, Region(pixels, owned=True))

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work) for _ in range(8)]:
            done.result()
    assert (cache.used_bytes, len(cache._images)) == (limit, 50)


@pytest.mark.parametrize("mode", ["files", "pixels"])
def test_cache_limit_does_not_change_which_images_are_bad(mode: str):
    """Which images fit the cache depends on a race of threads; the batches must not depend on it."""
    image = bytearray(save(noisy(80, 200), restart_marker_rows=1))
    image[image.index(b"\xff\xd7") + 2 :] = b""
    outcomes: list[list[int]] = []
    for limit in (0, 1 << 20):
        pipeline = make_pipeline(ListSource([Sample("damaged below", bytes(image), 0)]), cache=mode, cache_bytes=limit)
        outcomes.append([])
        for epoch in range(30):
            with contextlib.suppress(DataError):
                fill(pipeline, 0, epoch)
                outcomes[-1].append(epoch)
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0]) < 30


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
    """Return an image with a magenta rectangle on grey noise, and its box."""
    noise = np.random.default_rng(width).integers(90, 150, (height, width, 1), dtype=np.uint8)
    pixels = np.repeat(noise, 3, axis=2)
    left, top, right, bottom = edges
    pixels[top:bottom, left:right] = (255, 0, 255)
    return pixels, Box(2, left / width, top / height, right / width, bottom / height)


def find_rectangle(pixels: np.ndarray) -> np.ndarray:
    """Return the edges of the coloured rectangle in pixels."""
    strength = pixels.max(axis=2).astype(np.int16) - pixels.min(axis=2)
    coloured = strength > strength.max() / 2
    columns, rows = np.flatnonzero(coloured.mean(axis=0) > 0.01), np.flatnonzero(coloured.mean(axis=1) > 0.01)
    return np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])


def load_epochs(data: bytes, boxes: Any, size: int, epochs: int, train: bool = True, **augment: Any) -> list[Any]:
    """Return pixels and boxes of an image for each epoch."""
    source, config = ListSource([Sample("drawn", data, boxes=boxes)]), make_config(size, seed=1, **augment)
    pipeline = InputPipeline(source, config, train=train, num_classes=3, target_kind="boxes")
    rows = [np.zeros((size, size, 3), np.uint8) for _ in range(epochs)]
    return [
        (out, pipeline.fill_row(SampleIndex(epoch, 0), out, WorkerState(), []).boxes) for epoch, out in enumerate(rows)
    ]


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
def test_boxes_match_rectangle_in_transformed_image(
    kind: str, resize: str, width: int, height: int, size: int, edges: Edges, shrinks: set[int], monkeypatch
):
    shrunk = set()

    def spy(*args, shrink, **rest):
        shrunk.add(shrink)
        return decode_top_rows(*args, shrink=shrink, **rest)

    monkeypatch.setattr("trainstone.data.pipeline.input_pipeline.decode_top_rows", spy)
    pixels, box = draw(width, height, edges)
    cropped = 0
    for out, boxes in load_epochs(KINDS[kind](pixels), (box,), size, 8, resize=resize, **SSD, **COLOURS):
        assert boxes.labels.tolist() == [2]
        expected = boxes.edges[0] * size
        assert np.abs(find_rectangle(out) - expected).max() <= 2
        cropped += not np.allclose(expected, np.array(edges) / [width, height, width, height] * size, atol=3)
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
def test_boxes_follow_flip_and_whole_image_validation(how: dict[str, Any], expected: list[int]):
    pixels, box = draw(200, 100, (20, 10, 80, 90))
    ((out, boxes),) = load_epochs(save(pixels, "PNG"), (box,), 100, 1, **how)
    assert boxes.edges[0] * 100 == pytest.approx(expected)
    assert np.abs(find_rectangle(out) - expected).max() <= 1


def make_row(count: int, number: int = 0) -> RowTargets:
    boxes = [Box(label, 0.0, 0.0, 0.5, 0.25) for label in range(count)]
    return RowTargets(boxes=transform_boxes(boxes, (20, 40), Crop(0, 0, 20, 40), flip=False), facts=(number, 20, 40))


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6))
def test_collate_targets_pads_boxes_to_multiple_of_eight(counts: list[int]):
    edges, labels = collate_targets([*(make_row(count) for count in counts), NO_TARGETS], "boxes")
    places = labels.shape[1]
    assert places == max(8, -(-max(counts) // 8) * 8)
    assert edges.shape == (len(counts) + 1, places, 4)
    for row, count in zip(labels, [*counts, 0], strict=True):
        assert row.tolist() == [*range(count), *[IGNORED] * (places - count)]
    assert (edges[labels == IGNORED] == 0).all()


def test_collate_targets_of_truth_has_crowds_areas_and_facts():
    edges, labels, crowds, areas, facts = collate_targets([make_row(2, 7), NO_TARGETS], "truth")
    assert [part.dtype for part in (edges, labels, crowds, areas, facts)] == [
        np.float32, np.int64, np.bool_, np.float32, np.int64,
    ]  # fmt: skip
    assert areas[0].tolist() == [100, 100, 0, 0, 0, 0, 0, 0]
    assert not crowds.any()
    assert facts.tolist() == [[7, 20, 40], [IGNORED, 0, 0]]
    inside = transform_boxes([BOX, Box(1, 0.0, 0.0, 0.1, 0.1)], (200, 100), CropWindow(40, 40, 200, 100), flip=False)
    assert inside.labels.tolist() == [2]  # the box outside the window is dropped
    (labels,) = collate_targets([RowTargets(4), NO_TARGETS], "class")
    assert (labels.dtype, labels.tolist()) == (np.int64, [4, IGNORED])
