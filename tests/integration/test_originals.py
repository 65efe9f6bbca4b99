"""Tests of the originals' files written by real small training runs, one of them resumed (benches: golden_commands)."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from support.builders.mlperf_logs import check_log, write_ssd_log
from support.builders.training_runs import make_config, train_here
from support.processes.command import find_run
from trainstone.formats.iterdur import read_iterdur
from trainstone.formats.mllog import read_mllog
from trainstone.formats.nvlog import Entry, read_nvlog
from trainstone.formats.timehistory import read_timehistory
from trainstone.results.mlperf.logs import read_logged
from trainstone.results.progress import Progress
from trainstone.results.run_folder import read_result
from trainstone.results.steps import read_columns


def values(entries: list[Entry], key: str) -> list:
    return [entry.value for entry in entries if entry.key == key]


@pytest.mark.parametrize("name", ["mlperf", "tbd", "sc22", "wmlce"])
def test_train_writes_files_of_original(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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


def test_train_stopped_and_resumed_continues_nvlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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


# Generated scenes, small images, asynchronous scores.
SSD = {
    **{"device": "cpu", "engine.threads": 1, "engine.keep_memory": False, "loader.threads": 1},
    **{"model.depth": 18, "model.width": 16, "model.num_classes": 2, "data.source": "generated"},
    **{"data.image_size": 64, "data.generated_train": 30, "data.generated_val": 8, "train.precision": "fp32"},
    **{"train.batch_size": 4, "eval.at_epochs": [1.0, 2.0], "stop.epochs": 3.0, "original.every_steps": 5},
    **{"original_defects": True, "mlperf.org": "example"},
}
ITERATION = re.compile(
    r"\[Training\]\[Iteration (\d+)\]\[Epoch (\d), Batch (\d)/8\] lr: \d\.\d{5}, training time: \d+\.\d{3} \[ms\], "
    r"speed: \d+\.\d{3} \[imgs/sec\], loss=(\d+\.\d{3})"
)


def test_train_ssd_writes_original_files_and_log_passes_checker(quick, tmp_path: Path):
    words = [word for key, value in SSD.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    done = quick("train", "ssd300-mlperf", *words, "--json")
    assert done.code == 0, done.err
    run = find_run(tmp_path)
    text = (run / "original/training.log").read_text()
    losses = read_columns(run / "steps-rank0000.csv", ("loss",))["loss"]
    found = [ITERATION.fullmatch(line) for line in text.splitlines() if "Iteration" in line]
    assert [match.groups()[:3] for match in found] == [
        *[("5", "1", "5"), ("10", "2", "2"), ("15", "2", "7"), ("20", "3", "4")]
    ]
    assert [float(match[4]) for match in found] == pytest.approx(losses[[4, 9, 14, 19]].tolist(), abs=6e-4)
    means = [float(mean) for mean in re.findall(r"\[Training\]\[Epoch \d\] .*,loss=(.*)", text)]
    assert means == pytest.approx([losses[first : first + 8].mean() for first in (0, 8, 16)], abs=6e-4)
    assert text.count("[Validation] inference: ") == 2
    log = (run / "log.txt").read_text()
    assert all(line in log for line in text.splitlines())
    (file,) = (run / "original").glob("*_1.log")
    whole = file.read_text()
    assert whole.startswith((run / "mlperf.log").read_text())
    assert text in whole
    assert re.search(r"\nRESULT,SINGLE_STAGE_DETECTOR,,\d+,example,\d{4}-\d\d-\d\d [\d:]+ [AP]M\n\Z", whole)
    passed, output = check_log(run / "mlperf.log", "1.0.0")
    assert passed, output
    events = read_mllog(run / "mlperf.log")
    values = {event.key: event.value for event in events}
    assert (values["submission_benchmark"], values["submission_division"]) == ("ssd", "open")
    assert values["sgd"] == values["seed"] == 1
    assert (values["max_samples"], values["opt_base_learning_rate"]) == (1, 0.0025)
    assert read_logged(run / "mlperf.log").times.devices == 1
    order = [(event.key, event.metadata["epoch_num"]) for event in events if "epoch_num" in event.metadata]
    # The first evaluation's accuracy is known after the second epoch.
    assert order.index(("eval_stop", 1)) < order.index(("epoch_stop", 2)) < order.index(("eval_accuracy", 1))


def test_mlperf_summary_five_closed_runs_have_score(quick, tmp_path: Path):
    for seed, minutes in enumerate((25.36, 25.37, 25.40, 25.30, 26.0), 1):
        write_ssd_log(tmp_path / f"result_{seed}.txt", seed=seed, minutes=minutes)
    done = quick("mlperf", "check", ".")
    assert (done.code, done.err) == (0, "")
    assert done.out.count("ssd, closed; ruleset 1.0.0") == 5
    lines = quick("mlperf", "summary", ".").out.splitlines()
    assert any(line.startswith("score      25.38 min") for line in lines)
    assert any("50.0 epochs to the target; the reference needs 50.0 at batch 1,024" in line for line in lines)
