"""Tests of the writers of the originals' files: their content, and equal files of resumed and uninterrupted runs."""

import ast
import csv
import getpass
import logging
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.builders.original_files import (
    BEGAN,
    make_evaluation,
    make_facts,
    make_step,
    read_files,
    resume,
    simulate_run,
)
from support.builders.results import make_result, write_run
from trainstone.flows.sweep.run import write_timehistory
from trainstone.formats.iterdur import RankPlace, read_iterdur
from trainstone.formats.timehistory import read_timehistory
from trainstone.originals.mlperf.result_line import ResultLine
from trainstone.originals.mlperf_ssd.training_lines import SsdLog
from trainstone.originals.output_file import RankPlacement, RunFacts, list_events
from trainstone.originals.registry import list_writers
from trainstone.results.schema.run import Status
from trainstone.results.steps import StepRecord, StepWriter

FILES = {
    ("wmlce", "train"): {"nvlog.txt", "training.json"},
    ("wmlce", "bench"): {"nvlog.txt", "training_benchmark.json"},
    ("sc22", "train"): {"resnet_iterdur_1605627653_c301-007.txt", "all_data.csv", "aggregated_data.csv"},
    ("sc22", "bench"): {"resnet_iterdur_1605627653_c301-007.txt", "all_data.csv", "aggregated_data.csv"},
    ("tbd", "train"): {"training.log"},
    ("tbd", "bench"): {"throughput_data/batch_32.log"},
    ("mlperf", "train"): {"200620090636250000000_1.log"},
    ("mlperf", "bench"): set(),
    ("mlperf_ssd", "train"): {"training.log", "200620090636250000000_1.log"},
    ("mlperf_ssd", "bench"): set(),
}
EVENTS = "".join(
    f':::MLLOG {{"namespace": "", "time_ms": {time_ms}, "key": "{key}", "value": null}}\n'
    for key, time_ms in (
        ("submission_org", 1592644020000),
        ("init_start", 1592643996250),
        ("run_start", 1592644020500),
        ("run_stop", 1592646395100),
    )
)
FAR_AWAY = ':::MLLOG {"time_ms": 9223372036854775807, "key": "init_start", "value": null}\n'


@pytest.fixture(autouse=True)
def _fixed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("socket.gethostname", lambda: "c301-007")
    monkeypatch.setattr(getpass, "getuser", lambda: "a,b\n\x1b")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(("name", "kind"), FILES)
def test_list_writers_creates_files_of_original(tmp_path: Path, name: str, kind: str):
    (tmp_path / "mlperf.log").write_text(EVENTS)
    simulate_run(make_facts(tmp_path, name, kind=kind), 50)
    assert set(read_files(tmp_path)) == FILES[name, kind]


@pytest.mark.parametrize("name", ["wmlce", "sc22", "tbd", "mlperf_ssd"])
@pytest.mark.parametrize("status", [None, "interrupted", "ok"])
@pytest.mark.parametrize(("stopped", "first"), [(37, 31), (28, 3), (20, 20), (50, 50)])
def test_writers_resumed_run_has_files_of_uninterrupted_run(
    tmp_path: Path, name: str, status, stopped: int, first: int
):
    whole, parts = (make_facts(tmp_path / part, name, "original.every_steps=4") for part in ("whole", "parts"))
    for facts in (whole, parts):
        facts.folder.mkdir()
        (facts.folder / "mlperf.log").write_text(EVENTS)
    simulate_run(whole, 50, evaluations=(20, 50))
    simulate_run(parts, stopped, status=status, evaluations=(20, 50))
    simulate_run(resume(parts, first, (20, 50)), 50, evaluations=(20, 50))
    assert read_files(parts.folder) == read_files(whole.folder)


def test_list_events_keeps_order_of_late_scores(tmp_path: Path):
    facts = make_facts(tmp_path, "mlperf_ssd")
    simulate_run(facts, 30)
    late = make_evaluation(10).model_copy(update={"seconds": make_step(20).start_seconds - 0.001})
    events = list(list_events(replace(facts, first_step=30, history=(late,))))
    assert [event.step for event in events] == [*range(20), 10, *range(20, 30)]


@pytest.mark.parametrize("damage", [b"", b"nonsense\n1,2\n", None])
def test_writers_missing_steps_are_logged(tmp_path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture):
    facts = make_facts(tmp_path, "mlperf_ssd", "original.every_steps=1")
    if damage is not None:
        (tmp_path / "steps-rank0000.csv").write_bytes(damage)
    simulate_run(resume(facts, 15), 20, status=None)
    lines = read_files(tmp_path)["training.log"].decode().splitlines()
    assert [line.partition("Iteration ")[2][:2] for line in lines if "Iteration" in line] == [*map(str, range(16, 21))]
    assert "original/ misses 15 steps" in caplog.text


def test_writer_flushes_every_line(tmp_path: Path):
    (writer,) = list_writers(make_facts(tmp_path, "wmlce"))
    writer.step(make_step(0))
    assert "iteration: 0" in read_files(tmp_path)["nvlog.txt"].decode()
    writer.close()


ENDED = "ENDING TIMING RUN AT 2020-06-20 09:46:35 AM\nRESULT,"
IMAGES = f"{EVENTS}{ENDED}IMAGE_CLASSIFICATION,,2399,a b\\n\\x1b,2020-06-20 09:06:36 AM\n"
BOXES = f"{EVENTS}[Training] ...\n{ENDED}SINGLE_STAGE_DETECTOR,,2399,dellemc,2020-06-20 09:06:36 AM\n"


@pytest.mark.parametrize(
    ("name", "status", "content", "result"),
    [
        *(("mlperf", status, EVENTS.rstrip("\n"), IMAGES) for status in ("target_reached", "target_missed", "ok")),
        ("mlperf_ssd", "ok", EVENTS, BOXES),  # with its training lines and its organisation
        *(("mlperf", status, EVENTS, None) for status in ("interrupted", "failed")),  # unfinished runs
        *(("mlperf", "ok", text, None) for text in (None, "", "\x00\n", ':::MLLOG {"time_ms": "x"}\n', FAR_AWAY)),
    ],
)
def test_result_line_counts_seconds_from_init_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, status: Status, content: str | None, result: str | None
):
    if content is not None:
        (tmp_path / "mlperf.log").write_text(content)
    (tmp_path / "original").mkdir()
    (tmp_path / "original/training.log").write_text("[Training] ...\n")
    ResultLine(make_facts(tmp_path, name, "mlperf.org=dellemc")).finish(status)
    found = read_files(tmp_path)
    del found["training.log"]
    assert found == ({"200620090636250000000_1.log": result.encode()} if result else {})
    assert ("no RESULT line" in caplog.text) == (status == "ok" and result is None)


SSD_STEPS, SSD_STEP_SECONDS = 230, 0.22269
# From the first published run of the C4140.
PUBLISHED = [
    "[Training][Iteration 100][Epoch 1, Batch 100/230] lr: 0.00395, training time: 222.690 [ms], "
    "speed: 2299.160 [imgs/sec], loss=11.276",
    "[Training][Iteration 200][Epoch 1, Batch 200/230] lr: 0.00790, training time: 222.690 [ms], "
    "speed: 2299.160 [imgs/sec], loss=8.479",
    "[Training][Epoch 1] training time: 51.219 [sec],avg speed: 2299.160 [imgs/sec],loss=13.224",
    "[Training][Iteration 300][Epoch 2, Batch 70/230] lr: 0.01186, training time: 222.690 [ms], "
    "speed: 2299.160 [imgs/sec], loss=8.164",
]
LOSSES = {99: 11.276, 199: 8.479, 299: 8.164}


def take_step(step: int) -> StepRecord:
    """Return a step of the C4140's run; epoch 1 has a mean loss of 13.224."""
    others = (SSD_STEPS * 13.224 - 11.276 - 8.479) / (SSD_STEPS - 2)
    loss = LOSSES.get(step, others if step < SSD_STEPS else 7.0)
    times = step * SSD_STEP_SECONDS, 0.0, SSD_STEP_SECONDS
    return StepRecord(step, step // SSD_STEPS, *times, 128, loss, 0.0475 * (step + 1) / 1202)


def read_log(folder: Path) -> list[str]:
    return (folder / "original/training.log").read_text().splitlines()


def test_ssd_log_matches_published_lines_and_logs_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    facts = make_facts(tmp_path, "mlperf_ssd", global_batch=512, train_images=SSD_STEPS * 512)
    with caplog.at_level(logging.INFO), SsdLog(facts) as file:
        for step in range(300):
            file.step(take_step(step))
    assert read_log(tmp_path) == PUBLISHED
    assert [record.getMessage() for record in caplog.records] == PUBLISHED


def test_ssd_log_epoch_of_fractional_steps_counts_batches(tmp_path: Path):
    facts = make_facts(tmp_path, "mlperf_ssd", "original.every_steps=1", global_batch=300, train_images=1000)
    simulate_run(facts, 7, status=None)
    assert [line.partition("]")[2].split("]")[0] for line in read_log(tmp_path)] == [
        *("[Iteration 1", "[Iteration 2", "[Iteration 3", "[Iteration 4", "[Epoch 1"),
        *("[Iteration 5", "[Iteration 6", "[Iteration 7", "[Epoch 2"),
    ]
    batches = [line.split("Batch ")[1].split("]")[0] for line in read_log(tmp_path) if "Batch" in line]
    assert batches == ["1/4", "2/4", "3/4", "4/4", "1/4", "2/4", "3/4"]


def test_ssd_log_evaluation_has_eval_seconds(tmp_path: Path):
    lines = SsdLog(make_facts(tmp_path, "mlperf_ssd", "original.every_steps=1"))
    assert lines.render_evaluation(make_evaluation(10)) == (
        "[Validation] inference: 4000.000 [ms], speed: 128.000 [imgs/sec]\n"
    )
    assert "speed: 0.000 [imgs/sec]" in lines.render_step(make_step(0, step_seconds=0.0))


def bench(folder: Path, steps: int, *settings: str) -> Path:
    simulate_run(make_facts(folder, "tbd", *settings, kind="bench", ranks=1, steps=None), steps, images=32)
    return folder / "original/throughput_data/batch_32.log"


@pytest.mark.parametrize(("number", "every"), [(10, 10), (19, 10), (199, 10), (200, 100), (399, 100)])
def test_throughput_log_equals_timehistory_of_sweep(tmp_path: Path, number: int, every: int):
    log = [one._replace(stamp=None) for one in read_timehistory(bench(tmp_path, number))]
    assert [one.last_step for one in log] == [every * (line + 1) for line in range(number // every)]
    assert log[0].examples_per_second == 64.0
    run = write_run(tmp_path / "sweep", make_result("x"))
    (tmp_path / "steps-rank0000.csv").rename(run / "steps-rank0000.csv")
    write_timehistory(run, tmp_path / "x.log")
    assert [one._replace(stamp=None) for one in read_timehistory(tmp_path / "x.log")] == log


def test_throughput_log_every_steps_sets_interval(tmp_path: Path):
    log = read_timehistory(bench(tmp_path, 210, "original.every_steps=70"))
    assert [(one.first_step, one.last_step) for one in log] == [(0, 70), (70, 140), (140, 210)]


def test_loop_log_has_speed_loss_and_accuracy(tmp_path: Path):
    simulate_run(make_facts(tmp_path, "tbd", steps=50), 25, evaluations=(15, 20))
    lines = read_log(tmp_path)
    assert [line.partition("] ")[2] or line for line in lines[:-1]] == [
        "TimeHistory: 5.00 seconds, 2048.00 examples/second between steps 0 and 10",
        "step: 10        steps_per_second: 2.00        {'train_loss': 9.4296875}",
        "step: 15        evaluation metric: {'test_loss': 1.25, 'test_accuracy': 0.7586338141025641}",
        "TimeHistory: 5.00 seconds, 2048.00 examples/second between steps 10 and 20",
        "step: 20        steps_per_second: 2.00        {'train_loss': 9.2734375}",
        "step: 20        evaluation metric: {'test_loss': 1.25, 'test_accuracy': 0.7586338141025641}",
        "Run stats:",
    ]
    stats = ast.literal_eval(lines[-1])
    kept = ("eval_loss", "eval_acc", "train_loss", "step_timestamp_log", "train_finish_time", "avg_exp_per_second")
    assert tuple(stats) == kept
    assert stats["avg_exp_per_second"] == 2048.0
    assert stats["train_finish_time"] == BEGAN + 3 + 25 / 2 + 8
    assert stats["step_timestamp_log"][0] == f"BatchTimestamp<batch_index: 0, timestamp: {BEGAN + 3}>"
    assert [text.split(",")[0][-2:] for text in stats["step_timestamp_log"]] == [" 0", "10", "20"]
    assert len(read_timehistory(tmp_path / "original/training.log")) == 2


def test_loop_log_resume_without_step_file_keeps_step_numbers(tmp_path: Path):
    simulate_run(make_facts(tmp_path, "tbd", steps=50, first_step=25), 40, status="interrupted")
    log = read_timehistory(tmp_path / "original/training.log")
    assert [(one.first_step, one.last_step) for one in log] == [(25, 30), (30, 40)]


def test_loop_log_long_training_has_line_every_100_steps(tmp_path: Path):
    simulate_run(make_facts(tmp_path, "tbd", steps=450000), 250, status="interrupted")
    lines = read_log(tmp_path)
    assert [line.split("        ")[0] for line in lines if line.startswith("step")] == ["step: 100", "step: 200"]
    assert not [line for line in lines if "Run stats" in line]


def test_write_timehistory_without_valid_steps_writes_no_file(tmp_path: Path):
    run = write_run(tmp_path, make_result("x"))
    write_timehistory(run, tmp_path / "x.log")
    (run / "steps-rank0000.csv").write_text("nonsense\n1,2\n")
    write_timehistory(run, tmp_path / "x.log")
    assert not (tmp_path / "x.log").exists()


HERE = tuple(RankPlacement("c301-007", device) for device in range(4))
TWO_HOSTS = (
    RankPlacement("c301-007", 0),
    RankPlacement("c301-007", 1),
    RankPlacement("c302-011", 0),
    RankPlacement("c302-011", 1),
)
NAME = "original/resnet_iterdur_1605627653_c301-007.txt"
OTHER = "original/resnet_iterdur_1605627653_c302-011.txt"
HEADER = "step,epoch,start_seconds,data_seconds,step_seconds,images,loss,lr\n"


def read_table(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "original/all_data.csv").read_text().splitlines()))


def test_duration_file_has_line_per_step_and_training_time(tmp_path: Path):
    simulate_run(make_facts(tmp_path, "sc22"), 3)
    assert (tmp_path / NAME).read_text() == (
        "rank = 0, world_size = 4, device_ids = 2\n"
        "\nIteration Duration 0 2 : 0.1875\n"
        "\nIteration Duration 1 2 : 0.25\n"
        "\nIteration Duration 2 2 : 0.3125\n"
        "\nTraining time: 0:00:01.500000\n"
    )
    assert (tmp_path / "original/all_data.csv").read_text().splitlines() == [
        "exp,reps,cabinet,node,device,train_time,mean_iter_dur,med_iter_dur,max_iter_dur,min_iter_dur",
        "resnet,0,c301,7,2,1.5,0.28125,0.28125,0.3125,0.1875",
    ]
    assert (tmp_path / "original/aggregated_data.csv").read_text().splitlines()[1] == (
        "resnet,c301,7,2,0.28125,0.28125,1.5,1.5"
    )


def test_duration_file_without_phases_includes_optimizer_step(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", logger="trainstone")
    simulate_run(make_facts(tmp_path, "sc22", "engine.split_phases=false"), 3)
    assert [one.seconds for one in read_iterdur(tmp_path / NAME).durations] == [0.375] * 3
    assert len([record for record in caplog.records if "split_phases" in record.message]) == 1


@pytest.mark.parametrize(("status", "last"), [("interrupted", 3), (None, 3), ("interrupted", 0)])
def test_duration_file_unfinished_run_has_no_training_time(tmp_path: Path, status, last: int):
    simulate_run(make_facts(tmp_path, "sc22"), last, status=status)
    text = (tmp_path / NAME).read_text()
    assert (text.count("Iteration"), text.count("rank"), text.count("Training time")) == (last, 1, 0)
    table = tmp_path / "original/all_data.csv"
    assert table.exists() == bool(status and last)
    assert not table.exists() or [row["train_time"] for row in read_table(tmp_path)] == [""]


def make_ranks(folder: Path, placements: tuple[RankPlacement, ...] = HERE, **changes: Any) -> RunFacts:
    return make_facts(folder, "sc22", device=0, placements=placements, **changes)


def phases(rank: int, step: int) -> dict[str, float]:
    """Return phase times; each rank takes 0.0625 s longer than the previous one."""
    return {"forward_seconds": 0.125 * (1 + step), "backward_seconds": 0.0625 * rank}


def write_others(folder: Path, last: int, ranks: tuple[int, ...] = (1, 2, 3), first: int = 0) -> None:
    """Write the step files of the other ranks."""
    for rank in ranks:
        with closing(StepWriter(folder / f"steps-rank{rank:04d}.csv", split_phases=True)) as writer:
            for step in range(first, last):
                writer.add(make_step(step, **phases(rank, step)))


def test_duration_file_sorts_ranks_by_iteration(tmp_path: Path):
    write_others(tmp_path, 2)
    simulate_run(make_ranks(tmp_path), 2, **phases(0, 0))
    assert (tmp_path / NAME).read_text() == (
        "rank = 0, world_size = 4, device_ids = 0\n"
        "rank = 1, world_size = 4, device_ids = 1\n"
        "rank = 2, world_size = 4, device_ids = 2\n"
        "rank = 3, world_size = 4, device_ids = 3\n"
        "\nIteration Duration 0 0 : 0.125\n"
        "\nIteration Duration 0 1 : 0.1875\n"
        "\nIteration Duration 0 2 : 0.25\n"
        "\nIteration Duration 0 3 : 0.3125\n"
        "\nIteration Duration 1 0 : 0.125\n"
        "\nIteration Duration 1 1 : 0.3125\n"
        "\nIteration Duration 1 2 : 0.375\n"
        "\nIteration Duration 1 3 : 0.4375\n"
        "\nTraining time: 0:00:01\n"
    )
    rows = [list(row.values()) for row in read_table(tmp_path)]
    assert [row[2:7] for row in rows] == [
        ["c301", "7", str(device), "1.0", str(mean)] for device, mean in enumerate([0.125, 0.3125, 0.375, 0.4375])
    ]
    assert len((tmp_path / "original/aggregated_data.csv").read_text().splitlines()) == 5


def test_duration_file_writes_one_file_per_host(tmp_path: Path):
    write_others(tmp_path, 3)
    simulate_run(make_ranks(tmp_path, TWO_HOSTS), 3)
    first, second = read_iterdur(tmp_path / NAME), read_iterdur(tmp_path / OTHER)
    assert first.ranks == [RankPlace(0, 4, 0), RankPlace(1, 4, 1)]
    assert second.ranks == [RankPlace(2, 4, 0), RankPlace(3, 4, 1)]
    assert [one.seconds for one in second.durations][:2] == [0.25, 0.3125]
    assert (first.train_seconds, second.train_seconds) == (1.5, 1.5)
    rows = [list(row.values())[2:5] for row in read_table(tmp_path)]
    assert rows == [["c301", "7", "0"], ["c301", "7", "1"], ["c302", "11", "0"], ["c302", "11", "1"]]


@pytest.mark.parametrize("rows", [None, "", "0,0,0\n"])
def test_duration_file_skips_rank_with_damaged_step_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, rows: str | None
):
    write_others(tmp_path, 3, ranks=(1, 3))
    if rows is not None:
        (tmp_path / "steps-rank0002.csv").write_text(HEADER + rows)
    simulate_run(make_ranks(tmp_path), 3)
    found = read_iterdur(tmp_path / NAME)
    assert [place.rank for place in found.ranks] == [0, 1, 2, 3]
    assert {one.device for one in found.durations} == {0, 1, 3}
    assert [row["device"] for row in read_table(tmp_path)] == ["0", "1", "3"]
    assert "rank 2" in caplog.text


def test_duration_file_logs_missing_steps_of_rank(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    write_others(tmp_path, 5, ranks=(1, 2))
    write_others(tmp_path, 5, ranks=(3,), first=3)
    simulate_run(make_ranks(tmp_path), 5)
    found = read_iterdur(tmp_path / NAME).durations
    assert [one.iteration for one in found if one.device == 3] == [3, 4]
    assert "rank 3: 3 steps are missing" in caplog.text


@pytest.mark.parametrize("status", [None, "interrupted"])
def test_duration_file_resumed_run_of_several_ranks_has_same_files(tmp_path: Path, status):
    whole, parts = make_ranks(tmp_path / "whole", TWO_HOSTS), make_ranks(tmp_path / "parts", TWO_HOSTS)
    for facts in (whole, parts):
        facts.folder.mkdir()
        write_others(facts.folder, 10)
    simulate_run(whole, 10)
    simulate_run(parts, 8, status=status)
    simulate_run(resume(parts, 5), 10)
    assert read_files(parts.folder) == read_files(whole.folder)


def test_duration_file_resume_on_other_hosts_removes_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_others(tmp_path, 6)
    simulate_run(make_ranks(tmp_path, TWO_HOSTS), 4, status="interrupted")
    monkeypatch.setattr("socket.gethostname", lambda: "c302-011")
    swapped = (
        RankPlacement("c302-011", 0),
        RankPlacement("c302-011", 1),
        RankPlacement("c303-001", 0),
        RankPlacement("c303-001", 1),
    )
    simulate_run(resume(make_ranks(tmp_path, swapped), 4), 6)
    files = sorted(path.name for path in (tmp_path / "original").glob("*.txt"))
    assert files == [f"resnet_iterdur_1605627653_{host}.txt" for host in ("c302-011", "c303-001")]
    assert read_iterdur(tmp_path / OTHER).ranks == [RankPlace(0, 4, 0), RankPlace(1, 4, 1)]
