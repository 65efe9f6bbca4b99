from pathlib import Path

import pytest

from trainstone.errors import ResultError
from trainstone.results.steps import COLUMNS, StepRecord, StepWriter, read_steps

RECORDS = [
    StepRecord(0, 0, 0.0, 0.001, 1.25, 4, 6.9077, 0.01),
    StepRecord(1, 0, 1.25, 0.002, 0.41234567, 4, float("nan"), 0.01),
]


def write(path: Path, records=RECORDS, *, split: bool = False) -> None:
    with StepWriter(path, split_phases=split) as writer:
        for record in records:
            writer.add(record)


def test_header_is_the_contract(tmp_path: Path):
    write(tmp_path / "s.csv")
    header = (tmp_path / "s.csv").read_text().splitlines()[0]
    assert header == "step,epoch,start_seconds,data_seconds,step_seconds,images,loss,lr"
    assert ",".join(COLUMNS) == header


def test_what_is_written_is_read(tmp_path: Path):
    write(tmp_path / "s.csv")
    first, second = read_steps(tmp_path / "s.csv")
    assert first == RECORDS[0]
    assert second[:6] == RECORDS[1][:6]
    assert second.loss != second.loss  # a NaN stays one


def test_phases_have_columns_on_demand(tmp_path: Path):
    record = StepRecord(0, 0, 0.0, 0.0, 1.0, 4, 1.0, 0.1, 0.3, 0.6, 0.1)
    write(tmp_path / "s.csv", [record], split=True)
    assert read_steps(tmp_path / "s.csv") == [record]


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_torn_last_line_is_dropped(tmp_path: Path, cut: int):
    path = tmp_path / "s.csv"
    write(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert [record.step for record in read_steps(path)] == [0]


def test_flushed_at_least_once_a_second(tmp_path: Path):
    now = [0.0]
    path = tmp_path / "s.csv"
    with StepWriter(path, split_phases=False, now=lambda: now[0]) as writer:
        writer.add(RECORDS[0])
        assert len(path.read_text().splitlines()) == 1
        now[0] = 1.0
        writer.add(RECORDS[1])
        assert len(path.read_text().splitlines()) == 3


def test_other_files_are_refused(tmp_path: Path):
    path = tmp_path / "s.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ResultError, match="not a step file"):
        read_steps(path)
    path.write_text(",".join(COLUMNS) + "\n1,2,x,4,5,6,7,8\n")
    with pytest.raises(ResultError, match="line 2"):
        read_steps(path)
    with pytest.raises(ResultError, match="cannot read"):
        read_steps(tmp_path / "absent.csv")
