"""What is settled before the first step."""

from pathlib import Path
from typing import Any

import pytest
import torch

from small_sets import CLASSES, Listed, to_classify, write_set
from trainstone.config.load import load_config
from trainstone.config.schema import Config
from trainstone.data.sample import DataSet, Split
from trainstone.errors import DataError
from trainstone.machine.ranks import Rank
from trainstone.train import start
from trainstone.train.distributed import World
from trainstone.train.original.lines import Seat
from trainstone.train.start import find_seats, list_doubts, open_both

CPU = torch.device("cpu")


def make_config(root: Path, *settings: str) -> Config:
    return load_config("resnet50-sc22", settings=["model.num_classes=2", *settings], flags={"data.root": str(root)})


def make_splits(root: Path, *names: str) -> Path:
    splits = [Split(name, Listed(to_classify(4, 4 * place))) for place, name in enumerate(names)]
    return write_set(root, DataSet("classify", "made up", CLASSES, splits, "made-up"), "recordio")


@pytest.mark.parametrize("names", [("train",), ("val",), ("train", "test")])
def test_a_set_without_a_split_to_validate_with_can_be_trained_on(tmp_path: Path, names: tuple[str, ...]):
    config = make_config(make_splits(tmp_path / "set", *names))
    pictures = open_both(config)
    assert (len(pictures.training.source), pictures.validation, pictures.num_validation) == (4, None, 0)
    *_, told = list_doubts(config, pictures, 256, Rank(0, 1))
    assert (told.code, told.severity) == ("not-evaluated", "info")
    assert f"nothing to validate with (splits: {', '.join(names)})" in told.message


@pytest.mark.parametrize("setting", ["eval.target=0.5", "eval.every_epochs=2"])
@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("train",), "has one split, train: nothing is left to validate with"),
        (("val",), "has one split, val: nothing is left to validate with"),
        (("train", "test"), "has no split val; there: train, test"),
    ],
)
def test_it_is_refused_where_it_is_to_be_judged(tmp_path: Path, setting: str, names: tuple[str, ...], told: str):
    config = make_config(make_splits(tmp_path / "set", *names), setting)
    with pytest.raises(DataError, match=told):
        open_both(config)


def test_devices_are_counted_on_each_host(monkeypatch: pytest.MonkeyPatch):
    told: list[Any] = [[{"host": host} for host in ("a", "a", "b", "b", "a")], None]
    monkeypatch.setattr(start, "gather", lambda _world, _mine: told.pop(0))
    seats = (Seat("a", 0), Seat("a", 1), Seat("b", 0), Seat("b", 1), Seat("a", 2))
    assert find_seats(World(Rank(0, 5), CPU, control="others")) == seats
    assert find_seats(World(Rank(1, 5), CPU, control="others")) == ()
