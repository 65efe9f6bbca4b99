"""Generated images: the same each time, sound, balanced, with boxes that fit."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from support.builders.training_runs import make_config
from trainstone.data.image.decode import decode_strict
from trainstone.data.image.inspect import look
from trainstone.data.manifest import read_manifest
from trainstone.data.synthetic.drawing import Drawn, box_of, may_cover
from trainstone.data.synthetic.generated import GeneratedSource, find_stored, provide_stored
from trainstone.errors import ConfigError, DataError


def test_an_image_follows_from_its_numbers_alone():
    source = GeneratedSource("classify", "train", 1000, 48, 40, 10, seed=3)
    backwards = [source.read(index) for index in (500, 7, 0)]
    elsewhere = pickle.loads(pickle.dumps(source))
    assert [elsewhere.read(index) for index in (0, 7, 500)] == backwards[::-1]
    assert GeneratedSource("classify", "train", 8, 48, 40, 10, seed=3).read(7) == backwards[1]
    others = [("train", 0, 0), ("train", 0, 10), ("train", 1, 0), ("val", 0, 0)]
    images = {GeneratedSource("classify", split, 11, 32, 32, 10, seed=s).read(n).image for split, s, n in others}
    assert len(images) == 4


@pytest.mark.parametrize(("kind", "classes"), [("classify", 100), ("detect", 10)])
def test_images_are_sound_jpegs_of_the_size_asked_for(kind: str, classes: int):
    source = GeneratedSource(kind, "train", 100, 50, 34, classes)
    for index in range(0, 100, 2):
        sample = source.read(index)
        assert look(sample.image)[:4] == ("jpeg", 50, 34, "rgb")
        pixels = decode_strict(sample.image)
        assert pixels.std() > 4
        assert sample.name == source.name(index)


def test_classes_come_in_turn_and_their_folders_sort_like_their_labels():
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
        # Edges lie between pixels.
        assert (box.left * 100) == pytest.approx(round(box.left * 100))
        assert (box.bottom * 80) == pytest.approx(round(box.bottom * 80))
    areas = [(box.right - box.left) * (box.bottom - box.top) for box in boxes]
    assert min(areas) < 0.03
    assert max(areas) > 0.25
    assert samples[4].name == "000000000005.jpg"
    assert samples[4].id == 5
    assert samples[4].label is None


def test_no_object_is_hidden_more_than_allowed():
    owner = np.zeros((20, 20), np.uint8)
    owner[5:15, 5:15] = 1
    over = Drawn(5, 5, np.full((6, 10), 255, np.uint8))
    assert may_cover(owner, over, [100])
    over = Drawn(5, 5, np.full((7, 10), 255, np.uint8))
    assert not may_cover(owner, over, [100])
    # What others hid before counts, too.
    owner[5:8, 5:15] = 2
    assert not may_cover(owner, Drawn(5, 8, np.full((4, 10), 255, np.uint8)), [100, 30])
    # A box is the extent of what is seen.
    assert box_of(owner, 1, 7)[:5] == (7, 5 / 20, 8 / 20, 15 / 20, 15 / 20)


def test_colour_does_not_tell_the_class():
    source = GeneratedSource("classify", "train", 300, 32, 32, 2)
    means = np.stack([decode_strict(source.read(index).image).mean(axis=(0, 1)) for index in range(300)])
    apart = np.abs(means[0::2].mean(axis=0) - means[1::2].mean(axis=0))
    assert (apart < 4 * means.std(axis=0) * np.sqrt(2 / 150)).all()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"kind": "segment"}, "'segment'; classify and detect"),
        ({"num_classes": 101}, "num_classes 101; 2 to 100"),
        ({"kind": "detect", "num_classes": 11}, "num_classes 11; 1 to 10"),
        ({"width": 8}, "width 8; 16 to 4096"),
        ({"count": -1}, "count -1"),
        ({"seed": -1}, "seed -1"),
    ],
)
def test_numbers_out_of_range_are_refused(changes: dict, why: str):
    with pytest.raises(ConfigError, match=why):
        GeneratedSource(**{"kind": "classify", "split": "train", "count": 10, **changes})
    for index in (-1, 10):
        with pytest.raises(IndexError):
            GeneratedSource("classify", "train", 10).read(index)


def test_provide_stored_waits_for_another_process_and_continues_where_that_was_ended(tmp_path: Path, monkeypatch):
    config = make_config(data__generated_train=40, data__generated_val=8)
    monkeypatch.setenv("TRAINSTONE_CACHE", str(tmp_path))
    target = find_stored(config).target
    lock = target.with_name(f"{target.name}.lock")
    lock.mkdir(parents=True)  # a cache that cannot be written
    with pytest.raises(DataError, match=f"cannot write {lock}"):
        next(provide_stored(config, 1))
    lock.rmdir()
    first, second = (provide_stored(config, 1) for _ in range(2))
    next(first)
    assert next(second).phase == "waiting for another process"
    first.close()
    assert list(second)
    assert read_manifest(target) is not None
