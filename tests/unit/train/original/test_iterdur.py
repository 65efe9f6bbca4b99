"""SC22's iteration durations of a run, and the tables at its end."""

from pathlib import Path

import pytest

from made_original import HandClock, make_evaluation, make_facts, make_step
from trainstone.formats.iterdur import DeviceRow, RankPlace, read_devices, read_iterdur
from trainstone.train.original.facts import Facts
from trainstone.train.original.iterdur import DurationFile

NAME = "original/resnet_iterdur_1605627653_c301-007.txt"


def run(facts: Facts, last: int, *, status: str | None = "ok", split: bool = True, host: str = "c301-007") -> None:
    log = DurationFile(facts, host=host, wall=HandClock(), now=HandClock())
    for step in range(facts.first_step, last):
        phases = {"forward_seconds": 0.125, "backward_seconds": 0.0625 * (1 + step)} if split else {}
        log.step(make_step(step, **phases))
    if status:
        log.finish(status)
    log.close()


def test_a_line_for_each_step_and_the_time_at_the_end(tmp_path: Path):
    run(make_facts(tmp_path, "sc22"), 3)
    assert (tmp_path / NAME).read_text() == (
        "rank = 0, world_size = 4, device_ids = 2\n"
        "\nIteration Duration 0 2 : 0.1875\n"
        "\nIteration Duration 1 2 : 0.25\n"
        "\nIteration Duration 2 2 : 0.3125\n"
        "\nTraining time: 0:00:01.500000\n"
    )
    assert read_devices(tmp_path / "original/all_data.csv") == [
        DeviceRow("resnet", 0, "c301", "7", 2, 1.5, 0.28125, 0.28125, 0.3125, 0.1875)
    ]
    assert (tmp_path / "original/aggregated_data.csv").read_text().splitlines()[1] == (
        "resnet,c301,7,2,0.28125,0.28125,1.5,1.5"
    )


def test_without_phases_the_update_is_in_it_and_that_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", logger="trainstone")
    run(make_facts(tmp_path, "sc22"), 3, split=False)
    assert [one.seconds for one in read_iterdur(tmp_path / NAME).durations] == [0.375] * 3
    assert len([record for record in caplog.records if "split_phases" in record.message]) == 1


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_a_run_that_did_not_end_has_no_time(tmp_path: Path, status: str):
    run(make_facts(tmp_path, "sc22"), 3, status=status)
    assert read_iterdur(tmp_path / NAME).train_seconds is None
    assert read_devices(tmp_path / "original/all_data.csv")[0].train_time is None


def test_a_run_without_a_step_has_no_table(tmp_path: Path):
    run(make_facts(tmp_path, "sc22"), 0, status="interrupted")
    assert read_ranks(tmp_path / NAME) == [RankPlace(0, 4, 2)]
    assert not (tmp_path / "original/all_data.csv").exists()


def read_ranks(path: Path) -> list[RankPlace]:
    return [RankPlace(0, 4, 2)] if path.read_text() == "rank = 0, world_size = 4, device_ids = 2\n" else []


@pytest.mark.parametrize("status", [None, "interrupted"])
@pytest.mark.parametrize("first", [1, 5, 8])
def test_a_resumed_run_goes_on_in_the_same_file(tmp_path: Path, status: str | None, first: int):
    run(make_facts(tmp_path / "whole", "sc22"), 10)
    run(make_facts(tmp_path / "parts", "sc22"), 8, status=status)
    run(make_facts(tmp_path / "parts", "sc22", first_step=first), 10, host="other")
    (file,) = (tmp_path / "parts/original").glob("*.txt")
    whole, parts = read_iterdur(tmp_path / "whole" / NAME), read_iterdur(file)
    assert parts._replace(train_seconds=None) == whole._replace(train_seconds=None)
    # Its clock counts from when training began
    assert parts.train_seconds == 8.0
    assert file.read_text().count("\n") == (tmp_path / "whole" / NAME).read_text().count("\n")


def test_a_run_resumed_at_its_end_changes_nothing(tmp_path: Path):
    run(make_facts(tmp_path, "sc22"), 5)
    before = (tmp_path / NAME).read_bytes()
    run(make_facts(tmp_path, "sc22", first_step=5), 5)
    assert (tmp_path / NAME).read_bytes() == before


def test_where_only_the_evaluation_was_left_the_time_ends_before_it(tmp_path: Path):
    run(make_facts(tmp_path, "sc22"), 5, status="interrupted")
    log = DurationFile(make_facts(tmp_path, "sc22", first_step=5), host="c301-007", wall=HandClock(), now=HandClock())
    log.evaluation(make_evaluation(5))
    log.finish("ok")
    log.close()
    assert read_iterdur(tmp_path / NAME).train_seconds == 95.0


def test_host_names_make_no_folders(tmp_path: Path):
    run(make_facts(tmp_path, "sc22"), 1, host="../a b/\x1b[31m")
    (file,) = (tmp_path / "original").glob("*.txt")
    assert file.name == "resnet_iterdur_1605627653_..-a-b-31m.txt"
    assert "\x1b" not in (tmp_path / "original/all_data.csv").read_text()
