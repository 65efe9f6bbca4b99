"""Tests of WMLCE's nvlog: lines, their times, and the JSON file."""

import json
from pathlib import Path

import pytest

from support.builders.original_files import BEGAN, make_facts, make_step, simulate_run
from trainstone.engine.task import plan_rate
from trainstone.formats.nvlog import Entry, read_nvlog
from trainstone.machine.ranks import Rank
from trainstone.originals.output_file import RunFacts
from trainstone.originals.registry import list_writers

EPOCH = ("epoch", "final_cross_entropy", "final_l2_loss", "final_total_loss", "final_learning_rate")
ITERATION = ("iteration", "imgs_per_sec", "cross_entropy", "l2_loss", "total_loss", "learning_rate")
END = "Ending Model Training ..."


def train(facts: RunFacts, last: int, **changes) -> list[Entry]:
    simulate_run(facts, last, **changes)
    return read_nvlog(facts.folder / "original/nvlog.txt")


def read_json(facts: RunFacts, name: str = "training.json") -> dict:
    return json.loads((facts.folder / "original" / name).read_text())


def values(entries: list[Entry], key: str) -> list:
    return [entry.value for entry in entries if entry.key == key]


def test_training_nvlog_header_describes_run(tmp_path: Path):
    entries = train(make_facts(tmp_path, "wmlce", "data.source=files", "data.root=x", "engine.compile=true"), 0)
    assert [(entry.key, entry.value) for entry in entries] == [
        ("Model HParams:", None),
        ("Name", "resnet50_v1.5"),
        ("Number of classes", 1001),
        ("Compute_format", "NHWC"),
        ("Input_format", "NHWC"),
        ("dtype", "<dtype: 'float16'>"),
        ("Deterministic Run - Seed", 1),
        ("Starting Model Training...", None),
        ("Training Epochs", 5),
        ("Total Steps", 50),
        ("Steps per Epoch", 10.0),
        ("Decay Steps", 500),
        ("Weight Decay Factor", 1 / 32768),
        ("Init Learning Rate", 0.256),
        ("Momentum", 0.875),
        ("Num GPUs", 4),
        ("Per-GPU Batch Size", 256),
        ("XLA is activated - Experimental Feature", None),
        ("Using cosine learning rate schedule", None),
        (END, None),
    ]
    assert [entry.model for entry in entries] == [None] * 17 + ["resnet"] * 3
    assert {entry.time_seconds for entry in entries} == {BEGAN}


@pytest.mark.parametrize(
    ("settings", "steps_per_epoch", "decay"),
    [
        ([], 5004.0, 250200),
        (["loader.last=fill"], 5005.0, 250250),
        (["loader.last=carry"], 5004.0, round(1281167 / 256 * 50)),
        (["schedule.images=1000"], 5004.0, 150),
    ],
)
def test_nvlog_synthetic_epoch_has_steps_of_schedule(
    tmp_path: Path, settings: list[str], steps_per_epoch: float, decay: int
):
    facts = bench_facts(tmp_path, *settings, steps=300, train_images=1281167)
    entries = bench(facts, 300)
    assert (values(entries, "Steps per Epoch"), values(entries, "Decay Steps")) == ([steps_per_epoch], [decay])
    rate = plan_rate(facts.config, 1281167, Rank(0))
    assert rate(decay - 2) > rate(decay - 1) > rate(decay) == rate(decay + 1)


def test_training_nvlog_logs_losses_every_tenth_step(tmp_path: Path):
    entries = train(make_facts(tmp_path, "wmlce"), 25)
    assert values(entries, "iteration") == [0, 10, 20]
    first = [entry.key for entry in entries].index("iteration")
    block = entries[first : first + 6]
    assert [(entry.file, entry.line) for entry in block] == [("training_hooks.py", 100 + n) for n in range(6)]
    assert [(entry.key, entry.value) for entry in block] == list(
        zip(ITERATION, (0, 2048.0, 8.75, 0.75, 9.5, 0.0), strict=True)
    )


def test_training_nvlog_without_decay_in_loss_has_no_l2_loss(tmp_path: Path):
    facts = make_facts(tmp_path, "wmlce", "optimizer.decay_in=optimizer")
    entries = train(facts, 11, decay_loss=None)
    assert values(entries, "cross_entropy") == values(entries, "total_loss") == [9.5, 9.5 - 10 / 64]
    assert not [entry for entry in entries if "l2" in entry.key]
    document = read_json(facts)
    assert "l2_loss" not in document["iter"]
    assert list(document["epoch"]) == ["x", "epoch", "final_cross_entropy", "final_total_loss", "final_learning_rate"]


@pytest.mark.parametrize(("images", "ends"), [(10240, [10, 20, 30]), (10241, [10, 20, 30]), (11000, [10, 21, 32])])
def test_training_nvlog_epoch_ends_with_last_full_batch(tmp_path: Path, images: int, ends: list[int]):
    facts = make_facts(tmp_path, "wmlce", train_images=images)
    entries = train(facts, 33)
    assert values(entries, "epoch") == [0, 1, 2]
    # The learning rate identifies the step.
    assert [round(rate * 128) + 1 for rate in values(entries, "final_learning_rate")] == ends
    keys = [entry.key for entry in entries]
    assert tuple(keys[keys.index("epoch") :][:5]) == EPOCH


def test_training_nvlog_evaluation_is_in_percent(tmp_path: Path):
    facts = make_facts(tmp_path, "wmlce")
    entries = train(facts, 50, evaluations=(50,))
    assert [(entry.key, entry.value) for entry in entries[-9:]] == [
        (END, None),
        ("Starting Model Evaluation...", None),
        ("Evaluation Epochs", 1),
        ("Evaluation Steps", 1),
        ("Decay Steps", 1),
        ("Global Batch Size", 1024),
        ("Top-1 Accuracy", 75.863),
        ("Top-5 Accuracy", 92.823),
        ("Ending Model Evaluation ...", None),
    ]
    assert [entry.line for entry in entries[-3:]] == [610, 611, 630]
    assert [entry.time_seconds - BEGAN for entry in entries[-9:]] == [3 + 50 / 2] * 6 + [3 + 50 / 2 + 4] * 3
    assert "Top-1 Accuracy: 75.863\n" in (tmp_path / "original/nvlog.txt").read_text()


def test_training_nvlog_json_has_one_list_per_epoch(tmp_path: Path):
    facts = make_facts(tmp_path, "wmlce", "original.every_steps=4", "data.source=files", "data.root=x")
    train(facts, 23)
    document = read_json(facts)
    assert list(document) == ["run", "epoch", "iter", "event"]
    assert document["run"] == {"Using cosine learning rate schedule": None}
    assert document["event"] == {}
    assert list(document["iter"]) == ["x", *ITERATION]
    assert document["iter"]["iteration"] == [[0, 4, 8], [12, 16], [20]]
    assert document["iter"]["x"] == [[0, 4, 8], [2, 6], [0]]
    assert document["iter"]["total_loss"][1] == [9.5 - 12 / 64, 9.5 - 16 / 64]
    assert list(document["epoch"]) == ["x", *EPOCH]
    assert document["epoch"]["x"] == document["epoch"]["epoch"] == [0, 1]
    assert document["epoch"]["final_learning_rate"] == [9 / 128, 19 / 128]
    assert '\n    "run": {' in (tmp_path / "original/training.json").read_text()


def test_training_nvlog_json_after_first_epoch_has_null_for_nan(tmp_path: Path):
    facts = make_facts(tmp_path, "wmlce")
    (log,) = list_writers(facts)
    for step in range(10):
        assert not (tmp_path / "original/training.json").exists()
        log.step(make_step(step, loss=float("nan")))
    document = read_json(facts)
    assert (document["epoch"]["epoch"], document["iter"]["total_loss"]) == ([0], [[None], []])
    log.close()


def bench(facts: RunFacts, steps: int) -> list[Entry]:
    """Write alternating steps of 1 s and 0.5 s."""
    (log,) = list_writers(facts)
    for step in range(steps):
        log.step(make_step(step, step_seconds=0.5 if step % 2 else 1.0))
    log.finish("ok")
    log.close()
    return read_nvlog(facts.folder / "original/nvlog.txt")


def bench_facts(folder: Path, *settings: str, **changes: object) -> RunFacts:
    return make_facts(folder, "wmlce", *settings, kind="bench", **{"ranks": 1, "global_batch": 256, **changes})


@pytest.mark.parametrize(("defects", "average"), [("false", 200 * 256 / 150), ("true", (256 + 512) / 2)])
def test_benchmark_nvlog_averages_rates_after_warm_up(tmp_path: Path, defects: str, average: float):
    """The original's defect is the mean of rates."""
    facts = bench_facts(tmp_path, f"original_defects={defects}", steps=300)
    entries = bench(facts, 300)
    assert values(entries, "iteration") == list(range(100, 300, 10))
    assert values(entries, "total_ips") == [256.0] * 20
    assert values(entries, "Average total_ips") == [average]
    assert [entry.key for entry in entries][-2:] == ["Average total_ips", END]
    document = read_json(facts, "training_benchmark.json")
    assert document["iter"]["x"] == [list(range(0, 200, 10))]
    assert document["epoch"] == {"x": []}
    assert "Using Synthetic Data ..." in document["run"]


@pytest.mark.parametrize(
    ("known", "run", "iterations"),
    [(None, 60, [30, 40, 50]), (None, 1, [0]), (None, 2, [1]), (40, 40, [20, 30]), (1, 1, [0]), (500, 7, [3])],
)
def test_benchmark_nvlog_run_shorter_than_warm_up_has_lines(
    tmp_path: Path, known: int | None, run: int, iterations: list
):
    entries = bench(bench_facts(tmp_path, steps=known), run)
    assert values(entries, "iteration") == iterations
    assert len(values(entries, "Average total_ips")) == 1
    assert values(entries, "Total Steps") == ([known] if known else [])
