"""`trainstone weights convert` in this process: exit codes and what is told."""

import hashlib
import json
import os
import pickle
import sys
from pathlib import Path

import pytest
import torch

from damage import Call
from trainstone.cli.main import main
from trainstone.models.resnet import build_resnet
from web_server import Site, serve


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    torch.save(build_resnet(34, num_classes=5, width=16).state_dict(), tmp_path / "a.pth")
    return tmp_path / "a.pth"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["trainstone", "weights", "convert", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        main()
    return int(left.value.code or 0)


def test_it_says_what_it_wrote_and_what_not_or_prints_one_document(source: Path, monkeypatch, capsys):
    target = source.with_name("b.pickle")
    assert run(monkeypatch, source, target, "-q") == 0
    out, err = capsys.readouterr()
    assert err == ""
    first, second = out.splitlines()
    every = {name: tensor.numel() for name, tensor in build_resnet(34, num_classes=5, width=16).named_parameters()}
    parameters = sum(number for name, number in every.items() if not name.startswith(("layer4.", "fc.")))
    size = target.stat().st_size / 2**20
    assert first == (
        f"wrote ResNet-34 up to layer3 of {source} to {target}: 145 tensors, {parameters:,} parameters, {size:.3g} MiB"
    )
    assert second.startswith("left out 73 tensors: bn1.num_batches_tracked, ")
    target = source.with_name("b.safetensors")
    assert run(monkeypatch, source, target, "--json", "-q") == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "file": str(target),
        "source": str(source),
        "network": "ResNet-34",
        "format": "safetensors",
        "tensors": 218,
        "parameters": sum(every.values()),
        "bytes": target.stat().st_size,
        "left_out": [],
    }


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.pickle", pickle.dumps({"a": Call(os.system, "true")}), "system; it was not opened"),
        ("a.pth", b"some text", "holds no weights"),
        ("a.pth", b"PK\x03\x04abc", "cut off, damaged"),
    ],
)
def test_a_bad_source_gets_one_message(tmp_path: Path, monkeypatch, capsys, name: str, content: bytes, words: str):
    (tmp_path / name).write_bytes(content)
    assert run(monkeypatch, tmp_path / name, tmp_path / "b.safetensors", "-q") == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert words in err
    assert err.count("error: ") == 1
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_wrong_words_get_2(source: Path, monkeypatch, capsys):
    assert run(monkeypatch, source, source.with_name("b.params")) == 2
    assert "end its name in one of .pth" in capsys.readouterr().err
    assert run(monkeypatch, source, source) == 2
    assert "not written over" in capsys.readouterr().err
    assert run(monkeypatch, source, source.with_name("b.pth"), "--sha256", "0" * 64) == 2
    assert "--sha256 is for a file that is fetched" in capsys.readouterr().err


def test_a_source_is_fetched_checked_and_kept(source: Path, tmp_path: Path, monkeypatch, capsys):
    data = source.read_bytes()
    name = f"resnet34-{hashlib.sha256(data).hexdigest()[:8]}.pth"
    site = Site()
    site.files = {f"models/{name}": data}
    target = tmp_path / "new" / "b.pickle"
    with serve(site) as mirror:
        assert run(monkeypatch, f"{mirror}/models/{name}", target, "--json", "-q") == 0
        told = json.loads(capsys.readouterr().out)
        assert told["source"] == str(tmp_path / "new" / name)
        assert sorted(path.name for path in target.parent.iterdir()) == ["b.pickle", name]
        assert run(monkeypatch, f"{mirror}/models/{name}", target.with_suffix(".safetensors"), "-q") == 0
        assert len(site.asked) == 1  # it was there
        # Refused before anything is fetched
        assert run(monkeypatch, f"{mirror}/models/{name}", tmp_path / name, "-q") == 2
        assert "is where the fetched file goes" in capsys.readouterr().err
        assert run(monkeypatch, f"{mirror}/models/{name}", target, "-q") == 2
        site.files[f"models/{name}"] = data[::-1]
        assert run(monkeypatch, f"{mirror}/models/{name}", tmp_path / "c.pth", "-q") == 3
        assert "sha256" in capsys.readouterr().err
    assert not (tmp_path / "c.pth").exists()
    assert pickle.loads(target.read_bytes())["conv0_weight"].shape == (16, 3, 7, 7)
