"""trainstone train through the command line: to the target and other ends, exit codes, what is refused."""

import json
import random
import shutil
from pathlib import Path

import pytest

from support.builders.data_sets import make_set
from support.builders.training_runs import read_learned, set_arguments
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


def test_the_target_ends_it_there(quick, tmp_path: Path):
    done = quick("train", "demo-classify", *set_arguments(eval__target=0.01), "--json", "-q", whole=True)
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
    assert len(read_learned(run).steps[0]["step"]) == 12
    assert result["phases"]["eval_seconds"] == quality["history"][0]["eval_seconds"]
    assert result["phases"]["checkpoint_seconds"] == 0  # the only one came after it
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"best.safetensors", "step-00000012.safetensors"}
    assert "report.html" in result["files"]


def test_a_number_of_steps_ends_it_with_an_evaluation(missed: tuple[Path, Finished]):
    run, ended = missed
    learned = read_learned(run)
    assert learned.document["step"] == 5
    assert [step for _, step, _, _ in learned.evaluated] == [5]
    assert learned.result.status == "target_missed"
    assert ended.code == 8
    assert "the target of 90 % was not reached" in " ".join(ended.out.split())


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["resnet50"], 2, "has its recipe: resnet50 is one too many"),
        (["--seed", "3"], 2, "a run that is resumed keeps its seed"),
        (["--set", "seed=3"], 2, "a run that is resumed keeps its seed"),
        (["--set", "data.generated_train=100"], 2, "a run that is resumed keeps its data"),
        (["--data", "."], 2, "a run that is resumed keeps its data"),
        (["--set", "model.width=24"], 2, "a run that is resumed keeps its model"),
        (["--set", "stop.epochs=4", "--set", "train.batch_size=4"], 2, "the run has 8 images a step so far"),
        (["--set", "stop.epochs=4", "--device", "cuda:99"], 4, "error: "),
        (["--set", "stop.epochs=4", "--set", "optimizer.name=lars"], 7, "was written with the optimiser"),
        (["--set", "stop.epochs=4", "--set", "train.ema=0"], 0, ""),
        (["--set", "stop.epochs=4", "--set", "optimizer.momentum=0", "--set", "stop.steps=6"], 0, ""),
    ],
)
def test_what_a_resumed_run_may_change(
    nursery: Nursery, missed: tuple[Path, Finished], tmp_path: Path, arguments: list[str], code: int, message: str
):
    run = shutil.copytree(missed[0], tmp_path / "run")
    ended = nursery.run("train", "--resume", str(run), *arguments)
    assert ended.code == code, ended.err
    assert message in ended.err
    assert "Traceback" not in ended.err
    if code:  # nothing of it stays
        assert (run / "config.toml").read_bytes() == (missed[0] / "config.toml").read_bytes()
        assert read_result(run) == read_result(missed[0])


def test_time_ends_it_with_an_evaluation_and_more_time_goes_on(nursery: Nursery, tmp_path: Path):
    ended = train(nursery, tmp_path, "--seconds", "0.1", "--json", stop__epochs=1000.0)
    assert ended.code == 0, ended.err
    result = ended.json()
    assert result["status"] == "target_missed"
    (last,) = result["quality"]["history"][-1:]
    assert last["seconds"] >= 0.1
    learned = read_learned(find_run(tmp_path))
    assert learned.document["step"] == last["step"] < 300
    more = nursery.run("train", "--resume", str(find_run(tmp_path)), "--seconds", "1.5", "--json")
    assert more.json()["quality"]["history"][-1]["step"] > last["step"]
    assert more.json()["quality"]["starts"] == 2


def test_a_loss_that_is_no_number_names_step_rate_and_the_last_good_checkpoint(nursery: Nursery, tmp_path: Path):
    ended = train(nursery, tmp_path, optimizer__learning_rate=1e12, checkpoint__every_steps=1)
    assert ended.code == 6
    run = find_run(tmp_path)
    saved = list_checkpoints(run / "checkpoints")
    assert "error: the loss is no number any more at step " in ended.err
    assert f"the last good checkpoint is {saved[0]}" in ended.err
    assert f"hint:  trainstone train --resume {run} --set optimizer.learning_rate=2.5e+11; or a longer" in ended.err
    result = read_result(run)
    assert result.status == "failed"
    assert result.findings[-1].code == "run-failed"
    assert "(learning rate " in result.findings[-1].message
    checkpoint = read_checkpoint(saved[0])
    assert all(tensor.isfinite().all() for tensor in checkpoint.tensors.values() if tensor.is_floating_point())


def test_a_set_must_fit_the_network_and_have_something_to_validate_with(
    nursery: Nursery, missed: tuple[Path, Finished], tmp_path: Path
):
    (drawn,) = filter(Path.is_dir, (nursery.folder / "cache/data").glob("*-96-43-*"))  # that of `missed`
    many = train(nursery, tmp_path / "1", "--data", str(drawn), model__num_classes=5)
    assert many.code == 3
    assert f"{drawn} has 10 classes, the network 5" in many.err
    whole, alone = make_set(tmp_path / "whole", "recordio", val=4), make_set(tmp_path / "alone", "recordio")
    one = train(nursery, tmp_path / "2", "--data", str(alone))
    assert one.code == 3
    assert f"{alone} has one split, train: nothing is left to validate with" in one.err
    fits = train(nursery, tmp_path / "3", "--data", str(whole), "--iterations", "2", "--json")
    assert fits.code == 0, fits.err
    assert fits.json()["quality"]["history"][-1]["images"] == 4


def test_damaged_checkpoints_are_passed_over(nursery: Nursery, tmp_path: Path):
    assert train(nursery, tmp_path, "--iterations", "9", checkpoint__every_steps=3, checkpoint__keep=2).code == 0
    run = find_run(tmp_path)
    newest, before = list_checkpoints(run / "checkpoints")
    assert (newest.name, before.name) == ("step-00000009.safetensors", "step-00000006.safetensors")
    whole = read_learned(run)
    hurt(newest, random.Random(1))
    again = nursery.run("train", "--resume", str(run), "--iterations", "9", "--json")
    assert again.code == 0, again.err
    codes = [(one["code"], one["message"]) for one in again.json()["findings"]]
    assert ("resumed", "went on from step-00000006.safetensors, after step 6") in codes
    assert [message for code, message in codes if code == "checkpoint-damaged" and newest.name in message]
    repaired = read_learned(run)
    assert all(tensor.equal(whole.tensors[name]) for name, tensor in repaired.tensors.items())
    for path in list_checkpoints(run / "checkpoints"):
        hurt(path, random.Random(2))
    anew = nursery.run("train", "--resume", str(run), "--iterations", "9", "--json")
    codes = [one["code"] for one in anew.json()["findings"]]
    assert codes.count("checkpoint-damaged") == 2
    assert "it starts from the beginning" in next(
        one["message"] for one in anew.json()["findings"] if one["code"] == "resumed"
    )
    assert anew.json()["quality"]["starts"] == 3
    begun = read_learned(run)
    assert all(tensor.equal(whole.tensors[name]) for name, tensor in begun.tensors.items())
    assert begun.steps[0]["loss"].tolist() == whole.steps[0]["loss"].tolist()


def hurt(path: Path, chance: random.Random) -> None:
    """Change one byte of the tensors. A checkpoint may be two names of one file: the best stays whole."""
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content) // 2, len(content))] ^= 1
    path.unlink()
    path.write_bytes(content)


@pytest.mark.slow
def test_drawn_shapes_are_learned_to_the_target(quick, tmp_path: Path):
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
