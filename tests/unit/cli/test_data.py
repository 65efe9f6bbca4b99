"""The verbs of `trainstone data` in this process: exit codes and what goes where. More in tests/integration."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from small_sets import RECORDS, SHARDS, flip, locate, make_set
from trainstone.cli.main import main
from trainstone.machine import allocator


@pytest.fixture(autouse=True)
def no_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "restart_keeping_memory", lambda: None)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["trainstone", "data", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        main()
    return int(left.value.code or 0)


@pytest.mark.parametrize("storage", RECORDS)
def test_a_good_set_ends_with_0_and_a_bad_one_with_9(tmp_path: Path, monkeypatch, capsys, storage: str):
    root = make_set(tmp_path / "set", storage)
    assert run(monkeypatch, "verify", root, "-q") == 0
    assert capsys.readouterr().out.endswith(": all good\n")
    path = root / SHARDS[storage]
    spans = locate(path, storage)
    flip(path, spans[3].offset)
    assert run(monkeypatch, "verify", root, "--json", "-q") == 9
    told = json.loads(capsys.readouterr().out)
    assert (3, spans[3].offset) in {(one["record"], one["byte"]) for one in told["bad"]}
    assert run(monkeypatch, "verify", root, "-q") == 9
    command = capsys.readouterr().out.splitlines()[-1].removeprefix("next: trainstone data ")
    assert run(monkeypatch, *shlex.split(command), "-q") == 0
    assert "dropped   " in capsys.readouterr().out
    assert run(monkeypatch, "verify", tmp_path / "set-clean", "-q") == 0
    assert capsys.readouterr().out.startswith("7 records, ")


def test_an_index_that_does_not_fit_is_enough_for_9(tmp_path: Path, monkeypatch, capsys):
    root = make_set(tmp_path / "set", "recordio")
    (root / "manifest.json").unlink()
    (root / "train.idx").write_text("nonsense")
    assert run(monkeypatch, "verify", root, "-q") == 9
    assert f"{root}/train.idx: does not fit its records" in capsys.readouterr().out


def test_a_conversion_keeps_everything(tmp_path: Path, monkeypatch, capsys):
    root = make_set(tmp_path / "set", "recordio", val=2)
    assert run(monkeypatch, "convert", root, tmp_path / "made", "--format", "tfrecord", "--json", "-q") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["path"] == str(tmp_path / "made")
    assert [(split["name"], split["records"]) for split in told["manifest"]["splits"]] == [("train", 8), ("val", 2)]
    assert (told["manifest"]["storage"], told["manifest"]["first_label"]) == ("tfrecord", 1)


def test_pictures_without_boxes_are_left_out_if_asked(tmp_path: Path, monkeypatch, capsys):
    root = make_set(tmp_path / "set", "wds", "detect", 6)
    assert run(monkeypatch, "convert", root, tmp_path / "made", "--skip-empty", "--json", "-q") == 0
    assert json.loads(capsys.readouterr().out)["manifest"]["splits"][0]["records"] == 4


def test_info_as_json_has_no_pictures(tmp_path: Path, monkeypatch, capsys):
    assert run(monkeypatch, "info", make_set(tmp_path / "set", "tfrecord"), "--json", "-q") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["splits"][0]["class_counts"] == [4, 4]
    assert "samples" not in told


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (
            ["imagenet", "--from", ".", "--to", "../x", "--dataset", "folder", "--boxes", "x"],
            2,
            "are for --dataset imag",
        ),
        (["convert", "nowhere", "x"], 3, "no such file or folder: nowhere"),
        (["convert", ".", "below"], 2, "lies inside"),
        (["coco", "--to", "x"], 2, "where is COCO?"),
        (["make", "classify", "--to", "x", "--size", "5"], 2, "pixels from 16 to 4096"),
        (["verify", "x.bin"], 3, "is no file of records"),
    ],
)
def test_wrong_wishes_are_one_message(tmp_path: Path, monkeypatch, capsys, arguments: list[str], code: int, told: str):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.bin").write_bytes(b"unknown")
    assert run(monkeypatch, *arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.bin"]
