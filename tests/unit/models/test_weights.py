"""Tests of weights files: reading, converting and loading every format, mismatches, and MXNet's tensor names."""

import errno
import itertools
import os
import pickle
import re
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlperf_logging
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from support.builders.damage import Call, damaged, quick, read_damaged
from trainstone.errors import ConfigError, DataError, ResultError
from trainstone.models.mxnet_names import PREFIX, name_in_gluon, name_in_mxnet, rename_from_gluon
from trainstone.models.resnet import build_resnet
from trainstone.models.ssd import build_ssd
from trainstone.models.weights import (
    FORMAT,
    convert_weights,
    load_pretrained,
    load_weights,
    read_weights,
    write_checkpoint_file,
    write_weights,
)

SMALL = {"conv.weight": torch.arange(6.0).reshape(2, 3), "bn.num_batches_tracked": torch.tensor(4)}
KINDS = ("pth", "safetensors", "pickle")
ENDS = ("layer4.", "fc.")
COUNTER = "num_batches_tracked"


def make_state(depth: int = 34, **options: Any) -> dict[str, Tensor]:
    """Return the weights of a network after one batch: statistics and counters differ from the initial ones."""
    torch.manual_seed(0)
    model = build_resnet(depth, num_classes=5, **{"width": 16, **options})
    model(torch.rand(2, 3, 33, 33))
    return model.state_dict()


def make_backbone(depth: int = 34, *, width: int = 16, norm: str = "batch") -> nn.Module:
    return build_ssd(depth, num_classes=3, image_size=300, width=width, norm=norm).backbone


def trunk(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state.items() if not name.startswith(ENDS)}


def without_counters(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state.items() if not name.endswith(COUNTER)}


def prefixed(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    "content",
    [
        SMALL,
        OrderedDict(SMALL),
        {"state_dict": SMALL, "epoch": 3, "optimizer": {"lr": 0.1}},
        {"model": SMALL},
        {"model_state_dict": SMALL},
        {"model": {"state_dict": prefixed("module.", SMALL)}},
        prefixed("module._orig_mod.module.", SMALL),
        prefixed("_orig_mod.module.", SMALL),
        {name: torch.nn.Parameter(tensor, requires_grad=False) for name, tensor in SMALL.items()},
    ],
)
def test_read_weights_unwraps_common_dicts(tmp_path: Path, content: Any, zipped: bool):
    torch.save(content, tmp_path / "w.pth", _use_new_zipfile_serialization=zipped)
    assert same(read_weights(tmp_path / "w.pth"), SMALL)


def test_read_weights_checkpoint_prefers_ema(tmp_path: Path):
    path = tmp_path / "step-00000001.safetensors"
    others = {"optimizer.0": torch.zeros(3)} | prefixed("model.", SMALL)
    write_checkpoint_file(path, others, {})
    assert same(read_weights(path), SMALL)
    average = SMALL | {"conv.weight": torch.ones(2, 3)}
    write_checkpoint_file(path, others | prefixed("ema.", average), {})
    assert same(read_weights(path), average)
    write_checkpoint_file(path, others | {"ema.conv.weight": torch.ones(2, 3)}, {})
    assert same(read_weights(path), average)


def test_read_weights_rejects_damaged_or_newer_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "step-00000001.safetensors"
    write_checkpoint_file(path, prefixed("model.", SMALL), {})
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"\x99")
    with pytest.raises(DataError, match="does not match its checksum"):
        read_weights(path)
    with monkeypatch.context() as patch:
        patch.setattr("trainstone.models.weights.FORMAT", FORMAT + 1)
        write_checkpoint_file(path, prefixed("model.", SMALL), {})
    with pytest.raises(DataError, match=f"reads up to {FORMAT}"):
        read_weights(path)
    write_checkpoint_file(path, {"optimizer.0": torch.zeros(1)}, {})
    with pytest.raises(DataError, match="holds no tensors"):
        read_weights(path)


def test_read_weights_never_executes_pickled_code(tmp_path: Path):
    path, mark = tmp_path / "w.pth", tmp_path / "touched"
    command = f"touch {mark}"
    evil = Call(os.system, command)
    contents = [
        f"cos\nsystem\n(S'{command}'\ntR.".encode(),
        b"\x80\x02cos\nsystem\n(X" + struct.pack("<I", len(command)) + command.encode() + b"tR.",
        pickle.dumps(evil),
        pickle.dumps({"state_dict": Call(Path.touch, mark)}, protocol=2),
    ]
    for content in (evil, {"state_dict": {**SMALL, "fc.weight": [evil]}}):
        for zipped, protocol in itertools.product((True, False), (2, 4)):
            torch.save(content, path, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
            contents.append(path.read_bytes())
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(DataError):
            read_weights(path)
        assert not mark.exists()
    path.write_bytes(contents[1])
    with pytest.raises(DataError, match=r"os\.system; it was not opened"):
        read_weights(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (torch.nn.Linear(2, 2), r"requests torch\.nn\.modules\.linear\.Linear"),
        ({"state_dict": SMALL, "best": np.float64(1)}, r"requests numpy\S+scalar"),
        ([torch.zeros(1)], "type list"),
        (torch.zeros(1), "type Tensor"),
        ({"net": SMALL, "epoch": 3}, r"2 other \(net, epoch\)"),
        ({3: torch.zeros(1)}, r"1 other \(3\)"),
        ({"a": torch.eye(2).to_sparse()}, r"1 other \(a\)"),
        ({"a": torch.zeros(2, device="meta")}, r"1 other \(a\)"),
        ({}, "holds no tensors"),
        # One stored number, expanded.
        ({"conv1.weight": torch.zeros(1).expand(10**9)}, r"more than plain tensors by name: 1 other \(conv1\.weight\)"),
    ],
)
def test_read_weights_rejects_other_content(tmp_path: Path, content: Any, words: str):
    torch.save(content, tmp_path / "w.pth")
    assert (tmp_path / "w.pth").stat().st_size < 10_000
    with pytest.raises(DataError, match=words):
        read_weights(tmp_path / "w.pth")


def test_read_weights_rejects_compressed_file(tmp_path: Path):
    torch.save({"a": torch.zeros(100_000)}, tmp_path / "w.pth")
    with zipfile.ZipFile(tmp_path / "w.pth") as plain, zipfile.ZipFile(tmp_path / "z.pth", "w", 8) as small:
        for name in plain.namelist():
            small.writestr(name, plain.read(name))
    with pytest.raises(DataError, match=r"torch\.save does not compress"):
        read_weights(tmp_path / "z.pth")


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"x", b"some text\n", b"\x89PNG\r\n\x1a\n" + bytes(50), b"<!DOCTYPE html>", b"version 1\xff\x1b[31m"),
        *(b"PK\x03\x04" + bytes(50), b"\x80", struct.pack("<Q", 2**62) + b"{}", struct.pack("<Q", 99_999_999) + b"{}"),
    ],
)
def test_read_weights_rejects_unknown_formats(tmp_path: Path, data: bytes):
    (tmp_path / "w.pth").write_bytes(data)
    with pytest.raises(DataError) as caught:
        read_weights(tmp_path / "w.pth")
    assert str(tmp_path / "w.pth") in caught.value.message
    assert caught.value.message.isprintable()


def test_read_weights_rejects_folder_and_pipe(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("none", ".", "pipe"):
        with pytest.raises(DataError, match=str(tmp_path)):
            read_weights(tmp_path / name)


def write_form(path: Path, form: str) -> bytes:
    if form == "safetensors":
        save_file(SMALL, path)
    else:
        torch.save(SMALL, path, _use_new_zipfile_serialization=form == "zip")
    return path.read_bytes()


@pytest.mark.parametrize("form", ["zip", "legacy", "safetensors"])
def test_read_weights_rejects_truncated_file(tmp_path: Path, form: str):
    path = tmp_path / "w"
    data = write_form(path, form)
    for length in [*range(1, len(data), 29), len(data) - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(DataError, match=r"/w\b"):
            read_weights(path)


@quick
@given(form=st.sampled_from(["zip", "legacy", "safetensors"]), data=st.data())
def test_read_weights_random_damage_gives_tensors_or_data_error(tmp_path: Path, form: str, data: st.DataObject):
    path = tmp_path / "w.pth"
    read_damaged(path, data.draw(damaged(write_form(path, form))), read_weights, place="")


def into(model: nn.Module, load: Callable[[nn.Module, Path], None] = load_pretrained) -> Callable[[Path], None]:
    """Return a function that loads a file into the model and checks that an error changes nothing."""

    def read(path: Path) -> None:
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        try:
            load(model, path)
        finally:
            assert same(model.state_dict(), before)

    return read


def fit(path: Path) -> None:
    """Load a file into a network of three classes."""
    model = build_resnet(34, num_classes=3, width=16)
    into(model, lambda model, path: load_weights(model, read_weights(path), str(path)))(path)


def convert(path: Path) -> None:
    convert_weights(path, path.with_name("b.safetensors"))


def remove_names(*starts: str) -> dict[str, None]:
    return {name: None for name in make_state() if name.startswith(starts)}


OF_34 = "the file has ResNet-34: --set model.depth=34 --set model.width=16"


@pytest.mark.parametrize(
    ("read", "change", "words", "hint"),
    [
        (fit, {}, r"2 of another shape \(fc.weight \(5, 128\) for \(3, 128\)", "--set model.num_classes=5"),
        (
            fit,
            {f"extra.{n}": torch.zeros(1) for n in range(5)},
            r"5 unknown \(extra.0, extra.1, extra.2, \.\.\.\); 2 of",
            None,
        ),
        (fit, {"bn1.bias": None}, r"1 missing \(bn1\.bias\)", None),
        (fit, {"fc.bias": torch.zeros(3, dtype=torch.int8)}, r"1 of another type \(fc.bias torch.int8 for", None),
        (fit, {"\x1b[31m": torch.zeros(1)}, r"unknown \(\\x1b", None),
        (into(make_backbone(18)), {}, r"unknown \(layer1\.2\.conv1\.weight", OF_34),
        (into(make_backbone(width=32)), {}, r"conv1\.weight \(16, 3, 7, 7\) for \(32, 3, 7, 7\)", OF_34),
        (into(make_backbone(norm="group")), {}, r"unknown \(bn1\.running_mean", OF_34),
        (convert, {"layer2.3.conv2.weight": None}, r"does not fit ResNet-34: 1 missing \(layer2\.3\.conv2\.w", None),
        (convert, remove_names("layer4."), r"does not fit ResNet-34: 35 missing \(layer4\.0", None),
        (convert, {"layer2.4.conv1.weight": torch.zeros(1)}, r"1 unknown \(layer2\.4\.conv1\.weight\)", None),
        (convert, {"layer1.0.conv1.weight": torch.zeros(16, 3, 3, 16)}, r"\(16, 3, 3, 16\) for \(16, 16, 3", None),
        (convert, {"conv1.weight": torch.zeros(0, 3, 7, 7)}, "of another shape", None),
        (convert, {"conv1.weight": torch.zeros(16)}, "of another shape", None),
        (convert, {"fc.weight": torch.tensor(1.0)}, "of another shape", None),
        (convert, {"fc.weight": torch.zeros(0, 128)}, r"fc\.weight \(0, 128\) for \(1000, 128\)", None),
        (convert, {"bn1.bias": torch.zeros(16, dtype=torch.int32)}, r"bn1\.bias torch\.int32", None),
        (
            convert,
            {"bn1.bias": torch.full((16,), torch.nan)},
            r"has NaN or infinity in 1 tensor, first bn1\.bias",
            None,
        ),
    ],
)
def test_load_weights_mismatch_raises_and_changes_nothing(
    tmp_path: Path, read: Callable[[Path], None], change: Mapping[str, Tensor | None], words: str, hint: str | None
):
    state = make_state() | change
    torch.save({name: tensor for name, tensor in state.items() if tensor is not None}, tmp_path / "a.pth")
    with pytest.raises(DataError, match=words) as caught:
        read(tmp_path / "a.pth")
    assert caught.value.message.startswith(str(tmp_path / "a.pth"))
    assert caught.value.message.isprintable()
    assert caught.value.hint == hint
    assert [path.name for path in tmp_path.iterdir()] == ["a.pth"]


def test_load_weights_missing_counters_are_allowed_and_dtype_follows_model():
    weights = {name: tensor.half() for name, tensor in without_counters(make_state(18)).items()}
    model = build_resnet(18, num_classes=5, width=16)
    load_weights(model, weights, "w.pth")
    assert model.fc.weight.dtype == torch.float32
    assert model.fc.weight.requires_grad
    assert torch.equal(model.fc.weight, weights["fc.weight"].float())


def test_write_weights_can_be_read_by_safetensors(tmp_path: Path):
    model = build_resnet(18, num_classes=3).to(memory_format=torch.channels_last)
    write_weights(tmp_path / "new" / "w.safetensors", model.state_dict(), {"recipe": "demo"})
    assert same(load_file(tmp_path / "new" / "w.safetensors"), model.state_dict())
    with safe_open(tmp_path / "new" / "w.safetensors", framework="np") as file:
        assert file.metadata() == {"format": "pt", "recipe": "demo"}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["w.safetensors"]


@pytest.mark.parametrize("kind", ["pth", "legacy", "safetensors", "pickle", "exported", "checkpoint"])
def test_load_pretrained_reads_every_format(tmp_path: Path, kind: str):
    state = make_state()
    path = tmp_path / "w.pth"
    torch.save(state, path, _use_new_zipfile_serialization=kind != "legacy")
    if kind in ("safetensors", "pickle"):
        convert_weights(path, tmp_path / f"w.{kind}")
        path = tmp_path / f"w.{kind}"
    elif kind == "exported":
        path = tmp_path / "w.safetensors"
        write_weights(path, state, {"recipe": "resnet34", "step": "12"})
    elif kind == "checkpoint":
        path = tmp_path / "step-00000012.safetensors"
        write_checkpoint_file(path, prefixed("model.", state), {"step": 12})
    backbone, model = make_backbone(), build_resnet(34, num_classes=5, width=16)
    load_pretrained(backbone, path)
    found = backbone.state_dict()
    if kind == "pickle":
        assert same(without_counters(found), without_counters(trunk(state)))
        with pytest.raises(DataError, match=r"does not fit the model: 37 missing \(layer4\.0"):
            load_pretrained(model, path)
    else:
        assert same(found, trunk(state))
        load_pretrained(model, path)
        assert same(model.state_dict(), state)


@pytest.mark.parametrize(("first", "second"), list(itertools.product(KINDS, KINDS)))
def test_convert_weights_round_trip_between_formats(tmp_path: Path, first: str, second: str):
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
    assert set(found) == set(trunk(state))
    assert all(tensor.equal(torch.tensor(0)) for name, tensor in found.items() if name.endswith(COUNTER))


def test_convert_weights_pickle_has_original_content(tmp_path: Path):
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
    assert set(made.skipped) == left


def test_convert_weights_reads_pickle_with_original_prefix(tmp_path: Path):
    state = make_state()
    torch.save(state, tmp_path / "a.pth")
    convert_weights(tmp_path / "a.pth", tmp_path / "a.pickle")
    plain = pickle.loads((tmp_path / "a.pickle").read_bytes())
    other = {f"ssd0_resnetmlperf0_{name.replace('running', 'moving')}": array for name, array in plain.items()}
    other["ssd0_expand_conv0_weight"] = np.zeros(3, dtype=np.float32)
    (tmp_path / "b.pickle").write_bytes(pickle.dumps(other))
    made = convert_weights(tmp_path / "b.pickle", tmp_path / "c.safetensors")
    assert made.skipped == ("ssd0_expand_conv0_weight",)
    assert same(without_counters(load_file(tmp_path / "c.safetensors")), without_counters(trunk(state)))


@pytest.mark.parametrize(
    ("options", "network", "refusal"),
    [
        ({"depth": 50}, "ResNet-50", "ResNet-50; MLPerf SSD's names exist for ResNet-18 and -34"),
        ({"norm": "group"}, "ResNet-18 with group norm", "group norm; MLPerf SSD's names exist for .* with batch norm"),
        ({"stem": "small"}, "ResNet-18", ""),
        ({"width": 24}, "ResNet-18", ""),
    ],
)
def test_convert_weights_recognises_network_variants(
    tmp_path: Path, options: dict[str, Any], network: str, refusal: str
):
    state = make_state(**{"depth": 18, **options})
    torch.save(state, tmp_path / "a.pth")
    made = convert_weights(tmp_path / "a.pth", tmp_path / "b.safetensors")
    assert (made.network, made.skipped) == (network, ())
    assert same(load_file(tmp_path / "b.safetensors"), state)
    if refusal:
        with pytest.raises(ConfigError, match=refusal):
            convert_weights(tmp_path / "a.pth", tmp_path / "b.pickle")


@pytest.mark.parametrize(
    "state",
    [
        {"features.0.weight": torch.zeros(3), "features.0.bias": torch.zeros(3)},
        {"conv1.weight": torch.zeros(64, 3, 7, 7)},
        {"conv0_weight": torch.zeros(64, 3, 7, 7)},
        {"\x1b[31m": torch.zeros(1)},
    ],
)
def test_convert_weights_rejects_unknown_network(tmp_path: Path, state: dict[str, Tensor]):
    torch.save(state, tmp_path / "a.pth")
    with pytest.raises(DataError, match="its tensors are called ") as caught:
        convert_weights(tmp_path / "a.pth", tmp_path / "b.safetensors")
    assert "ResNet-18, -34, -50, -101, -152" in str(caught.value.hint)
    assert caught.value.message.isprintable()


def test_convert_weights_never_overwrites(tmp_path: Path):
    torch.save(make_state(18), tmp_path / "a.pth")
    (tmp_path / "b.pickle").write_text("mine")
    (tmp_path / "link.pth").symlink_to("nowhere")
    for target in ("b.pickle", "a.pth", "link.pth"):
        with pytest.raises(ConfigError, match="exists"):
            convert_weights(tmp_path / "a.pth", tmp_path / target)
    assert (tmp_path / "b.pickle").read_text() == "mine"
    with pytest.raises(ConfigError, match=r"b\.npz; allowed are \.pth, \.pt, \.safetensors, \.pickle, \.pkl"):
        convert_weights(tmp_path / "a.pth", tmp_path / "b.npz")


def test_convert_weights_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    torch.save(make_state(18), tmp_path / "a.pth")

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("trainstone.files.os.fsync", fail)
    for kind in KINDS:
        with pytest.raises(ResultError, match=r"cannot write .*b\..*: No space left"):
            convert_weights(tmp_path / "a.pth", tmp_path / f"b.{kind}")
    assert [path.name for path in tmp_path.iterdir()] == ["a.pth"]


# Computed from the rule: number = 2 block + (0, 1; 2: shortcut), and one more after the first block of stages 2 and 3.
TABLE = {
    "conv1.weight": "conv0_weight",
    "bn1.bias": "batchnorm0_beta",
    "layer1.0.conv1.weight": "stage1_conv0_weight",
    "layer1.2.bn2.running_var": "stage1_batchnorm5_running_var",
    "layer2.0.conv2.weight": "stage2_conv1_weight",
    "layer2.0.downsample.0.weight": "stage2_conv2_weight",
    "layer2.0.downsample.1.running_mean": "stage2_batchnorm2_running_mean",
    "layer2.1.conv1.weight": "stage2_conv3_weight",
    "layer2.3.bn2.weight": "stage2_batchnorm8_gamma",
    "layer3.5.conv2.weight": "stage3_conv12_weight",
}


def test_name_in_gluon_matches_table():
    assert {ours: name_in_gluon(ours) for ours in TABLE} == TABLE
    for rename in (str, lambda name: PREFIX + name.replace("running", "moving")):
        assert rename_from_gluon({rename(theirs): ours for ours, theirs in TABLE.items()}) == {n: n for n in TABLE}
    assert rename_from_gluon({"stage1_conv0_weight": 1}) == {"stage1_conv0_weight": 1}
    others = dict.fromkeys(("conv1_weight", "conv0_gamma", "stage4_conv0_weight", "ssd0_expand_conv0_weight", ""), 3)
    mixed = {"conv0_weight": 1, "stage1_conv0_weight": 2, **others}
    assert rename_from_gluon(mixed) == {"conv1.weight": 1, "layer1.0.conv1.weight": 2, **others}
    with pytest.raises(ValueError, match="same name"):
        rename_from_gluon({"conv0_weight": 1, "batchnorm0_running_mean": 2, "batchnorm0_moving_mean": 3})


@pytest.mark.parametrize("depth", [18, 34])
def test_rename_from_gluon_inverts_name_in_gluon(depth: int):
    ours = list(build_resnet(depth, width=16).state_dict())
    kept = {other: name for name in ours if (other := name_in_gluon(name)) is not None}
    ends = {name for name in ours if name.startswith(ENDS) or name.endswith(COUNTER)}
    assert set(kept.values()) == set(ours) - ends
    assert rename_from_gluon(kept) == {name: name for name in kept.values()}
    assert depth == 18 or len(kept) == 145


def test_name_in_mxnet_gives_names_of_rules():
    rules = Path(mlperf_logging.__file__).parent / "compliance_checker/training_2.0.0/closed_resnet.yaml"
    listed = re.findall(r'^ +"([a-z0-9_]+)",?$', rules.read_text(), re.MULTILINE)
    ours = [name_in_mxnet(name) for name, _ in build_resnet(50).named_parameters()]
    assert len(ours) == 161
    assert sorted(ours) == sorted(listed)
    table = {
        "conv1.weight": "conv0_weight",
        "bn1.weight": "bn0_gamma",
        "bn1.bias": "bn0_beta",
        "fc.weight": "fc1_weight",
        "fc.bias": "fc1_bias",
        "layer1.0.downsample.0.weight": "stage1_unit1_conv1sc_weight",
        "layer1.0.downsample.1.bias": "stage1_unit1_bnsc_beta",
        "layer3.22.bn3.weight": "stage3_unit23_bn3_gamma",
        "head.weight": "head.weight",
    }
    assert {name: name_in_mxnet(name) for name in table} == table
