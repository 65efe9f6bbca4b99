"""Tests of detection with the command line: training on generated scenes to a target, two ranks, saved weights."""

import json
from pathlib import Path

import pytest

from support.processes.command import find_run
from support.processes.forked import Nursery
from trainstone.results.run_folder import read_result
from trainstone.results.schema.run import Result

pytestmark = pytest.mark.slow

HERE = {"device": "cpu", "engine.threads": 1, "engine.keep_memory": False, "loader.threads": 1}
# Two classes, fewer and smaller images than the demo's, and a target of a few epochs: a busy machine has time for it.
TARGET = 0.3
EASY = HERE | {
    "data.image_size": 80,
    "data.generated_train": 1000,
    "data.generated_val": 60,
    "model.num_classes": 2,
    "stop.epochs": 12.0,
    "train.batch_size": 8,
    "optimizer.learning_rate": 0.03,
    "eval.async": True,
    "eval.target": TARGET,
}


def set_all(settings: dict[str, object]) -> list[str]:
    return [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]


@pytest.fixture(scope="module")
def trained(nursery: Nursery) -> tuple[Path, Result]:
    out = nursery.folder / "detector"
    ended = nursery.run("train", "demo-detect", *set_all(EASY), "--require-target", "--out", str(out), "--json")
    assert ended.code == 0, ended.err
    return find_run(out), read_result(find_run(out))


def test_train_detect_reaches_target_and_report_shows_images(nursery: Nursery, trained: tuple[Path, Result]):
    run, result = trained
    quality = result.quality
    assert (result.status, quality.metric, quality.target) == ("target_reached", "map50", TARGET)
    assert quality.value >= TARGET
    assert result.verdict.startswith("SSD80-ResNet18: 0.")
    assert f"mAP@0.5 (target {TARGET})" in result.verdict
    assert {"map", "map50", "map75", "recall_100"} <= set(quality.history[-1].metrics)
    assert quality.history[-1].images == 60
    assert "not-pretrained" not in {
        found.code for found in result.findings
    }  # generated scenes need no pretrained weights
    # The score is known one epoch later, and the best weights are those that reached the target.
    assert quality.epochs == quality.history[-1].epoch + 1
    assert (run / "checkpoints/best.safetensors").exists()
    # The page shows curves, classes and images.
    assert {table.name for table in quality.tables} >= {"coco", "precision-recall", "ap-by-class", "ap-by-size"}
    assert quality.samples
    for shown in quality.samples:
        assert (run / shown.file).read_bytes().startswith(b"\xff\xd8")
        assert shown.boxes
    assert nursery.run("report", str(run)).code == 0
    page = (run / "report.html").read_text()
    assert page.count("data:image/jpeg;base64,") >= len(quality.samples)


def test_train_detect_log_passes_mlperf_checker(nursery: Nursery, trained: tuple[Path, Result]):
    pytest.importorskip("mlperf_logging", reason="needs the extra mlperf")
    checked = nursery.run("mlperf", "check", str(trained[0]))
    assert checked.code == 0, checked.out + checked.err


def test_eval_detect_has_same_quality_on_one_and_two_ranks(nursery: Nursery, trained: tuple[Path, Result]):
    run, result = trained
    best = next(one for one in result.quality.history if one.metrics["map50"] >= TARGET)
    weights = str(run / "checkpoints/best.safetensors")
    found = []
    for ranks in (1, 2):
        out = nursery.folder / f"detector-evaluated-{ranks}"
        ended = [
            child.wait()
            for child in nursery.start_ranks(ranks, "eval", weights, "--out", str(out), "--set", "engine.threads=1")
        ]
        assert {one.code for one in ended} == {0}, ended[0].err
        evaluated = read_result(find_run(out)).quality
        assert evaluated.history[0].images == 60
        assert len(evaluated.tables) == len(result.quality.tables)
        found.append(evaluated.history[0].metrics)
    assert found[0] == pytest.approx(best.metrics, abs=1e-3)  # other batch sizes: the last bits of scores differ
    assert found[1] == pytest.approx(found[0], abs=1e-3)


def test_eval_predict_detect_shows_boxes(nursery: Nursery, trained: tuple[Path, Result]):
    run, result = trained
    image = str(run / result.quality.samples[0].file)
    predicted = nursery.run("eval", str(run), "--predict", image, "--top", "3", "--set", "engine.threads=1")
    assert predicted.code == 0, predicted.err
    assert " % from the left, " in predicted.out
    document = nursery.run("eval", str(run), "--predict", image, "--json", "--set", "engine.threads=1").json()
    guess = document["predictions"][0]["guesses"][0]
    assert set(guess["box"]) == {"left", "top", "right", "bottom"}
    assert 0 <= guess["box"]["left"] < guess["box"]["right"] <= 1


def test_eval_detect_export_and_bench(nursery: Nursery, trained: tuple[Path, Result], tmp_path: Path):
    run, _ = trained
    exported = tmp_path / "ssd.safetensors"
    assert nursery.run("eval", str(run), "--export", str(exported)).code == 0
    settings = set_all(EASY | {"eval.async": False})
    again = nursery.run("eval", str(exported), "--recipe", "demo-detect", *settings, "--out", str(tmp_path / "e"))
    assert again.code == 0, again.err
    timed = nursery.run("eval", str(run), "--bench", "--seconds", "1", "--json", "--set", "engine.threads=1")
    assert timed.code == 0, timed.err
    assert timed.json()["throughput"]["images_per_second"] > 0


def test_bench_ssd_measures_throughput(nursery: Nursery, tmp_path: Path):
    small = HERE | {"data.image_size": 64, "model.width": 16, "train.batch_size": 2, "train.precision": "fp32"}
    done = nursery.run("bench", "ssd300-mlperf", *set_all(small), "--iterations", "4", "--json", "--out", str(tmp_path))
    assert done.code == 0, done.err
    result = done.json()
    assert result["verdict"].startswith("SSD64-ResNet34: ")
    assert result["utilisation"]["mfu"] > 0
    assert result["utilisation"]["flops_per_image"] > 1e8


def test_train_detect_rejects_data_set_without_boxes(nursery: Nursery, tmp_path: Path):
    shapes = tmp_path / "shapes"
    assert nursery.run("data", "make", "classify", "--to", str(shapes), "--count", "8", "--val", "4", "-q").code == 0
    ended = nursery.run("train", "demo-detect", "--data", str(shapes), *set_all(HERE), "--out", str(tmp_path / "r"))
    assert ended.code == 3
    assert "is for classify" in ended.err
