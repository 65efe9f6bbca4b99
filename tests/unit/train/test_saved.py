from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from made_saved import RUN_ID, STEP, make_checkpoint, make_config, make_document, make_network
from trainstone.errors import ConfigError, DataError, ResultError
from trainstone.train.checkpoint import keep_best
from trainstone.train.saved import check_weights, load_network, open_saved, resolve_config

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


def test_without_an_average_the_weights_themselves_are_taken(tmp_path: Path):
    saved = open_saved(make_checkpoint(tmp_path, average=False))
    assert not saved.averaged
    assert all(torch.equal(tensor, saved.weights[name]) for name, tensor in of_seed(0).items())


def test_of_a_run_folder_the_best_is_taken_else_the_latest(tmp_path: Path):
    path = make_checkpoint(tmp_path / "checkpoints")
    assert open_saved(tmp_path).path == path
    keep_best(tmp_path / "checkpoints", path)
    assert open_saved(tmp_path).path == path.with_name("best.safetensors")


def test_a_damaged_checkpoint_is_passed_over_and_told(tmp_path: Path):
    path = make_checkpoint(tmp_path)
    path.with_name("step-00000099.safetensors").write_bytes(path.read_bytes()[:-9])
    saved = open_saved(tmp_path)
    assert saved.path == path
    assert "step-00000099" in saved.doubts[0]


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


@pytest.mark.parametrize(
    "changes",
    [
        *({"config": 5}, {"config": None}, {"run_id": 7}, {"run_id": None}, {"history": "x"}),
        *({"history": [{"step": -1}]}, {"history": [[[[]]]]}),
    ],
)
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


def test_plain_safetensors_may_name_their_recipe(tmp_path: Path):
    contiguous = {name: tensor.contiguous() for name, tensor in of_seed(0).items()}
    save_file(contiguous, tmp_path / "w.safetensors", {"recipe": "demo-classify"})
    with pytest.raises(ConfigError) as refused:
        resolve_config(open_saved(tmp_path / "w.safetensors"), None, [], {})
    assert "--recipe demo-classify" in str(refused.value.hint)


def test_an_open_number_of_classes_is_that_of_the_weights(tmp_path: Path):
    torch.save(of_seed(0), tmp_path / "w.pth")
    settings = ["model.width=24", 'model.num_classes="auto"']
    found = resolve_config(open_saved(tmp_path / "w.pth"), "demo-classify", settings, {})
    assert found.model.num_classes == 10
