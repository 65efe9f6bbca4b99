"""Tests of recognising data sets by path and of opening their splits."""

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
    ListSource,
    flip_byte,
    make_classify_samples,
    make_detect_samples,
    make_png,
    make_set,
)
from trainstone.data.recognise import HINT, name_split, open_dataset, select_images_with_boxes
from trainstone.data.sample import Box, DataSet, ImageSource, Sample
from trainstone.data.splits import open_split
from trainstone.data.storage.records import RecordSource
from trainstone.data.storage.tfrecord import TFRecordShard
from trainstone.errors import DataError
from trainstone.formats.tfrecord import bytes_feature, encode_example, float_feature, frame_record, int64_feature

STORAGE_NAMES = {"recordio": "RecordIO", "tfrecord": "TFRecord", "wds": "WebDataset", "folder": "class folders"}
SLIM = {"image/encoded": bytes_feature(JPEGS[0])}


def read_all(found: DataSet, split: int = 0) -> list[Sample]:
    source = found.splits[split].source
    return [source.read(number) for number in range(len(source))]


def names(found: DataSet) -> list[str]:
    return [class_name.name for class_name in found.classes]


def sizes(found: DataSet) -> dict[str, int]:
    return {split.name: len(split.source) for split in found.splits}


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("described", [True, False])
def test_open_dataset_supports_every_storage_with_and_without_manifest(tmp_path: Path, storage: str, described: bool):
    found = open_dataset(make_set(tmp_path / "set", storage, val=3, described=described))
    assert (found.kind, found.storage, found.name) == (
        "classify",
        STORAGE_NAMES[storage],
        "made-up" if described else "",
    )
    assert (names(found), sizes(found)) == (["a", "b"], {"train": 8, "val": 3})
    assert found.first_label == (1 if storage == "tfrecord" else None)
    assert sorted(read_all(found), key=lambda s: s.name) == sorted(make_classify_samples(8), key=lambda s: s.name)
    if storage in RECORDS:
        single = open_dataset(tmp_path / "set" / SHARDS[storage])
        assert (sizes(single), single.storage, single.classes) == ({"train": 8}, STORAGE_NAMES[storage], found.classes)
    found = open_dataset(make_set(tmp_path / "boxed", storage, "detect", 6, val=3, described=described))
    assert (found.kind, found.storage) == ("detect", STORAGE_NAMES[storage] if storage != "folder" else "COCO")
    assert names(found) == (["a", "b"] if described or storage in ("tfrecord", "folder") else ["0", "1"])
    assert read_all(found) == make_detect_samples(6)


def test_open_dataset_supports_class_folders_and_images(tmp_path: Path):
    write_files(tmp_path / "plain", {"cat/1.jpg": JPEGS[0], "dog/2.png": make_png()})
    found = open_dataset(tmp_path / "plain")
    assert (found.storage, names(found), sizes(found)) == ("class folders", ["cat", "dog"], {"train": 2})
    write_files(tmp_path / "split", {"train/cat/1.jpg": JPEGS[0], "val/cat/2.jpg": JPEGS[1]})
    assert sizes(open_dataset(tmp_path / "split")) == {"train": 1, "val": 1}
    write_files(tmp_path / "flat", {"1.jpg": JPEGS[0], "2.png": make_png(), "notes.txt": b"", ".hidden.jpg": b""})
    flat = open_dataset(tmp_path / "flat")
    assert (flat.storage, sizes(flat), flat.classes) == ("images", {"flat": 2}, ())
    assert [sample.name for sample in read_all(flat)] == ["1.jpg", "2.png"]
    single = open_dataset(tmp_path / "flat/1.jpg")
    assert (single.storage, read_all(single)) == ("an image", [Sample("1.jpg", JPEGS[0])])


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


def test_open_dataset_rejects_other_files_with_hint(tmp_path: Path):
    packed = gzip.compress(make_tar({"x.jpg": JPEGS[0] * 3}))
    write_files(tmp_path, {"x.bin": b"unknown", "empty/.keep": b"", "short.tar": b"\0", "named/train.rec": b"unknown"})
    write_files(tmp_path, {"x.tar": packed, "x.tfrecord": packed, "x.tfrecord.gz": packed})
    for name in ("mixed", "unfinished"):
        make_set(tmp_path / name, "recordio", described=False)
    (make_set(tmp_path / "w", "wds") / SHARDS["wds"]).rename(tmp_path / "mixed/val.tar")
    (tmp_path / "unfinished/.trainstone").mkdir()
    rejected = {
        "x.bin": ("is not a record file", HINT),
        "short.tar": ("is not a record file", HINT),
        "empty": ("does not contain a known data set", HINT),
        "nowhere": ("no such file or folder", None),
        "named": (r"train\.rec is named like a record file but is not one", None),
        "mixed": ("mixes RecordIO and WebDataset", "give the path of one file"),
        "unfinished": ("is unfinished", "run the command"),
        "x.tar": ("byte 0", "gzip -d"),
        "x.tfrecord": ("compressed with gzip", ""),
        "x.tfrecord.gz": ("is not a record file", "gunzip"),
    }
    for name, (message, hint) in rejected.items():
        with pytest.raises(DataError, match=message) as caught:
            open_dataset(tmp_path / name)
        assert str(tmp_path / name) in caught.value.message
        assert caught.value.hint == hint or hint in (caught.value.hint or "")


def write_slim(path: Path, labels: list[int]) -> None:
    path.write_bytes(
        b"".join(frame_record(encode_example({**SLIM, "image/class/label": int64_feature(label)})) for label in labels)
    )


def test_open_dataset_reads_class_names_from_labels_file(tmp_path: Path):
    write_slim(tmp_path / "flowers_train_00000-of-00001.tfrecord", [0, 2, 1])
    (tmp_path / "flowers_labels.txt").write_text("0:daisy\n1:dandelion\nnot a pair\nx:y\n7:more\n2: roses \n")
    found = open_dataset(tmp_path)
    assert names(found) == ["daisy", "dandelion", "roses"]
    assert found.first_label == 0
    assert [sample.label for sample in read_all(found)] == [0, 2, 1]
    (tmp_path / "other_labels.txt").write_text("0:daisy\n")  # ambiguous: two label files
    assert names(open_dataset(tmp_path)) == ["0", "1", "2"]


def test_open_dataset_rejects_invalid_label(tmp_path: Path):
    write_slim(tmp_path / "x.tfrecord", [0, 10**12])
    with pytest.raises(
        DataError, match=r"x\.tfrecord, record 1 at byte \d+: invalid label 1000000000000; 0 to 999,999"
    ):
        open_dataset(tmp_path)


def test_open_dataset_reads_first_label_from_manifest(tmp_path: Path):
    for first_label in (0, 1):
        found = open_dataset(make_set(tmp_path / f"{first_label}", "tfrecord", first_label=first_label))
        assert found.first_label == first_label
        assert [sample.label for sample in read_all(found)] == [0, 1] * 4


def test_open_dataset_rejects_wrong_file_length_unless_damaged(tmp_path: Path):
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
    assert sizes(open_dataset(root, damaged=True)) == {"train": 9}  # the damaged range counts as one


def test_open_dataset_on_real_data():
    flowers = open_dataset(real_data("records/tfrecord"))
    assert (flowers.storage, sizes(flowers), flowers.first_label) == ("TFRecord", {"val": 70}, 0)
    assert names(flowers) == ["daisy", "dandelion", "roses", "sunflowers", "tulips"]
    dali = open_dataset(real_data("records/recordio/dali_extra"))
    assert (dali.storage, sizes(dali)) == ("RecordIO", {"train": 47})
    tiny = open_dataset(real_data("classification/tiny-imagenet-20"))
    assert (tiny.name, len(tiny.classes)) == ("tiny-imagenet", 20)
    coco = open_dataset(real_data("detection/coco-free"))
    assert (coco.kind, coco.storage) == ("detect", "COCO")


def test_open_dataset_with_damaged_first_record(tmp_path: Path):
    root = make_set(tmp_path / "set", "tfrecord", "detect", described=False)
    flip_byte(next(root.glob("*.tfrecord")), 12)  # the first byte of the first message
    found = open_dataset(root)
    assert (found.kind, found.first_label) == ("detect", 1)
    with pytest.raises(DataError, match="byte 0"):
        found.splits[0].source.read(0)


@pytest.mark.parametrize("storage", STORAGES)
def test_open_dataset_rejects_parent_of_a_data_set(tmp_path: Path, storage: str):
    make_set(tmp_path / "above/one", storage, described=storage == "folder")
    with pytest.raises(DataError, match=r"is not a data set, but its subfolder is"):
        open_dataset(tmp_path / "above")


def test_open_split_by_name_or_the_only_one(tmp_path: Path, caplog):
    both = make_set(tmp_path / "both", "recordio", count=6, val=4)
    for name, count, first in (("train", 6, 0), ("val", 4, 6)):
        opened = open_split(both, name)
        assert (opened.name, len(opened.source)) == (name, count)
        assert opened.source.read(0).image == make_classify_samples(1, first)[0].image
        assert (opened.dataset.kind, len(opened.dataset.classes)) == ("classify", 2)
    opened = open_split(make_set(tmp_path / "set", "recordio", count=6), "val")
    assert (opened.name, len(opened.source)) == ("train", 6)
    assert "has only one split, train: using it for val" in caplog.text


@pytest.mark.parametrize("storage", STORAGES)
def test_open_split_skip_empty_drops_images_without_boxes(
    tmp_path: Path, storage: str, caplog: pytest.LogCaptureFixture
):
    root = make_set(tmp_path / "set", storage, "detect", count=7)
    unfiltered = open_split(root, "train").source
    with caplog.at_level(logging.INFO):
        boxed = open_split(root, "train", skip_empty=True).source
    assert [len(unfiltered.read(n).boxes) for n in range(len(unfiltered))] == [0, 1, 2, 0, 1, 2, 0]
    assert [boxed.read(n).name for n in range(len(boxed))] == [f"{n:04d}.jpg" for n in (1, 2, 4, 5)]
    assert [boxed.read(n).id for n in range(len(boxed))] == [101, 102, 104, 105]
    assert unfiltered.fingerprint() != boxed.fingerprint()
    assert "skipped 3 images without a box" in caplog.text


def test_open_split_reports_missing_split_or_boxes_with_hint(tmp_path: Path):
    both = make_set(tmp_path / "both", "recordio", count=6, val=4)
    empty = make_set(
        tmp_path / "set", "wds", "detect", [replace(sample, boxes=()) for sample in make_detect_samples(3)]
    )
    for root, split, skip_empty, message, hint in (
        (both, "test", False, "has no split test; available: train, val", "trainstone data info"),
        (empty, "train", True, "none of 3 images has a box", "data.skip_empty=false"),
        (both, "train", True, "has no boxes", "this recipe trains detection"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            open_split(root, split, skip_empty=skip_empty)
        assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(("name", "missing", "other"), [("train", "train2017", "val"), ("val", "val2017", "train")])
def test_open_split_of_coco_without_images_is_not_replaced_by_other_split(
    tmp_path: Path, name: str, missing: str, other: str, caplog: pytest.LogCaptureFixture
):
    root = make_coco(tmp_path / "c", train2017=make_instances(5), val2017=make_instances(3))
    shutil.rmtree(root / missing)
    reason = f"annotations/instances_{missing}.json exists, but {missing}/ does not"
    for requested in (name, missing):
        with pytest.raises(DataError) as caught:
            open_split(root, requested)
        assert caught.value.message == f"{root} has no images of split {requested}: {reason}"
        assert "put the images into that folder" in str(caught.value.hint)
    assert "using it for" not in caplog.text
    caplog.clear()
    assert open_split(root, other).name == other
    assert [record.message for record in caplog.records] == [f"{root}: skipped split {missing}: {reason}"]
    assert open_split(root, "test").name == other  # test has no annotations: the only split is used


def test_image_source_reads_images_and_reports_unreadable_files(tmp_path: Path):
    write_files(tmp_path, {"a.jpg": JPEGS[0], "b ü.jpg": JPEGS[1], "empty.jpg": b""})
    images = ImageSource([tmp_path / name for name in ("a.jpg", "b ü.jpg", "empty.jpg", "gone.jpg")])
    assert len(images) == 4
    assert images.read(1) == Sample("b ü.jpg", JPEGS[1])
    assert images.name(3) == "gone.jpg"
    assert images.where(0) == str(tmp_path / "a.jpg")
    for number, message in ((2, r"empty\.jpg is empty"), (3, rf"cannot read {tmp_path}/gone\.jpg: No such file")):
        with pytest.raises(DataError, match=message):
            images.read(number)


def test_select_images_with_boxes_keeps_unreadable_samples():
    samples = [Sample("empty", b""), None, Sample("box", b"", boxes=BOXES)]
    outside = Sample("outside", b"", boxes=(Box(0, 1.0, 0.0, 1.5, 1.0),))
    kept = select_images_with_boxes(ListSource([*samples, outside]))
    assert [kept.where(number) for number in range(len(kept))] == ["listed 1", "listed 2"]


def test_select_images_with_boxes_keeps_record_with_invalid_boxes(tmp_path: Path):
    path = tmp_path / "a.tfrecord"
    edges = ((), (0.1, 0.2, 0.3), (0.1, 0.2, 0.3, 0.4))
    features = [{"image/encoded": bytes_feature(JPEGS[0]), "image/object/bbox": float_feature(*four)} for four in edges]
    path.write_bytes(b"".join(frame_record(encode_example(record)) for record in features))
    kept = select_images_with_boxes(RecordSource([path], TFRecordShard))
    assert len(kept) == 2
    with pytest.raises(DataError, match="3 numbers; a multiple of 4"):
        kept.read(0)
    assert kept.read(1).boxes == (Box(0, 0.1, 0.2, 0.3, 0.4),)
