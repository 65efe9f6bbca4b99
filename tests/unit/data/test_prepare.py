"""Tests of shard plans, of writing data sets with interruption and resume, of manifests and of the worker pool."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from support.builders.archives import read_files
from support.builders.damage import damaged, quick, read_damaged
from support.builders.data_sets import (
    CLASSES,
    JPEGS,
    RECORDS,
    SHARDS,
    STORAGES,
    ListSource,
    flip_byte,
    list_spans,
    make_classify_samples,
    make_detect_samples,
    make_png,
    make_set,
    verify_path,
)
from support.processes.command import LIMIT
from trainstone.data import prepare
from trainstone.data.image.inspect import read_header
from trainstone.data.manifest import (
    NAME,
    FileEntry,
    Manifest,
    ShardEntry,
    SplitEntry,
    check_files,
    read_manifest,
    write_manifest,
)
from trainstone.data.parallel import WAITING_PER_WORKER, map_in_order, open_pool
from trainstone.data.recognise import open_dataset
from trainstone.data.sample import ClassName, DataSet, Sample, Split
from trainstone.data.shard_plan import (
    DataSetPlan,
    Treatment,
    build_plan,
    build_sample_order,
    compute_tensorflow_bounds,
    divide_into_shards,
)
from trainstone.data.synthetic.generated import GeneratedSource, build_generated_set
from trainstone.errors import DataError, MachineError
from trainstone.machine.ranks import Rank


class FailingSource(ListSource):
    """An in-memory source that raises an error at one index."""

    def __init__(self, count: int, fail_at: int | None = None, error: Exception | None = None) -> None:
        super().__init__(make_classify_samples(count))
        self.fail_at, self.error = fail_at, error or DataError("read failed")

    def read(self, index: int) -> Sample:
        if index == self.fail_at:
            raise self.error
        return super().read(index)


def plan_for(storage: str, source: ListSource, kind: str = "classify", **options) -> DataSetPlan:
    found = DataSet(kind, "made up", CLASSES, [Split("train", source)], "made-up")
    return build_plan(found, storage, **options)


def run(plan: DataSetPlan, target: Path) -> Any:
    """Write a plan; return the manifest."""
    for _ in prepare.prepare(plan, target, Rank(), 2):
        pass
    return read_manifest(target)


KILLED = """
import os, signal, sys
from pathlib import Path
from trainstone.data import prepare
from trainstone.data.shard_plan import build_plan
from trainstone.data.recognise import open_dataset
from trainstone.machine.ranks import Rank
when, source, target = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
if when == "before its name":
    prepare.move_into_place = die
if when == "before the manifest":
    prepare.write_manifest = die
plan = build_plan(open_dataset(source), "wds", shards={"train": 4})
for step in prepare.prepare(plan, target, Rank(), 1):
    if when == "in the third file" and step.done > 50:
        die()
"""


@pytest.mark.parametrize("when", ["in the third file", "before its name", "before the manifest"])
def test_prepare_resumes_after_kill_with_same_bytes(tmp_path: Path, when: str):
    source = make_set(tmp_path / "source", "recordio", "classify", count=80)
    plan = build_plan(open_dataset(source), "wds", shards={"train": 4})
    run(plan, tmp_path / "undisturbed")
    done = subprocess.run([sys.executable, "-c", KILLED, when, source, tmp_path / "set"], timeout=LIMIT)
    assert done.returncode == -signal.SIGKILL
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "set").glob("*.tar")}
    assert len(made) == {"in the third file": 2, "before its name": 0, "before the manifest": 4}[when]
    run(plan, tmp_path / "set")
    assert read_files(tmp_path / "set") == read_files(tmp_path / "undisturbed")
    assert {path: path.stat().st_mtime_ns for path in made} == made  # complete shards are not written again


@pytest.mark.parametrize("taken", [0, 1, 3, 4, 6, 11, 505])
def test_write_all_handles_partial_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int):
    buffers = [b"one", memoryview(b"two"), b"", b"three" * 100, *(bytes([n % 256]) for n in range(2000))]
    real = os.write
    monkeypatch.setattr(os, "writev", lambda descriptor, buffers: real(descriptor, b"".join(buffers)[:taken]))
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, bytes(data)[:200]))
    with (tmp_path / "x").open("wb", buffering=0) as file:
        prepare.write_all(file, buffers)
    assert (tmp_path / "x").read_bytes() == b"".join(buffers)


def test_prepare_reports_full_disk_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(file, buffers) -> None:
        raise OSError(28, "No space left on device", "train.rec")

    with monkeypatch.context() as patched:
        patched.setattr(prepare, "write_all", refuse)
        with pytest.raises(DataError, match=r"the disk is full: train\.rec") as caught:
            run(plan_for("recordio", FailingSource(20)), tmp_path / "set")
    assert "run the same command again" in (caught.value.hint or "")
    assert not (tmp_path / "set/train.rec").exists()
    run(plan_for("recordio", FailingSource(20)), tmp_path / "set")
    assert (tmp_path / "set/train.rec").exists()


def damage(jpeg: bytes) -> bytes:
    """Return a JPEG with a valid header and truncated pixel data."""
    return jpeg[: len(jpeg) * 2 // 3]


def assert_sound(path: Path, count: int) -> None:
    findings = verify_path(path)
    assert (findings.bad, findings.records) == ([], count)


SKIP = Treatment(skip_bad=True)


@pytest.mark.parametrize("storage", STORAGES)
def test_prepare_skip_bad_drops_damaged_images(tmp_path: Path, storage: str):
    samples = make_classify_samples(8)
    samples[2] = Sample(samples[2].name, damage(samples[2].image), 0)
    samples[5] = Sample(samples[5].name, samples[5].image, 7)  # beyond the number of classes
    if storage in ("recordio", "wds"):  # the other formats cannot store such a label
        run(plan_for(storage, ListSource(samples)), tmp_path / "unchanged")
        assert len(verify_path(tmp_path / "unchanged").bad) == 2
    manifest = run(plan_for(storage, ListSource(samples), treatment=SKIP), tmp_path / "clean")
    assert_sound(tmp_path / "clean", 6)
    assert {name for name, _ in manifest.shards[0].skipped} == {samples[2].name, samples[5].name}
    with pytest.raises(DataError, match="with other options"):
        run(plan_for(storage, ListSource(samples)), tmp_path / "clean")


@pytest.mark.parametrize("storage", RECORDS)
def test_prepare_skip_bad_continues_after_damaged_record(tmp_path: Path, storage: str):
    source = make_set(tmp_path / "source", storage, "classify", count=8)
    shard = source / SHARDS[storage]
    spans = list_spans(shard, storage)
    flip_byte(shard, spans[3].offset)
    with pytest.raises(DataError):
        run(build_plan(open_dataset(source), "folder"), tmp_path / "set")
    run(build_plan(open_dataset(source, damaged=True), "folder", treatment=SKIP), tmp_path / "clean")
    assert_sound(tmp_path / "clean", 7)
    os.truncate(shard, spans[6].offset + 20)
    run(build_plan(open_dataset(source, damaged=True), "folder", treatment=SKIP), tmp_path / "shorter")
    assert_sound(tmp_path / "shorter", 5)


def test_prepare_skip_bad_drops_coco_images_without_a_file(tmp_path: Path):
    source = make_set(tmp_path / "source", "folder", "detect", count=8, val=3)
    (source / "train/0002.jpg").unlink()
    (source / "train/0004.jpg").write_bytes(damage(JPEGS[4]))
    (source / "val/0009.jpg").unlink()
    before = read_files(source)
    run(build_plan(open_dataset(source, damaged=True), "folder", shuffle=False, treatment=SKIP), tmp_path / "clean")
    assert_sound(tmp_path / "clean", 8)
    kept = open_dataset(tmp_path / "clean").splits[0].source
    assert [kept.name(n) for n in range(len(kept))] == [f"{n:04d}.jpg" for n in (0, 1, 3, 5, 6, 7)]
    assert [kept.read(n).boxes for n in range(6)] == [make_detect_samples(8)[n].boxes for n in (0, 1, 3, 5, 6, 7)]
    assert read_files(source) == before  # a user's data is not changed


@pytest.mark.parametrize("what", ["another set", "unfinished output of another command", "is not empty"])
def test_prepare_does_not_change_other_files(tmp_path: Path, what: str):
    if what == "another set":
        run(plan_for("recordio", FailingSource(20)), tmp_path)
        what = "with other options"
    elif what == "is not empty":
        (tmp_path / "thesis.tex").write_text("important")
    else:
        with pytest.raises(RuntimeError):
            run(plan_for("wds", FailingSource(50, 40, RuntimeError("killed"))), tmp_path)
    before = read_files(tmp_path)
    with pytest.raises(DataError, match=what):
        run(plan_for("tfrecord", FailingSource(21)), tmp_path)
    assert read_files(tmp_path) == before


def test_prepare_rejects_second_writer(tmp_path: Path):
    plan = plan_for("recordio", FailingSource(200))
    first = prepare.prepare(plan, tmp_path, Rank(), 1)
    next(first)
    with pytest.raises(DataError, match=r"train\.rec is being written by another process"):
        run(plan, tmp_path)
    assert sum(1 for _ in first) > 0
    assert read_manifest(tmp_path) is not None


def test_prepare_stops_at_bad_image_and_reports_it(tmp_path: Path):
    with pytest.raises(DataError, match="listed 7: read failed") as caught:
        run(plan_for("recordio", FailingSource(20, 7)), tmp_path)
    assert caught.value.hint is not None
    assert "--on-bad skip, into a new folder" in caught.value.hint


def test_prepare_resizes_and_reencodes_images(tmp_path: Path):
    run(plan_for("recordio", FailingSource(6), treatment=Treatment(resize=20, quality=50)), tmp_path)
    source = open_dataset(tmp_path).splits[0].source
    for number in range(6):
        image = source.read(number).image
        assert read_header(image)[:3] == ("jpeg", 20, 20)
        assert len(image) < len(JPEGS[number])


def test_prepare_checks_disk_space_before_writing(tmp_path: Path):
    source = FailingSource(5)
    source.size_bytes = lambda index: 1 << 60  # type: ignore[attr-defined]
    with pytest.raises(DataError, match=r"free, the images need"):
        run(plan_for("recordio", source), tmp_path)


@pytest.mark.parametrize(
    "name",
    ["", "/x", "../x", "a/../../x", "a//x", "a/", "./x", "a/./x", "x\0", "x" * 256, "..", ".x", "a/.b/c", "\udcff"],
)
def test_prepare_rejects_unsafe_image_names(name: str, tmp_path: Path):
    with pytest.raises(DataError, match="invalid image name"):
        run(plan_for("folder", ListSource([Sample(name, JPEGS[0], id=0)]), "detect"), tmp_path / "set")
    assert not list(tmp_path.rglob("*.jpg"))


def test_prepare_rejects_or_skips_duplicate_names(tmp_path: Path):
    source = ListSource([Sample(f"a/{number % 3}.jpg", JPEGS[number], number % 2) for number in range(4)])
    with pytest.raises(DataError, match=r"a/0"):
        run(plan_for("wds", source, shuffle=False), tmp_path / "error")
    manifest = run(plan_for("wds", source, shuffle=False, treatment=SKIP), tmp_path / "skip")
    assert [name for name, _ in manifest.shards[0].skipped] == ["a/0.jpg"]
    assert manifest.splits[0].records == 3


def test_prepare_renames_image_reencoded_as_jpeg(tmp_path: Path):
    source = ListSource([Sample(f"a/{number}.png", make_png(30, 20), 0) for number in range(3)])
    run(plan_for("folder", source, treatment=Treatment(resize=10)), tmp_path / "small")
    assert sorted(path.name for path in (tmp_path / "small/train/a").iterdir()) == ["0.jpg", "1.jpg", "2.jpg"]
    run(plan_for("folder", source), tmp_path / "same")
    assert sorted(path.name for path in (tmp_path / "same/train/a").iterdir()) == ["0.png", "1.png", "2.png"]


def test_prepare_rejects_nan_labels(tmp_path: Path):
    source = ListSource([Sample("x.jpg", JPEGS[0], values=(float("nan"),))])
    with pytest.raises(DataError, match="has a label or a box that is NaN or infinite"):
        run(plan_for("recordio", source), tmp_path)


def test_prepare_skip_bad_reports_location_of_unnamed_image(tmp_path: Path):
    class Nameless(FailingSource):
        def name(self, index: int) -> str:
            raise DataError("unreadable")

    manifest = run(plan_for("recordio", Nameless(4, 2), treatment=SKIP), tmp_path)
    assert manifest.shards[0].skipped == (("listed 2", "read failed"),)


def make_generated(train: int, val: int = 0, name: str = "imagenet", kind: str = "classify") -> DataSet:
    counts = {"train": train, "val": val} if val else {"train": train}
    return replace(build_generated_set(GeneratedSource(kind, "", 0, 32, 32, 2), counts), name=name)


@pytest.mark.parametrize(
    ("storage", "kind", "seed"),
    [("recordio", "classify", 100), ("tfrecord", "classify", 12345), ("tfrecord", "detect", 2020)],
    ids=["im2rec", "build_imagenet_data", "create_tfrecord"],
)
def test_build_sample_order_shuffles_like_the_originals(storage: str, kind: str, seed: int):
    shuffled = list(range(100))
    random.seed(seed)
    random.shuffle(shuffled)
    assert build_sample_order(100, storage, kind) == shuffled
    limited = build_plan(make_generated(100, 50, kind=kind), storage, limit=10)
    assert list(limited.split("train").order) == shuffled[:10]
    assert build_sample_order(5, "recordio", None) == [0, 1, 2, 3, 4]
    assert build_sample_order(5, "folder", "classify") == [0, 1, 2, 3, 4]


def original_bounds(records: int, shards: int, threads: int = 8) -> list[tuple[int, int]]:
    """Return shard boundaries by the arithmetic of build_imagenet_data.py."""
    spacing = np.linspace(0, records, threads + 1).astype(int)
    bounds = []
    for thread in range(threads):
        edges = np.linspace(spacing[thread], spacing[thread + 1], shards // threads + 1).astype(int)
        bounds += [(int(edges[s]), int(edges[s + 1])) for s in range(shards // threads)]
    return bounds


@pytest.mark.parametrize(("records", "shards"), [(1_281_167, 1024), (50_000, 128), (100_000, 64), (10, 8)])
def test_compute_tensorflow_bounds_matches_original(records: int, shards: int):
    assert compute_tensorflow_bounds(records, shards) == original_bounds(records, shards)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("storage", ["recordio", "tfrecord"])
def test_divide_into_shards_has_each_record_once(storage: str, count: int):
    shards = divide_into_shards("train", 100, count, storage, "classify")
    assert (len(shards), shards[0].start, shards[-1].end) == (count, 0, 100)
    assert all(before.end == after.start for before, after in itertools.pairwise(shards))


def test_build_plan_of_imagenet_has_original_file_names():
    plan = build_plan(make_generated(2000, 200), "tfrecord")
    names = [f"validation-{n:05d}-of-00128" for n in range(128)] + [f"train-{n:05d}-of-01024" for n in range(1024)]
    assert [shard.file for shard in plan.shards] == names  # validation is written first, as in the original
    assert plan.first_label == 1
    few = build_plan(make_generated(3), "tfrecord").shards  # never more files than images
    assert [shard.file for shard in few] == [f"train-{number:05d}-of-00003" for number in range(3)]


@pytest.mark.parametrize(
    ("storage", "kind", "shards", "names"),
    [
        ("recordio", "classify", {}, ["val.rec", "train.rec"]),
        ("recordio", "classify", {"train": 2}, ["val.rec", "train_0.rec", "train_1.rec"]),
        ("wds", "classify", {"train": 2}, ["val-000000.tar", "train-000000.tar", "train-000001.tar"]),
        ("tfrecord", "detect", {"train": 2}, ["val.0_of_1.tfrecord", "train.0_of_2.tfrecord", "train.1_of_2.tfrecord"]),
        ("folder", "classify", {"train": 2}, ["val", "train"]),
    ],
)
def test_build_plan_names_shard_files(storage: str, kind: str, shards: dict[str, int], names: list[str]):
    plan = build_plan(make_generated(20, 5, name="mine", kind=kind), storage, shards=shards)
    assert [shard.file for shard in plan.shards] == names


def test_plan_identity_changes_with_every_option():
    found = make_generated(100, 50)
    plans = [
        build_plan(found, "tfrecord"),
        build_plan(found, "recordio"),
        build_plan(found, "tfrecord", limit=99),
        build_plan(found, "tfrecord", shuffle=False),
        build_plan(found, "tfrecord", shards={"train": 5}),
        build_plan(found, "tfrecord", first_label=0),
        build_plan(make_generated(100, 51), "tfrecord"),
        build_plan(make_generated(100, 50, name="other"), "tfrecord"),
    ]
    assert len({plan.identity() for plan in plans}) == len(plans)
    assert plans[0].identity() == build_plan(make_generated(100, 50), "tfrecord").identity()


def test_build_plan_makes_class_names_unique():
    names = [ClassName("crane", ""), ClassName("dog", "a dog"), ClassName("crane", "bird"), ClassName("crane")]
    expected = (("crane", ""), ("dog", "a dog"), ("crane-2", "bird"), ("crane-3", "crane"))
    assert build_plan(replace(make_generated(4), classes=names), "folder").classes == expected


ENTRY = ShardEntry(
    file="train.rec",
    bytes=9,
    crc32c="e3069283",
    records=1,
    sidecars=(FileEntry(file="idx/train.idx", bytes=4, crc32c="00000000"),),
    repaired=(("a/1.jpg", "CMYK"),),
    skipped=(("b/\udcff.jpg", "not an image"),),
)
MANIFEST = Manifest(
    dataset="imagenet",
    kind="classify",
    storage="recordio",
    first_label=0,
    classes=(("n01", "fish, ü"), ("bad \udcff", "")),
    treatment={"repair": True, "resize": None},
    plan="abc",
    splits=(SplitEntry(name="train", records=1, bytes=9, shards=(ENTRY,)),),
)


DUMPED = json.dumps(MANIFEST.model_dump(mode="json")).encode()


def test_manifest_round_trip(tmp_path: Path):
    assert read_manifest(tmp_path) is None
    write_manifest(tmp_path, MANIFEST)
    assert read_manifest(tmp_path) == MANIFEST
    assert MANIFEST.shards == [ENTRY]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format"),
        ({"storage": "zip"}, "storage"),
        ({"classes": [["a"]]}, "classes.0"),
        ({"extra": 1}, "extra"),
        ({"splits": [{"name": "train", "records": -1, "bytes": 1, "shards": []}]}, "splits.0.records"),
        *((DUMPED.replace(b'"idx/train.idx"', json.dumps(name).encode()), "splits.0.shards.0.sidecars.0.file")
          for name in ("../train.rec", "/etc/passwd", "", "a/../../b", "x\0")),
        *((data, "") for data in (b"", b"{", b"[]", b"[" * 100_000, b'{"format": ' + b"9" * 5000 + b"}", b"\xff")),
    ],
)  # fmt: skip
def test_read_manifest_reports_damaged_key(tmp_path: Path, change: dict | bytes, message: str):
    if isinstance(change, dict):
        change = json.dumps({**json.loads(DUMPED), **change}).encode()
    (tmp_path / NAME).write_bytes(change)
    with pytest.raises(DataError) as caught:
        read_manifest(tmp_path)
    assert f"{tmp_path / NAME}" in caught.value.message
    assert message in caught.value.message


@quick
@given(data=damaged(DUMPED))
def test_read_manifest_of_damaged_file_succeeds_or_raises_data_error(tmp_path: Path, data: bytes):
    read_damaged(tmp_path / NAME, data, lambda path: read_manifest(path.parent), str(tmp_path))


def test_data_set_with_non_utf8_names_can_be_opened(tmp_path: Path):
    sample, classes = Sample("x\udcff.jpg", JPEGS[0], 0), (ClassName("a\udcff", "t\udcfe"),)
    run(build_plan(DataSet("classify", "", classes, [Split("train", ListSource([sample]))]), "wds"), tmp_path)
    again = open_dataset(tmp_path)
    assert (again.classes, again.splits[0].source.read(0)) == (classes, sample)


def test_check_files_reports_missing_files_and_wrong_lengths(tmp_path: Path):
    for storage, name in (("recordio", "train.lst"), ("folder", "val")):
        root = tmp_path / storage
        manifest = run(build_plan(make_generated(4, 2), storage), root)
        check_files(root, manifest)
        if storage == "recordio":
            (root / name).write_text("x")
            with pytest.raises(DataError, match=rf"{name} has 1 bytes"):
                check_files(root, manifest)
        (root / name).rename(root / "other")
        with pytest.raises(DataError, match=rf"{name} is missing"):
            check_files(root, manifest)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_map_in_order_yields_results_in_task_order(workers: int):
    gates = [threading.Event() for _ in range(workers)]

    def wait_for_next(numbers: list[int]) -> int:
        (number,) = numbers
        if number + 1 < workers:
            gates[number + 1].wait(LIMIT)
        if number < workers:
            gates[number].set()
        return number

    with open_pool(workers) as pool:
        assert list(map_in_order(wait_for_next, range(30), pool, chunk=1)) == list(range(30))


@pytest.mark.parametrize("workers", [1, 3])
def test_map_in_order_bounds_waiting_results(workers: int):
    taken = 0

    def tasks() -> Iterator[int]:
        nonlocal taken
        for number in range(1000):
            taken += 1
            yield number

    with open_pool(workers) as pool:
        for done, _ in enumerate(map_in_order(sum, tasks(), pool, chunk=1)):
            assert taken <= done + WAITING_PER_WORKER * workers
    assert taken == 1000


def test_map_in_order_raises_error_in_task_order_and_stops():
    started = []

    def work(numbers: list[int]) -> int:
        (number,) = numbers
        started.append(number)
        if number == 5:
            raise DataError("task 5 failed")
        return number

    done: list[int] = []
    with pytest.raises(DataError, match="task 5 failed"), open_pool(2) as pool:
        done.extend(map_in_order(work, range(1000), pool, chunk=1))
    assert done == [0, 1, 2, 3, 4]
    assert max(started) <= 5 + WAITING_PER_WORKER * 2


def die_at_once(_: list[int]) -> None:
    os._exit(1)


def test_open_pool_reports_dead_worker_process():
    with pytest.raises(MachineError, match="a worker process died") as caught, open_pool(1, processes=True) as pool:
        list(map_in_order(die_at_once, range(2), pool))
    assert "--workers 1" in (caught.value.hint or "")
