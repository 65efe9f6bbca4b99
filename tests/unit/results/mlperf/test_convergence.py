"""The reference's epochs: the shipped numbers are mlperf-logging's, and judged as its rcp_checker judges."""

import json
import random
import re
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from command import ROOT
from made_mlperf import make_logged
from trainstone.results.mlperf.convergence import (
    REFERENCES,
    assess,
    expect,
    find_reason,
    list_points,
    prune,
)

TABLE = r"\| (global batch|epochs, mean|least|\| \| \| not counted) "
RULESETS = {"resnet": "4.0.0", "ssd": "1.0.0"}


@pytest.fixture(scope="module")
def theirs() -> Any:
    """mlperf-logging's own module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("mlperf_logging.rcp_checker.rcp_checker")


def counts(document: dict[str, Any]) -> dict[int, dict[int, int]]:
    return {record["BS"]: dict(Counter(record["Epochs to converge"])) for record in document.values()}


@pytest.mark.parametrize("benchmark", RULESETS)
def test_the_shipped_numbers_are_those_of_the_installed_files(theirs, benchmark):
    folder = Path(theirs.__file__).parent / f"training_{RULESETS[benchmark]}"
    document = json.loads((folder / f"rcps_{benchmark}.json").read_text())
    assert REFERENCES[benchmark] == counts(document)
    assert list(REFERENCES[benchmark]) == sorted(REFERENCES[benchmark])


@pytest.mark.parametrize("benchmark", RULESETS)
def test_points_and_pruning_are_the_checkers(theirs, benchmark):
    checker = theirs.RCP_Checker("training", RULESETS[benchmark], benchmark, False)
    points = list_points(benchmark)
    for point, record in zip(points, checker.rcp_data.values(), strict=True):
        assert point.batch == record["BS"]
        assert point.mean == pytest.approx(record["RCP Mean"], abs=1e-9)
        assert point.stdev == pytest.approx(record["RCP Stdev"], abs=1e-9)
        assert point.least == pytest.approx(record["Min Epochs"], abs=1e-4)  # theirs is searched for
    assert [point.batch for point in prune(points, 5)] == [record["BS"] for record in checker.pruned_rcp_data.values()]


def write_logs(folder: Path, benchmark: str, batch: int, epochs: list[float | None]) -> None:
    for number, value in enumerate(epochs):
        events = [
            {"key": "submission_benchmark", "value": benchmark, "metadata": {}},
            {"key": "global_batch_size", "value": batch, "metadata": {}},
            {"key": "eval_accuracy", "value": 0.76, "metadata": {"epoch_num": value or 99}},
            {"key": "run_stop", "value": None, "metadata": {"status": "aborted" if value is None else "success"}},
        ]
        (folder / f"result_{number}.txt").write_text("".join(f":::MLLOG {json.dumps(event)}\n" for event in events))


def test_assessments_are_the_checkers(theirs, tmp_path):
    draw = random.Random(3)
    seen = set()
    for batch in (256, 1632, 2000, 3264, 4096, 8192, 30_000, 32_768, 60_000, 67_840):
        needed = expect("resnet", batch)
        assert needed is not None
        for shift in (-3, -1, 0, 2):
            epochs: list[float | None] = [round(needed.mean) + shift + draw.choice((-1, 0, 0, 1)) for _ in range(5)]
            if draw.random() < 0.3:
                epochs[2] = None
            write_logs(tmp_path, "resnet", batch, epochs)
            passed, _, factor = theirs.check_directory(
                str(tmp_path), "training", "4.0.0", False, False, rcp_pass="pruned_rcps"
            )
            ours = assess(needed, epochs)
            assert ours is not None
            assert ours.passes == passed, (batch, epochs)
            assert ours.factor == pytest.approx(factor)
            seen.add((passed, factor > 1))
    assert seen == {(True, False), (True, True), (False, True)}


def test_more_than_one_miss_is_not_assessed_and_one_of_five_is_the_slowest():
    expected = expect("resnet", 3264)
    assert assess(expected, [35, None, None, 35, 35]) is None
    assert assess(expected, [None]) is None
    assert not assess(expected, [0]).passes
    assert expect("resnet", 70_000) is None
    assert assess(expected, [36, None, 35, 35, 36]).epochs == pytest.approx((35 + 36 + 36) / 3)


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({}, None),
        ({"train_samples": 1_281_167 - 3263}, None),  # an epoch without its last batch
        ({"benchmark": "ssd", "global_batch": 912, "train_samples": 117_266}, None),
        ({"benchmark": "ssd", "global_batch": 256, "train_samples": 1_170_301}, "1,170,301"),  # RetinaNet
        ({"benchmark": "bert"}, "bert"),
        ({"benchmark": None}, "unnamed"),
        ({"global_batch": None}, "batch"),
        ({"optimizer": "adam"}, "adam"),
        ({"train_samples": 2000}, "2,000"),
        ({"train_samples": None}, "unknown"),
        ({"accuracy": 0.75}, "0.75"),
        ({"global_batch": 70_000}, "70,000"),
    ],
)
def test_where_the_reference_is_no_measure_it_says_why(changes, seen):
    values = {"optimizer": "lars", "global_batch": 3264, "train_samples": 1_281_167, "accuracy": 0.7592}
    reason = find_reason([make_logged(ended="success", stop_ms=1, **(values | changes))])
    assert reason is None if seen is None else seen in reason


def test_the_document_has_the_same_numbers():
    text = (ROOT / "docs/mlperf.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[2:-1]] for line in text.splitlines() if re.match(TABLE, line)]
    points = list_points("resnet")
    counted = prune(points, 5)
    assert rows == [
        [f"{point.batch:,}" for point in points],
        [f"{point.mean:.1f}" for point in points],
        [f"{point.least:.1f}" for point in points],
        ["" if point in counted else "not counted" for point in points],
    ]
