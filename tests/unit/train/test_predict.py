import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from made_pictures import busy, save
from made_saved import RUN_ID, make_checkpoint, make_config, make_network
from trainstone.data.generated.stored import find_stored, provide_stored
from trainstone.data.sample import ClassName
from trainstone.data.splits import open_split
from trainstone.errors import ConfigError
from trainstone.train.predict import export_weights, find_classes, name_guesses, predict
from trainstone.train.saved import Saved, check_weights, open_saved, resolve_config
from trainstone.workloads.classify import open_validation
from trainstone.workloads.workload import Seen

CPU = torch.device("cpu")


@pytest.fixture
def saved() -> Saved:
    return Saved(Path("w.pth"), make_network(make_config(), 5).state_dict())


def test_damaged_pictures_are_told_and_others_go_on(tmp_path: Path, saved: Saved):
    good = save(busy(60, 50))
    files = {"a.jpg": good, "cut.jpg": good[: len(good) // 2], "b.png": save(busy(40, 70), "PNG"), "text.jpg": b"hello"}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    asked = [tmp_path / name for name in (*files, "nowhere.jpg")]
    found = list(predict(make_config(), saved, asked, 3))
    assert [one.image for one in found] == asked
    assert [bool(one.error) for one in found] == [False, True, False, True, True]
    assert "truncated" in str(found[1].error)
    for one in (found[0], found[2]):
        scores = [guess.score for guess in one.guesses]
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)
        assert 0 < sum(scores) <= 1


def test_a_picture_is_seen_as_evaluation_sees_it(tmp_path: Path, saved: Saved):
    config = make_config()
    for _ in provide_stored(config, 1):
        pass
    opened = open_split(find_stored(config).target, "val")
    with open_validation(config, opened, CPU) as loader:
        images, _ = next(loader)
        mean = torch.tensor([0.485, 0.456, 0.406]) * 255
        deviation = torch.tensor([0.229, 0.224, 0.225]) * 255
        seen = ((images.float() - mean) / deviation).permute(0, 3, 1, 2)
    network = make_network(config, 5).eval()
    with torch.no_grad():
        shares = network(seen).softmax(1)
    paths = []
    for index in range(len(images)):
        paths.append(tmp_path / f"{index}.jpg")
        paths[-1].write_bytes(opened.source.read(index).image)
    for share, found in zip(shares, predict(config, saved, paths, 10), strict=True):
        ours = np.zeros(10)
        for guess in found.guesses:
            ours[guess.number] = guess.score
        assert ours == pytest.approx(share.numpy(), abs=1e-5)


def test_guesses_have_names_where_they_are_known():
    shares = [Seen(1, 0.7), Seen(2, 0.2), Seen(0, 0.1)]
    named = list(name_guesses(shares, [ClassName("n01", "tench"), ClassName("n02")], 9))
    assert [(guess.number, guess.name, guess.text) for guess in named] == [
        (1, "n02", ""),
        (2, "", ""),
        (0, "n01", "tench"),
    ]


def test_generated_sets_need_not_be_there_to_name_their_classes():
    names = [one.name for one in find_classes(make_config())]
    assert len(names) == 10
    assert "circle-plain" in names


@pytest.mark.parametrize("settings", [("data.source=synthetic",), ("data.source=files", "data.root=/nowhere")])
def test_unknown_names_are_told_once(settings, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        assert find_classes(make_config(*settings)) == ()
    (told,) = caplog.records
    assert "numbers are given" in told.getMessage()


def test_exported_weights_are_the_average_and_open_again(tmp_path: Path):
    target = tmp_path / "new" / "w.safetensors"
    saved = open_saved(make_checkpoint(tmp_path))
    made = export_weights(resolve_config(saved, None, [], {}), saved, target)
    assert (made.averaged, made.bytes) == (True, target.stat().st_size)
    with safe_open(target, framework="pt") as file:
        metadata = file.metadata()
    assert (metadata["recipe"], metadata["run_id"], metadata["step"]) == ("demo-classify", RUN_ID, "12")
    assert len(json.loads(metadata["classes"])) == 10
    again = open_saved(target)
    check_weights(make_config(), again)
    wanted = make_network(make_config(), 1).state_dict()
    assert all(torch.equal(tensor, again.weights[name]) for name, tensor in wanted.items())


def test_an_existing_file_is_not_written_over(tmp_path: Path, saved: Saved):
    target = tmp_path / "w.safetensors"
    target.write_text("precious")
    with pytest.raises(ConfigError, match="not written over"):
        export_weights(make_config(), saved, target)
    assert target.read_text() == "precious"
