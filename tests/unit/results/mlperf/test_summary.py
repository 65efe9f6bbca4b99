"""MLPerf logs: group, score, and compare with the reference as mlperf-logging's rcp_checker does."""

import json
import random
import re
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.builders.damage import real_data
from support.builders.mlperf_logs import closed_log, make_logged, write_mlperf_run, write_mlperf_runs, write_ssd_log
from support.processes.command import ROOT
from trainstone.errors import ConfigError, DataError
from trainstone.results.mlperf import summary
from trainstone.results.mlperf.logs import LoggedEvaluation, Times, find_logs, read_logged, read_logs
from trainstone.results.tables import Table


def summarise(*paths):
    logs, empty = find_logs(list(paths))
    runs, errors = read_logs(logs)
    assert not errors
    assert not empty
    return summary.group_runs(runs)


def column(table: Table, name: str) -> list[str]:
    return [row[table.columns.index(name)] for row in table.rows]


def test_group_runs_reproduces_published_scores():
    groups = {group.name: group for group in summarise(real_data("mlperf"))}
    assert sum(len(group.runs) for group in groups.values()) == 15
    assert f"{groups['dgxa100_ngc20.06_mxnet'].score.minutes:.2f}" == "39.78"
    assert f"{groups['dgxa100_ngc20.06_pytorch'].score.minutes:.2f}" == "10.21"
    one = groups["modelarts_512_mindspore_close"]
    assert (one.score.minutes, f"{one.score.mean_minutes:.2f}") == (None, "1.59")


def test_group_runs_combines_points_of_a_run(tmp_path):
    (group,) = summarise(write_mlperf_runs(tmp_path))
    assert group.name == "8xMade-up accelerator"
    assert group.score.minutes == pytest.approx(29.0, abs=0.01)
    document = summary.build_group_document(group)
    assert [run["dropped"] for run in document["runs"]] == [False, False, False, True, True]
    assert (document["reference"]["how"], document["reference"]["passes"]) == ("recorded", True)
    assert document["reference"]["reference_epochs"] == pytest.approx(35.1538, abs=1e-4)
    assert column(summary.build_run_table(group), "log") == [f"seed {seed}" for seed in range(1, 6)]
    assert column(summary.build_run_table(group), "minutes") == ["30.00", "28.00", "29.00", "27.00", "40.00"]


def test_group_runs_separates_batch_sizes_and_submitters(tmp_path):
    write_mlperf_run(tmp_path, 1)
    write_mlperf_run(tmp_path, 2)
    write_mlperf_run(tmp_path, 3, batch=4096, epochs=40)
    other = write_mlperf_run(tmp_path, 4) / "mlperf.log"
    other.write_text(other.read_text().replace('"example"', '"else"'))
    groups = summarise(tmp_path)
    assert [len(group.runs) for group in groups] == [2, 1, 1]
    assert [group.assessment.expected.points for group in groups] == [(3264,), (3264, 32_768), (3264,)]


def test_assess_rejects_epochs_below_minimum(tmp_path):
    (group,) = summarise(write_mlperf_runs(tmp_path, epochs=34))
    assert not group.assessment.passes
    assert "34.3" in group.reference_note


def test_build_group_document_omits_unknown_values(tmp_path):
    log = write_mlperf_run(tmp_path, 1, converged=False) / "mlperf.log"
    first, middle, last = log.read_text().rpartition('"key": "eval_accuracy", "value": 0.7584')
    log.write_text(f"{first}{middle.replace('0.7584', '0.75')}{last}")
    document = summary.build_group_document(*summarise(log))
    assert not {"reference", "score_minutes", "mean_minutes"} & set(document)
    (run,) = document["runs"]
    assert (run["ended"], run["epochs"], run["seeds"], run["dropped"]) == ("aborted", 35.0, (1,), False)
    assert run["accuracy"] == 0.75
    assert 0.75 < run["best_accuracy"] < 0.759


@pytest.mark.parametrize(
    ("minutes", "seeds", "scored"), [((28,) * 5, 0, False), (range(27, 32), 0, True), (range(27, 32), 7, False)]
)
def test_make_group_gives_no_score_for_duplicate_logs_or_seeds(tmp_path, minutes, seeds, scored):
    for number, value in enumerate(minutes):
        lines = closed_log(seeds, value).splitlines(keepends=True)
        kept = [line for line in lines if seeds or '"key": "seed"' not in line]
        (tmp_path / f"result_{number}.txt").write_text("".join(kept))
    (group,) = summarise(tmp_path)
    assert (group.score.minutes is not None, group.assessment is not None) == (scored, scored)
    assert group.score.mean_minutes == pytest.approx(sum(minutes) / 5, abs=0.01)
    if not scored:
        assert "result_0.txt" in group.score.note
        assert "result_1.txt" in group.score.note


@pytest.mark.parametrize(
    ("benchmark", "minutes", "score", "dropped", "mean"),
    [
        ("resnet", [39.44, 39.42, 39.33, 40.57, 40.47], (39.44 + 39.42 + 40.47) / 3, (2, 3), 39.846),
        ("ssd", [10.0, None, 12.0, 11.0, 13.0], 12.0, (0, 1), 11.5),
        ("resnet", [1.0, None, None, 2.0, 3.0], None, (), 2.0),
        ("resnet", [1.0, 2.0, 3.0, 4.0], None, (), 2.5),
        ("resnet", [1.0] * 6, None, (), 1.0),
        ("ssd", [None], None, (), None),
        ("bert", [1.0] * 10, None, (), 1.0),
        (None, [1.0] * 5, None, (), 1.0),
    ],
)
def test_score_runs_follows_mlperf_rules(benchmark, minutes, score, dropped, mean):
    found = summary.score_runs(benchmark, minutes)
    assert (found.minutes, found.dropped, found.mean_minutes) == (pytest.approx(score), dropped, pytest.approx(mean))
    assert found.note


@pytest.mark.parametrize(("values", "mean"), [([3.0], 3.0), ([1.0, 2.0], 1.5), ([9.0, 1.0, 2.0], 2.0)])
def test_olympic_mean_of_few_values_keeps_at_least_one(values, mean):
    assert summary.olympic_mean(values) == mean


def test_name_runs_uses_file_names_seeds_or_folders():
    for paths, seeds, names in (
        (["x/result_0.txt", "x/result_1.txt"], [(), ()], ["result_0.txt", "result_1.txt"]),
        (["a/mlperf.log", "b/mlperf.log"], [(1,), (1,)], ["a", "b"]),
        (["a/mlperf.log", "b/mlperf.log"], [(1, 2), ()], ["a", "b"]),
    ):
        runs = tuple(make_logged(path, seeds=seed) for path, seed in zip(paths, seeds, strict=True))
        assert column(summary.build_run_table(summary.make_group(runs)), "log") == names


def test_build_time_table_has_columns_of_mll_status(tmp_path: Path):
    write_ssd_log(tmp_path / "mlperf.log")
    table = summary.build_time_table(summary.make_group((read_logged(tmp_path / "mlperf.log"),)))
    cells = ["8", "1024", "1584.0", "1524.0", "60.0", "30.4", "30.4", "1518.0", "3.0"]
    assert table.rows == [["seed 1", *cells, "40: 3.0 0.1841; 50: 3.0 0.2301"]]
    assert summary.build_time_table(summary.make_group((make_logged(),))) is None


def test_build_time_table_shows_status_of_run_that_missed_target():
    evaluations = tuple(LoggedEvaluation(at, None, at / 100) for at in range(1, 12))
    times = Times(converge_seconds=5.0, evaluations=evaluations)
    table = summary.build_time_table(summary.make_group((make_logged(ended="aborted", times=times),)))
    assert column(table, "converge") == ["aborted"]
    assert table.rows[0][-1].startswith("…; 4: – 0.0400; 5: – ")


KNOWN = {"4.10.0": {"unet3d"}, "0.6.0": {"resnet", "ssd"}, "0.7.0": {"resnet"}, "4.0.0": {"resnet", "unet3d"}}


@pytest.mark.parametrize(
    ("changes", "requested", "ruleset"),
    [
        ({}, None, "4.0.0"),
        ({"benchmark": "ssd"}, None, "1.0.0"),
        ({"benchmark": "unet3d"}, None, "4.10.0"),
        ({"form": "0.6", "benchmark": "ssd"}, None, "0.6.0"),
        ({"form": "0.6"}, "0.6.0", "0.6.0"),
        ({}, "0.7.0", "0.7.0"),
    ],
)
def test_choose_ruleset_returns_ruleset_with_reason(changes, requested, ruleset):
    choice = summary.choose_ruleset(make_logged(**changes), KNOWN, requested)
    assert choice.ruleset == ruleset
    assert choice.reason


@pytest.mark.parametrize(
    ("changes", "requested", "kind", "seen"),
    [
        ({}, "9.9.9", ConfigError, "9.9.9"),
        ({}, "0.6.0", DataError, "0.6.0"),
        ({"form": "0.6"}, "4.0.0", DataError, "4.0.0"),
        ({"form": "0.5"}, None, DataError, "0.5"),
        ({"form": "0.5"}, "0.6.0", DataError, "0.5"),
        ({}, "4.10.0", ConfigError, "0.6.0, 0.7.0, 4.0.0"),
        ({"benchmark": "vgg"}, "4.0.0", DataError, "vgg"),
        ({"benchmark": "a\x1bb"}, None, DataError, r"a\x1bb"),
    ],
)
def test_choose_ruleset_rejects_unsuitable_ruleset(changes, requested, kind, seen):
    with pytest.raises(kind) as err:
        summary.choose_ruleset(make_logged(**changes), KNOWN, requested)
    assert seen in err.value.message
    assert err.value.hint


def test_choose_ruleset_hints_at_ssd300_ruleset():
    known = {"1.0.0": {"ssd"}, "4.1.0": {"ssd"}, "5.0.0": {"bert"}}
    with pytest.raises(ConfigError) as err:
        summary.choose_ruleset(make_logged(benchmark="ssd"), known, "5.0.0")
    assert err.value.hint == "use --ruleset 1.0.0"


TABLE = r"\| (global batch|epochs, mean|least|\| \| \| not counted) "
RULESETS = {"resnet": "4.0.0", "ssd": "1.0.0"}


@pytest.fixture(scope="module")
def theirs() -> Any:
    """Import mlperf-logging's rcp_checker."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("mlperf_logging.rcp_checker.rcp_checker")


def counts(document: dict[str, Any]) -> dict[int, dict[int, int]]:
    return {record["BS"]: dict(Counter(record["Epochs to converge"])) for record in document.values()}


@pytest.mark.parametrize("benchmark", RULESETS)
def test_references_match_installed_mlperf_logging(theirs, benchmark):
    folder = Path(theirs.__file__).parent / f"training_{RULESETS[benchmark]}"
    document = json.loads((folder / f"rcps_{benchmark}.json").read_text())
    assert summary.REFERENCES[benchmark] == counts(document)
    assert list(summary.REFERENCES[benchmark]) == sorted(summary.REFERENCES[benchmark])


@pytest.mark.parametrize("benchmark", RULESETS)
def test_list_points_and_prune_match_rcp_checker(theirs, benchmark):
    checker = theirs.RCP_Checker("training", RULESETS[benchmark], benchmark, False)
    points = summary.list_points(benchmark)
    for point, record in zip(points, checker.rcp_data.values(), strict=True):
        assert point.batch == record["BS"]
        assert point.mean == pytest.approx(record["RCP Mean"], abs=1e-9)
        assert point.stdev == pytest.approx(record["RCP Stdev"], abs=1e-9)
        assert point.least == pytest.approx(record["Min Epochs"], abs=1e-4)  # rcp_checker searches for it numerically
    assert [point.batch for point in summary.prune(points, 5)] == [
        record["BS"] for record in checker.pruned_rcp_data.values()
    ]


def write_logs(folder: Path, benchmark: str, batch: int, epochs: list[float | None]) -> None:
    for number, value in enumerate(epochs):
        events = [
            {"key": "submission_benchmark", "value": benchmark, "metadata": {}},
            {"key": "global_batch_size", "value": batch, "metadata": {}},
            {"key": "eval_accuracy", "value": 0.76, "metadata": {"epoch_num": value or 99}},
            {"key": "run_stop", "value": None, "metadata": {"status": "aborted" if value is None else "success"}},
        ]
        (folder / f"result_{number}.txt").write_text("".join(f":::MLLOG {json.dumps(event)}\n" for event in events))


def test_assess_matches_rcp_checker(theirs, tmp_path):
    draw = random.Random(3)
    seen = set()
    for batch in (256, 1632, 2000, 3264, 4096, 8192, 30_000, 32_768, 60_000, 67_840):
        needed = summary.expect("resnet", batch)
        assert needed is not None
        for shift in (-3, -1, 0, 2):
            epochs: list[float | None] = [round(needed.mean) + shift + draw.choice((-1, 0, 0, 1)) for _ in range(5)]
            if draw.random() < 0.3:
                epochs[2] = None
            write_logs(tmp_path, "resnet", batch, epochs)
            passed, _, factor = theirs.check_directory(
                str(tmp_path), "training", "4.0.0", False, False, rcp_pass="pruned_rcps"
            )
            ours = summary.assess_convergence(needed, epochs)
            assert ours is not None
            assert ours.passes == passed, (batch, epochs)
            assert ours.factor == pytest.approx(factor)
            seen.add((passed, factor > 1))
    assert seen == {(True, False), (True, True), (False, True)}


def test_assess_returns_none_for_several_missed_runs():
    expected = summary.expect("resnet", 3264)
    assert summary.assess_convergence(expected, [35, None, None, 35, 35]) is None
    assert summary.assess_convergence(expected, [None]) is None
    assert not summary.assess_convergence(expected, [0]).passes
    assert summary.expect("resnet", 70_000) is None
    assert summary.assess_convergence(expected, [36, None, 35, 35, 36]).epochs == pytest.approx((35 + 36 + 36) / 3)


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({}, None),
        ({"train_samples": 1_281_167 - 3263}, None),  # an epoch without the last partial batch
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
def test_explain_missing_reference_names_reason(changes, seen):
    values = {"optimizer": "lars", "global_batch": 3264, "train_samples": 1_281_167, "accuracy": 0.7592}
    reason = summary.explain_missing_reference([make_logged(ended="success", stop_ms=1, **(values | changes))])
    assert reason is None if seen is None else seen in reason


def test_mlperf_docs_table_matches_reference_points():
    text = (ROOT / "docs/how-to/write-and-check-an-mlperf-log.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[2:-1]] for line in text.splitlines() if re.match(TABLE, line)]
    points = summary.list_points("resnet")
    counted = summary.prune(points, 5)
    assert rows == [
        [f"{point.batch:,}" for point in points],
        [f"{point.mean:.1f}" for point in points],
        [f"{point.least:.1f}" for point in points],
        ["" if point in counted else "not counted" for point in points],
    ]
