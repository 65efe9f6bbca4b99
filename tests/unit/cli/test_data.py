"""Test the `data` and `weights` verbs in this process: exit codes and output. See also tests/integration."""

import hashlib
import json
import os
import pickle
import shlex
import sys
from pathlib import Path

import pytest
import torch

from support.builders.damage import Call
from support.builders.data_sets import (
    CLASSES,
    RECORDS,
    SHARDS,
    ListSource,
    flip_byte,
    list_spans,
    make_detect_samples,
    make_set,
)
from support.builders.hostile_text import HOSTILE, HOSTILE_NAME, hidden
from support.servers.web import Site, serve
from trainstone.cli.data import (
    SHOWN_BAD,
    check_target_outside,
    parse_shards,
    parse_size,
    print_dataset,
    print_findings,
    print_prepared,
)
from trainstone.cli.main import main
from trainstone.data import manifest
from trainstone.data.info import summarise_data_set
from trainstone.data.manifest import Manifest, ShardEntry, SplitEntry
from trainstone.data.sample import DataSet, Sample, Split
from trainstone.data.verify import BadSample, VerifyFindings
from trainstone.errors import ConfigError
from trainstone.formats.files import ByteSpan
from trainstone.models.resnet import build_resnet


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["trainstone", *map(str, arguments)])
    with pytest.raises(SystemExit) as exited:
        main()
    return int(exited.value.code or 0)


def test_data_verify_refuses_an_empty_record_file(tmp_path: Path, monkeypatch, capsys):
    path = tmp_path / "empty.tfrecord"
    path.touch()
    assert run(monkeypatch, "data", "verify", path, "-q") == 3
    assert f"no records in {path}" in capsys.readouterr().err


@pytest.mark.parametrize("storage", RECORDS)
def test_data_verify_exits_with_0_for_good_and_9_for_bad_data(tmp_path: Path, monkeypatch, capsys, storage: str):
    root = make_set(tmp_path / "set", storage)
    assert run(monkeypatch, "data", "verify", root, "-q") == 0
    assert capsys.readouterr().out.endswith(": all good\n")
    path = root / SHARDS[storage]
    spans = list_spans(path, storage)
    flip_byte(path, spans[3].offset)
    assert run(monkeypatch, "data", "verify", root, "--json", "-q") == 9
    document = json.loads(capsys.readouterr().out)
    assert (3, spans[3].offset) in {(bad["record"], bad["byte"]) for bad in document["bad"]}
    assert run(monkeypatch, "data", "verify", root, "-q") == 9
    command = capsys.readouterr().out.splitlines()[-1].removeprefix("next: trainstone data ")
    assert run(monkeypatch, "data", *shlex.split(command), "-q") == 0
    assert "dropped   " in capsys.readouterr().out
    assert run(monkeypatch, "data", "verify", tmp_path / "set-clean", "-q") == 0
    assert capsys.readouterr().out.startswith("7 records, ")


def test_data_convert_keeps_all_records(tmp_path: Path, monkeypatch, capsys):
    root = make_set(tmp_path / "set", "recordio", val=2)
    assert run(monkeypatch, "data", "convert", root, tmp_path / "made", "--format", "tfrecord", "--json", "-q") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["path"] == str(tmp_path / "made")
    assert [(split["name"], split["records"]) for split in document["manifest"]["splits"]] == [("train", 8), ("val", 2)]
    assert (document["manifest"]["storage"], document["manifest"]["first_label"]) == ("tfrecord", 1)


def test_parse_shards_accepts_one_or_two_numbers_only():
    shards = {None: {}, "16": {"train": 16}, "1024,128": {"train": 1024, "val": 128}, "99999": {"train": 99999}}
    shards[" 2 , 1 "] = {"train": 2, "val": 1}
    assert {text: parse_shards(text, "wds") for text in shards} == shards
    for text in ("", "0", "-1", "1,2,3", "x", "1.5", "100000", ",", "1,", "²"):
        with pytest.raises(ConfigError, match="expected one number, or two for training and validation") as caught:
            parse_shards(text, "wds")
        assert caught.value.hint == "--shards 1024,128"


def test_parse_size_accepts_one_or_two_sides_only():
    assert [parse_size(text) for text in ("96", "300x200", "16X4096")] == [(96, 96), (300, 200), (16, 4096)]
    for text in ("", "15", "4097", "1x2x3", "300x", "x", "-300", "3e2"):
        with pytest.raises(ConfigError, match="from 16 to 4096 pixels"):
            parse_size(text)


@pytest.mark.parametrize("target", ["source", "source/below", "source/a/b", "link/x"])
def test_check_target_outside_rejects_target_inside_source(tmp_path: Path, target: str):
    (tmp_path / "source").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "source")
    with pytest.raises(ConfigError, match="is inside"):
        check_target_outside(tmp_path / "source", tmp_path / target)


def test_print_prepared_prints_on_rank_0_only(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    make_set(tmp_path / "set", "wds")
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "1")
    print_prepared(tmp_path / "set", as_json=False, worked=True)
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("RANK", "0")
    print_prepared(tmp_path, as_json=False, worked=True)
    assert capsys.readouterr().out.startswith("rank 0 of 3 is done")
    print_prepared(tmp_path / "set", as_json=False, worked=True)
    assert "8 train" in capsys.readouterr().out


def print_made(
    monkeypatch: pytest.MonkeyPatch, target: Path, storage="recordio", repaired=(), skipped=(), *, worked: bool = True
) -> None:
    shard = ShardEntry(
        file="train.rec", bytes=2048, crc32c="00000000", records=1200, repaired=tuple(repaired), skipped=tuple(skipped)
    )
    splits = (SplitEntry(name="train", records=1200, bytes=2048, shards=(shard,)),)
    facts = {"dataset": "x", "kind": "classify", "storage": storage, "first_label": 0, "treatment": {}, "plan": "p"}
    made = Manifest(**facts, classes=(("a", ""),), splits=splits)
    monkeypatch.setattr(manifest, "read_manifest", lambda _: made)
    print_prepared(target, as_json=False, worked=worked)


def test_print_prepared_shows_path_size_and_next_command(capsys, monkeypatch: pytest.MonkeyPatch):
    print_made(monkeypatch, Path("set"))
    assert capsys.readouterr().out.splitlines() == [
        "data set  set",
        "          recordio: 1,200 train; 1 class, 1 file, 2 KiB",
        "next      trainstone data verify set",
    ]


def test_print_prepared_lists_repaired_and_dropped_images(capsys, monkeypatch: pytest.MonkeyPatch):
    skipped = [(f"{n}.jpg", "no image") for n in range(SHOWN_BAD + 7)]
    repaired = [("a", "CMYK"), ("b", "CMYK"), ("c", "PNG")]
    print_made(monkeypatch, Path("set"), "folder", repaired, skipped, worked=False)
    lines = capsys.readouterr().out.splitlines()
    assert "file" not in lines[1]
    assert lines[2] == "          it was already complete; nothing was written"
    assert lines[3:6] == ["repaired  2 images: CMYK", "repaired  1 image: PNG", "dropped   0.jpg: no image"]
    assert lines[-2] == "          and 7 more; manifest.json lists all"


BAD = [
    BadSample("set/x.rec", 3, ByteSpan(70, 9), "a/1.jpg", "truncated"),
    BadSample("set/y.jpg", None, ByteSpan(0, 0), "y.jpg", "empty"),
]


@pytest.mark.parametrize(
    ("findings", "lines"),
    [
        (VerifyFindings(2, 1024), ["2 records, 1 KiB: all good"]),
        (
            VerifyFindings(2, 1024, BAD),
            [
                "set/x.rec, record 3 at byte 70 (a/1.jpg): truncated",
                "set/y.jpg: empty",
                "2 records, 1 KiB: 2 bad",
                "next: trainstone data convert 'a set' 'a set-clean' --format wds --on-bad skip",
            ],
        ),
        (
            VerifyFindings(2, 1024, [], [Path("set/x.idx")]),
            [
                "set/x.idx: does not match its records",
                "2 records, 1 KiB: all good",
                "next: trainstone data convert 'a set' 'a set-clean' --format wds --on-bad skip",
            ],
        ),
        (
            VerifyFindings(
                2, 1024, [BadSample("set/x.tar", None, ByteSpan(0, 0), "", "CRC-32C 1; manifest.json says 2")]
            ),
            [
                "set/x.tar: CRC-32C 1; manifest.json says 2",
                "2 records, 1 KiB: 1 bad",
                "the bad record is unknown: prepare the data set, or copy its files, again",
            ],
        ),
    ],
)
def test_print_findings_lists_bad_records_and_next_command(capsys, findings: VerifyFindings, lines: list[str]):
    print_findings(Path("a set"), "WebDataset", findings, as_json=False)
    assert capsys.readouterr().out.splitlines() == lines


def test_data_verbs_escape_hostile_names(capsys, monkeypatch: pytest.MonkeyPatch):
    evil = Path(HOSTILE_NAME)
    print_made(monkeypatch, evil, "wds", [("a", HOSTILE)], [(HOSTILE, HOSTILE)])
    findings = VerifyFindings(1, 1, [BadSample(HOSTILE, 0, ByteSpan(0, 1), HOSTILE, HOSTILE)], [evil])
    print_findings(evil, HOSTILE, findings, as_json=False)
    out = capsys.readouterr().out
    assert not hidden(out)
    assert "\\x1b[31m" in out


def test_print_dataset_shows_boxes_and_bad_images(capsys):
    samples = [*make_detect_samples(5), Sample("bad.jpg", b"none")]
    found = DataSet("detect", "COCO", CLASSES, [Split("train", ListSource(samples))])
    print_dataset(summarise_data_set(found, "set"), Path("set.html"))
    out = capsys.readouterr().out
    assert "set: images for detection, COCO" in out
    assert "boxes" in out
    assert "per image" in out
    assert "1 in the sample; to find all: trainstone data verify set" in out
    assert "bad: listed 5: not an image" in out
    assert "page  set.html" in out


@pytest.fixture
def source(tmp_path: Path) -> Path:
    torch.save(build_resnet(34, num_classes=5, width=16).state_dict(), tmp_path / "a.pth")
    return tmp_path / "a.pth"


def test_weights_convert_prints_written_and_skipped_tensors_or_json(source: Path, monkeypatch, capsys):
    target = source.with_name("b.pickle")
    assert run(monkeypatch, "weights", "convert", source, target, "-q") == 0
    out, err = capsys.readouterr()
    assert err == ""
    first, second = out.splitlines()
    every = {name: tensor.numel() for name, tensor in build_resnet(34, num_classes=5, width=16).named_parameters()}
    parameters = sum(number for name, number in every.items() if not name.startswith(("layer4.", "fc.")))
    size = target.stat().st_size / 2**20
    assert first == (
        f"wrote ResNet-34 up to layer3 of {source} to {target}: 145 tensors, {parameters:,} parameters, {size:.3g} MiB"
    )
    assert second.startswith("skipped 73 tensors: bn1.num_batches_tracked, ")
    target = source.with_name("b.safetensors")
    assert run(monkeypatch, "weights", "convert", source, target, "--json", "-q") == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {
        "file": str(target),
        "source": str(source),
        "network": "ResNet-34",
        "format": "safetensors",
        "tensors": 218,
        "parameters": sum(every.values()),
        "bytes": target.stat().st_size,
        "skipped": [],
    }


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.pickle", pickle.dumps({"a": Call(os.system, "true")}), "system; it was not opened"),
        ("a.pth", b"some text", "unknown format of"),
        ("a.pth", b"PK\x03\x04abc", "is truncated, damaged"),
    ],
)
def test_weights_convert_with_bad_source_prints_one_error(
    tmp_path: Path, monkeypatch, capsys, name: str, content: bytes, expected: str
):
    (tmp_path / name).write_bytes(content)
    assert run(monkeypatch, "weights", "convert", tmp_path / name, tmp_path / "b.safetensors", "-q") == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert expected in err
    assert err.count("error: ") == 1
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_weights_convert_with_invalid_arguments_exits_with_2(source: Path, monkeypatch, capsys):
    assert run(monkeypatch, "weights", "convert", source, source.with_name("b.params")) == 2
    assert "unknown suffix of" in capsys.readouterr().err
    assert run(monkeypatch, "weights", "convert", source, source) == 2
    assert "existing files are not overwritten" in capsys.readouterr().err
    assert run(monkeypatch, "weights", "convert", source, source.with_name("b.pth"), "--sha256", "0" * 64) == 2
    assert "--sha256 needs a URL" in capsys.readouterr().err


def test_weights_convert_downloads_verifies_and_keeps_source(source: Path, tmp_path: Path, monkeypatch, capsys):
    data = source.read_bytes()
    name = f"resnet34-{hashlib.sha256(data).hexdigest()[:8]}.pth"
    site = Site()
    site.files = {f"models/{name}": data}
    target = tmp_path / "new" / "b.pickle"
    monkeypatch.setenv("no_proxy", "*")
    with serve(site) as mirror:
        address = f"{mirror}/models/{name}"
        assert run(monkeypatch, "weights", "convert", address, target, "--json", "-q") == 0
        document = json.loads(capsys.readouterr().out)
        assert document["source"] == str(tmp_path / "new" / name)
        assert sorted(path.name for path in target.parent.iterdir()) == ["b.pickle", name]
        assert run(monkeypatch, "weights", "convert", address, target.with_suffix(".safetensors"), "-q") == 0
        assert len(site.requested) == 1  # the second conversion reuses the file
        # Rejected before the download starts
        assert run(monkeypatch, "weights", "convert", address, tmp_path / name, "-q") == 2
        assert "DST is also the path of the downloaded file" in capsys.readouterr().err
        assert run(monkeypatch, "weights", "convert", address, target, "-q") == 2
        site.files[f"models/{name}"] = data[::-1]
        assert run(monkeypatch, "weights", "convert", address, tmp_path / "c.pth", "-q") == 3
        assert "sha256" in capsys.readouterr().err
    assert not (tmp_path / "c.pth").exists()
    assert pickle.loads(target.read_bytes())["conv0_weight"].shape == (16, 3, 7, 7)
