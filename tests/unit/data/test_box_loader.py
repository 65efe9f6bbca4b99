"""Batches with boxes: shapes, every box once, the same from every storage; what may be wrong with both."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from made_pictures import busy, save
from small_loaders import make_loader, same, take
from small_sets import CLASSES, Listed, write_set
from trainstone.data.feeding.feed import IGNORED
from trainstone.data.generated.source import GeneratedSource
from trainstone.data.loader import Loader
from trainstone.data.sample import Box, ClassName, DataSet, Sample, Source, Split
from trainstone.data.splits import open_split
from trainstone.errors import DataError

SIZE = 48
WIDTH, HEIGHT = 64, 40
SSD = {"crop": "overlap", "aspect": (0.5, 2.0), "attempts": 1, "val_crop": "whole", "saturation": (0.5, 1.5)}


def make_boxes(count: int) -> tuple[Box, ...]:
    """Boxes with whole pixels for edges, which every storage keeps."""
    return tuple(
        Box(n % 2, n % 8 / 64, n % 5 / 40, (n % 8 + 16) / 64, (n % 5 + 20) / 40, crowd=n % 4 == 3) for n in range(count)
    )


def make_samples(counts: list[int]) -> list[Sample]:
    return [
        Sample(f"{n:04d}.jpg", save(busy(WIDTH, HEIGHT, seed=n), quality=90), boxes=make_boxes(count), id=500 + n)
        for n, count in enumerate(counts)
    ]


COUNTS = [1, 0, 9, 2, 3, 1, 0, 4, 2, 1, 5]


def make(source: Source | None = None, holds: str = "boxes", **wishes: Any) -> Loader:
    source = Listed(make_samples(COUNTS)) if source is None else source
    told = {"image_size": SIZE, "num_classes": 2, "train": holds == "boxes", "holds": holds}
    return make_loader(source, **{**SSD, **told, **wishes})


def test_batches_to_train_on():
    for images, boxes, labels in take(make(crop="whole"), 6):
        assert (images.dtype, images.shape) == (torch.uint8, (4, SIZE, SIZE, 3))
        assert (boxes.dtype, labels.dtype) == (torch.float32, torch.int64)
        assert boxes.shape == (*labels.shape, 4)
        assert labels.shape[1] in (8, 16)
        filled = labels != IGNORED
        assert (filled.sum(1).max() > 8) == (labels.shape[1] == 16)
        assert (boxes[~filled] == 0).all()
        assert (boxes[filled][:, 2:] > boxes[filled][:, :2]).all()
        assert set(labels[filled].tolist()) <= {0, 1}
        assert (images.float().std(dim=(1, 2, 3)) > 5).all()


def test_batches_to_validate_with_tell_all_of_each_picture_once():
    batches = take(make(holds="truth"))
    assert [len(batch[0]) for batch in batches] == [4, 4, 4]
    facts = torch.cat([batch[5] for batch in batches])
    assert facts[:11].tolist() == [[n, WIDTH, HEIGHT] for n in range(11)]
    assert facts[11].tolist() == [IGNORED, 0, 0]
    for _, boxes, labels, crowds, areas, numbers in batches:
        for row, number in enumerate(numbers[:, 0].tolist()):
            expected = make_boxes(COUNTS[number]) if number != IGNORED else ()
            count = len(expected)
            assert labels[row].tolist() == [box.label for box in expected] + [IGNORED] * (labels.shape[1] - count)
            assert torch.allclose(boxes[row, :count], torch.tensor([box[1:5] for box in expected]).reshape(-1, 4))
            assert crowds[row, :count].tolist() == [box.crowd for box in expected]
            assert areas[row, :count].tolist() == pytest.approx([16 * 20] * count)
            assert not crowds[row, count:].any()
            assert not areas[row, count:].any()
    assert not batches[-1][0][3].any()


@pytest.mark.parametrize("holds", ["boxes", "truth"])
def test_the_same_whatever_the_threads_and_the_first_step(holds: str):
    steps = 3
    alone = take(make(holds=holds, threads=1, prefetch=1), steps)
    assert same(alone, take(make(holds=holds, threads=5), steps))
    assert same(alone[2:], take(make(holds=holds, first_step=2), 1))
    if holds == "boxes":
        for cache in ("files", "pixels"):
            plain = {"shrink": False, "decode": "exact"}
            assert same(take(make(**plain), 6), take(make(cache=cache, **plain), 6))


@pytest.fixture(scope="module")
def scenes() -> DataSet:
    """Drawn scenes, which have boxes, and some without."""
    source = GeneratedSource("detect", "train", 8, 96, 64, 3)
    samples = [source.read(number) for number in range(8)]
    plain = [Sample("empty.jpg", save(busy(96, 64)), id=77)]
    return DataSet("detect", "drawn", [ClassName(name) for name in "abc"], [Split("train", Listed(samples + plain))])


@pytest.mark.parametrize("holds", ["boxes", "truth"])
@pytest.mark.parametrize("storage", ["tfrecord", "recordio", "wds"])
def test_every_storage_gives_the_same_batches(tmp_path: Path, scenes: DataSet, storage: Any, holds: str):
    split = "train"
    folder = open_split(write_set(tmp_path / "coco", scenes, "folder"), split).source
    records = open_split(write_set(tmp_path / "records", scenes, storage), split).source
    one, other = (take(make(source, holds, num_classes=3), 3) for source in (folder, records))
    for left, right in zip(one, other, strict=True):
        assert torch.equal(left[0], right[0])
        assert torch.equal(left[2], right[2])
        assert torch.allclose(left[1], right[1], atol=1e-5)  # COCO's pixels have three decimals
        if holds == "truth":
            assert torch.equal(left[3], right[3])
            assert torch.allclose(left[4], right[4], atol=0.1)
            assert torch.equal(left[5], right[5])


def test_a_known_area_is_told_from_folder_and_records(tmp_path: Path):
    boxes = (Box(0, 0.25, 0.25, 0.75, 0.75, area=0.125), Box(1, 0.0, 0.0, 0.5, 0.5))
    sample = Sample("a.jpg", save(busy(WIDTH, HEIGHT)), boxes=boxes, id=1)
    found = DataSet("detect", "made up", CLASSES, [Split("val", Listed([sample]))])
    for storage, known in (("folder", True), ("tfrecord", True), ("wds", True), ("recordio", False)):
        source = open_split(write_set(tmp_path / storage, found, storage), "val").source
        (batch,) = take(make(source, "truth"))
        assert batch[4][0, :2].tolist() == pytest.approx([320 if known else 640, 640], rel=1e-5), storage


@pytest.mark.parametrize("label", [2, -1])
def test_a_class_that_the_network_does_not_have(label: int):
    samples = make_samples([1, 1, 1])
    samples[1] = Sample("odd.jpg", samples[1].image, boxes=(*make_boxes(1), Box(label, 0, 0, 1, 1)))
    with (
        make(Listed(samples), "truth") as loader,
        pytest.raises(DataError, match=rf"class {label} of a box in odd\.jpg: the network has classes 0 to 1") as told,
    ):
        next(loader)
    assert ("num_classes=3" in (told.value.hint or "")) == (label == 2)


def test_boxes_outside_are_cut_or_left_out_with_one_warning(caplog):
    odd = (
        Box(0, -0.5, 0.25, 0.5, 2.0),  # cut
        Box(1, 1.5, 0.0, 2.0, 1.0),  # outside
        Box(1, 0.5, 0.5, 0.5, 1.0),  # no width
        Box(1, 0.8, 0.5, 0.2, 1.0),  # inside out
        *(Box(1, *[math.nan if n == at else 0.5 * (n > 1) for n in range(4)]) for at in range(4)),
    )
    sample = Sample("odd.jpg", save(busy(WIDTH, HEIGHT)), boxes=odd)
    with make(Listed([sample] * 9), "truth", threads=1) as loader:
        batches = [tuple(part.clone() for part in batch) for batch in loader]
    for batch in batches[:2]:
        assert batch[2][:, 0].tolist() == [0] * 4
        assert (batch[2][:, 1:] == IGNORED).all()
        assert batch[1][0, 0].tolist() == [0.0, 0.25, 0.5, 1.0]
        assert batch[4][0, 0] == pytest.approx(0.5 * 0.75 * WIDTH * HEIGHT)
    assert caplog.text.count("first in listed 0") == 1
    with make(Listed([sample]), crop="overlap") as loader:
        assert (next(loader)[2] != IGNORED).sum() == 4


def coco_without_a_picture(root: Path) -> Source:
    found = DataSet("detect", "made up", CLASSES, [Split("train", Listed(make_samples(COUNTS)))])
    write_set(root, found, "folder")
    (root / "train/0002.jpg").unlink()
    (root / "manifest.json").unlink()
    return open_split(root, "train").source


def test_annotations_of_a_missing_picture_stop_or_are_counted(tmp_path: Path, caplog):
    source = coco_without_a_picture(tmp_path / "set")
    with (
        make(source, "truth") as loader,
        pytest.raises(DataError, match=r"cannot read .*0002\.jpg: No such file") as told,
    ):
        list(loader)
    assert "instances_train.json names it" in (told.value.hint or "")
    with make(source, "truth", on_bad="skip") as loader:
        facts = torch.cat([batch[5].clone() for batch in loader])
        assert loader.skipped == 1
    assert facts[:, 0].tolist() == [0, 1, IGNORED, *range(3, 11), IGNORED]
    assert "0002.jpg" in caplog.text
    with make(source, on_bad="skip") as loader:
        for _ in range(6):
            _, _, labels = next(loader)
            assert len(labels) == 4
        assert loader.skipped >= 1
        assert loader.bad_pictures == {str(tmp_path / "set/train/0002.jpg")}
