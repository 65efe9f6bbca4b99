"""Tests of generated images: reproducible, valid, balanced, with boxes that fit."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from support.builders.training_runs import make_config
from trainstone.data.image.decode import decode_strict
from trainstone.data.image.inspect import read_header
from trainstone.data.manifest import read_manifest
from trainstone.data.synthetic.drawing import ObjectPatch, find_visible_box, leaves_others_visible
from trainstone.data.synthetic.generated import GeneratedSource, plan_recipe_data, write_recipe_data
from trainstone.errors import ConfigError, DataError


def test_image_depends_only_on_seed_split_and_index():
    source = GeneratedSource("classify", "train", 1000, 48, 40, 10, seed=3)
    backwards = [source.read(index) for index in (500, 7, 0)]
    elsewhere = pickle.loads(pickle.dumps(source))
    assert [elsewhere.read(index) for index in (0, 7, 500)] == backwards[::-1]
    assert GeneratedSource("classify", "train", 8, 48, 40, 10, seed=3).read(7) == backwards[1]
    others = [("train", 0, 0), ("train", 0, 10), ("train", 1, 0), ("val", 0, 0)]
    images = {GeneratedSource("classify", split, 11, 32, 32, 10, seed=s).read(n).image for split, s, n in others}
    assert len(images) == 4


@pytest.mark.parametrize(("kind", "classes"), [("classify", 100), ("detect", 10)])
def test_images_are_valid_jpegs_of_requested_size(kind: str, classes: int):
    source = GeneratedSource(kind, "train", 100, 50, 34, classes)
    for index in range(0, 100, 2):
        sample = source.read(index)
        assert read_header(sample.image)[:4] == ("jpeg", 50, 34, "rgb")
        pixels = decode_strict(sample.image)
        assert pixels.std() > 4
        assert sample.name == source.name(index)


def test_classes_alternate_and_names_sort_by_label():
    source = GeneratedSource("classify", "val", 30, 16, 16, 10)
    assert [source.label(index) for index in range(30)] == [*range(10)] * 3
    names = [entry.name for entry in source.classes]
    assert names == sorted(names)
    assert "circle-plain" in names
    assert "striped star" in [entry.text for entry in source.classes]
    assert source.name(12) == f"{names[2]}/0000012.jpg"
    assert source.read(12).label == 2
    assert source.where(12) == "generated image 12 of val, seed 0"


def test_detection_images_have_one_to_eight_boxes_inside():
    source = GeneratedSource("detect", "train", 150, 100, 80, 8)
    samples = [source.read(index) for index in range(150)]
    numbers = [len(sample.boxes) for sample in samples]
    assert min(numbers) == 1
    assert max(numbers) == 8
    boxes = [box for sample in samples for box in sample.boxes]
    assert {box.label for box in boxes} == set(range(8))
    for box in boxes:
        assert 0 <= box.left < box.right <= 1
        assert 0 <= box.top < box.bottom <= 1
        assert not box.crowd
        # Edges are whole pixels.
        assert (box.left * 100) == pytest.approx(round(box.left * 100))
        assert (box.bottom * 80) == pytest.approx(round(box.bottom * 80))
    areas = [(box.right - box.left) * (box.bottom - box.top) for box in boxes]
    assert min(areas) < 0.03
    assert max(areas) > 0.25
    assert samples[4].name == "000000000005.jpg"
    assert samples[4].id == 5
    assert samples[4].label is None


def test_leaves_others_visible_limits_hidden_share():
    owner = np.zeros((20, 20), np.uint8)
    owner[5:15, 5:15] = 1
    over = ObjectPatch(5, 5, np.full((6, 10), 255, np.uint8))
    assert leaves_others_visible(owner, over, [100])
    over = ObjectPatch(5, 5, np.full((7, 10), 255, np.uint8))
    assert not leaves_others_visible(owner, over, [100])
    # Pixels hidden by earlier objects count too.
    owner[5:8, 5:15] = 2
    assert not leaves_others_visible(owner, ObjectPatch(5, 8, np.full((4, 10), 255, np.uint8)), [100, 30])
    # A box is the extent of the visible part.
    assert find_visible_box(owner, 1, 7)[:5] == (7, 5 / 20, 8 / 20, 15 / 20, 15 / 20)


def test_colour_is_independent_of_class():
    source = GeneratedSource("classify", "train", 300, 32, 32, 2)
    means = np.stack([decode_strict(source.read(index).image).mean(axis=(0, 1)) for index in range(300)])
    distance = np.abs(means[0::2].mean(axis=0) - means[1::2].mean(axis=0))
    assert (distance < 4 * means.std(axis=0) * np.sqrt(2 / 150)).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "segment"}, "'segment'; classify and detect"),
        ({"num_classes": 101}, "num_classes of generated data: 101; 2 to 100"),
        ({"kind": "detect", "num_classes": 11}, "num_classes of generated data: 11; 1 to 10"),
        ({"width": 8}, "width of generated data: 8; 16 to 4096"),
        ({"count": -1}, "count of generated data: -1"),
        ({"seed": -1}, "seed of generated data: -1"),
    ],
)
def test_values_out_of_range_are_rejected(changes: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        GeneratedSource(**{"kind": "classify", "split": "train", "count": 10, **changes})
    for index in (-1, 10):
        with pytest.raises(IndexError):
            GeneratedSource("classify", "train", 10).read(index)


def test_write_recipe_data_waits_for_another_process_and_resumes_its_work(tmp_path: Path, monkeypatch):
    config = make_config(data__generated_train=40, data__generated_val=8)
    monkeypatch.setenv("TRAINSTONE_CACHE", str(tmp_path))
    target = plan_recipe_data(config).target
    lock = target.with_name(f"{target.name}.lock")
    lock.mkdir(parents=True)  # a cache that cannot be written
    with pytest.raises(DataError, match=f"cannot write {lock}"):
        next(write_recipe_data(config, 1))
    lock.rmdir()
    first, second = (write_recipe_data(config, 1) for _ in range(2))
    next(first)
    assert next(second).phase == "waiting for another process"
    first.close()
    assert list(second)
    assert read_manifest(target) is not None
