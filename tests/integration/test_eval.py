"""`trainstone eval` and `trainstone weights` on the command line."""

import json
import pickle
from pathlib import Path

import pytest
import torch

from support.builders.checkpoints import RUN_ID, make_checkpoint
from support.builders.images import noisy, save
from trainstone.models.resnet import build_resnet
from trainstone.results.run_folder import read_result

HERE = ("--device", "cpu", "--set", "engine.threads=1", "--set", "loader.threads=1")


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(make_checkpoint(tmp_path / "made" / "checkpoints"))


def read_only(folder: Path):
    (path,) = (folder / "runs").iterdir()
    return path, read_result(path)


def test_eval_writes_run_folder(quick, tmp_path: Path, checkpoint: str):
    done = quick("eval", str(tmp_path / "made"), *HERE, with_report=True)
    assert done.code == 0, done.err
    path, result = read_only(tmp_path)
    flat = " ".join(done.out.split())
    assert f"on 31 images (from step 12 of {RUN_ID})" in flat
    assert f"repeat trainstone eval {tmp_path / 'made'} --device cpu" in flat
    assert (result.kind, result.status) == ("eval", "ok")
    assert {"result.json", "report.html", "config.toml", "machine.json", "log.txt"} <= {p.name for p in path.iterdir()}
    assert "Quality" in (path / "report.html").read_text()


def test_eval_bench_measures_inference(quick, tmp_path: Path, checkpoint: str):
    done = quick("eval", checkpoint, "--bench", "--seconds", "1", "--json", *HERE)
    assert done.code == 0, done.err
    result = done.json()
    path, _ = read_only(tmp_path)
    assert result == json.loads((path / "result.json").read_text())
    assert result["verdict"].startswith("ResNet-18, inference: ")
    assert result["config"]["data"]["source"] == "synthetic"
    assert {"throughput", "step_seconds", "noise", "utilisation", "devices"} <= set(result)
    assert (path / "steps-rank0000.csv").exists()


def test_eval_predict_prints_guesses_and_reports_damaged_images(quick, tmp_path: Path, checkpoint: str):
    (tmp_path / "a.jpg").write_bytes(save(noisy(60, 50)))
    (tmp_path / "b.png").write_bytes(save(noisy(50, 60), "PNG"))
    (tmp_path / "bad.jpg").write_text("text")
    done = quick("eval", checkpoint, "--predict", "a.jpg", "bad.jpg", "b.png", "--top", "2", *HERE)
    assert done.code == 3
    lines = done.out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == ["a.jpg", "b.png"]
    assert len(lines) == 6
    assert all(" %  " in line and "-" in line for line in lines if line.startswith(" "))
    assert "error: bad.jpg: not an image" in done.err
    assert not (tmp_path / "runs").exists()
    done = quick("eval", checkpoint, "--predict", "a.jpg", "--predict", "b.png", "--json", *HERE)
    assert done.code == 0, done.err
    found = done.json()["predictions"]
    assert [one["image"] for one in found] == ["a.jpg", "b.png"]
    assert len(found[0]["guesses"]) == 5
    assert set(found[0]["guesses"][0]) == {"class", "name", "text", "score"}


def test_eval_explains_wrong_weights_and_missing_data(quick, checkpoint: str):
    for arguments, hint in (
        (["--set", "model.num_classes=7"], "model.num_classes=10"),
        (["--data", "nowhere"], "--data DIR"),
    ):
        done = quick("eval", checkpoint, *arguments, "-q")
        assert done.code == 3
        assert hint in done.err.partition("hint:")[2]


def test_weights_convert_round_trip(quick, tmp_path: Path):
    state = build_resnet(34, num_classes=5, width=16).state_dict()
    torch.save(state, tmp_path / "a.pth")
    for source, target in (("a.pth", "b.pickle"), ("b.pickle", "c.safetensors"), ("c.safetensors", "d.pth")):
        done = quick("weights", "convert", source, target)
        assert done.code == 0, done.err
        assert done.out.startswith(f"wrote ResNet-34 up to layer3 of {source} to {target}: ")
    end = torch.load(tmp_path / "d.pth", weights_only=True)
    assert all(torch.equal(tensor, state[name]) for name, tensor in end.items())
    assert pickle.loads((tmp_path / "b.pickle").read_bytes())["stage3_conv2_weight"].shape == (64, 32, 1, 1)


def test_eval_export_can_be_converted(quick, tmp_path: Path, checkpoint: str):
    done = quick("eval", checkpoint, "--export", "w.safetensors")
    assert done.code == 0, done.err
    done = quick("weights", "convert", "w.safetensors", "w.pth", "--json")
    assert done.code == 0, done.err
    message = done.json()
    assert message["network"].startswith("ResNet-18")
    assert (message["skipped"], message["file"]) == ([], "w.pth")
    again = quick("weights", "convert", checkpoint, "again.pth")
    assert again.code == 0, again.err
    first, second = (torch.load(tmp_path / name, weights_only=True) for name in ("w.pth", "again.pth"))
    assert all(torch.equal(first[name], second[name]) for name in first)
