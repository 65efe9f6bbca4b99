import errno
import json
import os
import pickle
import random
import resource
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from support.builders.checkpoints import RUN_ID, STEP, make_checkpoint, make_document, make_network
from support.builders.checkpoints import make_config as make_demo
from support.builders.damage import Call
from support.builders.images import noisy
from support.builders.images import save as save_image
from support.builders.training_runs import make_config
from support.processes.command import LIMIT
from trainstone.data.splits import open_split
from trainstone.data.synthetic.generated import plan_recipe_data, write_recipe_data
from trainstone.engine.loop import train_steps
from trainstone.engine.task import Task, build_task
from trainstone.errors import ConfigError, DataError, ResultError
from trainstone.flows.evaluate.load_weights import (
    SavedWeights,
    check_weights,
    load_network,
    read_saved_weights,
    resolve_config,
)
from trainstone.flows.evaluate.predict import predict
from trainstone.flows.evaluate.run import export_weights
from trainstone.flows.train import checkpoint
from trainstone.flows.train.checkpoint import keep_best
from trainstone.measure.clock import choose_timer
from trainstone.models.weights import FORMAT, _hash
from trainstone.workloads.classify import CLASSIFY

DOCUMENT = {"epoch": 1.5, "seed": 7, "text": "ä\u202e\n", "nested": {"rate": [0.1, None]}}
TENSORS = {
    "model.a": torch.arange(6.0).reshape(2, 3),
    "model.count": torch.tensor(3),
    "optimizer.half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "random": torch.arange(5, dtype=torch.uint8),
    "flags": torch.tensor([True, False, True]),
    "empty": torch.zeros(0, 3),
}


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    return checkpoint.write_checkpoint(tmp_path / "checkpoints", 1234, DOCUMENT, TENSORS)


def content(path: Path) -> tuple[dict[str, object], dict[str, tuple[str, list[int], list[float]]]]:
    found = checkpoint.read_checkpoint(path)
    tensors = {n: (str(t.dtype), list(t.shape), t.flatten().tolist()) for n, t in found.tensors.items()}
    return found.document, tensors


def test_read_checkpoint_returns_what_was_written(sound: Path):
    assert sound.name == "step-00001234.safetensors"
    found = checkpoint.read_checkpoint(sound)
    assert found.path == sound
    assert found.document == DOCUMENT | {"format": FORMAT, "step": 1234}
    assert found.tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name], tensor)
    assert [path.name for path in sound.parent.iterdir()] == [sound.name]


def test_read_checkpoint_refuses_file_truncated_anywhere(sound: Path):
    data = sound.read_bytes()
    for length in range(len(data)):
        sound.write_bytes(data[:length])
        with pytest.raises(ResultError, match="step-00001234"):
            checkpoint.read_checkpoint(sound)


def test_read_checkpoint_refuses_flipped_bits_that_change_content(sound: Path):
    expected, data = content(sound), sound.read_bytes()
    choose = random.Random(0)
    accepted = 0
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << choose.randrange(8)
        sound.write_bytes(damaged)
        with suppress(ResultError):
            assert content(sound) == expected, f"byte {at}"
            accepted += 1
    assert accepted < 12  # spaces after the header, an escaped letter's case


@pytest.mark.parametrize("changed", [TENSORS["model.a"].reshape(3, 2), TENSORS["model.a"] + 1, None])
def test_read_checkpoint_refuses_other_tensors_under_the_same_checksum(sound: Path, changed: Tensor | None):
    with safe_open(sound, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(sound) | {"model.a": changed}
    sound.write_bytes(save({name: tensor for name, tensor in tensors.items() if tensor is not None}, metadata))
    with pytest.raises(ResultError, match="checksum"):
        checkpoint.read_checkpoint(sound)


def test_find_latest_raises_on_newer_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    checkpoint.write_checkpoint(tmp_path, 1, DOCUMENT, TENSORS)
    with monkeypatch.context() as patch:
        patch.setattr("trainstone.models.weights.FORMAT", FORMAT + 1)
        path = checkpoint.write_checkpoint(tmp_path, 2, DOCUMENT, TENSORS)
    for read in (lambda: checkpoint.read_checkpoint(path), lambda: checkpoint.find_latest(tmp_path)):
        with pytest.raises(ResultError, match=f"format {FORMAT + 1}.*up to {FORMAT}") as caught:
            read()
        assert caught.value.hint == "update trainstone"


def header_of(**changes: object) -> bytes:
    """Return a safetensors file with one invalid tensor."""
    text = json.dumps({"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0], **changes}}).encode()
    return struct.pack("<Q", len(text)) + text


REFUSED = {
    "nothing": b"",
    "three bytes": b"abc",
    "an image": b"\x89PNG\r\n\x1a\n" + bytes(100),
    "a header too long": struct.pack("<Q", 2**63) + b"{}",
    "a header cut off": struct.pack("<Q", 100) + b"{}",
    "too many bytes": struct.pack("<Q", 2) + b"{}xxxx",
    "a header that is a list": struct.pack("<Q", 2) + b"[]",
    "a tensor too large": header_of(shape=[2**40, 2**40]),
    "a tensor of no type": header_of(dtype="F99"),
    "a tensor of no shape": header_of(shape=[-1]),
    "weights of another tool": save({"fc.weight": torch.zeros(2)}),
    "a pickle": pickle.dumps({"a": Call(Path.touch, Path("touched"))}),
    **{
        f"document {text[:20]}": save({}, {"trainstone": text, "sha256": _hash(text, {})})
        for text in ("[]", "{", '{"format": "1"}', "[" * 100_000)
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_read_checkpoint_names_file_that_is_not_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "step-00000001.safetensors"
    path.write_bytes(REFUSED[case])
    with pytest.raises(ResultError) as caught:
        checkpoint.read_checkpoint(path)
    assert str(path) in caught.value.message
    assert not Path("touched").exists()


def test_read_checkpoint_refuses_pipe_and_folder(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("none", "pipe", "."):
        with pytest.raises(ResultError):
            checkpoint.read_checkpoint(tmp_path / name)


def test_list_checkpoints_sorts_by_step(tmp_path: Path):
    for step in (9, 100_000_000, 10):
        checkpoint.write_checkpoint(tmp_path, step, {}, {})
    checkpoint.keep_best(tmp_path, 9)
    (tmp_path / "step-00000011.safetensors").mkdir()
    (tmp_path / "step-00000012.safetensors").symlink_to("nowhere")
    for name in ("step-13.safetensors", "step-00000014.safetensors.ab.partial", f"step-{'9' * 5000}"[:200], "x"):
        (tmp_path / name).touch()
    assert [int(path.stem[5:]) for path in checkpoint.list_checkpoints(tmp_path)] == [100_000_000, 10, 9]
    # A missing folder has no checkpoints.
    assert checkpoint.list_checkpoints(tmp_path / "none") == []
    assert checkpoint.find_latest(tmp_path / "none") == (None, [])
    checkpoint.prune(tmp_path / "none", 1)
    (tmp_path / "file").touch()
    with pytest.raises(ResultError, match="cannot read"):
        checkpoint.list_checkpoints(tmp_path / "file")


def test_find_latest_skips_and_reports_damaged_checkpoints(tmp_path: Path):
    paths = [checkpoint.write_checkpoint(tmp_path, step, {"n": step}, TENSORS) for step in (1, 2, 3, 4)]
    paths[3].write_bytes(b"")
    paths[2].write_bytes(paths[2].read_bytes()[:-1])
    found, sentences = checkpoint.find_latest(tmp_path)
    assert found.document["n"] == 2
    assert len(sentences) == 2
    assert sentences[0] == f"{paths[3]} is empty; skipped"
    assert "step-00000003.safetensors is truncated" in sentences[1]
    for path in paths[:2]:
        path.write_bytes(b"")
    assert checkpoint.find_latest(tmp_path)[0] is None
    assert len(checkpoint.find_latest(tmp_path)[1]) == 4


def test_find_latest_ignores_checkpoint_pruned_while_searching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    checkpoint.write_checkpoint(tmp_path, 1, {}, {})
    read = checkpoint.read_tensors

    def overtaken(path: Path, error: type[ResultError]):
        if path.name == "step-00000001.safetensors":  # the run continued between listing and reading
            checkpoint.write_checkpoint(tmp_path, 2, {}, {})
            checkpoint.prune(tmp_path, 1)
        return read(path, error)

    monkeypatch.setattr(checkpoint, "read_tensors", overtaken)
    found, sentences = checkpoint.find_latest(tmp_path)
    assert found.document["step"] == 2
    assert sentences == []


def test_prune_keeps_latest_and_best(tmp_path: Path):
    paths = [checkpoint.write_checkpoint(tmp_path, step, {"n": step}, TENSORS) for step in (1, 2, 3, 4)]
    checkpoint.keep_best(tmp_path, 1)
    (tmp_path / "step-00000005.safetensors.0a1b2c3d.partial").write_bytes(b"x")
    (tmp_path / "best.safetensors.0a1b2c3d.partial").write_bytes(b"x")
    (tmp_path / "result.json.0a1b2c3d.partial").write_bytes(b"not ours")
    checkpoint.prune(tmp_path, 2)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {paths[2].name, paths[3].name, "best.safetensors", "result.json.0a1b2c3d.partial"}
    assert checkpoint.read_checkpoint(tmp_path / "best.safetensors").document["n"] == 1
    checkpoint.prune(tmp_path, 5)
    assert {path.name for path in tmp_path.iterdir()} == left


@pytest.mark.parametrize("links", [True, False])
def test_keep_best_replaces_best_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool):
    if not links:
        monkeypatch.setattr(Path, "hardlink_to", Mock(side_effect=OSError(errno.EPERM, "Operation not permitted")))
    paths = [checkpoint.write_checkpoint(tmp_path, step, {"n": step}, TENSORS) for step in (1, 2)]
    best = tmp_path / "best.safetensors"
    for step, path in (
        (1, paths[0]),
        (2, paths[1]),
        (2, paths[1]),
        (3, paths[1]),
    ):  # the same step again, and a step without checkpoint
        checkpoint.keep_best(tmp_path, step)
        assert best.read_bytes() == path.read_bytes()
        assert best.samefile(path) == links
        assert len(list(tmp_path.iterdir())) == 3
    checkpoint.write_checkpoint(tmp_path, 2, {"n": 3}, TENSORS)
    assert checkpoint.read_checkpoint(best).document["n"] == 2


def test_write_checkpoint_on_full_disk_keeps_old_file(tmp_path: Path):
    path = checkpoint.write_checkpoint(tmp_path, 1, {"n": 1}, TENSORS)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(ResultError, match=r"cannot write .*step-00000001") as caught:
            checkpoint.write_checkpoint(tmp_path, 1, {"n": 2}, {"a": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "free some space" in str(caught.value.hint)
    assert checkpoint.read_checkpoint(path).document["n"] == 1
    assert list(tmp_path.iterdir()) == [path]


# torch is imported once; each writer is a fork that is killed while it writes.
WRITERS = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from trainstone.flows.train.checkpoint import keep_best, list_checkpoints, prune, write_checkpoint

folder, choose = Path(sys.argv[1]), random.Random(1)
tensors = {f"model.{n}": torch.full((300_000,), float(n)) for n in range(5)}
for turn in (1, 2, 3):
    child = os.fork()
    if child == 0:
        for step in range(turn * 1000, turn * 1000 + 1000):
            write_checkpoint(folder, step, {"step": step}, tensors)
            keep_best(folder, step)
            prune(folder, 3)
    while not any(int(path.stem[5:]) >= turn * 1000 + 2 for path in list_checkpoints(folder)):
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
        time.sleep(0.002)
    time.sleep(choose.random() * 0.03)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print(*(path.name for path in folder.iterdir()), flush=True)
"""


@pytest.mark.slow
def test_killed_writers_leave_only_intact_checkpoints(tmp_path: Path):
    folder = tmp_path / "checkpoints"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WRITERS, str(folder)]
    output = subprocess.check_output(command, text=True, timeout=LIMIT, env=environment)
    assert len(output.splitlines()) == 3
    for name in output.split():
        assert name == "best.safetensors" or checkpoint.NAME.fullmatch(name) or name.endswith(".partial")
    found, sentences = checkpoint.find_latest(folder)
    assert found.document["step"] > 3000
    assert sentences == []
    for path in [*checkpoint.list_checkpoints(folder), folder / "best.safetensors"]:
        assert torch.equal(checkpoint.read_checkpoint(path).tensors["model.4"], torch.full((300_000,), 4.0))
    checkpoint.prune(folder, 1)
    assert len(list(folder.iterdir())) == 2


CPU = torch.device("cpu")
LARS = {
    "optimizer.name": "lars",
    "optimizer.learning_rate": 1.0,
    "optimizer.momentum_correction": True,
    "schedule.warm_up_epochs": 0.0001,
}
KINDS: list[dict[str, Any]] = [{}, LARS, {"optimizer.momentum_correction": False}, {"optimizer.momentum": 0.0}]


def make_task(first_step: int = 0, **changes: Any) -> Task:
    settings = {"data.source": "synthetic", "data.num_synthetic_batches": 1, "schedule.name": "polynomial"}
    config = make_config(**{**settings, "stop.steps": 40, "stop.epochs": 0.0002, **changes})
    return build_task(config, CPU, first_step=first_step)


def run(task: Task, first_step: int, num_steps: int) -> list[float]:
    return [one.loss for one in train_steps(task, choose_timer(CPU), first_step=first_step, num_steps=num_steps)]


def take(task: Task) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors and values as a checkpoint stores them."""
    tensors = {name: tensor.clone() for name, tensor in checkpoint.collect_tensors(task).items()}
    return tensors, json.loads(json.dumps(checkpoint.collect_values(task)))


@pytest.mark.parametrize("changes", KINDS)
def test_restore_continues_training_bit_for_bit(changes: dict[str, Any]):
    whole = make_task(**changes)
    rates = {whole.rate(step) for step in range(8)}
    assert len(rates) == 8  # the rate changes, so momentum is corrected at each step
    run(whole, 0, 4)
    tensors, values = take(whole)
    drawn, losses = torch.rand(3), run(whole, 4, 4)
    resumed = make_task(4, **changes)
    checkpoint.restore(resumed, tensors, values, "there")
    assert torch.rand(3).equal(drawn)
    assert run(resumed, 4, 4) == losses
    expected, found = take(whole), take(resumed)
    assert expected[1] == found[1]
    assert [name for name, tensor in expected[0].items() if not tensor.equal(found[0][name])] == []


def test_restore_loads_dynamic_loss_scale():
    task = make_task(**{"train.precision": "fp16", "train.ema": 0.0})
    run(task, 0, 1)
    state = task.scale.state() | {"scale": 512.0, "_growth_tracker": 5}
    other = make_task(**{"train.precision": "fp16", "train.ema": 0.0})
    tensors, values = take(task)
    checkpoint.restore(other, tensors, values | {"loss_scale": json.loads(json.dumps(state))}, "there")
    assert other.scale.value == 512.0
    assert other.scale.state() == state


@pytest.mark.parametrize("changes", [{"model.width": 24}, {"model.depth": 34}])
def test_restore_refuses_other_network_and_names_first_tensor(changes: dict[str, Any]):
    tensors, values = take(make_task())
    with pytest.raises(
        ResultError, match=r"^there does not fit this network or optimiser: \d+ tensors missing, .*first: "
    ):
        checkpoint.restore(make_task(**changes), tensors, values, "there")


def test_is_finite_detects_infinite_weight_or_statistic():
    model = make_task().plain
    assert checkpoint.is_finite(model)
    for tensor in (list(model.parameters())[-1], next(b for b in model.buffers() if b.is_floating_point())):
        kept = tensor.detach().clone()
        with torch.no_grad():
            tensor.flatten()[0] = float("inf")
            assert not checkpoint.is_finite(model)
            tensor.copy_(kept)
        assert checkpoint.is_finite(model)


def of_seed(seed: int) -> dict[str, torch.Tensor]:
    return make_network(make_demo(), seed).state_dict()


def with_config(folder: Path, **changes) -> Path:
    document = make_document(make_demo())
    return make_checkpoint(folder, config=document["config"] | changes)


def test_read_saved_weights_returns_ema_and_origin_of_checkpoint(tmp_path: Path):
    saved = read_saved_weights(make_checkpoint(tmp_path))
    assert (saved.step, saved.run_id, saved.averaged, saved.epoch) == (STEP, RUN_ID, True, pytest.approx(2.4))
    assert saved.origin == f"step 12 of {RUN_ID}"
    network = load_network(resolve_config(saved, None, [], {}), CPU, saved)
    assert not network.training
    assert all(torch.equal(tensor, network.state_dict()[name]) for name, tensor in of_seed(1).items())


def test_read_saved_weights_prefers_best_checkpoint_of_run_folder(tmp_path: Path):
    with pytest.raises(DataError, match="has no intact checkpoint"):
        read_saved_weights(tmp_path)
    path = make_checkpoint(tmp_path / "checkpoints")
    assert read_saved_weights(tmp_path).path == path
    keep_best(tmp_path / "checkpoints", int(path.stem[5:]))
    assert read_saved_weights(tmp_path).path == path.with_name("best.safetensors")


def test_resolve_config_resets_machine_settings(tmp_path: Path):
    config = make_document(make_demo())["config"]
    engine = config["engine"] | {"threads": 512}
    path = with_config(tmp_path, device="cuda:7", engine=engine, system="dgx", nodes=16, devices_per_node=8)
    found = resolve_config(read_saved_weights(path), None, ["seed=3"], {"measure.seconds": 2.0})
    assert (found.device, found.engine.threads, found.system, found.nodes) == ("auto", "auto", None, 1)
    assert (found.seed, found.measure.seconds, found.model.width) == (3, 2.0, 24)


def test_invalid_checkpoint_document_or_configuration_is_refused(tmp_path: Path):
    for document in ({"config": 5}, {"config": None}, {"run_id": 7}, {"run_id": None}, {"epoch": "x"}):
        with pytest.raises(ResultError, match="has invalid metadata"):
            read_saved_weights(make_checkpoint(tmp_path, **document))
    for config in ({"os": {"system": "x"}}, {"engine": 7}, {"model": []}, {"seed": [[[]]]}):
        saved = read_saved_weights(with_config(tmp_path, **config))
        with pytest.raises(ConfigError, match="step-00000012"):
            resolve_config(saved, None, [], {})


def test_check_weights_refuses_huge_network_before_building_it(tmp_path: Path):
    model = make_document(make_demo())["config"]["model"] | {"num_classes": 10**12}
    saved = read_saved_weights(with_config(tmp_path, model=model))
    with pytest.raises(DataError, match="does not fit") as refused:
        check_weights(resolve_config(saved, None, [], {}), saved)
    assert refused.value.hint == "--set model.num_classes=10"


def test_check_weights_refuses_nan(tmp_path: Path):
    weights = of_seed(0)
    weights["fc.bias"][3] = float("nan")
    torch.save(weights, tmp_path / "w.pth")
    saved = read_saved_weights(tmp_path / "w.pth")
    with pytest.raises(DataError, match=r"NaN or infinity in 1 tensor, first fc\.bias"):
        check_weights(make_demo(), saved)


def test_resolve_config_needs_recipe_only_for_plain_weights(tmp_path: Path):
    torch.save({"state_dict": {f"module.{n}": t for n, t in of_seed(2).items()}}, tmp_path / "w.pth")
    saved = read_saved_weights(tmp_path / "w.pth")
    assert saved.origin == "w.pth"
    with pytest.raises(ConfigError, match="does not name their network") as refused:
        resolve_config(saved, None, [], {})
    assert "--recipe NAME" in str(refused.value.hint)
    check_weights(resolve_config(saved, "demo-classify", ["model.width=24"], {}), saved)
    with pytest.raises(ConfigError, match="contains its recipe"):
        resolve_config(read_saved_weights(make_checkpoint(tmp_path)), "resnet50", [], {})


@pytest.fixture
def saved() -> SavedWeights:
    return SavedWeights(Path("w.pth"), make_network(make_demo(), 5).state_dict())


def test_predict_reports_damaged_images_and_continues(tmp_path: Path, saved: SavedWeights):
    good = save_image(noisy(60, 50))
    files = {
        "a.jpg": good,
        "cut.jpg": good[: len(good) // 2],
        "b.png": save_image(noisy(40, 70), "PNG"),
        "text.jpg": b"hello",
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    requested = [tmp_path / name for name in (*files, "nowhere.jpg")]
    found = list(predict(make_demo(), saved, requested, 3))
    assert [one["image"] for one in found] == [str(path) for path in requested]
    assert ["error" in one for one in found] == [False, True, False, True, True]
    for one in (found[0], found[2]):
        scores = [guess["score"] for guess in one["guesses"]]
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)
        assert 0 < sum(scores) <= 1


def test_predict_preprocesses_like_evaluation(tmp_path: Path, saved: SavedWeights):
    config = make_demo()
    for _ in write_recipe_data(config, 1):
        pass
    opened = open_split(plan_recipe_data(config).target, "val")
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


def test_export_weights_writes_ema_that_can_be_read_again(tmp_path: Path):
    target = tmp_path / "new" / "w.safetensors"
    saved = read_saved_weights(make_checkpoint(tmp_path))
    made = export_weights(resolve_config(saved, None, [], {}), saved, target)
    assert (made["averaged"], made["bytes"]) == (True, target.stat().st_size)
    with safe_open(target, framework="pt") as file:
        metadata = file.metadata()
    assert (metadata["recipe"], metadata["run_id"], metadata["step"]) == ("demo-classify", RUN_ID, "12")
    assert len(json.loads(metadata["classes"])) == 10
    again = read_saved_weights(target)
    check_weights(make_demo(), again)
    assert all(torch.equal(tensor, again.weights[name]) for name, tensor in of_seed(1).items())
    target.write_text("precious")
    with pytest.raises(ConfigError, match="exists and is not overwritten"):
        export_weights(make_demo(), saved, target)
    assert target.read_text() == "precious"
