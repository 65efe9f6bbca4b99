"""`trainstone train` on the command line: reaching the target, other ends, exit codes, refused input."""

import json
import random
import shutil
from pathlib import Path

import pytest

from support.builders.data_sets import make_set
from support.builders.training_runs import read_trained_run, set_arguments
from support.processes.command import Finished, find_run
from support.processes.forked import Nursery
from trainstone.flows.train.checkpoint import list_checkpoints, read_checkpoint
from trainstone.results.run_folder import read_result


def train(nursery: Nursery, out: Path, *arguments: str, **changes: object) -> Finished:
    return nursery.run("train", "demo-classify", *set_arguments(**changes), *arguments, "--out", str(out))


@pytest.fixture(scope="module")
def missed(nursery: Nursery) -> tuple[Path, Finished]:
    out = nursery.folder / "missed"
    ended = train(nursery, out, "--iterations", "5", "--require-target")
    return find_run(out), ended


def test_train_ends_when_target_is_reached(quick, tmp_path: Path):
    done = quick("train", "demo-classify", *set_arguments(eval__target=0.01), "--json", "-q", with_report=True)
    assert done.code == 0, done.err
    result, run = done.json(), find_run(tmp_path / "runs")
    assert result == json.loads((run / "result.json").read_text())
    assert (result["kind"], result["status"]) == ("train", "target_reached")
    quality = result["quality"]
    assert quality["epochs"] == 1.0
    assert len(quality["history"]) == 1
    assert quality["value"] == quality["history"][0]["metrics"]["top1"] >= 0.01
    assert 0 < quality["seconds_to_target"] == quality["history"][0]["seconds"]
    assert quality["seconds_to_target"] < result["phases"]["program_seconds"]
    assert len(read_trained_run(run).steps[0]["step"]) == 12
    assert result["phases"]["eval_seconds"] == quality["history"][0]["eval_seconds"]
    assert result["phases"]["checkpoint_seconds"] == 0  # the only checkpoint was written after it
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"best.safetensors", "step-00000012.safetensors"}
    assert "report.html" in result["files"]


def test_train_iterations_ends_with_evaluation(missed: tuple[Path, Finished]):
    run, ended = missed
    learned = read_trained_run(run)
    assert learned.document["step"] == 5
    assert [step for _, step, _, _ in learned.evaluated] == [5]
    assert learned.result.status == "target_missed"
    assert ended.code == 8
    assert "the target of 90 % was not reached" in " ".join(ended.out.split())


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["resnet50"], 2, "unexpected recipe resnet50: --resume"),
        (["--seed", "3"], 2, "a resumed run cannot change its seed"),
        (["--set", "seed=3"], 2, "a resumed run cannot change its seed"),
        (["--set", "data.generated_train=100"], 2, "a resumed run cannot change its data"),
        (["--data", "."], 2, "a resumed run cannot change its data"),
        (["--set", "model.width=24"], 2, "a resumed run cannot change its model"),
        (["--set", "stop.epochs=4", "--set", "train.batch_size=4"], 2, "the run was started with 8 images per step"),
        (["--set", "stop.epochs=4", "--device", "cuda:99"], 4, "error: "),
        (["--set", "stop.epochs=4", "--set", "optimizer.name=lars"], 7, "was written with optimiser"),
        (["--set", "stop.epochs=4", "--set", "train.ema=0"], 0, ""),
        (["--set", "stop.epochs=4", "--set", "optimizer.momentum=0", "--set", "stop.steps=6"], 0, ""),
    ],
)
def test_train_resume_accepts_or_refuses_changes(
    nursery: Nursery, missed: tuple[Path, Finished], tmp_path: Path, arguments: list[str], code: int, message: str
):
    run = shutil.copytree(missed[0], tmp_path / "run")
    ended = nursery.run("train", "--resume", str(run), *arguments)
    assert ended.code == code, ended.err
    assert message in ended.err
    assert "Traceback" not in ended.err
    if code:  # the run folder is unchanged
        assert (run / "config.toml").read_bytes() == (missed[0] / "config.toml").read_bytes()
        assert read_result(run) == read_result(missed[0])


def test_train_seconds_ends_with_evaluation_and_can_be_extended(nursery: Nursery, tmp_path: Path):
    ended = train(nursery, tmp_path, "--seconds", "0.1", "--json", stop__epochs=1000.0)
    assert ended.code == 0, ended.err
    result = ended.json()
    assert result["status"] == "target_missed"
    (last,) = result["quality"]["history"][-1:]
    assert last["seconds"] >= 0.1
    learned = read_trained_run(find_run(tmp_path))
    assert learned.document["step"] == last["step"] < 300
    more = nursery.run("train", "--resume", str(find_run(tmp_path)), "--seconds", "1.5", "--json")
    assert more.json()["quality"]["history"][-1]["step"] > last["step"]
    assert more.json()["quality"]["starts"] == 2


def test_train_nan_loss_names_step_rate_and_last_good_checkpoint(nursery: Nursery, tmp_path: Path):
    ended = train(nursery, tmp_path, optimizer__learning_rate=1e12, checkpoint__every_steps=1)
    assert ended.code == 6
    run = find_run(tmp_path)
    saved = list_checkpoints(run / "checkpoints")
    assert "error: loss became NaN or infinite at step " in ended.err
    assert f"the last good checkpoint is {saved[0]}" in ended.err
    assert f"hint:  trainstone train --resume {run} --set optimizer.learning_rate=2.5e+11; or a longer" in ended.err
    result = read_result(run)
    assert result.status == "failed"
    assert result.findings[-1].code == "run-failed"
    assert "(learning rate " in result.findings[-1].message
    checkpoint = read_checkpoint(saved[0])
    assert all(tensor.isfinite().all() for tensor in checkpoint.tensors.values() if tensor.is_floating_point())


def test_train_refuses_data_with_too_many_classes_or_without_validation_split(
    nursery: Nursery, missed: tuple[Path, Finished], tmp_path: Path
):
    (drawn,) = filter(Path.is_dir, (nursery.folder / "cache/data").glob("*-96-43-*"))  # that of `missed`
    many = train(nursery, tmp_path / "1", "--data", str(drawn), model__num_classes=5)
    assert many.code == 3
    assert f"too many classes: {drawn} has 10; model.num_classes = 5" in many.err
    two_splits, one_split = make_set(tmp_path / "two", "recordio", val=4), make_set(tmp_path / "one", "recordio")
    one = train(nursery, tmp_path / "2", "--data", str(one_split))
    assert one.code == 3
    assert f"{one_split} has only one split, train: validation needs another one" in one.err
    fits = train(nursery, tmp_path / "3", "--data", str(two_splits), "--iterations", "2", "--json")
    assert fits.code == 0, fits.err
    assert fits.json()["quality"]["history"][-1]["images"] == 4


def test_train_resume_skips_damaged_checkpoints(nursery: Nursery, tmp_path: Path):
    assert train(nursery, tmp_path, "--iterations", "9", checkpoint__every_steps=3, checkpoint__keep=2).code == 0
    run = find_run(tmp_path)
    newest, before = list_checkpoints(run / "checkpoints")
    assert (newest.name, before.name) == ("step-00000009.safetensors", "step-00000006.safetensors")
    whole = read_trained_run(run)
    hurt(newest, random.Random(1))
    again = nursery.run("train", "--resume", str(run), "--iterations", "9", "--json")
    assert again.code == 0, again.err
    codes = [(one["code"], one["message"]) for one in again.json()["findings"]]
    assert ("resumed", "resumed from step-00000006.safetensors, after step 6") in codes
    assert [message for code, message in codes if code == "checkpoint-damaged" and newest.name in message]
    repaired = read_trained_run(run)
    assert all(tensor.equal(whole.tensors[name]) for name, tensor in repaired.tensors.items())
    for path in list_checkpoints(run / "checkpoints"):
        hurt(path, random.Random(2))
    restarted = nursery.run("train", "--resume", str(run), "--iterations", "9", "--json")
    codes = [one["code"] for one in restarted.json()["findings"]]
    assert codes.count("checkpoint-damaged") == 2
    assert "training starts at step 0" in next(
        one["message"] for one in restarted.json()["findings"] if one["code"] == "resumed"
    )
    assert restarted.json()["quality"]["starts"] == 3
    begun = read_trained_run(run)
    assert all(tensor.equal(whole.tensors[name]) for name, tensor in begun.tensors.items())
    assert begun.steps[0]["loss"].tolist() == whole.steps[0]["loss"].tolist()


def hurt(path: Path, chance: random.Random) -> None:
    """Flip one bit of the tensors in a new file: best.safetensors may be a hard link to the old one."""
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content) // 2, len(content))] ^= 1
    path.unlink()
    path.write_bytes(content)


@pytest.mark.slow
def test_train_reaches_target_on_generated_shapes(quick, tmp_path: Path):
    smaller = ("data.generated_train=3000", "data.generated_val=300", "eval.target=0.4", "engine.threads=1")
    settings = [part for setting in smaller for part in ("--set", setting)]
    done = quick("train", "demo-classify", *settings, "--require-target", "--json", "-q")
    assert done.code == 0, done.err
    result = done.json()
    assert result["status"] == "target_reached"
    accuracies = [one["metrics"]["top1"] for one in result["quality"]["history"]]
    assert accuracies[-1] >= 0.4 > max(accuracies[:-1])  # ten classes: chance is 0.1
    assert {one["images"] for one in result["quality"]["history"]} == {300}
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "checkpoints" / "best.safetensors").exists()
