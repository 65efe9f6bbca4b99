import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from made_pictures import busy, save
from made_saved import RUN_ID, STEP, make_checkpoint, make_config, make_document, make_network
from trainstone.data.generated.source import find_stored, provide_stored
from trainstone.data.splits import open_split
from trainstone.errors import ConfigError, DataError, ResultError
from trainstone.train.checkpoint import keep_best
from trainstone.train.evaluation import export_weights, predict
from trainstone.train.saved import Saved, check_weights, load_network, open_saved, resolve_config
from trainstone.workloads.classify import CLASSIFY

CPU = torch.device("cpu")


def of_seed(seed: int) -> dict[str, torch.Tensor]:
    return make_network(make_config(), seed).state_dict()


def with_config(folder: Path, **changes) -> Path:
    document = make_document(make_config())
    return make_checkpoint(folder, config=document["config"] | changes)


def test_a_checkpoint_gives_its_average_and_where_it_comes_from(tmp_path: Path):
    saved = open_saved(make_checkpoint(tmp_path))
    assert (saved.step, saved.run_id, saved.averaged, saved.epoch) == (STEP, RUN_ID, True, pytest.approx(2.4))
    assert saved.origin == f"step 12 of {RUN_ID}"
    network = load_network(resolve_config(saved, None, [], {}), CPU, saved)
    assert not network.training
    assert all(torch.equal(tensor, network.state_dict()[name]) for name, tensor in of_seed(1).items())


def test_of_a_run_folder_the_best_is_taken_else_the_latest(tmp_path: Path):
    path = make_checkpoint(tmp_path / "checkpoints")
    assert open_saved(tmp_path).path == path
    keep_best(tmp_path / "checkpoints", int(path.stem[5:]))
    assert open_saved(tmp_path).path == path.with_name("best.safetensors")


def test_a_folder_without_checkpoints_is_refused(tmp_path: Path):
    with pytest.raises(DataError, match="holds no whole checkpoint"):
        open_saved(tmp_path)


def test_the_machine_that_trained_is_forgotten(tmp_path: Path):
    config = make_document(make_config())["config"]
    engine = config["engine"] | {"threads": 512}
    path = with_config(tmp_path, device="cuda:7", engine=engine, system="dgx", nodes=16, devices_per_node=8)
    found = resolve_config(open_saved(path), None, ["seed=3"], {"measure.seconds": 2.0})
    assert (found.device, found.engine.threads, found.system, found.nodes) == ("auto", "auto", None, 1)
    assert (found.seed, found.measure.seconds, found.model.width) == (3, 2.0, 24)


@pytest.mark.parametrize("changes", [{"config": 5}, {"config": None}, {"run_id": 7}, {"run_id": None}, {"epoch": "x"}])
def test_a_document_that_makes_no_sense_is_refused(tmp_path: Path, changes):
    with pytest.raises(ResultError, match="does not say"):
        open_saved(make_checkpoint(tmp_path, **changes))


@pytest.mark.parametrize("changes", [{"os": {"system": "x"}}, {"engine": 7}, {"model": []}, {"seed": [[[]]]}])
def test_a_configuration_that_makes_no_sense_is_refused(tmp_path: Path, changes):
    saved = open_saved(with_config(tmp_path, **changes))
    with pytest.raises(ConfigError, match="step-00000012"):
        resolve_config(saved, None, [], {})


def test_a_network_far_larger_than_the_file_is_refused_before_it_is_built(tmp_path: Path):
    model = make_document(make_config())["config"]["model"] | {"num_classes": 10**12}
    saved = open_saved(with_config(tmp_path, model=model))
    with pytest.raises(DataError, match="does not fit") as refused:
        check_weights(resolve_config(saved, None, [], {}), saved)
    assert refused.value.hint == "--set model.num_classes=10"


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path):
    weights = of_seed(0)
    weights["fc.bias"][3] = float("nan")
    torch.save(weights, tmp_path / "w.pth")
    saved = open_saved(tmp_path / "w.pth")
    with pytest.raises(DataError, match=r"1 tensor not of finite numbers, first fc\.bias"):
        check_weights(make_config(), saved)


def test_weights_of_other_tools_need_a_recipe_and_checkpoints_none(tmp_path: Path):
    torch.save({"state_dict": {f"module.{n}": t for n, t in of_seed(2).items()}}, tmp_path / "w.pth")
    saved = open_saved(tmp_path / "w.pth")
    assert saved.origin == "w.pth"
    with pytest.raises(ConfigError, match="does not say which network") as refused:
        resolve_config(saved, None, [], {})
    assert "--recipe NAME" in str(refused.value.hint)
    check_weights(resolve_config(saved, "demo-classify", ["model.width=24"], {}), saved)
    with pytest.raises(ConfigError, match="one too many"):
        resolve_config(open_saved(make_checkpoint(tmp_path)), "resnet50", [], {})


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
    assert [one["image"] for one in found] == [str(path) for path in asked]
    assert ["error" in one for one in found] == [False, True, False, True, True]
    for one in (found[0], found[2]):
        scores = [guess["score"] for guess in one["guesses"]]
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)
        assert 0 < sum(scores) <= 1


def test_a_picture_is_seen_as_evaluation_sees_it(tmp_path: Path, saved: Saved):
    config = make_config()
    for _ in provide_stored(config, 1):
        pass
    opened = open_split(find_stored(config).target, "val")
    with CLASSIFY.open_validation(config, opened, CPU) as loader:
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
        for guess in found["guesses"]:
            ours[guess["class"]] = guess["score"]
        assert ours == pytest.approx(share.numpy(), abs=1e-5)


def test_exported_weights_are_the_average_and_open_again(tmp_path: Path):
    target = tmp_path / "new" / "w.safetensors"
    saved = open_saved(make_checkpoint(tmp_path))
    made = export_weights(resolve_config(saved, None, [], {}), saved, target)
    assert (made["averaged"], made["bytes"]) == (True, target.stat().st_size)
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
