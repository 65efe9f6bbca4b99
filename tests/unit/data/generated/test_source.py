"""Generated pictures: the same each time, sound, balanced, with boxes that fit."""

import pickle

import numpy as np
import pytest

from trainstone.data.generated.scenes import Drawn, Thing, place_thing
from trainstone.data.generated.shapes import SHAPES, SURFACES, outline
from trainstone.data.generated.source import (
    LEAST_VISIBLE,
    GeneratedSource,
    box_of,
    generate,
    list_classes,
    may_cover,
    split_classes,
)
from trainstone.data.picture.decode import decode_strict
from trainstone.data.picture.look import look
from trainstone.errors import ConfigError


def test_a_picture_follows_from_its_numbers_alone():
    source = GeneratedSource("classify", "train", 1000, 48, 40, 10, seed=3)
    backwards = [source.read(index) for index in (500, 7, 0)]
    elsewhere = pickle.loads(pickle.dumps(source))
    assert [elsewhere.read(index) for index in (0, 7, 500)] == backwards[::-1]
    assert GeneratedSource("classify", "train", 8, 48, 40, 10, seed=3).read(7) == backwards[1]


def test_seed_split_and_number_all_matter():
    images = [
        GeneratedSource("classify", split, 100, 32, 32, 10, seed=seed).read(index).image
        for split in ("train", "val")
        for seed in (0, 1)
        for index in (0, 10)
    ]
    assert len(set(images)) == 8


@pytest.mark.parametrize(("kind", "classes"), [("classify", 100), ("detect", 10)])
def test_pictures_are_sound_jpegs_of_the_size_asked_for(kind: str, classes: int):
    source = GeneratedSource(kind, "train", 100, 50, 34, classes)
    for index in range(100):
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
    assert source.where(12) == "generated picture 12 of val, seed 0"


@pytest.mark.parametrize("number", range(2, 101))
def test_any_number_of_classes_has_pairs_of_its_own(number: int):
    shapes, surfaces = split_classes(number)
    assert shapes <= len(SHAPES)
    assert surfaces <= len(SURFACES)
    assert len({entry[0] for entry in list_classes("classify", number)}) == number


def test_detection_pictures_have_one_to_eight_boxes_inside():
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
    assert LEAST_VISIBLE == 0.4


def test_a_box_is_the_extent_of_what_is_seen():
    owner = np.zeros((10, 20), np.uint8)
    owner[2:6, 4:9] = 1
    owner[2:6, 4:6] = 2
    assert box_of(owner, 1, 7)[:5] == (7, 6 / 20, 2 / 10, 9 / 20, 6 / 10)


@pytest.mark.parametrize("shape", list(SHAPES))
def test_shapes_are_drawn_where_they_are_put(shape: str):
    thing = Thing(
        outline(shape), "plain", (30.0, 25.0), np.diag([20, 20]).astype(np.float32), ((0, 0, 0), (1, 1, 1)), 2, 0
    )
    drawn = place_thing(thing, 50, 60)
    assert drawn is not None
    rows, columns = np.nonzero(drawn.mask > 127)
    assert columns.min() + drawn.left >= 30 - 21
    assert columns.max() + drawn.left <= 30 + 21
    assert 150 < len(rows) < 1257  # a disc of that radius has 1257
    outside = Thing(outline(shape), "plain", (300.0, 25.0), thing.matrix, thing.colours, 2, 0)
    assert place_thing(outside, 50, 60) is None


def test_surfaces_stay_between_their_two_colours_and_differ():
    u, v = np.meshgrid(np.linspace(-3, 3, 90, dtype=np.float32), np.linspace(-3, 3, 90, dtype=np.float32))
    drawn = {name: surface(u, v, 3.0) for name, surface in SURFACES.items()}
    for name, share in drawn.items():
        assert share.shape == u.shape
        assert share.min() >= 0
        assert share.max() <= 1
        assert (share.std() > 0.2) == (name != "plain")
    flat = np.stack([share.ravel() for name, share in drawn.items() if name != "plain"])
    assert np.triu(np.abs(np.corrcoef(flat)), 1).max() < 0.6


def test_colour_does_not_tell_the_class():
    source = GeneratedSource("classify", "train", 300, 32, 32, 2)
    means = np.stack([decode_strict(source.read(index).image).mean(axis=(0, 1)) for index in range(300)])
    apart = np.abs(means[0::2].mean(axis=0) - means[1::2].mean(axis=0))
    assert (apart < 4 * means.std(axis=0) * np.sqrt(2 / 150)).all()


def test_a_data_set_of_splits():
    found = generate("detect", {"train": 5, "val": 2}, width=32, height=32, num_classes=3, seed=9)
    assert [(split.name, len(split.source)) for split in found.splits] == [("train", 5), ("val", 2)]
    assert [entry.name for entry in found.classes] == ["circle", "square", "triangle"]
    assert found.kind == "detect"
    assert found.splits[0].source.fingerprint() != found.splits[1].source.fingerprint()


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


@pytest.mark.parametrize("index", [-1, 10])
def test_there_is_no_picture_beyond_the_last(index: int):
    with pytest.raises(IndexError):
        GeneratedSource("classify", "train", 10).read(index)
