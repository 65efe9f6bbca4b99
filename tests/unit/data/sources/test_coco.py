"""Tests of COCO's layout: reading, and preparing from zips and folders with checks and resume after kill -9."""

import json
import logging
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.builders.archives import (
    CATEGORIES,
    make_instances,
    make_jpeg,
    make_jpeg_header,
    make_set,
    make_zips,
    read_files,
)
from support.builders.damage import real_data
from support.builders.data_sets import verify_path
from support.builders.images import noisy, save
from support.processes.command import LIMIT
from trainstone.data.manifest import Manifest, check_files, checksum_file, read_manifest
from trainstone.data.parallel import WorkProgress, lock_file
from trainstone.data.prepare import prepare as write_plan
from trainstone.data.recognise import open_dataset
from trainstone.data.sample import Box, ClassName
from trainstone.data.shard_plan import build_plan
from trainstone.data.sources.coco import PUBLISHED_COUNTS, CocoSource, build_source, find_coco, prepare_coco
from trainstone.errors import DataError
from trainstone.formats.coco import NAME_OF_ID, CocoAnnotation, CocoCategory, CocoImage, Instances
from trainstone.machine.ranks import Rank


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return make_set(tmp_path / "coco", train2017=make_instances(5), val2017=make_instances(3))


def test_find_coco_reads_folder_without_changes(small: Path):
    found = find_coco(small)
    assert (found.kind, found.storage, found.name) == ("detect", "COCO", "")
    assert found.classes == [ClassName("circle"), ClassName("square")]
    assert [(split.name, len(split.source)) for split in found.splits] == [("train", 5), ("val", 3)]
    sample = found.splits[0].source.read(1)
    assert (sample.name, sample.id, sample.label) == ("000000000001.jpg", 99, None)
    assert sample.image == make_jpeg_header(40, 20)
    assert sample.boxes == (Box(1, 0.25, 0.25, 0.75, 0.75),)
    assert found.splits[0].source.name(4) == "000000000004.jpg"
    assert found.splits[0].source.where(4) == str(small / "train2017/000000000004.jpg")


def only_source(root: Path, *annotations: CocoAnnotation, num_images: int = 1) -> CocoSource:
    images = [CocoImage(n, f"{n}.jpg", 40, 20) for n in range(num_images)]
    source = find_coco(make_set(root, val=Instances(images, annotations, CATEGORIES))).splits[0].source
    assert isinstance(source, CocoSource)
    return source


def test_boxes_are_clipped_and_empty_ones_skipped_with_warning(tmp_path: Path, caplog):
    source = only_source(
        tmp_path / "c",
        CocoAnnotation(1, 0, 4, (-10, -10, 30, 100), True),
        CocoAnnotation(2, 0, 4, (50, 0, 10, 10)),
        CocoAnnotation(3, 0, 4, (5, 5, 0, 10)),
        CocoAnnotation(4, 0, 4, (5, 5, 5, -3)),
        CocoAnnotation(5, 0, 9, (30, 10, 10, 10)),
    )
    assert source.read(0).boxes == (Box(0, 0.0, 0.0, 0.5, 1.0, True), Box(1, 0.75, 0.5, 1.0, 1.0, False))
    assert "skipped 3 boxes without area inside their image" in caplog.text


def read_areas(root: Path, *areas: float | None) -> list[float | None]:
    """Return the areas read for boxes of 10 x 5 in images of 40 x 20."""
    boxes = [CocoAnnotation(number, 0, 4, (10, 5, 10, 5), area=area) for number, area in enumerate(areas)]
    instances = Instances([CocoImage(0, "0.jpg", 40, 20)], boxes, CATEGORIES)
    return [box.area for box in build_source(instances, root / "a.json", root).read(0).boxes]


def test_object_areas_are_kept_unless_they_are_placeholders(tmp_path: Path):
    (tmp_path / "0.jpg").write_bytes(make_jpeg_header(40, 20))
    assert read_areas(tmp_path, 20, 30.5, 0, 1) == [20 / 800, 30.5 / 800, 0, 1 / 800]
    assert read_areas(tmp_path, None, 20, 50, 50.004, -3) == [None, 20 / 800, None, None, None]
    assert read_areas(tmp_path, 50.1) == [50.1 / 800]
    assert read_areas(tmp_path, 1, 1.0, 1) == [None] * 3
    assert read_areas(tmp_path, None, None) == [None] * 2


def test_areas_match_their_boxes(tmp_path: Path):
    boxes = [CocoAnnotation(n, image, 4, (n, 0, 2, 2), area=2 + n / 8) for n, image in enumerate((3, 1, 3, 0))]
    whole = only_source(tmp_path / "c", *boxes, num_images=4)
    for source in (whole, whole.select_images_with_boxes()):
        areas = {box.left * 40: box.area * 800 for n in range(len(source)) for box in source.read(n).boxes}
        assert areas == pytest.approx({0: 2, 1: 2.125, 2: 2.25, 3: 2.375})


def test_select_images_with_boxes_drops_empty_images(tmp_path: Path):
    boxes = [CocoAnnotation(n, image, 4, (n, 0, 1, 1)) for n, image in enumerate((3, 1, 3))]
    source = only_source(tmp_path / "c", *boxes, num_images=5)
    boxed = source.select_images_with_boxes()
    assert [boxed.name(i) for i in range(len(boxed))] == ["1.jpg", "3.jpg"]
    assert [box.left * 40 for box in boxed.read(1).boxes] == [0, 2]
    assert boxed.read(0).id == 1
    assert source.read(0).boxes == ()
    assert source.fingerprint() != boxed.fingerprint()
    before = source.fingerprint()
    assert before == source.fingerprint()
    (source.images / "2.jpg").write_bytes(b"longer")
    assert source.fingerprint() != before
    (source.images / "2.jpg").unlink()
    assert source.size_bytes(2) == 0


def test_find_coco_supports_other_folders_and_split_names(tmp_path: Path):
    root = make_set(tmp_path / "c", train2014=make_instances(2), train2017=make_instances(3), minival=make_instances(2))
    (root / "images").mkdir()
    (root / "train2017").rename(root / "images/train2017")
    (root / "annotations/instances_minival.json").rename(root / "annotations/bbox_only_instances_minival.json")
    (root / "annotations/captions_train2017.json").write_text("{}")
    assert [(s.name, len(s.source)) for s in find_coco(root).splits] == [
        ("train2014", 2), ("train2017", 3), ("minival", 2),
    ]  # fmt: skip


def test_find_coco_reports_missing_images_or_annotations(tmp_path: Path, small: Path):
    with pytest.raises(DataError, match=r"no annotations/instances_<split>\.json"):
        find_coco(tmp_path)
    shutil.rmtree(small / "train2017")
    found = find_coco(small)
    assert [split.name for split in found.splits] == ["val"]
    assert sorted(found.missing_splits) == ["train", "train2017"]
    shutil.rmtree(small / "val2017")
    with pytest.raises(DataError, match="no images for its annotations") as caught:
        find_coco(small)
    assert "train2017, val2017" in (caught.value.hint or "")


def test_splits_with_different_categories_are_rejected(tmp_path: Path):
    other = Instances(make_instances(2).images, [], [CocoCategory(1, "cat")])
    root = make_set(tmp_path / "c", train=make_instances(2), val=other)
    for function in (find_coco, lambda path: list(prepare_coco(path, path))):
        with pytest.raises(DataError, match=r"instances_val\.json has other categories"):
            function(root)


def test_find_coco_on_real_data(tmp_path: Path):
    found = find_coco(real_data("detection/coco-free"))
    assert found.name == "coco"
    assert [class_name.name for class_name in found.classes] == list(NAME_OF_ID.values())
    sources: list[Any] = [split.source for split in found.splits]
    assert [(len(source), len(source.select_images_with_boxes())) for source in sources] == [(60, 59), (66, 64)]
    samples = [source.read(index) for source in sources for index in range(len(source))]
    boxes = [box for sample in samples for box in sample.boxes]
    assert len(boxes) == 604 + 560
    assert sum(box.crowd for box in boxes) == 16
    assert all(0 <= box.left < box.right <= 1 and 0 <= box.top < box.bottom <= 1 for box in boxes)


def prepare(
    source: Path, target: Path, workers: int = 1, *, skip_bad: bool = False
) -> tuple[list[WorkProgress], Manifest]:
    seen = list(prepare_coco(source, target, workers=workers, skip_bad=skip_bad))
    manifest = read_manifest(target)
    assert manifest is not None
    check_files(target, manifest)
    return seen, manifest


@pytest.mark.parametrize("workers", [1, 3])
def test_prepare_coco_from_zips_writes_folder_and_manifest(tmp_path: Path, small: Path, workers: int):
    target = tmp_path / "out"
    seen, manifest = prepare(make_zips(small, tmp_path / "zips"), target, workers)
    assert seen[-1].phase == "finished"
    assert (target / "train2017-images.txt").read_text() == "".join(f"{n:012d}.jpg\n" for n in range(4))
    assert (target / "classes.txt").read_text() == "1\t4\tcircle\n2\t9\tsquare\n"
    box_only = json.loads((target / "annotations/bbox_only_instances_val2017.json").read_text())
    assert set(box_only["annotations"][0]) == {"image_id", "bbox", "category_id", "id"}
    assert not [path for path in target.iterdir() if path.name.startswith(".")]
    assert (manifest.kind, manifest.storage, manifest.dataset, manifest.first_label) == ("detect", "folder", "", 0)
    assert manifest.classes == (("circle", ""), ("square", ""))
    size = len(make_jpeg_header(40, 20))
    splits = [(split.name, split.shards[0].file, split.records, split.bytes) for split in manifest.splits]
    assert splits == [("train", "train2017", 5, 5 * size), ("val", "val2017", 3, 3 * size)]
    total = sum(checksum_file(f"{n:012d}.jpg", make_jpeg_header(40, 20)) for n in range(5)) % 2**32
    assert manifest.shards[0].crc32c == f"{total:08x}"
    for shard in manifest.shards:
        files = ["instances_{}.json", "bbox_only_instances_{}.json"]
        names = [*(f"annotations/{name}" for name in files), "{}-images.txt"]
        names += ["classes.txt"] if shard.file == "train2017" else []
        assert [file.file for file in shard.sidecars] == [name.format(shard.file) for name in names]


def test_prepare_coco_does_nothing_if_complete_even_without_zips(tmp_path: Path, small: Path):
    zips = make_zips(small, tmp_path / "zips")
    _, first = prepare(zips, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    assert prepare(zips, tmp_path / "out") == ([], first)
    (zips / "train2017.zip").unlink()
    assert prepare(zips, tmp_path / "out") == ([], first)
    shutil.rmtree(zips)
    assert prepare(zips, tmp_path / "out") == ([], first)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}


def test_prepare_coco_writes_lost_files_again(tmp_path: Path, small: Path):
    zips = make_zips(small, tmp_path / "zips")
    prepare(zips, tmp_path / "out")
    whole = read_files(tmp_path / "out")
    for loss in ("classes.txt", "manifest.json", "val2017", "val2017/000000000001.jpg"):
        path = tmp_path / "out" / loss
        if path.suffix == ".jpg":
            path.unlink()
            with pytest.raises(DataError, match=r"val2017 already exists, and 1 of the 3 files"):
                prepare(zips, tmp_path / "out")
            path = path.parent
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        prepare(zips, tmp_path / "out")
        assert read_files(tmp_path / "out") == whole
    (tmp_path / "out/val2017-images.txt").write_text("")
    prepare(zips, tmp_path / "out")
    assert read_files(tmp_path / "out") == whole


def test_prepare_coco_does_not_change_another_data_set(tmp_path: Path, small: Path):
    steps = list(write_plan(build_plan(find_coco(small), "wds"), tmp_path / "out", Rank(), 1))
    assert steps
    before = read_files(tmp_path / "out")
    with pytest.raises(DataError, match="already contains another data set: unnamed, format wds") as caught:
        prepare(small, tmp_path / "out")
    assert "--to DIR" in (caught.value.hint or "")
    assert read_files(tmp_path / "out") == before


def test_prepare_coco_adds_later_split(tmp_path: Path, small: Path):
    zips = make_zips(small, tmp_path / "zips")
    (zips / "train2017.zip").rename(tmp_path / "later.zip")
    _, first = prepare(zips, tmp_path / "out")
    assert [split.name for split in first.splits] == ["val"]
    (tmp_path / "later.zip").rename(zips / "train2017.zip")
    _, second = prepare(zips, tmp_path / "out")
    assert [split.name for split in second.splits] == ["train", "val"]
    assert first.plan != second.plan


def test_prepare_coco_from_folders_equals_zips_and_keeps_source(tmp_path: Path, small: Path):
    before = read_files(small)
    prepare(small, tmp_path / "out")
    prepare(make_zips(small, tmp_path / "zips"), tmp_path / "unzipped")
    assert read_files(small) == before
    different = dict(read_files(tmp_path / "out").items() ^ read_files(tmp_path / "unzipped").items())
    assert set(different) == {"manifest.json"}  # it lists its inputs
    assert (tmp_path / "out/val2017/000000000000.jpg").samefile(small / "val2017/000000000000.jpg")
    prepare(small, small)
    assert [split.name for split in find_coco(small).splits] == ["train", "val"]
    assert (small / "classes.txt").read_bytes() == (tmp_path / "out/classes.txt").read_bytes()


def test_prepare_coco_copies_files_without_hard_links(tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(self: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    prepare(small, tmp_path / "out")
    copy = tmp_path / "out/val2017/000000000000.jpg"
    assert copy.read_bytes() == (small / "val2017/000000000000.jpg").read_bytes()
    assert not copy.samefile(small / "val2017/000000000000.jpg")


@pytest.mark.parametrize(
    "data", [None, make_jpeg_header(41, 20), save(noisy(40, 20), "GIF"), make_jpeg_header(40, 20)[:8], b"<html>"]
)
def test_prepare_coco_rejects_images_that_differ_from_annotations(tmp_path: Path, small: Path, data: bytes | None):
    path = small / "val2017/000000000001.jpg"
    path.write_bytes(data) if data else path.unlink()
    with pytest.raises(DataError, match=r"val2017: 1 of 3 images .*000000000001\.jpg"):
        prepare(make_zips(small, tmp_path / "zips"), tmp_path / "out")
    assert not (tmp_path / "out/manifest.json").exists()


def make_real(root: Path, count: int = 4) -> Path:
    """Write a data set whose images can be decoded."""
    images = [CocoImage(n, f"{n}.jpg", 8, 8) for n in range(count)]
    boxes = [CocoAnnotation(n + 1, n, 9, (2, 2, 4, 4), n == 0) for n in range(count)]
    make_set(root, train2017=Instances(images, boxes, CATEGORIES))
    for image in images:
        (root / "train2017" / image.file_name).write_bytes(make_jpeg(image.id))
    return root


@pytest.mark.parametrize("packed", [True, False])
def test_prepare_coco_skip_bad_writes_clean_copy_and_keeps_source(tmp_path: Path, packed: bool):
    source, target = make_real(tmp_path / "c", 6), tmp_path / "out"
    (source / "train2017/1.jpg").write_bytes(make_jpeg(1)[:-60])  # truncated pixel data
    (source / "train2017/3.jpg").unlink()
    (source / "train2017/4.jpg").write_bytes(make_jpeg_header(9, 9))
    if packed:
        source = make_zips(source, tmp_path / "zips")
    before = read_files(source)
    _, manifest = prepare(source, target, skip_bad=True)
    assert read_files(source) == before
    assert (verify_path(target).bad, verify_path(target).records) == ([], 3)
    assert [name for name, _ in manifest.shards[0].skipped] == ["1.jpg", "3.jpg", "4.jpg"]
    assert sorted(path.name for path in (target / "train2017").iterdir()) == ["0.jpg", "2.jpg", "5.jpg"]
    for name in ("instances_train2017", "bbox_only_instances_train2017"):
        document = json.loads((target / f"annotations/{name}.json").read_text())
        assert [image["id"] for image in document["images"]] == [0, 2, 5]
        assert [item["image_id"] for item in document["annotations"]] == [0, 2, 5]
    assert (target / "train2017-images.txt").read_text() == "0.jpg\n2.jpg\n5.jpg\n"
    assert prepare(source, target, skip_bad=True)[0] == prepare(source, target)[0] == []


def test_prepare_coco_skip_bad_never_changes_source(tmp_path: Path):
    source = make_real(tmp_path / "c")
    (source / "train2017/1.jpg").unlink()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/train2017").symlink_to(source / "train2017")
    before = read_files(source)
    for target in (source, tmp_path / "out"):
        with pytest.raises(DataError, match="only changes a copy"):
            prepare(source, target, skip_bad=True)
    for path in (source / "train2017").iterdir():
        path.write_bytes(b"not an image")
    with pytest.raises(DataError, match="4 of 4 images"):  # the disk may not be mounted
        prepare(source, tmp_path / "new", skip_bad=True)
    assert set(before) >= set(read_files(source))


def test_prepare_coco_warns_about_unpublished_counts_and_extra_files(
    tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    assert PUBLISHED_COUNTS["train2017"] == (118_287, 117_266)
    monkeypatch.setattr("trainstone.data.sources.coco.PUBLISHED_COUNTS", {"train2017": (5, 4), "val2017": (3, 3)})
    (small / "val2017/more.jpg").write_bytes(b"")
    _, manifest = prepare(small, tmp_path / "out")
    assert manifest.splits[1].records == 3
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert [text.split()[0] for text in warnings] == ["val2017", "val2017"]


@pytest.mark.parametrize(
    ("gone", "message"), [("*", "no COCO annotations"), ("[tv]*", "no images for its annotations")]
)
def test_prepare_coco_reports_missing_parts(tmp_path: Path, small: Path, gone: str, message: str):
    zips = make_zips(small, tmp_path / "zips")
    for file in zips.glob(gone):
        file.unlink()
    with pytest.raises(DataError, match=message) as error:
        prepare(zips, tmp_path / "out")
    assert "annotations_trainval2017.zip" in (error.value.hint or "")
    assert not (tmp_path / "out").exists()


def test_prepare_coco_is_locked_against_a_second_process(tmp_path: Path, small: Path):
    (tmp_path / "out/.trainstone").mkdir(parents=True)
    with (
        lock_file(tmp_path / "out/.trainstone/lock", tmp_path),
        pytest.raises(DataError, match="written by another process"),
    ):
        prepare(small, tmp_path / "out")
    prepare(small, tmp_path / "out")


def test_prepared_folder_can_be_opened_verified_and_converted(tmp_path: Path):
    prepare(make_real(tmp_path / "c"), tmp_path / "out")
    found = open_dataset(tmp_path / "out")
    assert (found.kind, [name for name, _ in found.classes]) == ("detect", ["circle", "square"])
    assert found.splits[0].source.read(0).boxes[0].crowd  # from the full annotations, not the box-only ones
    assert verify_path(tmp_path / "out").records == 4
    assert verify_path(tmp_path / "out").bad == []
    assert list(write_plan(build_plan(found, "recordio"), tmp_path / "rec", Rank(), 1))
    assert len(open_dataset(tmp_path / "rec").splits[0].source) == 4
    (tmp_path / "out/classes.txt").write_text("0" * (tmp_path / "out/classes.txt").stat().st_size)
    (tmp_path / "out/train2017/2.jpg").write_bytes(b"spoilt")
    assert {Path(bad.file).name for bad in verify_path(tmp_path / "out").bad} == {"classes.txt", "2.jpg", "train2017"}


KILLED = """
import os, signal, sys
from pathlib import Path
from trainstone.data.sources import archives, coco
source, target, when = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
if when == "unpacking":
    opened, real = [], archives._open_member
    def open_or_die(*args):
        opened.append(args)
        return die() if len(opened) == 5 else real(*args)
    archives._open_member = open_or_die
if when == "the last file":
    coco.manifests.write_manifest = die
for item in coco.prepare_coco(source, target):
    if item.phase == when:
        die()
"""


@pytest.mark.parametrize(
    "when", ["unpacking", "unpack train2017.zip", "check train2017", "write lists of val2017", "the last file"]
)
def test_prepare_coco_resumes_after_kill_with_same_files(tmp_path: Path, small: Path, when: str):
    zips = make_zips(small, tmp_path / "zips")
    prepare(zips, tmp_path / "whole")
    done = subprocess.run([sys.executable, "-c", KILLED, str(zips), str(tmp_path / "out"), when], timeout=LIMIT)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "out/manifest.json").exists()
    for stem in ("train2017", "val2017"):
        assert not (tmp_path / "out" / stem).exists() or read_files(tmp_path / "out" / stem) == read_files(small / stem)
    prepare(zips, tmp_path / "out")
    assert read_files(tmp_path / "out") == read_files(tmp_path / "whole")


def test_prepare_coco_on_real_zips(tmp_path: Path):
    _, manifest = prepare(make_zips(real_data("detection/coco-free"), tmp_path / "zips"), tmp_path / "out", workers=2)
    assert (manifest.dataset, len(manifest.classes)) == ("coco", 80)
    assert [(split.name, split.records) for split in manifest.splits] == [("train", 60), ("val", 66)]
    assert len((tmp_path / "out/train2017-images.txt").read_text().splitlines()) == 59
    assert (tmp_path / "out/classes.txt").read_text().splitlines()[11] == "12\t13\tstop sign"
    findings = verify_path(tmp_path / "out")
    assert (findings.records, findings.bad) == (126, [])
