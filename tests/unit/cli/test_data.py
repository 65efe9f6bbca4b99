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


def test_a_conversion_keeps_everything(tmp_path: Path, monkeypatch, capsys):
    root = make_set(tmp_path / "set", "recordio", val=2)
    assert run(monkeypatch, "convert", root, tmp_path / "made", "--format", "tfrecord", "--json", "-q") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["path"] == str(tmp_path / "made")
    assert [(split["name"], split["records"]) for split in told["manifest"]["splits"]] == [("train", 8), ("val", 2)]
    assert (told["manifest"]["storage"], told["manifest"]["first_label"]) == ("tfrecord", 1)
