"""Pictures that COCO's annotations name but that are not there: mending takes them out of the annotations."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from command import Finished
from small_sets import JPEGS, check, make_set
from trainstone.data.manifest import NAME
from trainstone.data.quarantine import read_reasons
from trainstone.data.recognise import open_dataset
from trainstone.data.splits import open_split

Quick = Callable[..., Finished]
TRAIN = "annotations/instances_train.json"


@pytest.fixture(params=["with a manifest", "as it lies"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    made = make_set(tmp_path / "set", "folder", "detect", count=8, val=3)
    if request.param == "as it lies":
        (made / NAME).unlink()
    return made


def list_images(path: Path) -> list[str]:
    return [image["file_name"] for image in json.loads(path.read_text())["images"]]


def test_they_are_dropped_and_the_second_look_is_clean(root: Path, quick: Quick):
    before = (root / TRAIN).read_bytes()
    val = (root / "annotations/instances_val.json").read_bytes()
    for number in (2, 5):
        (root / f"train/{number:04d}.jpg").unlink()
    looked = quick("data", "verify", str(root))
    assert looked.code == 9
    assert f"next: trainstone data verify --fix {root}" in looked.out
    mended = quick("data", "verify", "--fix", str(root))
    assert mended.code == 9
    place = root / "quarantine"
    assert f"2 missing pictures taken out of the annotations, which are in {place}/annotations as they were" in (
        mended.out
    )
    assert "the rest can be used" in mended.out
    assert "moved to" not in mended.out
    again = quick("data", "verify", str(root))
    assert again.code == 0
    assert "9 records" in again.out
    assert "all good" in again.out
    assert list_images(root / TRAIN) == [f"{number:04d}.jpg" for number in (0, 1, 3, 4, 6, 7)]
    assert (place / TRAIN).read_bytes() == before
    assert (root / "annotations/instances_val.json").read_bytes() == val
    reasons = read_reasons(place)
    assert [(one["file"], one["kept"]) for one in reasons] == [("train/0002.jpg", None), ("train/0005.jpg", None)]
    assert all("No such file" in str(one["why"]) for one in reasons)


def test_damaged_ones_are_moved_in_the_same_run(root: Path, quick: Quick):
    (root / "train/0002.jpg").unlink()
    (root / "train/0004.jpg").write_bytes(JPEGS[4][:100])
    (root / "val/0009.jpg").unlink()
    mended = quick("data", "verify", "--fix", str(root))
    assert "2 missing pictures taken out" in mended.out
    assert f"moved to {root / 'quarantine'}; the rest can be used" in mended.out
    assert (root / "quarantine/train/0004.jpg").read_bytes() == JPEGS[4][:100]
    assert (check(root).bad, check(root).records) == ([], 8)
    assert len(open_split(root, "val").source) == 2


def test_json_tells_how_many(root: Path, quick: Quick):
    (root / "train/0002.jpg").unlink()
    told = quick("data", "verify", "--fix", "--json", str(root)).json()
    assert (told["dropped_missing"], told["quarantine"]) == (1, str(root / "quarantine"))
    told = quick("data", "verify", "--fix", "--json", str(root)).json()
    assert (told["dropped_missing"], told["quarantine"], told["bad"]) == (0, None, [])


def test_a_split_without_any_picture_is_left_as_it_is(root: Path, quick: Quick):
    shutil.rmtree(root / "train")
    (root / "train").mkdir()
    (root / "val/0009.jpg").unlink()
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    told = quick("data", "verify", "--fix", str(root))
    assert told.code == 3
    assert f"{root / 'train'} has none of the 8 pictures that {root / TRAIN} names: nothing was changed" in told.err
    assert "is the disk mounted?" in told.err
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    assert len(open_dataset(root, classes=False).splits) == 2
