"""SC22's iteration durations of many ranks, made of their step files."""

from pathlib import Path
from typing import Any

import pytest

from made_original import HandClock, make_facts, make_step
from trainstone.formats.iterdur import RankPlace, read_devices, read_iterdur
from trainstone.results.steps import StepWriter
from trainstone.train.original.facts import Facts, Seat
from trainstone.train.original.iterdur import DurationFile

HERE = tuple(Seat("c301-007", device) for device in range(4))
TWO_HOSTS = (Seat("c301-007", 0), Seat("c301-007", 1), Seat("c302-011", 0), Seat("c302-011", 1))
NAME = "original/resnet_iterdur_1605627653_c301-007.txt"
OTHER = "original/resnet_iterdur_1605627653_c302-011.txt"


def phases(rank: int, step: int) -> dict[str, float]:
    """Each rank takes a sixteenth longer than the one before."""
    return {"forward_seconds": 0.125 * (1 + step), "backward_seconds": 0.0625 * rank, "optimizer_seconds": 0.0}


def write_steps(folder: Path, rank: int, last: int, first: int = 0, *, split: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"steps-rank{rank:04d}.csv"
    with StepWriter(path, split_phases=split, go_on=first > 0) as writer:
        for step in range(first, last):
            writer.add(make_step(step, **(phases(rank, step) if split else {})))


def make_ranks(folder: Path, seats: tuple[Seat, ...] = HERE, **changes: Any) -> Facts:
    return make_facts(folder, "sc22", device=0, seats=seats, **changes)


def run(facts: Facts, last: int, *, status: str | None = "ok", host: str = "c301-007") -> None:
    """What the first rank does; all step files are there."""
    log = DurationFile(facts, host=host, wall=HandClock(), now=HandClock())
    for step in range(facts.first_step, last):
        log.step(make_step(step, **phases(0, step)))
    if status:
        log.finish(status)
    log.close()


def test_all_ranks_stand_in_the_file_by_iteration_and_rank(tmp_path: Path):
    for rank in range(4):
        write_steps(tmp_path, rank, 2)
    run(make_ranks(tmp_path), 2)
    assert (tmp_path / NAME).read_text() == (
        "rank = 0, world_size = 4, device_ids = 0\n"
        "rank = 1, world_size = 4, device_ids = 1\n"
        "rank = 2, world_size = 4, device_ids = 2\n"
        "rank = 3, world_size = 4, device_ids = 3\n"
        "\nIteration Duration 0 0 : 0.125\n"
        "\nIteration Duration 0 1 : 0.1875\n"
        "\nIteration Duration 0 2 : 0.25\n"
        "\nIteration Duration 0 3 : 0.3125\n"
        "\nIteration Duration 1 0 : 0.25\n"
        "\nIteration Duration 1 1 : 0.3125\n"
        "\nIteration Duration 1 2 : 0.375\n"
        "\nIteration Duration 1 3 : 0.4375\n"
        "\nTraining time: 0:00:01\n"
    )
    rows = read_devices(tmp_path / "original/all_data.csv")
    assert [(row.cabinet, row.node, row.device, row.train_time) for row in rows] == [
        ("c301", "7", device, 1.0) for device in range(4)
    ]
    assert [row.mean_iter_dur for row in rows] == [0.25, 0.3125, 0.375, 0.4375]
    assert len((tmp_path / "original/aggregated_data.csv").read_text().splitlines()) == 5
    assert len(list((tmp_path / "original").iterdir())) == 3


def test_while_it_goes_on_the_first_rank_s_lines_are_there(tmp_path: Path):
    run(make_ranks(tmp_path), 3, status=None)
    told = read_iterdur(tmp_path / NAME)
    assert told.ranks == [RankPlace(0, 4, 0)]
    assert [(one.iteration, one.device) for one in told.durations] == [(0, 0), (1, 0), (2, 0)]


def test_each_host_has_its_file_and_its_place(tmp_path: Path):
    for rank in range(4):
        write_steps(tmp_path, rank, 3)
    run(make_ranks(tmp_path, TWO_HOSTS), 3)
    first, second = read_iterdur(tmp_path / NAME), read_iterdur(tmp_path / OTHER)
    assert first.ranks == [RankPlace(0, 4, 0), RankPlace(1, 4, 1)]
    assert second.ranks == [RankPlace(2, 4, 0), RankPlace(3, 4, 1)]
    assert [one.seconds for one in second.durations][:2] == [0.25, 0.3125]
    assert (first.train_seconds, second.train_seconds) == (1.5, 1.5)
    rows = read_devices(tmp_path / "original/all_data.csv")
    assert [(row.cabinet, row.node, row.device) for row in rows] == [
        ("c301", "7", 0),
        ("c301", "7", 1),
        ("c302", "11", 0),
        ("c302", "11", 1),
    ]


@pytest.mark.parametrize(
    "damage",
    [
        None,
        b"",
        b"rank 2 wrote nothing like it\n",
        b"step,epoch,start_seconds,data_seconds,step_seconds,images,loss,lr\n",
        b"step,epoch,start_seconds,data_seconds,step_seconds,images,loss,lr\n0,0,0,0,nan,8,1,1\n",
        b"step,epoch,start_seconds,data_seconds,step_seconds,images,loss,lr\n1,0,0,0,1,8,1,1\n0,0,0,0,1,8,1,1\n",
        b"step,epoch,start_seconds,data_seconds,step_seconds,images,loss,lr\n0.5,0,0,0,1,8,1,1\n",
        b"step,epoch,start_seconds,data_seconds,step_seconds,images,loss,lr\n1e300,0,0,0,1,8,1,1\n",
        b"step,epoch,start_seconds,data_seconds,step_seconds,images,loss,lr\n0,0,0,2,1,8,1,1\n",
    ],
)
def test_a_rank_whose_file_is_lost_or_damaged_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes | None
):
    for rank in (0, 1, 3):
        write_steps(tmp_path, rank, 3)
    if damage is not None:
        (tmp_path / "steps-rank0002.csv").write_bytes(damage)
    run(make_ranks(tmp_path), 3)
    told = read_iterdur(tmp_path / NAME)
    assert [place.rank for place in told.ranks] == [0, 1, 2, 3]
    assert {one.device for one in told.durations} == {0, 1, 3}
    assert [row.device for row in read_devices(tmp_path / "original/all_data.csv")] == [0, 1, 3]
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said.endswith("iteration durations of rank 2 are left out")


def test_a_rank_that_lost_its_first_steps_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    for rank in (0, 1, 2):
        write_steps(tmp_path, rank, 5)
    (tmp_path / "steps-rank0003.csv").write_text(
        "".join((tmp_path / "steps-rank0000.csv").read_text().splitlines(keepends=True)[n] for n in (0, 4, 5))
    )
    run(make_ranks(tmp_path), 5)
    told = read_iterdur(tmp_path / NAME).durations
    assert [one.iteration for one in told if one.device == 3] == [3, 4]
    assert "iteration durations of rank 3: its step file lacks 3 steps" in caplog.text


def test_without_phases_the_update_is_in_it(tmp_path: Path):
    for rank in range(4):
        write_steps(tmp_path, rank, 2, split=False)
    run(make_ranks(tmp_path), 2)
    assert {one.seconds for one in read_iterdur(tmp_path / NAME).durations} == {0.375}


@pytest.mark.parametrize("status", [None, "interrupted"])
@pytest.mark.parametrize("seats", [HERE, TWO_HOSTS])
def test_a_resumed_run_ends_with_the_same_lines(tmp_path: Path, status: str | None, seats: tuple[Seat, ...]):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for rank in range(4):
        write_steps(whole, rank, 10)
        write_steps(parts, rank, 8)
    run(make_ranks(whole, seats), 10)
    run(make_ranks(parts, seats), 8, status=status)
    for rank in range(4):  # what the recorder does: cut at the checkpoint, gone on with
        write_steps(parts, rank, 10)
    run(make_ranks(parts, seats, first_step=5), 10)
    names = sorted(path.name for path in (whole / "original").iterdir())
    assert sorted(path.name for path in (parts / "original").iterdir()) == names
    for name in (name for name in names if name.endswith(".txt")):
        one, other = read_iterdur(whole / "original" / name), read_iterdur(parts / "original" / name)
        assert other._replace(train_seconds=None) == one._replace(train_seconds=None)


def test_a_run_resumed_on_swapped_hosts_has_no_file_of_old_places(tmp_path: Path):
    for rank in range(4):
        write_steps(tmp_path, rank, 6)
    run(make_ranks(tmp_path, TWO_HOSTS), 4, status="interrupted")
    swapped = (Seat("c302-011", 0), Seat("c302-011", 1), Seat("c303-001", 0), Seat("c303-001", 1))
    run(make_ranks(tmp_path, swapped, first_step=4), 6, host="c302-011")
    files = sorted(path.name for path in (tmp_path / "original").glob("*.txt"))
    assert files == [f"resnet_iterdur_1605627653_{host}.txt" for host in ("c302-011", "c303-001")]
    assert read_iterdur(tmp_path / OTHER).ranks == [RankPlace(0, 4, 0), RankPlace(1, 4, 1)]


def test_a_start_that_had_no_step_left_has_the_time_of_the_step_file(tmp_path: Path):
    for rank in range(4):
        write_steps(tmp_path, rank, 5)
    run(make_ranks(tmp_path), 5, status="interrupted")
    assert read_iterdur(tmp_path / NAME).train_seconds is None
    run(make_ranks(tmp_path, first_step=5), 5)
    assert read_iterdur(tmp_path / NAME).train_seconds == 5.5
    before = (tmp_path / NAME).read_bytes()
    run(make_ranks(tmp_path, first_step=5), 5)
    assert (tmp_path / NAME).read_bytes() == before


def test_ranks_without_a_step_have_no_table(tmp_path: Path):
    for rank in range(4):
        write_steps(tmp_path, rank, 0)
    run(make_ranks(tmp_path), 0, status="interrupted")
    assert [path.name for path in (tmp_path / "original").iterdir()] == [Path(NAME).name]
