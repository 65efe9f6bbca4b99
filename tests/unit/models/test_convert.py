"""Weights from one kind of file into another: nothing is lost, and what does not fit is told."""

import errno
import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from trainstone.errors import ConfigError, DataError, ResultError
from trainstone.models.convert import convert_weights
from trainstone.models.resnet import build_resnet

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


@pytest.mark.parametrize(("first", "second"), list(itertools.product(KINDS, KINDS)))
def test_any_kind_becomes_any_other_and_comes_back(tmp_path: Path, first: str, second: str):
    state = make_state(34 if first == second else 18)
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


@pytest.mark.parametrize(
    ("options", "network", "refusal"),
    [
        ({"depth": 50}, "ResNet-50", "ResNet-50; MLPerf SSD's names are for ResNet-18 and -34"),
        ({"norm": "group"}, "ResNet-18 with group norm", "group norm; MLPerf SSD's names are for .* with batch norm"),
        ({"stem": "small"}, "ResNet-18", ""),
        ({"width": 24}, "ResNet-18", ""),
    ],
)
def test_other_forms_of_our_network_are_known(tmp_path: Path, options: dict[str, Any], network: str, refusal: str):
    state = make_state(**{"depth": 18, **options})
    torch.save(state, tmp_path / "a.pth")
    made = convert_weights(tmp_path / "a.pth", tmp_path / "b.safetensors")
    assert (made.network, made.left_out) == (network, ())
    assert same(load_file(tmp_path / "b.safetensors"), state)
    if refusal:
        with pytest.raises(ConfigError, match=refusal):
            convert_weights(tmp_path / "a.pth", tmp_path / "b.pickle")


def without(*starts: str) -> Any:
    """Weights without those that begin so."""
    return lambda state: {name: tensor for name, tensor in state.items() if not name.startswith(starts)}


def replaced(name: str, tensor: Tensor) -> Any:
    return lambda state: state | {name: tensor}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("layer2.3.conv2.weight"), r"does not fit ResNet-34: 1 missing \(layer2\.3\.conv2\.weight\)"),
        (without("layer4."), r"does not fit ResNet-34: 35 missing \(layer4\.0"),
        (replaced("layer2.4.conv1.weight", torch.zeros(1)), r"1 unknown \(layer2\.4\.conv1\.weight\)"),
        (replaced("layer1.0.conv1.weight", torch.zeros(16, 3, 3, 16)), r"\(16, 3, 3, 16\) for \(16, 16, 3"),
        (replaced("conv1.weight", torch.zeros(0, 3, 7, 7)), "of another shape"),
        (replaced("conv1.weight", torch.zeros(16)), "of another shape"),
        (replaced("fc.weight", torch.tensor(1.0)), "of another shape"),
        (replaced("fc.weight", torch.zeros(0, 128)), r"fc\.weight \(0, 128\) for \(1000, 128\)"),
        (replaced("bn1.bias", torch.zeros(16, dtype=torch.int32)), r"bn1\.bias torch\.int32"),
        (replaced("bn1.bias", torch.full((16,), float("nan"))), r"not of finite numbers, first bn1\.bias"),
    ],
)
def test_what_does_not_fit_the_network_is_named(tmp_path: Path, change: Any, words: str):
    torch.save(change(make_state()), tmp_path / "a.pth")
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
    with pytest.raises(DataError, match="its tensors are called ") as caught:
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
        with pytest.raises(ConfigError, match="exists"):
            convert_weights(tmp_path / "a.pth", tmp_path / target)
    assert (tmp_path / "b.pickle").read_text() == "mine"
    with pytest.raises(ConfigError, match="npz") as caught:
        convert_weights(tmp_path / "a.pth", tmp_path / "b.npz")
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
