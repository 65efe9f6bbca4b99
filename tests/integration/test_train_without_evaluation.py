"""`trainstone train` on a data set without a validation split (SC22's ImageNetV2): trained and not evaluated."""

import csv
import json
import os
import signal
from pathlib import Path

import pytest

from support.builders.data_sets import make_set
from support.builders.training_runs import assert_same, read_trained_run, train_here
from support.processes.command import NARROW, find_run
from support.processes.forked import Nursery, wait_until
from trainstone.config.load import load_config
from trainstone.config.schema import Config
from trainstone.formats.iterdur import RankPlace, read_iterdur
from trainstone.formats.mllog import read_mllog
from trainstone.results.progress import Progress
from trainstone.results.run_folder import read_result
from trainstone.results.steps import read_columns

SMALL = (*NARROW, "model.num_classes=2", "engine.keep_memory=false", "loader.threads=1")
VERDICT = "ResNet-18: trained 12 steps, 2.4 epochs; not evaluated"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_set(tmp_path_factory.mktemp("one-split") / "set", "folder", count=10)


def list_arguments(images: Path, out: Path, *further: str) -> list[str]:
    settings = [part for setting in SMALL for part in ("--set", setting)]
    return ["train", "resnet50-sc22", "--data", str(images), *settings, "--out", str(out), *further]


def make_config(images: Path, *settings: str) -> Config:
    return load_config("resnet50-sc22", settings=[*SMALL, f"data.root={json.dumps(str(images))}", *settings])


def test_train_without_validation_data_reports_no_evaluation(nursery: Nursery, images: Path, tmp_path: Path):
    ended = nursery.run(*list_arguments(images, tmp_path, "--iterations", "12"))
    assert ended.code == 0, ended.err
    assert VERDICT in ended.out
    assert "info: " in ended.out
    assert "[not-evaluated]" in ended.out
    run = find_run(tmp_path)
    result = read_result(run)
    assert result.status == "ok"
    assert result.verdict.startswith(VERDICT)
    quality = result.quality
    assert (quality.value, quality.steps, quality.epochs, quality.history) == (None, 12, 2.4, [])
    assert result.phases.eval_seconds == 0
    assert read_trained_run(run).document["step"] == 12
    assert not (run / "checkpoints/best.safetensors").exists()
    events = {event.key: event.value for event in read_mllog(run / "mlperf.log")}
    assert events["eval_samples"] == 0
    assert "eval_accuracy" not in events
    assert "eval_start" not in events
    assert {"run_start", "epoch_start", "run_stop"} <= set(events)


def test_train_without_evaluation_resumed_equals_uninterrupted_run(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = make_config(images, "stop.steps=12")
    whole = train_here(config, tmp_path / "whole", monkeypatch)
    for number in (2, 6, 11):

        def stop(progress: Progress, number: int = number) -> None:
            if progress.phase == "training" and progress.step == number:
                os.kill(os.getpid(), signal.SIGTERM)

        run = train_here(config, tmp_path / str(number), monkeypatch, act=stop)
        assert run.result.status == "interrupted"
        assert "; stopped by SIGTERM" in run.result.verdict
        train_here(config, run.path, monkeypatch, resume=True)
        assert_same(read_trained_run(whole.path), read_trained_run(run.path))
        result = read_result(run.path)
        assert (result.status, result.quality.starts) == ("ok", 2)
        assert result.verdict.startswith(VERDICT)
        (file,) = (run.path / "original").glob("resnet_iterdur_*.txt")
        message = read_iterdur(file)
        assert [one.iteration for one in message.durations] == list(range(12))
        assert message.train_seconds is not None


def test_original_files_contain_both_ranks(nursery: Nursery, images: Path, tmp_path: Path):
    limit = ("--set", "stop.epochs=9999", "--seconds", "0.5", "--iterations", "0")
    arguments = list_arguments(images, tmp_path / "two", *limit)
    ended = nursery.run(*arguments, world=2)
    assert ended.code == 0, ended.err
    run = find_run(tmp_path / "two")
    (file,) = (run / "original").glob("*.txt")
    message = read_iterdur(file)
    assert message.ranks == [RankPlace(0, 2, 0), RankPlace(1, 2, 1)]
    assert message.train_seconds is not None
    steps = read_result(run).quality.steps
    order = [(one.iteration, one.device) for one in message.durations]
    assert order == [(step, rank) for step in range(steps) for rank in range(2)]
    for rank in range(2):
        columns = read_columns(run / f"steps-rank{rank:04d}.csv")
        worked = (columns["forward_seconds"] + columns["backward_seconds"]).tolist()
        assert [one.seconds for one in message.durations if one.device == rank] == worked
    table = csv.DictReader((run / "original/all_data.csv").read_text().splitlines())
    assert [row["device"] for row in table] == ["0", "1"]
    assert {f"original/{file.name}", "original/all_data.csv"} <= set(read_result(run).files)


def test_original_files_are_continued_by_resumed_ranks(nursery: Nursery, images: Path, tmp_path: Path):
    out = tmp_path / "stopped"
    children = nursery.start_ranks(2, *list_arguments(images, out, "--iterations", "0"))  # 55 epochs, 165 steps
    wait_until(lambda: "training ·" in children[0].err.read_text())
    children[1].send(signal.SIGTERM)
    assert [child.wait().code for child in children] == [75, 75]
    run = find_run(out)
    (file,) = (run / "original").glob("*.txt")
    done = read_result(run).quality.steps
    stopped = read_iterdur(file)
    assert [(one.iteration, one.device) for one in stopped.durations] == [(n, r) for n in range(done) for r in range(2)]
    assert stopped.train_seconds is None
    assert nursery.run("train", "--resume", str(run), world=2).code == 0
    message = read_iterdur(file)
    assert message.durations[: 2 * done] == stopped.durations
    assert [(one.iteration, one.device) for one in message.durations] == [(n, r) for n in range(165) for r in range(2)]
    assert read_result(run).verdict.startswith("ResNet-18: trained 165 steps, 55 epochs; not evaluated")
    assert len(list((run / "original").iterdir())) == 3
