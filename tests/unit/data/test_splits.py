"""The part of a set that training or validation asks for."""

import logging
from pathlib import Path

import pytest

from small_sets import make_set, to_classify
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


def test_a_split_that_is_not_there_is_an_error_that_names_the_others(both: Path):
    with pytest.raises(DataError, match="has no split test; there: train, val") as told:
        open_split(both, "test")
    assert "trainstone data info" in (told.value.hint or "")


def test_no_set_at_all(tmp_path: Path):
    with pytest.raises(DataError):
        open_split(tmp_path / "nothing", "train")
    with pytest.raises(DataError):
        open_split(tmp_path, "train")


def test_a_split_without_a_picture(tmp_path: Path):
    for split in ("train", "val"):
        (tmp_path / split / "cat").mkdir(parents=True)
    (tmp_path / "val" / "cat" / "a.jpg").write_bytes(to_classify(1)[0].image)
    with pytest.raises(DataError, match=r"train|no picture"):
        open_split(tmp_path, "train")
