"""Weights from one kind of file into another: nothing is lost, and what does not fit is told."""

import errno
import hashlib
import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from trainstone.errors import ConfigError, DataError, ResultError
from trainstone.models import convert
from trainstone.models.convert import convert_weights
from trainstone.models.resnet import build_resnet
from trainstone.models.ssd import build_ssd
from trainstone.models.weights import read_weights, write_weights

KINDS = ("pth", "safetensors", "pickle")
ENDS = ("layer4.", "fc.")


def make_state(depth: int = 34, **options: Any) -> dict[str, Tensor]:
    """A network that has seen pictures: statistics and counters are not the first ones."""
    torch.manual_seed(0)
    model = build_resnet(depth, num_classes=5, **{"width": 16, **options})
    model(torch.rand(2, 3, 33, 33))
    return model.state_dict()


def trunk(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state.items() if not name.startswith(ENDS)}


def without_counters(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state.items() if not name.endswith("num_batches_tracked")}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("depth", [18, 34])
@pytest.mark.parametrize(("first", "second"), list(itertools.product(KINDS, KINDS)))
def test_any_kind_becomes_any_other_and_comes_back(tmp_path: Path, depth: int, first: str, second: str):
    state = make_state(depth)
    torch.save(state, tmp_path / "source.pth")
    convert_weights(tmp_path / "source.pth", tmp_path / f"a.{first}")
    convert_weights(tmp_path / f"a.{first}", tmp_path / f"b.{second}")
    convert_weights(tmp_path / f"b.{second}", tmp_path / "end.safetensors")
    found = load_file(tmp_path / "end.safetensors")
    if "pickle" not in (first, second):
        assert same(found, state)
        return
    assert same(without_counters(found), without_counters(trunk(state)))
    counters = [name for name in found if name.endswith("num_batches_tracked")]
    assert set(found) == set(trunk(state))
    assert all(found[name].equal(torch.tensor(0)) for name in counters)


@pytest.mark.parametrize("depth", [50, 101])
def test_deeper_networks_go_between_torch_and_safetensors(tmp_path: Path, depth: int):
    state = make_state(depth)
    torch.save(state, tmp_path / "a.pth")
    made = convert_weights(tmp_path / "a.pth", tmp_path / "b.safetensors")
    assert made.network == f"ResNet-{depth}"
    assert made.left_out == ()
    convert_weights(tmp_path / "b.safetensors", tmp_path / "c.pt")
    assert same(torch.load(tmp_path / "c.pt", weights_only=True), state)
    with pytest.raises(ConfigError, match=rf"is of ResNet-{depth}; MLPerf SSD's names are for ResNet-18 and -34"):
        convert_weights(tmp_path / "a.pth", tmp_path / "d.pickle")


def test_the_pickle_is_what_the_original_reads(tmp_path: Path):
    state = make_state()
    torch.save(without_counters(state), tmp_path / "a.pth", _use_new_zipfile_serialization=False)
    made = convert_weights(tmp_path / "a.pth", tmp_path / "a.pickle")
    with (tmp_path / "a.pickle").open("rb") as file:
        plain = pickle.load(file)
    assert type(plain) is dict
    assert {type(array) for array in plain.values()} == {np.ndarray}
    assert {array.dtype for array in plain.values()} == {np.dtype("float32")}
    assert len(plain) == made.tensors == 145
    np.testing.assert_array_equal(plain["stage2_conv3_weight"], state["layer2.1.conv1.weight"].numpy())
    np.testing.assert_array_equal(plain["stage3_batchnorm2_running_var"], state["layer3.0.downsample.1.running_var"])
    assert plain["conv0_weight"].shape == (16, 3, 7, 7)  # outputs, inputs, height, width
    assert made.network == "ResNet-34 up to layer3"
    assert made.parameters == sum(a.size for n, a in plain.items() if "running" not in n)
    assert made.bytes == (tmp_path / "a.pickle").stat().st_size
    left = {name for name in without_counters(state) if name.startswith(ENDS)}
    assert set(made.left_out) == left


def test_a_pickle_with_the_original_prefix_and_its_heads_is_read(tmp_path: Path):
    state = make_state()
    torch.save(state, tmp_path / "a.pth")
    convert_weights(tmp_path / "a.pth", tmp_path / "a.pickle")
    plain = pickle.loads((tmp_path / "a.pickle").read_bytes())
    other = {f"ssd0_resnetmlperf0_{name.replace('running', 'moving')}": array for name, array in plain.items()}
    other["ssd0_expand_conv0_weight"] = np.zeros(3, dtype=np.float32)
    (tmp_path / "b.pickle").write_bytes(pickle.dumps(other))
    made = convert_weights(tmp_path / "b.pickle", tmp_path / "c.safetensors")
    assert made.left_out == ("ssd0_expand_conv0_weight",)
    assert same(without_counters(load_file(tmp_path / "c.safetensors")), without_counters(trunk(state)))


def test_a_pickle_of_torchvision_names_is_read_too(tmp_path: Path):
    state = make_state()
    (tmp_path / "a.pickle").write_bytes(pickle.dumps({name: tensor.numpy() for name, tensor in state.items()}))
    convert_weights(tmp_path / "a.pickle", tmp_path / "b.pth")
    assert same(torch.load(tmp_path / "b.pth", weights_only=True), state)


def test_a_pickle_of_half_precision_becomes_float32(tmp_path: Path):
    state = {n: t.half() if t.is_floating_point() else t for n, t in make_state().items()}
    save_file(state, tmp_path / "a.safetensors")
    convert_weights(tmp_path / "a.safetensors", tmp_path / "b.pickle")
    plain = pickle.loads((tmp_path / "b.pickle").read_bytes())
    assert plain["conv0_weight"].dtype == np.float32
    np.testing.assert_array_equal(plain["conv0_weight"], state["conv1.weight"].float())


def test_a_detector_gives_its_backbone(tmp_path: Path):
    torch.manual_seed(0)
    detector = build_ssd(34, num_classes=3, image_size=300, width=16, norm="batch")
    state = detector.state_dict()
    write_weights(tmp_path / "a.safetensors", state, {"recipe": "ssd"})
    made = convert_weights(tmp_path / "a.safetensors", tmp_path / "b.pth")
    assert made.network == "ResNet-34 up to layer3"
    assert set(made.left_out) == {name for name in state if not name.startswith("backbone.")}
    assert same(torch.load(tmp_path / "b.pth", weights_only=True), detector.backbone.state_dict())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"norm": "group"}, "ResNet-18 with group norm"),
        ({"stem": "small"}, "ResNet-18"),
        ({"width": 24}, "ResNet-18"),
    ],
)
def test_other_forms_of_our_network_are_known(tmp_path: Path, options: dict[str, Any], told: str):
    state = make_state(18, **options)
    torch.save(state, tmp_path / "a.pth")
    assert convert_weights(tmp_path / "a.pth", tmp_path / "b.safetensors").network == told
    assert same(load_file(tmp_path / "b.safetensors"), state)


def test_group_norm_has_no_name_in_the_original(tmp_path: Path):
    torch.save(make_state(18, norm="group"), tmp_path / "a.pth")
    with pytest.raises(ConfigError, match=r"with group norm; MLPerf SSD's names are for .* with batch norm"):
        convert_weights(tmp_path / "a.pth", tmp_path / "b.pickle")


def change(state: dict[str, Tensor], what: str) -> dict[str, Tensor]:
    """Weights with one fault."""
    if what == "a missing tensor":
        return {name: tensor for name, tensor in state.items() if name != "layer2.3.conv2.weight"}
    if what == "a missing block":
        return {name: tensor for name, tensor in state.items() if not name.startswith("layer2.3.")}
    if what == "half a last stage":
        return {name: tensor for name, tensor in state.items() if not name.startswith("layer4.1.")}
    if what == "a classifier without its stage":
        return {name: tensor for name, tensor in state.items() if not name.startswith("layer4.")}
    faults = {
        "no classes": {"fc.weight": torch.zeros(0, 128)},
        "a tensor too much": {"layer2.4.conv1.weight": torch.zeros(1)},
        "channels last": {"layer1.0.conv1.weight": torch.zeros(16, 3, 3, 16)},
        "another width": {"conv1.weight": torch.zeros(32, 3, 7, 7)},
        "no width": {"conv1.weight": torch.zeros(0, 3, 7, 7)},
        "a flat stem": {"conv1.weight": torch.zeros(16)},
        "a number for the classes": {"fc.weight": torch.tensor(1.0)},
        "whole numbers": {"bn1.bias": torch.zeros(16, dtype=torch.int32)},
        "no number": {"bn1.bias": torch.full((16,), float("nan"))},
    }
    return state | faults[what]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("a missing tensor", r"does not fit ResNet-34: 1 missing \(layer2\.3\.conv2\.weight\)"),
        ("a missing block", r"does not fit ResNet-34: 10 missing \(layer2\.3\.conv1\.weight"),
        ("half a last stage", r"does not fit ResNet-34: 10 missing \(layer4\.1\."),
        ("a tensor too much", r"does not fit ResNet-34: 1 unknown \(layer2\.4\.conv1\.weight\)"),
        ("channels last", r"layer1\.0\.conv1\.weight is \(16, 3, 3, 16\), ResNet-34's \(16, 16, 3, 3\)"),
        ("another width", "of another shape"),
        ("no width", "of another shape"),
        ("a flat stem", "of another shape"),
        ("a number for the classes", "of another shape"),
        ("no classes", r"fc\.weight is \(0, 128\), ResNet-34's \(1000, 128\)"),
        ("a classifier without its stage", r"does not fit ResNet-34: 35 missing \(layer4\.0"),
        ("whole numbers", r"bn1\.bias is torch\.int32"),
        ("no number", r"not of finite numbers, first bn1\.bias"),
    ],
)
def test_what_does_not_fit_the_network_is_told(tmp_path: Path, what: str, words: str):
    torch.save(change(make_state(), what), tmp_path / "a.pth")
    with pytest.raises(DataError, match=words) as caught:
        convert_weights(tmp_path / "a.pth", tmp_path / "b.safetensors")
    assert str(tmp_path / "a.pth") in caught.value.message
    assert names(tmp_path) == ["a.pth"]


@pytest.mark.parametrize(
    "state",
    [
        {"features.0.weight": torch.zeros(3), "features.0.bias": torch.zeros(3)},
        {"conv1.weight": torch.zeros(64, 3, 7, 7)},
        {"conv0_weight": torch.zeros(64, 3, 7, 7)},
        {"\x1b[31m": torch.zeros(1)},
    ],
)
def test_names_of_no_known_network_are_refused(tmp_path: Path, state: dict[str, Tensor]):
    torch.save(state, tmp_path / "a.pth")
    with pytest.raises(DataError, match="is of no network that is known here: its tensors are called ") as caught:
        convert_weights(tmp_path / "a.pth", tmp_path / "b.safetensors")
    assert "ResNet-18, -34, -50, -101, -152" in str(caught.value.hint)
    assert caught.value.message.isprintable()


def test_one_number_that_looks_like_many_is_refused(tmp_path: Path):
    state = make_state(18) | {"conv1.weight": torch.zeros(1, 1, 1, 1).expand(100_000, 3, 7, 7)}
    torch.save(state, tmp_path / "a.pth")
    assert (tmp_path / "a.pth").stat().st_size < 10_000_000
    with pytest.raises(DataError, match=r"more than plain tensors by name: 1 other \(conv1\.weight\)"):
        convert_weights(tmp_path / "a.pth", tmp_path / "b.safetensors")


def test_nothing_is_written_over(tmp_path: Path):
    torch.save(make_state(18), tmp_path / "a.pth")
    (tmp_path / "b.pickle").write_text("mine")
    (tmp_path / "link.pth").symlink_to("nowhere")
    for target in ("b.pickle", "a.pth", "link.pth"):
        with pytest.raises(ConfigError, match="exists; it is not written over"):
            convert_weights(tmp_path / "a.pth", tmp_path / target)
    assert (tmp_path / "b.pickle").read_text() == "mine"


@pytest.mark.parametrize("name", ["b", "b.params", "b.npz", "b.PTH"])
def test_a_target_of_an_unknown_kind_is_refused(tmp_path: Path, name: str):
    with pytest.raises(ConfigError, match="what shall it be") as caught:
        convert_weights(tmp_path / "a.pth", tmp_path / name)
    assert ".pth, .pt, .safetensors, .pickle, .pkl" in str(caught.value.hint)


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    torch.save(make_state(18), tmp_path / "a.pth")

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("trainstone.files.os.fsync", fail)
    for kind in KINDS:
        with pytest.raises(ResultError, match=r"cannot write .*b\..*: No space left"):
            convert_weights(tmp_path / "a.pth", tmp_path / f"b.{kind}")
    assert names(tmp_path) == ["a.pth"]


def test_the_same_weights_give_the_same_file(tmp_path: Path):
    torch.save(make_state(18), tmp_path / "a.pth")
    for kind in KINDS:
        sums = []
        for name in ("x", "y"):
            (tmp_path / name).mkdir(exist_ok=True)
            convert_weights(tmp_path / "a.pth", tmp_path / name / f"w.{kind}")
            sums.append(hashlib.sha256((tmp_path / name / f"w.{kind}").read_bytes()).hexdigest())
        assert sums[0] == sums[1], kind


def test_every_kind_of_file_has_a_writer():
    assert set(convert.KINDS.values()) == set(convert.WRITERS)


def test_what_is_written_is_read_as_it_was(tmp_path: Path):
    state = make_state(18)
    torch.save({"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}}, tmp_path / "a.pth")
    for kind in ("pth", "safetensors"):
        convert_weights(tmp_path / "a.pth", tmp_path / "new" / f"b.{kind}")
        assert same(read_weights(tmp_path / "new" / f"b.{kind}"), state)
