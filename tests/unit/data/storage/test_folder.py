"""Samples as files: class folders with boxes beside, COCO's layout; names that are none are refused."""

import json
from pathlib import Path

import pytest

from small_sets import BOXES, CLASSES, JPEGS, SIDE, make_png
from trainstone.data.picture.look import look
from trainstone.data.sample import Box, ClassName, Sample
from trainstone.data.storage.folder import FolderEncoder, make_instances
from trainstone.data.storage.records import Encoded, Shard
from trainstone.errors import DataError
from trainstone.formats.coco import NAME_OF_ID, read_instances
from trainstone.formats.files import Span


def encode(kind: str, sample: Sample, number: int = 0) -> Encoded:
    return FolderEncoder(kind, CLASSES).encode(sample, number, look(sample.image))


@pytest.mark.parametrize("name", ["x.jpg", "b/x.jpg", "other/below/x.jpg"])
def test_a_picture_goes_into_its_class_folder(name: str):
    made = encode("classify", Sample(name, JPEGS[0], 1))
    assert made == Encoded("b/x.jpg", (JPEGS[0],), "", "b/x.jpg")


@pytest.mark.parametrize("label", [None, 2, -1])
def test_a_picture_without_a_class_has_no_folder(label: int | None):
    with pytest.raises(DataError, match=r"has no class|label -?\d, but there are 2 classes"):
        encode("classify", Sample("x.jpg", JPEGS[0], label))


def test_detections_become_cocos_annotations(tmp_path: Path):
    encoder = FolderEncoder("detect", CLASSES)
    samples = [
        Sample("below/x y.ü%.jpg", JPEGS[0], boxes=BOXES, id=139),
        Sample("empty.png", make_png(5, 3)),
    ]
    made = [encode("detect", sample, number) for number, sample in enumerate(samples)]
    assert [(one.name, one.buffers) for one in made] == [(s.name, (s.image,)) for s in samples]
    text = encoder.finish("".join(encoder.lines(one, Span(0, 1))[0] for one in made), 2)
    (file,) = encoder.sidecars(Shard("train", "train", 0, 2))
    assert file == "annotations/instances_train.json"
    (tmp_path / "x.json").write_text(text)
    instances = read_instances(tmp_path / "x.json")
    assert [(i.id, i.file_name, i.width, i.height) for i in instances.images] == [
        (139, "below/x y.ü%.jpg", SIDE, SIDE),
        (1, "empty.png", 5, 3),
    ]
    first, second = instances.annotations
    assert (first.id, first.image_id, first.category_id, first.bbox) == (1, 139, 1, (8, 4, 16, 12))
    assert (first.crowd, second.crowd, second.category_id) == (False, True, 2)
    document = json.loads(text)
    assert document["annotations"][0]["area"] == 16 * 12
    assert [category["name"] for category in document["categories"]] == ["a", "b"]


def test_cocos_own_classes_get_cocos_own_numbers():
    classes = [ClassName(name) for name in NAME_OF_ID.values()]
    instances = make_instances([[1, "x.jpg", 10, 10, [[79, 0, 0, 1, 1, 0]]]], classes)
    assert instances.annotations[0].category_id == 90
    assert [category.id for category in instances.categories] == list(NAME_OF_ID)


def test_a_box_of_no_class_is_refused_before_anything_is_written():
    with pytest.raises(DataError, match="label 2, but there are 2 classes"):
        encode("detect", Sample("x.jpg", JPEGS[0], boxes=(Box(2, 0, 0, 1, 1),)))


def test_a_name_without_an_ending_gets_that_of_what_it_is():
    assert encode("classify", Sample("x", JPEGS[0], 1)).name == "b/x.jpg"
    assert encode("classify", Sample("img.v2", make_png(), 1)).name == "b/img.v2.png"
