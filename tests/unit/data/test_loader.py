"""Tests of the loader: batches are bit-identical for any threads, ranks, storage and first step; errors in boxes."""

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from support.builders.data_sets import ListSource, make_set
from support.builders.images import make_samples, noisy, save
from support.builders.loaders import Batch, batches_equal, make_loader, take_batches, wait_for_rest
from trainstone.data.loader import STAGES, Loader
from trainstone.data.pipeline.input_pipeline import IGNORED
from trainstone.data.pipeline.order import TrainOrder
from trainstone.data.sample import Box, Sample, Source
from trainstone.data.splits import open_split
from trainstone.data.synthetic.generated import GeneratedSource
from trainstone.errors import DataError
from trainstone.machine.ranks import Rank

SAMPLES = make_samples(21)
NUMBERED = ListSource([Sample(sample.name, sample.image, number) for number, sample in enumerate(SAMPLES)])


def make(source: Source | None = None, **overrides: Any) -> Loader:
    return make_loader(ListSource(SAMPLES) if source is None else source, **overrides)


def join(ranks: list[list[Batch]]) -> list[Batch]:
    """Return the batches of all ranks, concatenated per step."""
    steps = zip(*ranks, strict=True)
    return [tuple(torch.cat(parts) for parts in zip(*batches, strict=True)) for batches in steps]


@pytest.fixture(scope="module")
def two_epochs() -> list[Batch]:
    return take_batches(make(threads=1, prefetch=1), 11)


@pytest.mark.parametrize("how", [{"threads": 5}, {"threads": 2, "prefetch": 4}, {"cache": "files"}])
def test_batches_do_not_depend_on_threads_prefetch_or_cache(two_epochs: list[Batch], how: dict[str, Any]):
    loader = make(**how)
    assert batches_equal(take_batches(loader, 11), two_epochs)
    assert loader.pipeline.cache.used_bytes == 0  # the cache is cleared at the end


@pytest.mark.parametrize("first_step", [1, 5, 10])
def test_loader_can_start_at_any_step(two_epochs: list[Batch], first_step: int):
    loader = make(first_step=first_step)
    assert loader.step == first_step
    assert batches_equal(take_batches(loader, 11 - first_step), two_epochs[first_step:])
    assert loader.step == 11


@pytest.mark.parametrize("world", [1, 2, 7])
@pytest.mark.parametrize("last", ["carry", "drop"])
def test_batches_of_all_ranks_equal_those_of_a_single_rank(world: int, last: Any):
    steps = 2 * 21 // (3 * world)
    ranks = [
        take_batches(make(NUMBERED, batch_size=3, last=last, rank=Rank(number, world)), steps)
        for number in range(world)
    ]
    assert batches_equal(join(ranks), take_batches(make(NUMBERED, batch_size=3 * world, last=last), steps))
    seen = torch.cat([labels for rank in ranks for _, labels in rank[: 21 // (3 * world)]])
    assert len(set(seen.tolist())) == len(seen)


@pytest.mark.parametrize("world", [1, 3, 7])
@pytest.mark.parametrize(("count", "parts"), [(21, 1), (5, 1), (21, 4)])
def test_validation_has_each_image_once(world: int, count: int, parts: int):
    source = ListSource(NUMBERED.samples[:count])
    ranks = [take_batches(make(source, train=False, rank=Rank(number, world), parts=parts)) for number in range(world)]
    assert len({len(rank) for rank in ranks}) == 1
    images, labels = (torch.cat([batch[part] for rank in ranks for batch in rank]) for part in (0, 1))
    shown = count // parts * parts
    assert sorted(labels[labels != IGNORED].tolist()) == list(range(shown))
    assert not images[labels == IGNORED].any()
    whole = take_batches(make(source, train=False, batch_size=count))[0]
    assert torch.equal(images[torch.argsort(labels)[-shown:]], whole[0][:shown])


def test_padding_rows_are_zero_in_reused_memory():
    loader = make(train=False, batch_size=8, prefetch=1)
    images, labels = take_batches(loader)[-1]
    assert labels[5:].tolist() == [IGNORED] * 3
    assert not images[5:].any()
    with pytest.raises(StopIteration):
        next(loader)


def with_broken(*numbers: int) -> ListSource:
    broken = Sample("broken.jpg", b"not an image", 1)
    return ListSource([broken if number in numbers else sample for number, sample in enumerate(SAMPLES)])


@pytest.mark.parametrize("threads", [1, 5])
def test_first_bad_image_in_order_is_reported(threads: int):
    order = [place.image for place in TrainOrder(21, 4, 3).batch(1)]
    with make(with_broken(order[1], order[3]), threads=threads) as loader:
        next(loader)
        with pytest.raises(DataError, match=f"^listed {order[1]}: not an image"):
            next(loader)
        assert loader.step == 1


def test_bad_images_have_same_replacements_for_any_threads_and_ranks(
    two_epochs: list[Batch], caplog: pytest.LogCaptureFixture
):
    source, order = with_broken(2, 5, 11), TrainOrder(21, 4, 3)
    with caplog.at_level(logging.WARNING):
        first = make(source, threads=1, on_bad="skip")
        expected = take_batches(first, 11)
    warnings = [record.getMessage() for record in caplog.records]
    assert first.skipped >= 6  # three per epoch, plus bad replacements
    assert len(warnings) == len(first.bad_images)
    for step, (images, _) in enumerate(expected):
        for row, place in enumerate(order.batch(step)):
            assert torch.equal(images[row], two_epochs[step][0][row]) == (place.image not in (2, 5, 11))
    caplog.clear()
    loader = make(source, threads=5, on_bad="skip")
    assert batches_equal(take_batches(loader, 11), expected)
    assert loader.skipped == first.skipped
    assert [record.getMessage() for record in caplog.records] == warnings
    ranks = [make(source, batch_size=2, rank=Rank(number, 2), on_bad="skip") for number in range(2)]
    assert batches_equal(join([take_batches(rank, 11) for rank in ranks]), expected)
    assert sum(rank.skipped for rank in ranks) == first.skipped


def test_bad_validation_images_are_ignored():
    loader = make(with_broken(2, 5), train=False, on_bad="skip")
    images, labels = (torch.cat(parts) for parts in zip(*take_batches(loader), strict=True))
    assert loader.skipped == 2
    assert (labels[:21] == IGNORED).nonzero().flatten().tolist() == [2, 5]
    assert not images[[2, 5]].any()


def test_empty_source_is_an_error_only_in_training():
    with pytest.raises(DataError, match="no training images"):
        make(ListSource([]))
    assert take_batches(make(ListSource([]), train=False)) == []


def test_pause_stops_loading_and_stages_sum_up():
    with make() as loader:
        wait_for_rest(loader._ring)
        loader.pause()
        before = loader.stages()
        for _ in range(2):
            next(loader)
        wait_for_rest(loader._ring)
        assert loader.stages().images == before.images
        loader.resume()
        for _ in range(10):
            next(loader)
        wait_for_rest(loader._ring)
        stages = loader.stages()
    assert tuple(stages.seconds) == STAGES
    assert min(stages.seconds.values()) >= 0
    assert stages.images >= before.images + 32
    assert stages.read_bytes > stages.images * 500


BOX_SIZE = 48
WIDTH, HEIGHT = 64, 40
SSD = {"crop": "overlap", "aspect": (0.5, 2.0), "attempts": 1, "val_crop": "whole", "saturation": (0.5, 1.5)}


def make_boxes(count: int) -> tuple[Box, ...]:
    """Return boxes with whole-pixel edges, which every storage format represents exactly."""
    corners = [(n % 8, n % 5) for n in range(count)]
    return tuple(
        Box(n % 2, x / 64, y / 40, (x + 16) / 64, (y + 20) / 40, n % 4 == 3) for n, (x, y) in enumerate(corners)
    )


def sample_boxes(counts: list[int]) -> list[Sample]:
    return [
        Sample(f"{n:04d}.jpg", save(noisy(WIDTH, HEIGHT, seed=n), quality=90), boxes=make_boxes(count), id=500 + n)
        for n, count in enumerate(counts)
    ]


COUNTS = [1, 0, 9, 2, 3, 1, 0, 4, 2, 1, 5]


def make_boxed(source: Source | None = None, target_kind: str = "boxes", **overrides: Any) -> Loader:
    source = ListSource(sample_boxes(COUNTS)) if source is None else source
    options = {"image_size": BOX_SIZE, "num_classes": 2, "train": target_kind == "boxes", "target_kind": target_kind}
    return make_loader(source, **{**SSD, **options, **overrides})


def test_box_batches_have_padded_boxes_and_labels():
    for images, boxes, labels in take_batches(make_boxed(crop="whole"), 6):
        assert (images.dtype, images.shape) == (torch.uint8, (4, BOX_SIZE, BOX_SIZE, 3))
        assert (boxes.dtype, labels.dtype) == (torch.float32, torch.int64)
        assert boxes.shape == (*labels.shape, 4)
        assert labels.shape[1] in (8, 16)
        filled = labels != IGNORED
        assert (filled.sum(1).max() > 8) == (labels.shape[1] == 16)
        assert (boxes[~filled] == 0).all()
        assert (boxes[filled][:, 2:] > boxes[filled][:, :2]).all()
        assert set(labels[filled].tolist()) <= {0, 1}
        assert (images.float().std(dim=(1, 2, 3)) > 5).all()


def test_truth_batches_have_all_boxes_of_each_image_once():
    batches = take_batches(make_boxed(target_kind="truth"))
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


@pytest.mark.parametrize("target_kind", ["boxes", "truth"])
def test_box_batches_do_not_depend_on_threads_first_step_or_cache(target_kind: str):
    expected = take_batches(make_boxed(target_kind=target_kind, threads=1, prefetch=1), 3)
    assert batches_equal(expected, take_batches(make_boxed(target_kind=target_kind, threads=5), 3))
    assert batches_equal(expected[2:], take_batches(make_boxed(target_kind=target_kind, first_step=2), 1))
    plain = {"shrink": False, "decode": "exact"}
    for cache in ("files", "pixels") if target_kind == "boxes" else ():
        assert batches_equal(take_batches(make_boxed(**plain), 6), take_batches(make_boxed(cache=cache, **plain), 6))


@pytest.mark.parametrize("target_kind", ["boxes", "truth"])
@pytest.mark.parametrize("storage", ["tfrecord", "recordio", "wds"])
def test_box_batches_do_not_depend_on_storage(tmp_path: Path, storage: Any, target_kind: str):
    drawn = GeneratedSource("detect", "train", 8, 96, 64, 2)
    samples = [*(drawn.read(number) for number in range(8)), Sample("empty.jpg", save(noisy(96, 64)), id=77)]
    one, other = (
        take_batches(
            make_boxed(open_split(make_set(tmp_path / kind, kind, "detect", samples), "train").source, target_kind), 3
        )
        for kind in ("folder", storage)
    )
    for left, right in zip(one, other, strict=True):
        assert torch.equal(left[0], right[0])
        assert torch.equal(left[2], right[2])
        assert torch.allclose(left[1], right[1], atol=1e-5)  # COCO's pixel coordinates have three decimals
        if target_kind == "truth":
            assert torch.equal(left[3], right[3])
            assert torch.allclose(left[4], right[4], atol=0.1)
            assert torch.equal(left[5], right[5])


def test_object_areas_are_read_from_storages_that_have_them(tmp_path: Path):
    boxes = (Box(0, 0.25, 0.25, 0.75, 0.75, area=0.125), Box(1, 0.0, 0.0, 0.5, 0.5))
    sample = Sample("a.jpg", save(noisy(WIDTH, HEIGHT)), boxes=boxes, id=1)
    for storage, known in (("folder", True), ("tfrecord", True), ("wds", True), ("recordio", False)):
        source = open_split(make_set(tmp_path / storage, storage, "detect", [sample]), "train").source
        (batch,) = take_batches(make_boxed(source, "truth"))
        assert batch[4][0, :2].tolist() == pytest.approx([320 if known else 640, 640], rel=1e-5), storage


@pytest.mark.parametrize("label", [2, -1])
def test_class_beyond_num_classes_is_rejected(label: int):
    samples = sample_boxes([1, 1, 1])
    samples[1] = Sample("odd.jpg", samples[1].image, boxes=(*make_boxes(1), Box(label, 0, 0, 1, 1)))
    with (
        make_boxed(ListSource(samples), "truth") as loader,
        pytest.raises(
            DataError, match=rf"invalid class {label} of a box in odd\.jpg: the network has classes 0 to 1"
        ) as caught,
    ):
        next(loader)
    assert ("num_classes=3" in (caught.value.hint or "")) == (label == 2)


def test_boxes_outside_image_are_clipped_or_skipped_with_one_warning(caplog):
    odd = (
        Box(0, -0.5, 0.25, 0.5, 2.0),  # clipped
        Box(1, 1.5, 0.0, 2.0, 1.0),  # outside
        Box(1, 0.5, 0.5, 0.5, 1.0),  # no width
        Box(1, 0.8, 0.5, 0.2, 1.0),  # edges swapped
        *(Box(1, *[math.nan if n == at else 0.5 * (n > 1) for n in range(4)]) for at in range(4)),
    )
    sample = Sample("odd.jpg", save(noisy(WIDTH, HEIGHT)), boxes=odd)
    batches = take_batches(make_boxed(ListSource([sample] * 9), "truth", threads=1))
    for _, boxes, labels, _, areas, _ in batches[:2]:
        assert labels[:, 0].tolist() == [0] * 4
        assert (labels[:, 1:] == IGNORED).all()
        assert boxes[0, 0].tolist() == [0.0, 0.25, 0.5, 1.0]
        assert areas[0, 0] == pytest.approx(0.5 * 0.75 * WIDTH * HEIGHT)
    assert caplog.text.count("first in listed 0") == 1
    with make_boxed(ListSource([sample]), crop="overlap") as loader:
        assert (next(loader)[2] != IGNORED).sum() == 4


def test_missing_image_is_an_error_or_skipped(tmp_path: Path, caplog):
    root = make_set(tmp_path / "set", "folder", "detect", sample_boxes(COUNTS), described=False)
    (root / "train/0002.jpg").unlink()
    source = open_split(root, "train").source
    with (
        make_boxed(source, "truth") as loader,
        pytest.raises(DataError, match=r"cannot read .*0002\.jpg: No such file") as caught,
    ):
        list(loader)
    assert "instances_train.json lists it" in (caught.value.hint or "")
    with make_boxed(source, "truth", on_bad="skip") as loader:
        facts = torch.cat([batch[5].clone() for batch in loader])
        assert loader.skipped == 1
    assert facts[:, 0].tolist() == [0, 1, IGNORED, *range(3, 11), IGNORED]
    assert "0002.jpg" in caplog.text
    with make_boxed(source, on_bad="skip") as loader:
        for _ in range(6):
            _, _, labels = next(loader)
            assert len(labels) == 4
        assert loader.skipped >= 1
        assert loader.bad_images == {str(tmp_path / "set/train/0002.jpg")}
