from contextlib import closing
from pathlib import Path

import pytest

from trainstone.errors import ResultError
from trainstone.results.steps import COLUMNS, StepRecord, StepWriter, cut_steps, read_blocks, read_columns, set_aside

RECORDS = [
    StepRecord(0, 0, 0.0, 0.001, 1.25, 4, 6.9077, 0.01),
    StepRecord(1, 0, 1.25, 0.002, 0.41234567, 4, float("nan"), 0.01),
]


def write(path: Path, records=RECORDS, *, split: bool = False) -> None:
    with closing(StepWriter(path, split_phases=split)) as writer:
        for record in records:
            writer.add(record)


def test_what_is_written_is_read(tmp_path: Path):
    write(tmp_path / "s.csv")
    header = (tmp_path / "s.csv").read_text().splitlines()[0]
    assert header == ",".join(COLUMNS) == "step,epoch,start_seconds,data_seconds,step_seconds,images,loss,lr"
    columns = read_columns(tmp_path / "s.csv")
    assert tuple(columns) == COLUMNS
    first, second = zip(*columns.values(), strict=True)
    assert first == RECORDS[0][:8]
    assert second[:6] == RECORDS[1][:6]
    assert second[6] != second[6]  # a NaN stays one


def test_a_torn_last_line_is_dropped(tmp_path: Path):
    path = tmp_path / "s.csv"
    write(path)
    whole = path.read_bytes()
    header, first = (place + 1 for place, byte in enumerate(whole[:-1]) if byte == ord("\n"))
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        columns = read_columns(path)
        assert columns == {} if length < first else columns["step"].tolist() == [0]
    assert header < first


def test_blocks_hold_every_step_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "s.csv"
    write(path, [StepRecord(n, 0, n * 0.5, 0.0, 0.5, 4, 1.0, 0.1) for n in range(200)])
    monkeypatch.setattr("trainstone.results.steps.BLOCK_BYTES", 100)
    blocks = list(read_blocks(path, ["step", "forward_seconds"]))
    assert len(blocks) > 10
    assert [list(block) for block in blocks] == [["step"]] * len(blocks)
    assert [step for block in blocks for step in block["step"]] == list(range(200))


def test_flushed_at_least_once_a_second(tmp_path: Path):
    now = [0.0]
    path = tmp_path / "s.csv"
    with closing(StepWriter(path, split_phases=False, now=lambda: now[0])) as writer:
        writer.add(RECORDS[0])
        assert len(path.read_text().splitlines()) == 1
        now[0] = 1.0
        writer.add(RECORDS[1])
        assert len(path.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a,b\n1,2\n", "not a step file"),
        *((f"{bad}\n1,0,0,0,1,4,1,1\n", "not step records from line 2") for bad in ("1,2,3", "", "1,2,3,4,5,6,7,é")),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, match: str):
    path = tmp_path / "s.csv"
    begin = "" if text.startswith("a") else f"{','.join(COLUMNS)}\n0,0,0,0,1,4,1,1\n"
    path.write_text(begin + text)
    with pytest.raises(ResultError, match=match):
        read_columns(path)
    with pytest.raises(ResultError, match="cannot read"):
        read_columns(tmp_path / "absent.csv")


@pytest.mark.parametrize(("begin", "first", "kept"), [(0, 3, 3), (4, 6, 2), (4, 4, 0), (4, 3, None), (0, 9, None)])
def test_steps_before_one_are_kept_where_they_are_all_there(tmp_path: Path, begin: int, first: int, kept: int | None):
    path = tmp_path / "s.csv"
    write(path, [StepRecord(n, 0, n * 0.5, 0.0, 0.5, 4, 1.0, 0.1) for n in range(begin, begin + 5)])
    whole = path.read_bytes()
    columns = cut_steps(path, first, split_phases=False)
    if kept is None:
        assert columns is None
        assert path.read_bytes() == whole
    else:
        assert columns is not None
        assert columns["step"].tolist() == list(range(begin, begin + kept))
        assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[: kept + 1])


def test_what_cannot_be_gone_on_with(tmp_path: Path):
    path = tmp_path / "s.csv"
    set_aside(path)  # there is none
    path.write_text(",".join(COLUMNS) + "\nnan,0,0,0,1,4,1,1\n")
    assert cut_steps(path, 1, split_phases=False) is None
    set_aside(path)
    assert [one.name for one in tmp_path.iterdir()] == ["s.csv.before-1"]
