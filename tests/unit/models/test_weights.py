import itertools
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from damage import damaged, quick, read_damaged
from trainstone.errors import DataError
from trainstone.models.resnet import build_resnet
from trainstone.models.tensorfile import FORMAT, gather_tensors, seal, write_tensors
from trainstone.models.weights import load_weights, read_weights, write_weights

SMALL = {"conv.weight": torch.arange(6.0).reshape(2, 3), "bn.num_batches_tracked": torch.tensor(4)}


class Call:
    """A pickle of it calls the function when it is opened."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def prefixed(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


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
def test_tensors_are_found_under_all_usual_wrappings(tmp_path: Path, content: Any, zipped: bool):
    torch.save(content, tmp_path / "w.pth", _use_new_zipfile_serialization=zipped)
    assert same(read_weights(tmp_path / "w.pth"), SMALL)


def write_checkpoint(path: Path, tensors: dict[str, Tensor], **document: int) -> None:
    gathered = gather_tensors(tensors)
    write_tensors(path, gathered, seal(document, gathered))


def test_of_a_checkpoint_the_averaged_weights_are_taken(tmp_path: Path):
    path = tmp_path / "step-00000001.safetensors"
    others = {"optimizer.0": torch.zeros(3)} | prefixed("model.", SMALL)
    write_checkpoint(path, others)
    assert same(read_weights(path), SMALL)
    average = SMALL | {"conv.weight": torch.ones(2, 3)}
    write_checkpoint(path, others | prefixed("ema.", average))
    assert same(read_weights(path), average)
    write_checkpoint(path, others | {"ema.conv.weight": torch.ones(2, 3)})
    assert same(read_weights(path), average)


def test_a_damaged_or_newer_checkpoint_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "step-00000001.safetensors"
    write_checkpoint(path, prefixed("model.", SMALL))
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"\x99")
    with pytest.raises(DataError, match="checksum differ"):
        read_weights(path)
    with monkeypatch.context() as patch:
        patch.setattr("trainstone.models.tensorfile.FORMAT", FORMAT + 1)
        write_checkpoint(path, prefixed("model.", SMALL))
    with pytest.raises(DataError, match=f"reads up to {FORMAT}"):
        read_weights(path)
    write_checkpoint(path, {"optimizer.0": torch.zeros(1)})
    with pytest.raises(DataError, match="holds no tensors"):
        read_weights(path)


def test_code_in_a_pickle_never_runs(tmp_path: Path):
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
        (torch.nn.Linear(2, 2), r"asks for torch\.nn\.modules\.linear\.Linear"),
        ({"state_dict": SMALL, "best": np.float64(1)}, r"asks for numpy\S+scalar"),
        ([torch.zeros(1)], "one list"),
        (torch.zeros(1), "one Tensor"),
        ({"net": SMALL, "epoch": 3}, r"2 other \(net, epoch\)"),
        ({3: torch.zeros(1)}, r"1 other \(3\)"),
        ({"a": torch.eye(2).to_sparse()}, r"1 other \(a\)"),
        ({"a": torch.zeros(2, device="meta")}, r"1 other \(a\)"),
        ({}, "holds no tensors"),
    ],
)
def test_what_is_more_or_less_than_tensors_by_name_is_refused(tmp_path: Path, content: Any, words: str):
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(DataError, match=words):
        read_weights(tmp_path / "w.pth")


def test_a_file_that_would_swell_is_refused(tmp_path: Path):
    torch.save({"a": torch.zeros(100_000)}, tmp_path / "w.pth")
    with zipfile.ZipFile(tmp_path / "w.pth") as plain, zipfile.ZipFile(tmp_path / "z.pth", "w", 8) as small:
        for name in plain.namelist():
            small.writestr(name, plain.read(name))
    with pytest.raises(DataError, match=r"torch\.save does not compress"):
        read_weights(tmp_path / "z.pth")


@pytest.mark.parametrize(
    "data",
    [
        *(
            b"",
            b"x",
            b"some text\n",
            b"\x89PNG\r\n\x1a\n" + bytes(50),
            b"<!DOCTYPE html><html>",
            b"version 1\xff\x1b[31m",
        ),
        *(b"PK\x03\x04" + bytes(50), b"\x80", struct.pack("<Q", 2**62) + b"{}", struct.pack("<Q", 99_999_999) + b"{}"),
    ],
)
def test_foreign_files_are_refused(tmp_path: Path, data: bytes):
    (tmp_path / "w.pth").write_bytes(data)
    with pytest.raises(DataError) as caught:
        read_weights(tmp_path / "w.pth")
    assert str(tmp_path / "w.pth") in caught.value.message
    assert caught.value.message.isprintable()


def test_what_is_not_a_file_is_refused(tmp_path: Path):
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
def test_a_cut_file_is_refused(tmp_path: Path, form: str):
    path = tmp_path / "w"
    data = write_form(path, form)
    for length in [*range(1, len(data), 29), len(data) - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(DataError, match="w "):
            read_weights(path)


@quick
@given(form=st.sampled_from(["zip", "legacy", "safetensors"]), data=st.data())
def test_bytes_changed_at_random_give_tensors_or_a_data_error(tmp_path: Path, form: str, data: st.DataObject):
    path = tmp_path / "w.pth"
    read_damaged(path, data.draw(damaged(write_form(path, form))), read_weights, place="")


@pytest.mark.parametrize(
    ("change", "words", "hint"),
    [
        ({}, r"2 of another shape \(fc.weight \(7, 512\) for \(3, 512\)", "--set model.num_classes=7"),
        (
            {f"extra.{n}": torch.zeros(1) for n in range(5)},
            r"5 unknown \(extra.0, extra.1, extra.2, \.\.\.\); 2 of",
            None,
        ),
        ({"bn1.bias": None}, r"1 missing \(bn1\.bias\)", None),
        ({"fc.bias": torch.zeros(3, dtype=torch.int8)}, r"1 of another type \(fc.bias torch.int8 for", None),
        ({"\x1b[31m": torch.zeros(1)}, r"unknown \(\\x1b", None),
    ],
)
def test_weights_must_fit_the_model(change: dict[str, Any], words: str, hint: str | None):
    model = build_resnet(18, num_classes=3)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    weights = {**build_resnet(18, num_classes=7).state_dict(), **change}
    with pytest.raises(DataError, match=words) as caught:
        load_weights(model, {name: tensor for name, tensor in weights.items() if tensor is not None}, "w.pth")
    assert caught.value.hint == hint
    assert caught.value.message.isprintable()
    assert same(model.state_dict(), before)


def test_counters_of_batches_may_be_missing_and_types_follow_the_model():
    source = build_resnet(18, num_classes=3)
    weights = {n: t.half() for n, t in source.state_dict().items() if not n.endswith("num_batches_tracked")}
    model = build_resnet(18, num_classes=3)
    load_weights(model, weights, "w.pth")
    assert model.fc.weight.dtype == torch.float32
    assert model.fc.weight.requires_grad
    assert torch.equal(model.fc.weight, source.fc.weight.half().float())


def test_weights_are_written_for_other_tools(tmp_path: Path):
    model = build_resnet(18, num_classes=3).to(memory_format=torch.channels_last)
    write_weights(tmp_path / "new" / "w.safetensors", model.state_dict(), {"recipe": "demo"})
    assert same(load_file(tmp_path / "new" / "w.safetensors"), model.state_dict())
    with safe_open(tmp_path / "new" / "w.safetensors", framework="np") as file:
        assert file.metadata() == {"format": "pt", "recipe": "demo"}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["w.safetensors"]
