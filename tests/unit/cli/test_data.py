"""The verbs of `trainstone data` in this process: exit codes, what is printed. More in tests/integration."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from hostile import EVIL, EVIL_NAME, hidden
from small_sets import CLASSES, RECORDS, SHARDS, Listed, flip, locate, make_set, to_detect
from trainstone.cli.data import (
    SHOWN_BAD,
    parse_shards,
    parse_size,
    print_findings,
    refuse_inside,
    tell_dataset,
    tell_made,
)
from trainstone.cli.main import main
from trainstone.data import manifest
from trainstone.data.info import summarise
from trainstone.data.manifest import Manifest, ShardFacts, SplitFacts
from trainstone.data.sample import DataSet, Sample, Split
from trainstone.data.verify import Bad, Findings
from trainstone.errors import ConfigError
from trainstone.formats.files import Span


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


def test_numbers_of_files():
    shards = {None: {}, "16": {"train": 16}, "1024,128": {"train": 1024, "val": 128}, "99999": {"train": 99999}}
    shards[" 2 , 1 "] = {"train": 2, "val": 1}
    assert {text: parse_shards(text, "wds") for text in shards} == shards
    for text in ("", "0", "-1", "1,2,3", "x", "1.5", "100000", ",", "1,", "²"):
        with pytest.raises(ConfigError, match="a number, or two for training and validation") as caught:
            parse_shards(text, "wds")
        assert caught.value.hint == "--shards 1024,128"


def test_sizes():
    assert [parse_size(text) for text in ("96", "300x200", "16X4096")] == [(96, 96), (300, 200), (16, 4096)]
    for text in ("", "15", "4097", "1x2x3", "300x", "x", "-300", "3e2"):
        with pytest.raises(ConfigError, match="pixels from 16 to 4096"):
            parse_size(text)


@pytest.mark.parametrize("target", ["source", "source/below", "source/a/b", "link/x"])
def test_a_target_inside_the_source_is_refused(tmp_path: Path, target: str):
    (tmp_path / "source").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "source")
    with pytest.raises(ConfigError, match="lies inside"):
        refuse_inside(tmp_path / "source", tmp_path / target)


def test_only_the_first_rank_tells(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    make_set(tmp_path / "set", "wds")
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "1")
    tell_made(tmp_path / "set", as_json=False, worked=True)
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("RANK", "0")
    tell_made(tmp_path, as_json=False, worked=True)
    assert capsys.readouterr().out.startswith("rank 0 of 3 has done its part")
    tell_made(tmp_path / "set", as_json=False, worked=True)
    assert "8 train" in capsys.readouterr().out


def print_made(
    monkeypatch: pytest.MonkeyPatch, target: Path, storage="recordio", repaired=(), skipped=(), *, worked: bool = True
) -> None:
    shard = ShardFacts(
        file="train.rec", bytes=2048, crc32c="00000000", records=1200, repaired=tuple(repaired), skipped=tuple(skipped)
    )
    splits = (SplitFacts(name="train", records=1200, bytes=2048, shards=(shard,)),)
    facts = {"dataset": "x", "kind": "classify", "storage": storage, "first_label": 0, "treatment": {}, "plan": "p"}
    made = Manifest(**facts, classes=(("a", ""),), splits=splits)
    monkeypatch.setattr(manifest, "read_manifest", lambda _: made)
    tell_made(target, as_json=False, worked=worked)


def test_a_set_that_was_made(capsys, monkeypatch: pytest.MonkeyPatch):
    print_made(monkeypatch, Path("set"))
    assert capsys.readouterr().out.splitlines() == [
        "data set  set",
        "          recordio: 1,200 train; 1 class, 1 file, 2 KiB",
        "next      trainstone data verify set",
    ]


def test_what_was_mended_and_left_out_is_told(capsys, monkeypatch: pytest.MonkeyPatch):
    skipped = [(f"{n}.jpg", "no picture") for n in range(SHOWN_BAD + 7)]
    repaired = [("a", "CMYK"), ("b", "CMYK"), ("c", "PNG")]
    print_made(monkeypatch, Path("set"), "folder", repaired, skipped, worked=False)
    lines = capsys.readouterr().out.splitlines()
    assert "file" not in lines[1]
    assert lines[2] == "          it was whole already; nothing was written"
    assert lines[3:6] == ["repaired  2 pictures: CMYK", "repaired  1 picture: PNG", "dropped   0.jpg: no picture"]
    assert lines[-2] == "          and 7 more: manifest.json names them"


BAD = [Bad("set/x.rec", 3, Span(70, 9), "a/1.jpg", "truncated"), Bad("set/y.jpg", None, Span(0, 0), "y.jpg", "empty")]


@pytest.mark.parametrize(
    ("findings", "lines"),
    [
        (Findings(2, 1024), ["2 records, 1 KiB: all good"]),
        (
            Findings(2, 1024, BAD),
            [
                "set/x.rec, record 3 at byte 70 (a/1.jpg): truncated",
                "set/y.jpg: empty",
                "2 records, 1 KiB: 2 bad",
                "next: trainstone data convert 'a set' 'a set-clean' --format wds --on-bad skip",
            ],
        ),
        (
            Findings(2, 1024, [], [Path("set/x.idx")]),
            [
                "set/x.idx: does not fit its records",
                "2 records, 1 KiB: all good",
                "next: trainstone data convert 'a set' 'a set-clean' --format wds --on-bad skip",
            ],
        ),
        (
            Findings(2, 1024, [Bad("set/x.tar", None, Span(0, 0), "", "CRC-32C 1; manifest.json says 2")]),
            [
                "set/x.tar: CRC-32C 1; manifest.json says 2",
                "2 records, 1 KiB: 1 bad",
                "no record can be blamed: make the set, or copy its files, again",
            ],
        ),
    ],
)
def test_findings(capsys, findings: Findings, lines: list[str]):
    print_findings(Path("a set"), "WebDataset", findings, as_json=False)
    assert capsys.readouterr().out.splitlines() == lines


def test_names_are_not_obeyed(capsys, monkeypatch: pytest.MonkeyPatch):
    evil = Path(EVIL_NAME)
    print_made(monkeypatch, evil, "wds", [("a", EVIL)], [(EVIL, EVIL)])
    findings = Findings(1, 1, [Bad(EVIL, 0, Span(0, 1), EVIL, EVIL)], [evil])
    print_findings(evil, EVIL, findings, as_json=False)
    out = capsys.readouterr().out
    assert not hidden(out)
    assert "\\x1b[31m" in out


def test_a_set_with_boxes_and_bad_pictures(capsys):
    samples = [*to_detect(5), Sample("bad.jpg", b"none")]
    found = DataSet("detect", "COCO", CLASSES, [Split("train", Listed(samples))])
    tell_dataset(summarise(found, "set"), Path("set.html"))
    out = capsys.readouterr().out
    assert "set: pictures to detect objects in, COCO" in out
    assert "boxes" in out
    assert "a picture" in out
    assert "1 seen; trainstone data verify set finds all" in out
    assert "bad: listed 5: not a picture" in out
    assert "page  set.html" in out
