"""Which files a recipe's original has and what is in them, and that a resumed run's are an unbroken one's."""

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

from support.builders.original_files import BEGAN, make_evaluation, make_facts, make_step, play, read_files, resume
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
def test_each_original_has_its_files(tmp_path: Path, name: str, kind: str):
    (tmp_path / "mlperf.log").write_text(EVENTS)
    play(make_facts(tmp_path, name, kind=kind), 50)
    assert set(read_files(tmp_path)) == FILES[name, kind]


@pytest.mark.parametrize("name", ["wmlce", "sc22", "tbd", "mlperf_ssd"])
@pytest.mark.parametrize("status", [None, "interrupted", "ok"])
@pytest.mark.parametrize(("stopped", "first"), [(37, 31), (28, 3), (20, 20), (50, 50)])
def test_a_resumed_run_has_the_files_of_an_unbroken_one(tmp_path: Path, name: str, status, stopped: int, first: int):
    whole, parts = (make_facts(tmp_path / part, name, "original.every_steps=4") for part in ("whole", "parts"))
    for facts in (whole, parts):
        facts.folder.mkdir()
        (facts.folder / "mlperf.log").write_text(EVENTS)
    play(whole, 50, evaluations=(20, 50))
    play(parts, stopped, status=status, evaluations=(20, 50))
    play(resume(parts, first, (20, 50)), 50, evaluations=(20, 50))
    assert read_files(parts.folder) == read_files(whole.folder)


def test_scores_that_came_later_come_later_again(tmp_path: Path):
    facts = make_facts(tmp_path, "mlperf_ssd")
    play(facts, 30)
    late = make_evaluation(10).model_copy(update={"seconds": make_step(20).start_seconds - 0.001})
    events = list(list_events(replace(facts, first_step=30, history=(late,))))
    assert [event.step for event in events] == [*range(20), 10, *range(20, 30)]


@pytest.mark.parametrize("damage", [b"", b"nonsense\n1,2\n", None])
def test_steps_that_are_lost_are_told(tmp_path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture):
    facts = make_facts(tmp_path, "mlperf_ssd", "original.every_steps=1")
    if damage is not None:
        (tmp_path / "steps-rank0000.csv").write_bytes(damage)
    play(resume(facts, 15), 20, status=None)
    lines = read_files(tmp_path)["training.log"].decode().splitlines()
    assert [line.partition("Iteration ")[2][:2] for line in lines if "Iteration" in line] == [*map(str, range(16, 21))]
    assert "original/ lacks 15 steps" in caplog.text


def test_lines_are_on_disk_at_once(tmp_path: Path):
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
        ("mlperf_ssd", "ok", EVENTS, BOXES),  # its lines are in it, and its organisation
        *(("mlperf", status, EVENTS, None) for status in ("interrupted", "failed")),  # it did not come to its end
        *(("mlperf", "ok", text, None) for text in (None, "", "\x00\n", ':::MLLOG {"time_ms": "x"}\n', FAR_AWAY)),
    ],
)
def test_all_events_then_the_seconds_since_the_program_s_start(
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
# As the first published run of the C4140 printed it.
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
    """A step as of the C4140; epoch 1 has a mean loss of 13.224."""
    others = (SSD_STEPS * 13.224 - 11.276 - 8.479) / (SSD_STEPS - 2)
    loss = LOSSES.get(step, others if step < SSD_STEPS else 7.0)
    times = step * SSD_STEP_SECONDS, 0.0, SSD_STEP_SECONDS
    return StepRecord(step, step // SSD_STEPS, *times, 128, loss, 0.0475 * (step + 1) / 1202)


def read_log(folder: Path) -> list[str]:
    return (folder / "original/training.log").read_text().splitlines()


def test_lines_are_the_published_ones_and_in_the_log_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    facts = make_facts(tmp_path, "mlperf_ssd", global_batch=512, train_images=SSD_STEPS * 512)
    with caplog.at_level(logging.INFO), SsdLog(facts) as file:
        for step in range(300):
            file.step(take_step(step))
    assert read_log(tmp_path) == PUBLISHED
    assert [record.getMessage() for record in caplog.records] == PUBLISHED


def test_epochs_of_no_whole_number_of_steps(tmp_path: Path):
    facts = make_facts(tmp_path, "mlperf_ssd", "original.every_steps=1", global_batch=300, train_images=1000)
    play(facts, 7, status=None)
    assert [line.partition("]")[2].split("]")[0] for line in read_log(tmp_path)] == [
        *("[Iteration 1", "[Iteration 2", "[Iteration 3", "[Iteration 4", "[Epoch 1"),
        *("[Iteration 5", "[Iteration 6", "[Iteration 7", "[Epoch 2"),
    ]
    batches = [line.split("Batch ")[1].split("]")[0] for line in read_log(tmp_path) if "Batch" in line]
    assert batches == ["1/4", "2/4", "3/4", "4/4", "1/4", "2/4", "3/4"]


def test_an_evaluation_has_the_time_that_is_known(tmp_path: Path):
    lines = SsdLog(make_facts(tmp_path, "mlperf_ssd", "original.every_steps=1"))
    assert lines.render_evaluation(make_evaluation(10)) == (
        "[Validation] inference: 4000.000 [ms], speed: 128.000 [imgs/sec]\n"
    )
    assert "speed: 0.000 [imgs/sec]" in lines.render_step(make_step(0, step_seconds=0.0))


def bench(folder: Path, steps: int, *settings: str) -> Path:
    play(make_facts(folder, "tbd", *settings, kind="bench", ranks=1, steps=None), steps, images=32)
    return folder / "original/throughput_data/batch_32.log"


@pytest.mark.parametrize(("number", "every"), [(10, 10), (19, 10), (199, 10), (200, 100), (399, 100)])
def test_a_bench_writes_what_a_sweep_makes_of_its_steps(tmp_path: Path, number: int, every: int):
    log = [one._replace(stamp=None) for one in read_timehistory(bench(tmp_path, number))]
    assert [one.last_step for one in log] == [every * (line + 1) for line in range(number // every)]
    assert log[0].examples_per_second == 64.0
    run = write_run(tmp_path / "sweep", make_result("x"))
    (tmp_path / "steps-rank0000.csv").rename(run / "steps-rank0000.csv")
    write_timehistory(run, tmp_path / "x.log")
    assert [one._replace(stamp=None) for one in read_timehistory(tmp_path / "x.log")] == log


def test_steps_between_lines_may_be_chosen(tmp_path: Path):
    log = read_timehistory(bench(tmp_path, 210, "original.every_steps=70"))
    assert [(one.first_step, one.last_step) for one in log] == [(0, 70), (70, 140), (140, 210)]


def test_a_training_tells_speed_loss_and_accuracy(tmp_path: Path):
    play(make_facts(tmp_path, "tbd", steps=50), 25, evaluations=(15, 20))
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


def test_resumed_training_without_its_step_file_keeps_the_numbers_of_steps(tmp_path: Path):
    play(make_facts(tmp_path, "tbd", steps=50, first_step=25), 40, status="interrupted")
    log = read_timehistory(tmp_path / "original/training.log")
    assert [(one.first_step, one.last_step) for one in log] == [(25, 30), (30, 40)]


def test_a_long_training_has_a_line_every_hundred_steps(tmp_path: Path):
    play(make_facts(tmp_path, "tbd", steps=450000), 250, status="interrupted")
    lines = read_log(tmp_path)
    assert [line.split("        ")[0] for line in lines if line.startswith("step")] == ["step: 100", "step: 200"]
    assert not [line for line in lines if "Run stats" in line]


def test_a_sweep_s_run_without_steps_or_with_damaged_ones_gives_no_file(tmp_path: Path):
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


def test_a_line_for_each_step_and_the_time_at_the_end(tmp_path: Path):
    play(make_facts(tmp_path, "sc22"), 3)
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


def test_without_phases_the_update_is_in_it_and_that_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", logger="trainstone")
    play(make_facts(tmp_path, "sc22", "engine.split_phases=false"), 3)
    assert [one.seconds for one in read_iterdur(tmp_path / NAME).durations] == [0.375] * 3
    assert len([record for record in caplog.records if "split_phases" in record.message]) == 1


@pytest.mark.parametrize(("status", "last"), [("interrupted", 3), (None, 3), ("interrupted", 0)])
def test_a_run_that_did_not_end_has_no_time(tmp_path: Path, status, last: int):
    play(make_facts(tmp_path, "sc22"), last, status=status)
    text = (tmp_path / NAME).read_text()
    assert (text.count("Iteration"), text.count("rank"), text.count("Training time")) == (last, 1, 0)
    table = tmp_path / "original/all_data.csv"
    assert table.exists() == bool(status and last)
    assert not table.exists() or [row["train_time"] for row in read_table(tmp_path)] == [""]


def make_ranks(folder: Path, placements: tuple[RankPlacement, ...] = HERE, **changes: Any) -> RunFacts:
    return make_facts(folder, "sc22", device=0, placements=placements, **changes)


def phases(rank: int, step: int) -> dict[str, float]:
    """Each rank takes a sixteenth longer than the one before."""
    return {"forward_seconds": 0.125 * (1 + step), "backward_seconds": 0.0625 * rank}


def write_others(folder: Path, last: int, ranks: tuple[int, ...] = (1, 2, 3), first: int = 0) -> None:
    """The step files of the other ranks."""
    for rank in ranks:
        with closing(StepWriter(folder / f"steps-rank{rank:04d}.csv", split_phases=True)) as writer:
            for step in range(first, last):
                writer.add(make_step(step, **phases(rank, step)))


def test_all_ranks_stand_in_the_file_by_iteration_and_rank(tmp_path: Path):
    write_others(tmp_path, 2)
    play(make_ranks(tmp_path), 2, **phases(0, 0))
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


def test_each_host_has_its_file_and_its_place(tmp_path: Path):
    write_others(tmp_path, 3)
    play(make_ranks(tmp_path, TWO_HOSTS), 3)
    first, second = read_iterdur(tmp_path / NAME), read_iterdur(tmp_path / OTHER)
    assert first.ranks == [RankPlace(0, 4, 0), RankPlace(1, 4, 1)]
    assert second.ranks == [RankPlace(2, 4, 0), RankPlace(3, 4, 1)]
    assert [one.seconds for one in second.durations][:2] == [0.25, 0.3125]
    assert (first.train_seconds, second.train_seconds) == (1.5, 1.5)
    rows = [list(row.values())[2:5] for row in read_table(tmp_path)]
    assert rows == [["c301", "7", "0"], ["c301", "7", "1"], ["c302", "11", "0"], ["c302", "11", "1"]]


@pytest.mark.parametrize("rows", [None, "", "0,0,0\n"])
def test_a_rank_whose_file_is_lost_or_damaged_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, rows: str | None
):
    write_others(tmp_path, 3, ranks=(1, 3))
    if rows is not None:
        (tmp_path / "steps-rank0002.csv").write_text(HEADER + rows)
    play(make_ranks(tmp_path), 3)
    found = read_iterdur(tmp_path / NAME)
    assert [place.rank for place in found.ranks] == [0, 1, 2, 3]
    assert {one.device for one in found.durations} == {0, 1, 3}
    assert [row["device"] for row in read_table(tmp_path)] == ["0", "1", "3"]
    assert "rank 2" in caplog.text


def test_a_rank_that_lost_its_first_steps_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    write_others(tmp_path, 5, ranks=(1, 2))
    write_others(tmp_path, 5, ranks=(3,), first=3)
    play(make_ranks(tmp_path), 5)
    found = read_iterdur(tmp_path / NAME).durations
    assert [one.iteration for one in found if one.device == 3] == [3, 4]
    assert "rank 3: 3 steps are lost" in caplog.text


@pytest.mark.parametrize("status", [None, "interrupted"])
def test_a_resumed_run_of_many_ranks_ends_with_the_same_files(tmp_path: Path, status):
    whole, parts = make_ranks(tmp_path / "whole", TWO_HOSTS), make_ranks(tmp_path / "parts", TWO_HOSTS)
    for facts in (whole, parts):
        facts.folder.mkdir()
        write_others(facts.folder, 10)
    play(whole, 10)
    play(parts, 8, status=status)
    play(resume(parts, 5), 10)
    assert read_files(parts.folder) == read_files(whole.folder)


def test_a_run_resumed_on_other_hosts_has_no_file_of_old_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_others(tmp_path, 6)
    play(make_ranks(tmp_path, TWO_HOSTS), 4, status="interrupted")
    monkeypatch.setattr("socket.gethostname", lambda: "c302-011")
    swapped = (
        RankPlacement("c302-011", 0),
        RankPlacement("c302-011", 1),
        RankPlacement("c303-001", 0),
        RankPlacement("c303-001", 1),
    )
    play(resume(make_ranks(tmp_path, swapped), 4), 6)
    files = sorted(path.name for path in (tmp_path / "original").glob("*.txt"))
    assert files == [f"resnet_iterdur_1605627653_{host}.txt" for host in ("c302-011", "c303-001")]
    assert read_iterdur(tmp_path / OTHER).ranks == [RankPlace(0, 4, 0), RankPlace(1, 4, 1)]
