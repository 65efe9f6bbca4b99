"""Tests of COCO annotation files: invalid content is rejected, output is compared byte for byte."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.builders.damage import real_data
from trainstone.errors import DataError
from trainstone.files import write_atomically
from trainstone.formats.coco import (
    NAME_OF_ID,
    CocoAnnotation,
    CocoCategory,
    CocoImage,
    Instances,
    drop_images,
    format_box_only,
    format_full,
    number_categories,
    read_instances,
)

DOCUMENT: dict[str, Any] = json.loads("""{
"info": {"year": 2017}, "licenses": [],
"images": [
  {"license": 4, "file_name": "b.jpg", "height": 20, "width": 40, "date_captured": "2013", "id": 7},
  {"license": 4, "file_name": "sub/ä.jpg", "height": 9, "width": 9, "date_captured": "2013", "id": 3}],
"annotations": [
  {"segmentation": [[1.5, 2, 3, 4]], "area": 12.5, "iscrowd": 0, "image_id": 7, "bbox": [1, 2.50, 0.1, 1e-7],
   "category_id": 90, "id": 906200174375},
  {"segmentation": {"counts": [1, 2], "size": [9, 9]}, "area": 3, "iscrowd": 1, "image_id": 3, "bbox": [-1, 0, 5, 5],
   "category_id": 1, "id": 2}],
"categories": [
  {"supercategory": "person", "id": 1, "name": "person"}, {"supercategory": "indoor", "id": 90, "name": "toothbrush"}]
}""")


def write(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document))
    return path


def changed(*place: str | int, to: Any = None, drop: bool = False) -> Any:
    document = json.loads(json.dumps(DOCUMENT))
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    if drop:
        del inner[place[-1]]
    else:
        inner[place[-1]] = to
    return document


def prepare_json(document: Any) -> str:
    """Reimplement the original: drop keys, dump the rest unchanged."""
    images = [{k: v for k, v in i.items() if k in ("id", "file_name", "height", "width")} for i in document["images"]]
    kept = ("image_id", "bbox", "category_id", "id")
    annotations = [{k: v for k, v in a.items() if k in kept} for a in document["annotations"]]
    reduced = {"images": images, "annotations": annotations, "categories": document["categories"]}
    return json.dumps(reduced, separators=(",", ":"))


def test_number_categories_counts_in_order_of_ids():
    numbers = number_categories([CocoCategory(number, "x") for number in NAME_OF_ID])
    assert list(numbers.values()) == list(range(1, 81))
    by_number = {number: NAME_OF_ID[category] for category, number in numbers.items()}
    assert [by_number[number] for number in (1, 12, 80)] == ["person", "stop sign", "toothbrush"]
    assert set(range(92)) - set(NAME_OF_ID) == {0, 12, 26, 29, 30, 45, 66, 68, 69, 71, 83, 91}
    assert number_categories([CocoCategory(30, "a"), CocoCategory(0, "b"), CocoCategory(4, "c")]) == {0: 1, 4: 2, 30: 3}


def test_read_instances_reads_all_fields(tmp_path: Path):
    found = read_instances(write(tmp_path / "i.json", DOCUMENT))
    assert found.images == [CocoImage(7, "b.jpg", 40, 20), CocoImage(3, "sub/ä.jpg", 9, 9)]
    assert found.annotations == [
        CocoAnnotation(906200174375, 7, 90, (1, 2.5, 0.1, 1e-7), False, 12.5),
        CocoAnnotation(2, 3, 1, (-1, 0, 5, 5), True, 3),
    ]
    assert found.categories[1] == CocoCategory(90, "toothbrush", "indoor")


def test_format_box_only_equals_original_byte_for_byte(tmp_path: Path):
    source = write(tmp_path / "instances_x.json", DOCUMENT)
    write_atomically(tmp_path / "bbox_only_instances_x.json", format_box_only(read_instances(source)))
    written = (tmp_path / "bbox_only_instances_x.json").read_text()
    assert written == prepare_json(DOCUMENT)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bbox_only_instances_x.json", "instances_x.json"]
    again = read_instances(tmp_path / "bbox_only_instances_x.json")
    assert again.annotations[1] == CocoAnnotation(2, 3, 1, (-1, 0, 5, 5), False, None)


def test_read_instances_without_categories_uses_coco_categories(tmp_path: Path):
    found = read_instances(write(tmp_path / "i.json", changed("categories", drop=True)))
    assert [item.id for item in found.categories] == list(NAME_OF_ID)
    path = write(tmp_path / "i.json", {**changed("annotations", 1, "category_id", to=12), "categories": []})
    with pytest.raises(DataError, match=r"annotations\[1\]\.category_id: 12"):
        read_instances(path)


@pytest.mark.parametrize(
    ("place", "values", "message"),
    [
        (("annotations", 1, "bbox"), [[1, 2, 3]], r"annotations\[1\]\.bbox"),
        (("annotations", 1, "bbox", 2), ["4", 1e300], r"annotations\[1\]\.bbox\[2\]"),
        (("annotations", 1, "id"), [1.5, True, 2**70, 906200174375], r"annotations\[1\]\.id"),
        (("annotations", 1, "iscrowd"), [2], r"annotations\[1\]\.iscrowd"),
        (("annotations", 1, "area"), ["big"], r"annotations\[1\]\.area"),
        (("annotations", 1, "image_id"), [8], r"annotations\[1\]\.image_id: 8"),
        (("annotations", 0, "category_id"), [2], r"annotations\[0\]\.category_id: 2"),
        (("annotations",), [{}], "annotations"),
        (("images", 0, "width"), [0], r"images\[0\]\.width"),
        (("images", 0, "height"), [None], r"images\[0\]\.height"),
        (("images", 0, "id"), [3], r"images\[1\]\.id: 3"),
        (("images", 0, "file_name"), ["sub/ä.jpg"], r"images\[1\]\.file_name"),
        (
            ("images", 0, "file_name"),
            ["", ".", "/etc/passwd", "a/..", "a/../../b", "..", "a\nb", "a\0b", "\x1b[31m.jpg", "\u202eb"],
            r"images\[0\]\.file_name",
        ),
        (("categories", 0, "id"), [90], r"categories\[1\]\.id: 90"),
        (("categories", 0, "name"), [5], r"categories\[0\]\.name"),
    ],
)
def test_read_instances_names_invalid_field(
    tmp_path: Path, place: tuple[str | int, ...], values: list[Any], message: str
):
    for value in values:
        path = write(tmp_path / "i.json", changed(*place, to=value))
        with pytest.raises(DataError, match=rf"i\.json: {message}") as error:
            read_instances(path)
        assert "instances_val2017.json" in (error.value.hint or "")


@pytest.mark.parametrize("place", [("images",), ("annotations",), ("annotations", 0, "bbox"), ("images", 1, "id")])
def test_read_instances_names_missing_key(tmp_path: Path, place: tuple[str | int, ...]):
    with pytest.raises(DataError, match=f"missing required field {place[-1]}"):
        read_instances(write(tmp_path / "i.json", changed(*place, drop=True)))


@pytest.mark.parametrize(
    "data",
    [b"", b'{"images": [', b'{"images": [NaN]}', b'{"images": [{"id": 1, "file_name": "\xff"}]}',
     b'{"images": [], "x": ' + b"[" * 100_000, b"[]"],
)  # fmt: skip
def test_read_instances_rejects_damaged_json(tmp_path: Path, data: bytes):
    (tmp_path / "i.json").write_bytes(data)
    with pytest.raises(DataError, match=r"i\.json"):
        read_instances(tmp_path / "i.json")


def test_format_full_writes_all_keys_deterministically(tmp_path: Path):
    instances = Instances(
        [CocoImage(1, "a.jpg", 30, 20)],
        [CocoAnnotation(1, 1, 1, (1 / 3, 2, 10, 5)), CocoAnnotation(2, 1, 1, (0, 0, 30, 20), True, 17.25)],
        [CocoCategory(1, "circle")],
    )
    write_atomically(tmp_path / "a.json", format_full(instances))
    assert (tmp_path / "a.json").read_text() == (
        '{"images":[{"id":1,"file_name":"a.jpg","width":30,"height":20}],"annotations":['
        '{"id":1,"image_id":1,"category_id":1,"bbox":[0.333,2.0,10.0,5.0],"area":50.0,"iscrowd":0,"segmentation":[]},'
        '{"id":2,"image_id":1,"category_id":1,"bbox":[0.0,0.0,30.0,20.0],"area":17.25,"iscrowd":1,"segmentation":[]}],'
        '"categories":[{"id":1,"name":"circle"}]}\n'
    )
    assert read_instances(tmp_path / "a.json").annotations[1] == instances.annotations[1]


IMAGES = '{"id": 7, "file_name": "b.jpg", "width": 1e1}', '{"file_name":"a.jpg","id":3,"own":[1.50]}'
BOXES = '{"image_id":3,"bbox":[0.10,1E2],"id":1}', '{"id":2,"image_id": 7}', '{"id":9,"image_id":3,"segmentation":[[]]}'
TEXT = (
    '{"info": {"year": 2017.0, "ü": null}, "images":[' + ", ".join(IMAGES) + '],\n"annotations": ['
    + ",".join(BOXES) + '], "\\u00fc": "x"}'
)  # fmt: skip


def test_drop_images_removes_annotations_and_keeps_the_rest_unchanged(tmp_path: Path):
    path = tmp_path / "instances_x.json"
    path.write_text(TEXT)
    assert b"".join(drop_images(path, {"a.jpg", "unknown.jpg"})).decode() == (
        '{"info":{"year": 2017.0, "ü": null},"images":[' + IMAGES[0] + '],"annotations":[' + BOXES[1] + '],"ü":"x"}'
    )
    assert json.loads(b"".join(drop_images(path, ()))) == json.loads(TEXT)
    assert json.loads(b"".join(drop_images(path, {"a.jpg", "b.jpg"})))["annotations"] == []
    path.write_text('{"images": []}')
    for damaged in (path, tmp_path / "none.json"):
        with pytest.raises(DataError, match=f"{damaged.name} is not a COCO annotation file"):
            b"".join(drop_images(damaged, ()))


@pytest.mark.parametrize(
    ("name", "num_images", "num_annotations", "num_crowds"),
    [
        ("detection/coco-free/annotations/instances_train2017.json", 60, 604, 8),
        ("detection/coco-free/annotations/instances_val2017.json", 66, 560, 8),
        ("eval/instances_val2014_100.json", 100, 839, 9),
    ],
)
def test_format_box_only_equals_original_on_real_files(
    tmp_path: Path, name: str, num_images: int, num_annotations: int, num_crowds: int
):
    path = real_data(name)
    found = read_instances(path)
    assert (len(found.images), len(found.annotations)) == (num_images, num_annotations)
    assert sum(item.crowd for item in found.annotations) == num_crowds
    assert {item.id: item.name for item in found.categories} == NAME_OF_ID
    write_atomically(tmp_path / "b.json", format_box_only(found))
    assert (tmp_path / "b.json").read_text() == prepare_json(json.loads(path.read_text()))
    assert len(read_instances(tmp_path / "b.json").annotations) == num_annotations
