"""What the originals wrote, written by real runs: bench and train of their recipes, small, and a training resumed."""

import csv
import json
import os
import re
import signal
from pathlib import Path

import pytest

from command import find_run, narrow_arguments
from small_training import make_config, train_here
from trainstone.formats.iterdur import read_iterdur
from trainstone.formats.nvlog import Entry, read_nvlog
from trainstone.formats.timehistory import read_timehistory
from trainstone.results.progress import Progress
from trainstone.results.steps import read_columns
from trainstone.results.store import read_result

GRAMMAR = re.compile(r":::NVLOGv([\d.]+) (\S+) (\d+\.\d{9}) \(([^:]+):(\d+)\) (.*)")
BENCH = (*narrow_arguments(), "--set", "engine.keep_memory=false", "--iterations", "30", "-q")


def values(entries: list[Entry], key: str) -> list:
    return [entry.value for entry in entries if entry.key == key]


def test_a_bench_of_wmlce(quick, tmp_path: Path):
    done = quick("bench", "resnet50-wmlce", "--system", "bede-1x4", *BENCH)
    assert done.code == 0, done.err
    run = find_run(tmp_path)
    lines = (run / "original/nvlog.txt").read_text().splitlines()
    assert all(GRAMMAR.fullmatch(line) for line in lines)
    entries = read_nvlog(run / "original/nvlog.txt")
    assert len(entries) == len(lines)
    assert values(entries, "Name") == ["resnet18_v1.5"]
    assert values(entries, "Total Steps") == [30]
    assert values(entries, "iteration") == [15, 25]
    seconds = read_columns(run / "steps-rank0000.csv")["step_seconds"]
    assert values(entries, "total_ips") == pytest.approx([2 / seconds[15], 2 / seconds[25]], rel=1e-6)
    assert values(entries, "Average total_ips") == [pytest.approx(15 * 2 / seconds[15:].sum(), rel=1e-6)]
    document = json.loads((run / "original/training_benchmark.json").read_text())
    assert document["iter"]["total_ips"] == [values(entries, "total_ips")]
    assert {"original/nvlog.txt", "original/training_benchmark.json"} <= set(read_result(run).files)
    assert "after 15 of warm-up" in (run / "log.txt").read_text()


def test_a_bench_of_sc22(quick, tmp_path: Path):
    assert quick("bench", "resnet50-sc22", *BENCH).code == 0
    run = find_run(tmp_path)
    (file,) = (run / "original").glob("resnet_iterdur_*_*.txt")
    told, columns = read_iterdur(file), read_columns(run / "steps-rank0000.csv")
    worked = columns["forward_seconds"] + columns["backward_seconds"]
    assert [one.seconds for one in told.durations] == pytest.approx(worked.tolist(), rel=1e-6)
    (row,) = csv.DictReader((run / "original/all_data.csv").read_text().splitlines())
    assert float(row["mean_iter_dur"]) == pytest.approx(worked[1:].mean(), rel=1e-6)
    spent = columns["start_seconds"][-1] - columns["start_seconds"][0]
    assert float(row["train_time"]) == pytest.approx(spent, abs=1.0)
    assert (run / "original/aggregated_data.csv").is_file()


def test_a_bench_of_tbd(quick, tmp_path: Path):
    assert quick("bench", "resnet50-tbd", *BENCH).code == 0
    log = read_timehistory(find_run(tmp_path) / "original/throughput_data/batch_2.log")
    assert [(one.first_step, one.last_step) for one in log] == [(0, 10), (10, 20), (20, 30)]


def test_a_bench_of_mlperf_has_none(quick, tmp_path: Path):
    assert quick("bench", "resnet50-mlperf", *BENCH).code == 0
    assert not (find_run(tmp_path) / "original").exists()


@pytest.mark.parametrize("name", ["mlperf", "tbd", "sc22", "wmlce"])
def test_a_training_leaves_its_original_s_files(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = make_config(original__name=name, original__every_steps=4, eval__target=1.0, stop__epochs=2.0)
    run = train_here(config, tmp_path, monkeypatch)
    files = sorted(path.name for path in (run.path / "original").iterdir())
    assert {f"original/{name}" for name in files} <= set(read_result(run.path).files)
    (one,) = [path for path in (run.path / "original").iterdir() if path.suffix in (".txt", ".log")]
    text = one.read_text()
    if name == "mlperf":
        assert text.startswith((run.path / "mlperf.log").read_text())
        assert re.search(r"\nRESULT,IMAGE_CLASSIFICATION,,\d+,[^,]+,\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [AP]M\n$", text)
    elif name == "tbd":
        assert [line.split()[1] for line in text.splitlines() if "evaluation metric" in line] == ["12", "24"]
        assert [one.last_step for one in read_timehistory(one)] == [4, 8, 12, 16, 20, 24]
    elif name == "sc22":
        assert [one.iteration for one in read_iterdur(one).durations] == list(range(24))
    else:
        entries = read_nvlog(one)
        assert values(entries, "iteration") == [0, 4, 8, 12, 16, 20]
        losses = read_columns(run.path / "steps-rank0000.csv")["loss"]
        assert values(entries, "total_loss") == pytest.approx(losses[::4].tolist(), rel=1e-6)
        top1 = [evaluation.metrics["top1"] for evaluation in read_result(run.path).quality.history]
        assert values(entries, "Top-1 Accuracy") == [round(100 * share, 3) for share in top1]


def test_an_interval_that_a_stop_lies_in_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = make_config(original__name="tbd", original__every_steps=8, eval__target=1.0)

    def stop(progress: Progress) -> None:
        if progress.step == 19:
            os.kill(os.getpid(), signal.SIGTERM)

    run = train_here(config, tmp_path, monkeypatch, act=stop)
    assert read_result(run.path).status == "interrupted"
    train_here(config, run.path, monkeypatch, resume=True)
    log = run.path / "original/training.log"
    assert [(one.first_step, one.last_step) for one in read_timehistory(log)] == [(n, n + 8) for n in range(0, 32, 8)]
    losses = read_columns(run.path / "steps-rank0000.csv")["loss"]
    (told,) = re.findall(r"step: 24 .*'train_loss': ([0-9.]+)", log.read_text())
    assert float(told) == pytest.approx(losses[16:24].mean(), rel=1e-6)


def test_a_training_that_was_stopped_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = make_config(
        **{"original__name": "wmlce", "original__every_steps": 2, "checkpoint__every_steps": 5},
        **{"eval__target": 1.0, "optimizer__decay_in": "loss", "optimizer__weight_decay": 1e-4},
    )

    def stop(progress: Progress) -> None:
        if progress.step == 17:
            os.kill(os.getpid(), signal.SIGTERM)

    run = train_here(config, tmp_path, monkeypatch, act=stop)
    assert read_result(run.path).status == "interrupted"
    stopped = read_nvlog(run.path / "original/nvlog.txt")
    assert stopped[-1].key == "Ending Model Training ..."
    train_here(config, run.path, monkeypatch, resume=True)
    entries = read_nvlog(run.path / "original/nvlog.txt")
    assert values(entries, "iteration") == list(range(0, 36, 2))
    assert values(entries, "epoch") == [0, 1, 2]
    columns = read_columns(run.path / "steps-rank0000.csv")
    assert values(entries, "l2_loss") == pytest.approx(columns["decay_loss"][::2].tolist())
    assert min(values(entries, "l2_loss")) > 0
    assert len(values(entries, "Top-1 Accuracy")) == 3
    assert [entry.key for entry in entries].count("Ending Model Training ...") == 1
    document = json.loads((run.path / "original/training.json").read_text())
    assert document["iter"]["iteration"][:3] == [list(range(0, 12, 2)), list(range(12, 24, 2)), list(range(24, 36, 2))]
