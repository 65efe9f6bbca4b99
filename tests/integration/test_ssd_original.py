"""What MLPerf's SSD wrote, written by a real run: drawn scenes, small pictures, scores that come an epoch later."""

import json
import re
from pathlib import Path

import pytest

from made_mlperf import check_log, write_ssd_log
from nursery import Nursery
from trainstone.formats.mllog import read_mllog
from trainstone.results.mlperf.logged import read_logged
from trainstone.results.steps import read_columns

SMALL = {
    **{"device": "cpu", "engine.threads": 1, "engine.keep_memory": False, "loader.threads": 1},
    **{"model.depth": 18, "model.width": 16, "model.num_classes": 2, "data.source": "generated"},
    **{"data.image_size": 64, "data.generated_train": 30, "data.generated_val": 8, "train.precision": "fp32"},
    **{"train.batch_size": 4, "eval.at_epochs": [1.0, 2.0], "stop.epochs": 3.0, "original.every_steps": 5},
    **{"original_defects": True, "mlperf.org": "somebody"},
}
ITERATION = re.compile(
    r"\[Training\]\[Iteration (\d+)\]\[Epoch (\d), Batch (\d)/8\] lr: \d\.\d{5}, training time: \d+\.\d{3} \[ms\], "
    r"speed: \d+\.\d{3} \[imgs/sec\], loss=(\d+\.\d{3})"
)


@pytest.fixture(scope="module")
def run(nursery: Nursery) -> Path:
    out = nursery.folder / "ssd-original"
    words = [word for key, value in SMALL.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    ended = nursery.run("train", "ssd300-mlperf", *words, "--out", str(out), "--json")
    assert ended.code == 0, ended.err
    (folder,) = out.iterdir()
    return folder


def test_its_lines_are_those_of_the_steps(run: Path):
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


def test_the_whole_log_ends_with_the_result(run: Path):
    (file,) = (run / "original").glob("*_1.log")
    text = file.read_text()
    assert text.startswith((run / "mlperf.log").read_text())
    assert (run / "original/training.log").read_text() in text
    assert re.search(r"\nRESULT,SINGLE_STAGE_DETECTOR,,\d+,somebody,\d{4}-\d\d-\d\d [\d:]+ [AP]M\n\Z", text)


def test_the_real_checker_takes_its_log(run: Path):
    passed, said = check_log(run / "mlperf.log", "1.0.0")
    assert passed, said
    events = read_mllog(run / "mlperf.log")
    values = {event.key: event.value for event in events}
    assert (values["submission_benchmark"], values["submission_division"]) == ("ssd", "open")
    assert values["sgd"] == values["seed"] == 1
    assert (values["max_samples"], values["opt_base_learning_rate"]) == (1, 0.0025)
    assert read_logged(run / "mlperf.log").times.devices == 1
    order = [(event.key, event.metadata["epoch_num"]) for event in events if "epoch_num" in event.metadata]
    # The first evaluation's accuracy is known when the second epoch is over.
    assert order.index(("eval_stop", 1)) < order.index(("epoch_stop", 2)) < order.index(("eval_accuracy", 1))


def test_five_closed_runs_pass_the_real_checker_and_have_a_score(quick, tmp_path: Path):
    for seed, minutes in enumerate((25.36, 25.37, 25.40, 25.30, 26.0), 1):
        write_ssd_log(tmp_path / f"result_{seed}.txt", seed=seed, minutes=minutes)
    done = quick("mlperf", "check", ".")
    assert (done.code, done.err) == (0, "")
    assert done.out.count("ssd, closed; ruleset 1.0.0") == 5
    lines = quick("mlperf", "summary", ".").out.splitlines()
    assert any(line.startswith("score      25.38 min") for line in lines)
    assert any("50.0 epochs to the target; the reference needs 50.0 at batch 1,024" in line for line in lines)
