"""Every storage of records gives back what was written, uses an index that fits, and reads around damaged places."""

from pathlib import Path
from typing import Any

import pytest

from small_sets import BOXES, CLASSES, JPEGS, READERS, flip, make_png, read_shard, to_classify, to_detect, write_shard
from trainstone.data.sample import Box, ClassName, Sample
from trainstone.data.storage.recordio import RecordIOEncoder
from trainstone.data.storage.tfrecord import TFRecordEncoder
from trainstone.data.storage.wds import WdsEncoder
from trainstone.errors import DataError

FILES = {"recordio": "x.rec", "tfrecord": "x.tfrecord", "wds": "x.tar"}
STORAGES = pytest.mark.parametrize("storage", FILES)
NAMES = ["plain.jpg", "with space.jpg", "two.dots.jpg", "ünï-日本.jpg", "50%20.jpg", "no-utf8-\udcff.jpg", "no-dot"]
ODD = {
    "recordio": ['b/quo"te,comma.jpg', "no-folder", "dot.ted/no-extension"],
    "tfrecord": [],
    "wds": ["dot.ted/x.JPEG", "b/line\nbreak.jpg", "no-folder", "b/.hidden", "long/" * 40 + "x.jpg"],
}


def make_encoder(storage: str, kind: str = "classify") -> Any:
    if storage == "tfrecord":
        return TFRecordEncoder(kind, CLASSES, 1)
    return {"recordio": RecordIOEncoder, "wds": WdsEncoder}[storage](kind)


def ask_all(path: Path, storage: str, ask: str = "read") -> list[Any]:
    return read_shard(READERS[storage](path), ask)


def write(folder: Path, storage: str, samples: list[Sample], kind: str = "classify") -> Path:
    write_shard(folder / FILES[storage], make_encoder(storage, kind), samples)
    return folder / FILES[storage]


@STORAGES
def test_classified_pictures_come_back(tmp_path: Path, storage: str):
    names = [f"b/{name}" for name in NAMES] + ODD[storage]
    boxes = (Box(1, 0.25, 0.125, 0.75, 0.5), Box(1, 0.1, 0.2, 0.3, 0.4))
    samples = [Sample(name, JPEGS[number % 6], 1, boxes[: number % 3]) for number, name in enumerate(names)]
    samples += [*to_classify(4), Sample("a/last.png", make_png(), 0)]
    path = write(tmp_path, storage, samples)
    assert ask_all(path, storage) == samples
    seen = ask_all(path, storage, "glance")
    assert [[label for label, _ in one.labels] for one in seen] == [[sample.label] for sample in samples]
    assert seen[-2].labels == [(1, ClassName("b"))]
    assert not any(one.is_detection for one in seen)


@STORAGES
def test_what_has_no_class_comes_back(tmp_path: Path, storage: str):
    values = [(1.0, -2.5, 3.0), (4.0, 0.25), (0.5,)]
    samples = [Sample(f"{n}.jpg", JPEGS[n], values=these) for n, these in enumerate(values)]
    if storage != "recordio":
        samples.append(Sample("none.jpg", JPEGS[0]))
    path = write(tmp_path, storage, samples)
    assert ask_all(path, storage) == samples
    assert [one.labels for one in ask_all(path, storage, "glance")] == [[]] * len(samples)


@STORAGES
def test_detections_come_back(tmp_path: Path, storage: str):
    samples = [*to_detect(6), Sample("ünï %.dots.png", make_png(), boxes=BOXES, id=(1 << 63) - 1)]
    path = write(tmp_path, storage, samples, "detect")
    assert ask_all(path, storage) == samples
    seen = ask_all(path, storage, "glance")
    assert [tuple(one.boxes) for one in seen] == [sample.boxes for sample in samples]
    assert [[label for label, _ in one.labels] for one in seen[:3]] == [[], [0], [0, 1]]
    assert all(one.is_detection for one in seen)


BAD_INDEXES = {
    "recordio": ["", "no index\n", "0\t0\n", "0\t4\n1\t8\n", "0\t0\n1\t99999999\n", "0\t0\n1\t0\n", "0\t-1\n"],
    "tfrecord": ["", "no index\n", "0 5\n", "0 100\n", "16 1000\n", "0 99999999999\n", "x" * 100],
    "wds": ["", "no index\n"],
}


@pytest.mark.parametrize(("storage", "text"), [(storage, text) for storage in FILES for text in BAD_INDEXES[storage]])
def test_an_index_that_does_not_fit_is_done_without_and_known_to_be_stale(tmp_path: Path, storage: str, text: str):
    path = write(tmp_path, storage, to_classify(4))
    (index,) = tmp_path.glob("*.idx")
    sound = index.read_text()
    shard = READERS[storage](path)
    assert list(shard.index_files()) == [(index, sound)]
    index.write_text(text)
    assert list(shard.index_files()) == [(index, sound)]
    assert shard.offsets().tolist() == [span.offset for span in shard.file.spans()]
    index.unlink()
    assert list(shard.index_files()) == []
    shard.close()
    assert ask_all(path, storage) == to_classify(4)


@STORAGES
@pytest.mark.parametrize("at", [0, 1])
def test_records_before_and_behind_a_damaged_place_are_read(tmp_path: Path, storage: str, at: int):
    path = write(tmp_path, storage, to_classify(4))
    shard = READERS[storage](path)
    spans = list(shard.file.spans())
    shard.close()
    flip(path, spans[2].offset + at)  # in a header
    shard = READERS[storage](path)
    walk = shard.file.spans()
    assert [next(walk), next(walk)] == spans[:2]
    with pytest.raises(DataError, match=f"byte {spans[2].offset}: "):
        next(walk)
    assert shard.read(spans[1].offset) == to_classify(4)[1]
    after = shard.file.resync(spans[2].offset)
    assert after is not None
    assert spans[2].offset < after <= spans[3].offset
    assert list(shard.file.spans(after))[-1] == spans[3]
    with pytest.raises(DataError, match=r"no record starts there|no sample starts there"):
        shard.read(spans[3].end)
    shard.close()
