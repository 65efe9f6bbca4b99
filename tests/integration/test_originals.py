"""What the originals wrote, written by real small trainings, one of them resumed (benches: golden_commands)."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from small_training import make_config, train_here
from trainstone.formats.iterdur import read_iterdur
from trainstone.formats.nvlog import Entry, read_nvlog
from trainstone.formats.timehistory import read_timehistory
from trainstone.results.progress import Progress
from trainstone.results.steps import read_columns
from trainstone.results.store import read_result


def values(entries: list[Entry], key: str) -> list:
    return [entry.value for entry in entries if entry.key == key]


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
