"""trainstone weights through the real command line: round trips, and our own exports as a source."""

import pickle
from pathlib import Path

import torch

from made_saved import make_checkpoint
from trainstone.models.resnet import build_resnet


def test_weights_go_round(quick, tmp_path: Path):
    state = build_resnet(34, num_classes=5, width=16).state_dict()
    torch.save(state, tmp_path / "a.pth")
    for source, target in (("a.pth", "b.pickle"), ("b.pickle", "c.safetensors"), ("c.safetensors", "d.pth")):
        done = quick("weights", "convert", source, target)
        assert done.code == 0, done.err
        assert done.out.startswith(f"wrote ResNet-34 up to layer3 of {source} to {target}: ")
    end = torch.load(tmp_path / "d.pth", weights_only=True)
    assert all(torch.equal(tensor, state[name]) for name, tensor in end.items())
    assert pickle.loads((tmp_path / "b.pickle").read_bytes())["stage3_conv2_weight"].shape == (64, 32, 1, 1)


def test_exported_weights_of_a_run_are_a_source(quick, tmp_path: Path):
    checkpoint = make_checkpoint(tmp_path / "made" / "checkpoints")
    done = quick("eval", str(checkpoint), "--export", "w.safetensors")
    assert done.code == 0, done.err
    done = quick("weights", "convert", "w.safetensors", "w.pth", "--json")
    assert done.code == 0, done.err
    told = done.json()
    assert told["network"].startswith("ResNet-18")
    assert (told["left_out"], told["file"]) == ([], "w.pth")
    again = quick("weights", "convert", str(checkpoint), "again.pth")
    assert again.code == 0, again.err
    first, second = (torch.load(tmp_path / name, weights_only=True) for name in ("w.pth", "again.pth"))
    assert all(torch.equal(first[name], second[name]) for name in first)
