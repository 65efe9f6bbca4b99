import json
from pathlib import Path

import pytest
from hypothesis import given

from damage import damaged, quick, read_damaged
from trainstone.errors import DataError
from trainstone.files import write_atomically
from trainstone.formats.cocotrim import Trimmable

IMAGES = '{"id": 7, "file_name": "b.jpg", "width": 1e1}', '{"file_name":"a.jpg","id":3,"own":[1.50]}'
BOXES = '{"image_id":3,"bbox":[0.10,1E2],"id":1}', '{"id":2,"image_id": 7}', '{"id":9,"image_id":3,"segmentation":[[]]}'
TEXT = (
    '{"info": {"year": 2017.0, "ü": null}, "images":[' + ", ".join(IMAGES) + '],\n"annotations": ['
    + ",".join(BOXES) + '], "\\u00fc": "x"}'
)  # fmt: skip


def trim(folder: Path, text: str, *names: str) -> str:
    path = folder / "instances_x.json"
    path.write_text(text)
    write_atomically(path, Trimmable(path).without(names))
    return path.read_text()


def test_pictures_go_with_their_annotations_and_all_else_stays_to_the_digit(tmp_path: Path):
    kept = trim(tmp_path, TEXT, "a.jpg", "unknown.jpg")
    assert kept == (
        '{"info":{"year": 2017.0, "ü": null},"images":[' + IMAGES[0] + '],"annotations":[' + BOXES[1] + '],"ü":"x"}'
    )
    assert json.loads(trim(tmp_path, TEXT)) == json.loads(TEXT)
    assert json.loads(trim(tmp_path, TEXT, "a.jpg", "b.jpg"))["annotations"] == []


def test_many_items_are_joined_without_a_seam(tmp_path: Path):
    images = [{"id": n, "file_name": f"{n}.jpg"} for n in range(9000)]
    boxes = [{"id": n, "image_id": n} for n in range(9000)]
    kept = json.loads(trim(tmp_path, json.dumps({"images": images, "annotations": boxes}), "0.jpg", "8999.jpg"))
    assert kept == {"images": images[1:-1], "annotations": boxes[1:-1]}


def test_what_is_no_annotation_file_is_named(tmp_path: Path):
    with pytest.raises(DataError, match=r"instances_x\.json is no annotation file"):
        trim(tmp_path, '{"images": []}')
    with pytest.raises(DataError, match=r"cannot read .*none\.json"):
        Trimmable(tmp_path / "none.json")


@given(damaged(TEXT.encode()))
@quick
def test_damage_is_told_or_does_no_harm(tmp_path: Path, content: bytes):
    def read(path: Path) -> None:
        document = Trimmable(path)
        b"".join(document.without(document.names[:1]))

    read_damaged(tmp_path / "instances_x.json", content, read, place="")
