"""SC22's iteration durations of a run, of one rank and of many, and the tables at its end."""

import csv
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from made_original import make_facts, make_step, play, read_files, resume
from trainstone.formats.iterdur import RankPlace, read_iterdur
from trainstone.results.steps import StepWriter
from trainstone.train.original.lines import Facts, Seat

HERE = tuple(Seat("c301-007", device) for device in range(4))
TWO_HOSTS = (Seat("c301-007", 0), Seat("c301-007", 1), Seat("c302-011", 0), Seat("c302-011", 1))
NAME = "original/resnet_iterdur_1605627653_c301-007.txt"
OTHER = "original/resnet_iterdur_1605627653_c302-011.txt"
HEADER = "step,epoch,start_seconds,data_seconds,step_seconds,images,loss,lr\n"


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("socket.gethostname", lambda: "c301-007")


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


def make_ranks(folder: Path, seats: tuple[Seat, ...] = HERE, **changes: Any) -> Facts:
    return make_facts(folder, "sc22", device=0, seats=seats, **changes)


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
    swapped = (Seat("c302-011", 0), Seat("c302-011", 1), Seat("c303-001", 0), Seat("c303-001", 1))
    play(resume(make_ranks(tmp_path, swapped), 4), 6)
    files = sorted(path.name for path in (tmp_path / "original").glob("*.txt"))
    assert files == [f"resnet_iterdur_1605627653_{host}.txt" for host in ("c302-011", "c303-001")]
    assert read_iterdur(tmp_path / OTHER).ranks == [RankPlace(0, 4, 0), RankPlace(1, 4, 1)]
