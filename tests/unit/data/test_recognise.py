"""Whatever lies at a path is recognised, or refused with a hint; the part that training or validation asks for."""

import gzip
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from support.builders.archives import make_instances, make_tar, write_files
from support.builders.archives import make_set as make_coco
from support.builders.damage import real_data
from support.builders.data_sets import (
    BOXES,
    JPEGS,
    RECORDS,
    SHARDS,
    STORAGES,
    Listed,
    flip,
    make_png,
    make_set,
    to_classify,
    to_detect,
)
from trainstone.data.recognise import HINT, keep_boxed, name_split, open_dataset
from trainstone.data.sample import Box, DataSet, ImageSource, Sample
from trainstone.data.splits import open_split
from trainstone.data.storage.records import RecordSource
from trainstone.data.storage.tfrecord import TFRecordShard
from trainstone.errors import DataError
from trainstone.formats.tfrecord import bytes_feature, encode_example, float_feature, frame, int64_feature

SHOWN = {"recordio": "RecordIO", "tfrecord": "TFRecord", "wds": "WebDataset", "folder": "class folders"}
SLIM = {"image/encoded": bytes_feature(JPEGS[0])}


def read_all(found: DataSet, split: int = 0) -> list[Sample]:
    source = found.splits[split].source
    return [source.read(number) for number in range(len(source))]


def names(found: DataSet) -> list[str]:
    return [known.name for known in found.classes]


def sizes(found: DataSet) -> dict[str, int]:
    return {split.name: len(split.source) for split in found.splits}


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("described", [True, False])
def test_every_storage_is_opened_with_and_without_its_manifest(tmp_path: Path, storage: str, described: bool):
    found = open_dataset(make_set(tmp_path / "set", storage, val=3, described=described))
    assert (found.kind, found.storage, found.name) == ("classify", SHOWN[storage], "made-up" if described else "")
    assert (names(found), sizes(found)) == (["a", "b"], {"train": 8, "val": 3})
    assert found.first_label == (1 if storage == "tfrecord" else None)
    assert sorted(read_all(found), key=lambda s: s.name) == sorted(to_classify(8), key=lambda s: s.name)
    if storage in RECORDS:
        single = open_dataset(tmp_path / "set" / SHARDS[storage])
        assert (sizes(single), single.storage, single.classes) == ({"train": 8}, SHOWN[storage], found.classes)
    found = open_dataset(make_set(tmp_path / "boxed", storage, "detect", 6, val=3, described=described))
    assert (found.kind, found.storage) == ("detect", SHOWN[storage] if storage != "folder" else "COCO")
    assert names(found) == (["a", "b"] if described or storage in ("tfrecord", "folder") else ["0", "1"])
    assert read_all(found) == to_detect(6)


def test_class_folders_and_images(tmp_path: Path):
    write_files(tmp_path / "plain", {"cat/1.jpg": JPEGS[0], "dog/2.png": make_png()})
    found = open_dataset(tmp_path / "plain")
    assert (found.storage, names(found), sizes(found)) == ("class folders", ["cat", "dog"], {"train": 2})
    write_files(tmp_path / "split", {"train/cat/1.jpg": JPEGS[0], "val/cat/2.jpg": JPEGS[1]})
    assert sizes(open_dataset(tmp_path / "split")) == {"train": 1, "val": 1}
    write_files(tmp_path / "flat", {"1.jpg": JPEGS[0], "2.png": make_png(), "notes.txt": b"", ".hidden.jpg": b""})
    flat = open_dataset(tmp_path / "flat")
    assert (flat.storage, sizes(flat), flat.classes) == ("images", {"flat": 2}, ())
    assert [sample.name for sample in read_all(flat)] == ["1.jpg", "2.png"]
    one = open_dataset(tmp_path / "flat/1.jpg")
    assert (one.storage, read_all(one)) == ("an image", [Sample("1.jpg", JPEGS[0])])


def test_name_split_reads_the_split_from_a_file_name():
    names = {
        "train": "train.rec train_3.rec train-00000-of-01024 flowers_train_00000-of-00005.tfrecord "
        "train.0_of_4.tfrecord train-000012.tar train2017.rec Training.rec 000000.tar",
        "val": "val.rec validation-00127-of-00128 flowers_validation_00001-of-00005.tfrecord val.1_of_2.tfrecords "
        "imagenet-valid-000001.tar",
        "test": "test-3.tar",
        "cats": "cats.rec cats-000001.tar",
        "trainer": "trainer.rec",
    }
    for split, files in names.items():
        assert {name_split(Path("folder/train") / name) for name in files.split()} == {split}


def test_what_cannot_be_opened_is_refused_with_a_hint(tmp_path: Path):
    packed = gzip.compress(make_tar({"x.jpg": JPEGS[0] * 3}))
    write_files(tmp_path, {"x.bin": b"unknown", "empty/.keep": b"", "short.tar": b"\0", "named/train.rec": b"unknown"})
    write_files(tmp_path, {"x.tar": packed, "x.tfrecord": packed, "x.tfrecord.gz": packed})
    for name in ("mixed", "unfinished"):
        make_set(tmp_path / name, "recordio", described=False)
    (make_set(tmp_path / "w", "wds") / SHARDS["wds"]).rename(tmp_path / "mixed/val.tar")
    (tmp_path / "unfinished/.trainstone").mkdir()
    refused = {
        "x.bin": ("is no file of records", HINT),
        "short.tar": ("is no file of records", HINT),
        "empty": ("holds no data set", HINT),
        "nowhere": ("no such file or folder", None),
        "named": (r"train\.rec is named like a file of records, but is none", None),
        "mixed": ("mixes RecordIO and WebDataset", "give one file, or one kind"),
        "unfinished": ("is unfinished", "give the command"),
        "x.tar": ("byte 0", "gzip -d"),
        "x.tfrecord": ("compressed with gzip", ""),
        "x.tfrecord.gz": ("is no file of records", "gunzip"),
    }
    for name, (message, hint) in refused.items():
        with pytest.raises(DataError, match=message) as caught:
            open_dataset(tmp_path / name)
        assert str(tmp_path / name) in caught.value.message
        assert caught.value.hint == hint or hint in (caught.value.hint or "")


def write_slim(path: Path, labels: list[int]) -> None:
    path.write_bytes(
        b"".join(frame(encode_example({**SLIM, "image/class/label": int64_feature(label)})) for label in labels)
    )


def test_names_of_tf_slims_labels_file(tmp_path: Path):
    write_slim(tmp_path / "flowers_train_00000-of-00001.tfrecord", [0, 2, 1])
    (tmp_path / "flowers_labels.txt").write_text("0:daisy\n1:dandelion\nno line\nx:y\n7:more\n2: roses \n")
    found = open_dataset(tmp_path)
    assert names(found) == ["daisy", "dandelion", "roses"]
    assert found.first_label == 0
    assert [sample.label for sample in read_all(found)] == [0, 2, 1]
    (tmp_path / "other_labels.txt").write_text("0:daisy\n")  # which of the two is right?
    assert names(open_dataset(tmp_path)) == ["0", "1", "2"]


def test_a_label_that_is_no_class_number_is_refused(tmp_path: Path):
    write_slim(tmp_path / "x.tfrecord", [0, 10**12])
    with pytest.raises(DataError, match=r"x\.tfrecord, record 1 at byte \d+: label 1000000000000 is no class number"):
        open_dataset(tmp_path)


def test_a_manifest_tells_the_first_label(tmp_path: Path):
    for first_label in (0, 1):
        found = open_dataset(make_set(tmp_path / f"{first_label}", "tfrecord", first_label=first_label))
        assert found.first_label == first_label
        assert [sample.label for sample in read_all(found)] == [0, 1] * 4


def test_a_set_with_a_file_of_another_length_is_refused_but_can_be_checked(tmp_path: Path):
    root = make_set(tmp_path / "set", "recordio")
    with (root / "train.rec").open("ab") as file:
        file.write(b"more")
    with pytest.raises(DataError, match=r"train\.rec has \d+ bytes; manifest\.json says \d+"):
        open_dataset(root)
    for found in (open_dataset(root, classes=False), open_dataset(root, damaged=True)):
        assert [split.name for split in found.splits] == ["train"]
    (root / "manifest.json").unlink()
    with pytest.raises(DataError, match="byte"):
        open_dataset(root)
    assert open_dataset(root, classes=False).classes == ()
    assert sizes(open_dataset(root, damaged=True)) == {"train": 9}  # the damaged place is one


def test_real_sets_are_recognised():
    flowers = open_dataset(real_data("records/tfrecord"))
    assert (flowers.storage, sizes(flowers), flowers.first_label) == ("TFRecord", {"val": 70}, 0)
    assert names(flowers) == ["daisy", "dandelion", "roses", "sunflowers", "tulips"]
    dali = open_dataset(real_data("records/recordio/dali_extra"))
    assert (dali.storage, sizes(dali)) == ("RecordIO", {"train": 47})
    tiny = open_dataset(real_data("classification/tiny-imagenet-20"))
    assert (tiny.name, len(tiny.classes)) == ("tiny-imagenet", 20)
    coco = open_dataset(real_data("detection/coco-free"))
    assert (coco.kind, coco.storage) == ("detect", "COCO")


def test_a_damaged_first_record_does_not_keep_a_set_shut(tmp_path: Path):
    root = make_set(tmp_path / "set", "tfrecord", "detect", described=False)
    flip(next(root.glob("*.tfrecord")), 12)  # the first byte of the first message
    found = open_dataset(root)
    assert (found.kind, found.first_label) == ("detect", 1)
    with pytest.raises(DataError, match="byte 0"):
        found.splits[0].source.read(0)


@pytest.mark.parametrize("storage", STORAGES)
def test_the_folder_above_a_set_is_told_from_one(tmp_path: Path, storage: str):
    make_set(tmp_path / "above/one", storage, described=storage == "folder")
    with pytest.raises(DataError, match=r"holds one in .*above/one"):
        open_dataset(tmp_path / "above")


def test_splits_are_opened_by_name_and_the_only_one_whatever_its_name(tmp_path: Path, caplog):
    both = make_set(tmp_path / "both", "recordio", count=6, val=4)
    for name, count, first in (("train", 6, 0), ("val", 4, 6)):
        opened = open_split(both, name)
        assert (opened.name, len(opened.source)) == (name, count)
        assert opened.source.read(0).image == to_classify(1, first)[0].image
        assert (opened.dataset.kind, len(opened.dataset.classes)) == ("classify", 2)
    opened = open_split(make_set(tmp_path / "set", "recordio", count=6), "val")
    assert (opened.name, len(opened.source)) == ("train", 6)
    assert "has one split, train: took it for val" in caplog.text


@pytest.mark.parametrize("storage", STORAGES)
def test_images_without_a_box_are_left_out(tmp_path: Path, storage: str, caplog: pytest.LogCaptureFixture):
    root = make_set(tmp_path / "set", storage, "detect", count=7)
    every = open_split(root, "train").source
    with caplog.at_level(logging.INFO):
        boxed = open_split(root, "train", skip_empty=True).source
    assert [len(every.read(n).boxes) for n in range(len(every))] == [0, 1, 2, 0, 1, 2, 0]
    assert [boxed.read(n).name for n in range(len(boxed))] == [f"{n:04d}.jpg" for n in (1, 2, 4, 5)]
    assert [boxed.read(n).id for n in range(len(boxed))] == [101, 102, 104, 105]
    assert every.fingerprint() != boxed.fingerprint()
    assert "3 images without a box are left out" in caplog.text


def test_what_a_set_does_not_have_is_an_error_with_a_hint(tmp_path: Path):
    both = make_set(tmp_path / "both", "recordio", count=6, val=4)
    empty = make_set(tmp_path / "set", "wds", "detect", [replace(sample, boxes=()) for sample in to_detect(3)])
    for root, split, skip_empty, message, hint in (
        (both, "test", False, "has no split test; there: train, val", "trainstone data info"),
        (empty, "train", True, "none of 3 images has a box", "data.skip_empty=false"),
        (both, "train", True, "is no set of boxes", "this recipe detects"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            open_split(root, split, skip_empty=skip_empty)
        assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(("name", "lacking", "other"), [("train", "train2017", "val"), ("val", "val2017", "train")])
def test_no_other_split_is_taken_for_one_of_coco_whose_images_lack(
    tmp_path: Path, name: str, lacking: str, other: str, caplog: pytest.LogCaptureFixture
):
    root = make_coco(tmp_path / "c", train2017=make_instances(5), val2017=make_instances(3))
    shutil.rmtree(root / lacking)
    reason = f"annotations/instances_{lacking}.json is there, {lacking}/ is not"
    for requested in (name, lacking):
        with pytest.raises(DataError) as message:
            open_split(root, requested)
        assert message.value.message == f"{root} has no images of split {requested}: {reason}"
        assert "put the images into that folder" in str(message.value.hint)
    assert "took it for" not in caplog.text
    caplog.clear()
    assert open_split(root, other).name == other
    assert [record.message for record in caplog.records] == [f"{root}: {reason}: its images are left out"]
    assert open_split(root, "test").name == other  # of test nothing is there: as with any other set


def test_images_have_neither_label_nor_boxes_and_what_cannot_be_read_is_named(tmp_path: Path):
    write_files(tmp_path, {"a.jpg": JPEGS[0], "b ü.jpg": JPEGS[1], "empty.jpg": b""})
    images = ImageSource([tmp_path / name for name in ("a.jpg", "b ü.jpg", "empty.jpg", "gone.jpg")])
    assert len(images) == 4
    assert images.read(1) == Sample("b ü.jpg", JPEGS[1])
    assert images.name(3) == "gone.jpg"
    assert images.where(0) == str(tmp_path / "a.jpg")
    for number, message in ((2, r"empty\.jpg is empty"), (3, rf"cannot read {tmp_path}/gone\.jpg: No such file")):
        with pytest.raises(DataError, match=message):
            images.read(number)


def test_of_any_source_those_with_a_box_and_those_that_cannot_be_read():
    samples = [Sample("empty", b""), None, Sample("box", b"", boxes=BOXES)]
    outside = Sample("outside", b"", boxes=(Box(0, 1.0, 0.0, 1.5, 1.0),))
    kept = keep_boxed(Listed([*samples, outside]))
    assert [kept.where(number) for number in range(len(kept))] == ["listed 1", "listed 2"]


def test_a_record_whose_boxes_cannot_be_read_stays(tmp_path: Path):
    path = tmp_path / "a.tfrecord"
    edges = ((), (0.1, 0.2, 0.3), (0.1, 0.2, 0.3, 0.4))
    features = [{"image/encoded": bytes_feature(JPEGS[0]), "image/object/bbox": float_feature(*four)} for four in edges]
    path.write_bytes(b"".join(frame(encode_example(one)) for one in features))
    kept = keep_boxed(RecordSource([path], TFRecordShard))
    assert len(kept) == 2
    with pytest.raises(DataError, match="3 numbers, no multiple of 4"):
        kept.read(0)
    assert kept.read(1).boxes == (Box(0, 0.1, 0.2, 0.3, 0.4),)
