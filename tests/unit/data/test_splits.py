"""The part of a set that training or validation asks for."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from made_archives import make_instances
from made_archives import make_set as make_coco
from small_sets import CLASSES, STORAGES, Listed, make_set, to_classify, to_detect, write_set
from trainstone.data.sample import DataSet, Split
from trainstone.data.splits import open_split
from trainstone.errors import DataError


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_set(tmp_path_factory.mktemp("sets") / "both", "recordio", count=6, val=4)


@pytest.mark.parametrize(("name", "count", "first"), [("train", 6, 0), ("val", 4, 6)])
def test_splits_are_opened_by_name(both: Path, name: str, count: int, first: int):
    opened = open_split(both, name)
    assert opened.name == name
    assert len(opened.source) == count
    assert opened.source.read(0).image == to_classify(1, first)[0].image
    assert opened.dataset.kind == "classify"
    assert len(opened.dataset.classes) == 2


def test_the_only_split_is_taken_whatever_its_name(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    root = make_set(tmp_path / "set", "recordio", count=6)
    with caplog.at_level(logging.INFO):
        opened = open_split(root, "val")
    assert opened.name == "train"
    assert len(opened.source) == 6
    assert "has one split, train: took it for val" in caplog.text


@pytest.mark.parametrize("storage", STORAGES)
def test_pictures_without_a_box_are_left_out(tmp_path: Path, storage: str, caplog: pytest.LogCaptureFixture):
    root = make_set(tmp_path / "set", storage, "detect", count=7)
    every = open_split(root, "train").source
    with caplog.at_level(logging.INFO):
        boxed = open_split(root, "train", skip_empty=True).source
    assert [len(every.read(n).boxes) for n in range(len(every))] == [0, 1, 2, 0, 1, 2, 0]
    assert [boxed.read(n).name for n in range(len(boxed))] == [f"{n:04d}.jpg" for n in (1, 2, 4, 5)]
    assert [boxed.read(n).id for n in range(len(boxed))] == [101, 102, 104, 105]
    assert every.fingerprint() != boxed.fingerprint()
    assert "3 pictures without a box are left out" in caplog.text


def test_what_a_set_does_not_have_is_an_error_with_a_hint(tmp_path: Path, both: Path):
    samples = [replace(sample, boxes=()) for sample in to_detect(3)]
    found = DataSet("detect", "made up", CLASSES, [Split("train", Listed(samples))])
    empty = write_set(tmp_path / "set", found, "wds")
    for root, split, skip_empty, message, hint in (
        (both, "test", False, "has no split test; there: train, val", "trainstone data info"),
        (empty, "train", True, "none of 3 pictures has a box", "data.skip_empty=false"),
        (both, "train", True, "is no set of boxes", "this recipe detects"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            open_split(root, split, skip_empty=skip_empty)
        assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(("name", "lacking", "other"), [("train", "train2017", "val"), ("val", "val2017", "train")])
def test_no_other_split_is_taken_for_one_of_coco_whose_pictures_lack(
    tmp_path: Path, name: str, lacking: str, other: str, caplog: pytest.LogCaptureFixture
):
    root = make_coco(tmp_path / "c", train2017=make_instances(5), val2017=make_instances(3))
    shutil.rmtree(root / lacking)
    reason = f"annotations/instances_{lacking}.json is there, {lacking}/ is not"
    for asked in (name, lacking):
        with pytest.raises(DataError) as told:
            open_split(root, asked)
        assert told.value.message == f"{root} has no pictures of split {asked}: {reason}"
        assert "put the pictures into that folder" in str(told.value.hint)
    assert "took it for" not in caplog.text
    caplog.clear()
    assert open_split(root, other).name == other
    assert [record.message for record in caplog.records] == [f"{root}: {reason}: its pictures are left out"]
    assert open_split(root, "test").name == other  # of test nothing is there: as with any other set
