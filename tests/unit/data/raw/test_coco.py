"""COCO's layout, read as it lies."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from damage import real_data
from made_coco import CATEGORIES, jpeg, make_instances, make_set
from trainstone.data.raw.coco import CocoSource, find_coco, make_source, prepare_coco
from trainstone.data.sample import Box, ClassName
from trainstone.errors import DataError
from trainstone.formats.coco import NAME_OF_ID, CocoAnnotation, CocoCategory, CocoImage, Instances


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return make_set(tmp_path / "coco", train2017=make_instances(5), val2017=make_instances(3))


def test_a_folder_is_read_as_it_lies(small: Path):
    found = find_coco(small)
    assert (found.kind, found.storage, found.name) == ("detect", "COCO", "")
    assert found.classes == [ClassName("circle"), ClassName("square")]
    assert [(split.name, len(split.source)) for split in found.splits] == [("train", 5), ("val", 3)]
    sample = found.splits[0].source.read(1)
    assert (sample.name, sample.id, sample.label) == ("000000000001.jpg", 99, None)
    assert sample.image == jpeg(40, 20)
    assert sample.boxes == (Box(1, 0.25, 0.25, 0.75, 0.75),)
    assert found.splits[0].source.name(4) == "000000000004.jpg"
    assert found.splits[0].source.where(4) == str(small / "train2017/000000000004.jpg")


def only_source(root: Path, *annotations: CocoAnnotation, num_images: int = 1) -> CocoSource:
    images = [CocoImage(n, f"{n}.jpg", 40, 20) for n in range(num_images)]
    source = find_coco(make_set(root, val=Instances(images, annotations, CATEGORIES))).splits[0].source
    assert isinstance(source, CocoSource)
    return source


def test_boxes_are_clipped_and_empty_ones_left_out_and_counted(tmp_path: Path, caplog):
    source = only_source(
        tmp_path / "c",
        CocoAnnotation(1, 0, 4, (-10, -10, 30, 100), True),
        CocoAnnotation(2, 0, 4, (50, 0, 10, 10)),
        CocoAnnotation(3, 0, 4, (5, 5, 0, 10)),
        CocoAnnotation(4, 0, 4, (5, 5, 5, -3)),
        CocoAnnotation(5, 0, 9, (30, 10, 10, 10)),
    )
    assert source.read(0).boxes == (Box(0, 0.0, 0.0, 0.5, 1.0, True), Box(1, 0.75, 0.5, 1.0, 1.0, False))
    assert "3 boxes without any area in their picture are left out" in caplog.text


def read_areas(root: Path, *areas: float | None) -> list[float | None]:
    """What is said of boxes of 10 x 5 in pictures of 40 x 20."""
    boxes = [CocoAnnotation(number, 0, 4, (10, 5, 10, 5), area=area) for number, area in enumerate(areas)]
    instances = Instances([CocoImage(0, "0.jpg", 40, 20)], boxes, CATEGORIES)
    return [box.area for box in make_source(instances, root / "a.json", root).read(0).boxes]


def test_areas_of_objects_are_kept_where_they_are_not_the_boxs(tmp_path: Path):
    (tmp_path / "0.jpg").write_bytes(jpeg(40, 20))
    assert read_areas(tmp_path, 20, 30.5, 0, 1) == [20 / 800, 30.5 / 800, 0, 1 / 800]
    assert read_areas(tmp_path, None, 20, 50, 50.004, -3) == [None, 20 / 800, None, None, None]
    assert read_areas(tmp_path, 50.1) == [50.1 / 800]


def test_the_originals_area_of_1_is_none(tmp_path: Path):
    (tmp_path / "0.jpg").write_bytes(jpeg(40, 20))
    assert read_areas(tmp_path, 1, 1.0, 1) == [None] * 3
    assert read_areas(tmp_path, None, None) == [None] * 2


def test_areas_stay_with_their_boxes(tmp_path: Path):
    boxes = [CocoAnnotation(n, image, 4, (n, 0, 2, 2), area=2 + n / 8) for n, image in enumerate((3, 1, 3, 0))]
    for source in (
        only_source(tmp_path / "c", *boxes, num_images=4),
        only_source(tmp_path / "d", *boxes, num_images=4).without_empty(),
    ):
        told = {box.left * 40: box.area * 800 for n in range(len(source)) for box in source.read(n).boxes}
        assert told == pytest.approx({0: 2, 1: 2.125, 2: 2.25, 3: 2.375})


def test_pictures_without_boxes_can_be_left_out(tmp_path: Path):
    boxes = [CocoAnnotation(n, image, 4, (n, 0, 1, 1)) for n, image in enumerate((3, 1, 3))]
    source = only_source(tmp_path / "c", *boxes, num_images=5)
    filled = source.without_empty()
    assert [filled.name(i) for i in range(len(filled))] == ["1.jpg", "3.jpg"]
    assert [box.left * 40 for box in filled.read(1).boxes] == [0, 2]
    assert filled.read(0).id == 1
    assert source.read(0).boxes == ()
    assert source.fingerprint() != filled.fingerprint()
    before = source.fingerprint()
    assert before == source.fingerprint()
    (source.pictures / "2.jpg").write_bytes(b"longer")
    assert source.fingerprint() != before
    (source.pictures / "2.jpg").unlink()
    assert source.size_bytes(2) == 0


def test_other_places_and_names_are_found(tmp_path: Path):
    root = make_set(tmp_path / "c", train2014=make_instances(2), train2017=make_instances(3), minival=make_instances(2))
    (root / "images").mkdir()
    (root / "train2017").rename(root / "images/train2017")
    (root / "annotations/instances_minival.json").rename(root / "annotations/bbox_only_instances_minival.json")
    (root / "annotations/captions_train2017.json").write_text("{}")
    assert [(s.name, len(s.source)) for s in find_coco(root).splits] == [
        ("train2014", 2), ("train2017", 3), ("minival", 2),
    ]  # fmt: skip


def test_no_pictures_or_no_annotations_are_told(tmp_path: Path, small: Path):
    with pytest.raises(DataError, match=r"no annotations/instances_<split>\.json"):
        find_coco(tmp_path)
    shutil.rmtree(small / "train2017")
    found = find_coco(small)
    assert [split.name for split in found.splits] == ["val"]
    assert sorted(found.lacking) == ["train", "train2017"]
    shutil.rmtree(small / "val2017")
    with pytest.raises(DataError, match="no images for its annotations") as told:
        find_coco(small)
    assert "train2017, val2017" in (told.value.hint or "")


def test_splits_of_different_categories_are_refused(tmp_path: Path):
    other = Instances(make_instances(2).images, [], [CocoCategory(1, "cat")])
    root = make_set(tmp_path / "c", train=make_instances(2), val=other)
    with pytest.raises(DataError, match=r"instances_val\.json has other categories"):
        find_coco(root)
    with pytest.raises(DataError, match=r"instances_val\.json has other categories"):
        list(prepare_coco(root, root))


def test_real_pictures_have_their_boxes(tmp_path: Path):
    found = find_coco(real_data("detection/coco-free"))
    assert found.name == "coco"
    assert [known.name for known in found.classes] == list(NAME_OF_ID.values())
    sources: list[Any] = [split.source for split in found.splits]
    assert [(len(source), len(source.without_empty())) for source in sources] == [(60, 59), (66, 64)]
    samples = [source.read(index) for source in sources for index in range(len(source))]
    boxes = [box for sample in samples for box in sample.boxes]
    assert len(boxes) == 604 + 560
    assert sum(box.crowd for box in boxes) == 16
    assert all(0 <= box.left < box.right <= 1 and 0 <= box.top < box.bottom <= 1 for box in boxes)
