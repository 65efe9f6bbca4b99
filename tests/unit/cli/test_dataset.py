"""What `trainstone data` prints: sets that were made, what was found bad, what a set is; names are never obeyed."""

from pathlib import Path

import pytest

from hostile import EVIL, EVIL_NAME, hidden
from small_sets import CLASSES, Listed, to_detect
from trainstone.cli.data import SHOWN_BAD, print_findings, tell_dataset, tell_made
from trainstone.data import manifest
from trainstone.data.info import summarise
from trainstone.data.manifest import Manifest, ShardFacts, SplitFacts
from trainstone.data.sample import DataSet, Sample, Split
from trainstone.data.verify import Bad, Findings
from trainstone.formats.files import Span


def print_made(
    monkeypatch: pytest.MonkeyPatch, target: Path, storage="recordio", repaired=(), skipped=(), *, worked: bool = True
) -> None:
    shard = ShardFacts(
        file="train.rec", bytes=2048, crc32c="00000000", records=1200, repaired=tuple(repaired), skipped=tuple(skipped)
    )
    made = Manifest(
        dataset="x",
        kind="classify",
        storage=storage,
        first_label=0,
        classes=(("a", ""),),
        treatment={},
        plan="p",
        splits=(SplitFacts(name="train", records=1200, bytes=2048, shards=(shard,)),),
    )
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
