"""Tests of the storage formats: round trips, index files, damage, and byte equality with the original tools."""

import json
import struct
import tarfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from support.builders.archives import make_tar
from support.builders.data_sets import (
    BOXES,
    JPEGS,
    READERS,
    SIDE,
    flip_byte,
    make_classify_samples,
    make_detect_samples,
    make_encoder,
    make_png,
    read_shard,
    write_shard,
)
from trainstone.data.image.inspect import read_header
from trainstone.data.sample import Box, ClassName, Sample
from trainstone.data.storage import records
from trainstone.data.storage.box_file import drop_extension, format_box_lines, read_box_file
from trainstone.data.storage.folder import make_instances
from trainstone.data.storage.recordio import RecordIOShard, is_detection
from trainstone.data.storage.records import Encoded, RecordSource, Shard
from trainstone.data.storage.tfrecord import TFRecordShard
from trainstone.data.storage.wds import WdsShard, format_key
from trainstone.errors import DataError
from trainstone.formats.coco import NAME_OF_ID, read_instances
from trainstone.formats.files import ByteSpan

FILES = {"recordio": "x.rec", "tfrecord": "x.tfrecord", "wds": "x.tar"}
STORAGES = pytest.mark.parametrize("storage", FILES)
NAMES = ["plain.jpg", "with space.jpg", "two.dots.jpg", "ünï-日本.jpg", "50%20.jpg", "no-utf8-\udcff.jpg", "no-dot"]
UNUSUAL_NAMES = {
    "recordio": ['b/quo"te,comma.jpg', "no-folder", "dot.ted/no-extension"],
    "tfrecord": [],
    "wds": ["dot.ted/x.JPEG", "b/line\nbreak.jpg", "no-folder", "b/.hidden", "long/" * 40 + "x.jpg"],
}


def query_all(path: Path, storage: str, method: str = "read") -> list[Any]:
    return read_shard(READERS[storage](path), method)


def write(folder: Path, storage: str, samples: list[Sample], kind: str = "classify") -> Path:
    write_shard(folder / FILES[storage], make_encoder(storage, kind), samples)
    return folder / FILES[storage]


@STORAGES
def test_classification_samples_round_trip(tmp_path: Path, storage: str):
    names = [f"b/{name}" for name in NAMES] + UNUSUAL_NAMES[storage]
    boxes = (Box(1, 0.25, 0.125, 0.75, 0.5), Box(1, 0.1, 0.2, 0.3, 0.4))
    samples = [Sample(name, JPEGS[number % 6], 1, boxes[: number % 3]) for number, name in enumerate(names)]
    samples += [*make_classify_samples(4), Sample("a/last.png", make_png(), 0)]
    path = write(tmp_path, storage, samples)
    assert query_all(path, storage) == samples
    annotations = query_all(path, storage, "read_annotations")
    assert [[label for label, _ in one.labels] for one in annotations] == [[sample.label] for sample in samples]
    assert annotations[-2].labels == [(1, ClassName("b"))]
    assert not any(one.is_detection for one in annotations)


@STORAGES
def test_samples_without_class_round_trip(tmp_path: Path, storage: str):
    values = [(1.0, -2.5, 3.0), (4.0, 0.25), (0.5,)]
    samples = [Sample(f"{n}.jpg", JPEGS[n], values=these) for n, these in enumerate(values)]
    if storage != "recordio":
        samples.append(Sample("none.jpg", JPEGS[0]))
    path = write(tmp_path, storage, samples)
    assert query_all(path, storage) == samples
    assert [one.labels for one in query_all(path, storage, "read_annotations")] == [[]] * len(samples)


@STORAGES
def test_detection_samples_round_trip(tmp_path: Path, storage: str):
    samples = [*make_detect_samples(6), Sample("ünï %.dots.png", make_png(), boxes=BOXES, id=(1 << 63) - 1)]
    path = write(tmp_path, storage, samples, "detect")
    assert query_all(path, storage) == samples
    annotations = query_all(path, storage, "read_annotations")
    assert [tuple(one.boxes) for one in annotations] == [sample.boxes for sample in samples]
    assert [[label for label, _ in one.labels] for one in annotations[:3]] == [[], [0], [0, 1]]
    assert all(one.is_detection for one in annotations)


BAD_INDEXES = {
    "recordio": ["", "not an index\n", "0\t0\n", "0\t4\n1\t8\n", "0\t0\n1\t99999999\n", "0\t0\n1\t0\n", "0\t-1\n"],
    "tfrecord": ["", "not an index\n", "0 5\n", "0 100\n", "16 1000\n", "0 99999999999\n", "x" * 100],
    "wds": ["", "not an index\n"],
}


@pytest.mark.parametrize(("storage", "text"), [(storage, text) for storage in FILES for text in BAD_INDEXES[storage]])
def test_mismatched_index_is_ignored_and_listed_as_stale(tmp_path: Path, storage: str, text: str):
    path = write(tmp_path, storage, make_classify_samples(4))
    (index,) = tmp_path.glob("*.idx")
    sound = index.read_text()
    with closing(READERS[storage](path)) as shard:
        assert list(shard.index_files()) == [(index, sound)]
        index.write_text(text)
        assert list(shard.index_files()) == [(index, sound)]
        assert shard.offsets().tolist() == [span.offset for span in shard.file.spans()]
        index.unlink()
        assert list(shard.index_files()) == []
    assert query_all(path, storage) == make_classify_samples(4)


@STORAGES
@pytest.mark.parametrize("at", [0, 1])
def test_records_before_and_after_damage_are_read(tmp_path: Path, storage: str, at: int):
    spans = write_shard(tmp_path / FILES[storage], make_encoder(storage), make_classify_samples(4))
    flip_byte(tmp_path / FILES[storage], spans[2].offset + at)  # in a header
    with closing(READERS[storage](tmp_path / FILES[storage])) as shard:
        found = shard.file.spans()
        assert [next(found), next(found)] == spans[:2]
        with pytest.raises(DataError, match=f"byte {spans[2].offset}: "):
            next(found)
        assert shard.read(spans[1].offset) == make_classify_samples(4)[1]
        after = shard.file.resync(spans[2].offset)
        assert after is not None
        assert spans[2].offset < after <= spans[3].offset
        assert list(shard.file.spans(after))[-1] == spans[3]
        with pytest.raises(DataError, match=r"no record starts here|no sample starts here"):
            shard.read(spans[3].end)


@pytest.fixture
def source(tmp_path: Path) -> RecordSource:
    """Return a source of 8 records in 4 files."""
    paths, first = [], 0
    for number, size in enumerate((3, 0, 1, 4)):
        paths.append(tmp_path / f"train-{number}")
        write_shard(paths[-1], make_encoder("tfrecord"), make_classify_samples(size, first))
        first += size
    return RecordSource(paths, TFRecordShard)


def test_record_source_numbers_samples_across_files(source: RecordSource):
    assert len(source) == 8
    assert [source.read(number) for number in range(8)] == make_classify_samples(8)
    assert [source.name(number) for number in (0, 3, 7)] == ["a/0000.jpg", "b/0003.jpg", "b/0007.jpg"]
    assert source.read_annotations(3).labels == [(1, ClassName("b"))]
    assert (source.locate(0), source.locate(3)) == ((0, 0), (2, 0))
    assert source.where(3) == f"{source.paths[2]}, record 0 at byte 0"
    shard, offset = source.locate(5)
    assert shard == 3
    assert source.where(5) == f"{source.paths[3]}, record 1 at byte {offset}"
    for index in (-1, 8):
        with pytest.raises(IndexError):
            source.read(index)


def test_record_source_reads_from_threads_while_shards_are_closed(
    source: RecordSource, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(records, "OPEN_SHARDS", 1)
    numbers = [*range(8)] * 20
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(source.read, numbers)) == make_classify_samples(8) * 20


def test_recordio_encoder_matches_im2rec(tmp_path: Path):
    samples = [*make_classify_samples(2), Sample("a/boxed.jpg", JPEGS[2], 0, BOXES[:1]), Sample("x.jpg", JPEGS[0])]
    spans = write_shard(tmp_path / "train.rec", make_encoder("recordio"), samples)
    data = (tmp_path / "train.rec").read_bytes()
    length = 24 + len(JPEGS[0])
    header = struct.pack("<II", 0xCED7230A, length) + struct.pack("<IfQQ", 0, 0.0, 0, 0)
    assert data[: spans[0].size] == header + JPEGS[0] + bytes(-length % 4)
    assert data[spans[1].offset + 8 : spans[1].offset + 32] == struct.pack("<IfQQ", 0, 1.0, 1, 0)
    assert (tmp_path / "train.lst").read_text() == (
        "0\t0.000000\ta/0000.jpg\n1\t1.000000\tb/0001.jpg\n2\t0.000000\ta/boxed.jpg\n3\t-1.000000\tx.jpg\n"
    )
    assert (tmp_path / "train.idx").read_text() == "".join(f"{n}\t{span.offset}\n" for n, span in enumerate(spans))
    assert (tmp_path / "train-boxes.csv").read_text() == "a/boxed.jpg,0.2500,0.1250,0.7500,0.5000\n"
    assert read_shard(RecordIOShard(tmp_path / "train.rec"))[3].values == (-1.0,)


def test_recordio_detection_labels_match_imagedetiter(tmp_path: Path):
    boxes = (Box(7, 0.25, 0.125, 0.75, 0.5, crowd=True),)
    samples = [Sample("x.jpg", JPEGS[0], boxes=boxes, id=42), Sample("y.jpg", JPEGS[0], id=3)]
    spans = write_shard(tmp_path / "train.rec", make_encoder("recordio", "detect"), samples)
    data = (tmp_path / "train.rec").read_bytes()
    assert struct.unpack_from("<IfQQ", data, 8) == (10, 0.0, 42, 0)
    assert struct.unpack_from("<10f", data, 32) == (4, 6, SIDE, SIDE, 7, 0.25, 0.125, 0.75, 0.5, 1)
    assert data[72:].startswith(JPEGS[0])
    assert struct.unpack_from("<4f", data, spans[1].offset + 32) == (4, 6, SIDE, SIDE)
    assert (tmp_path / "train.idx").read_text() == f"42\t0\n3\t{spans[1].offset}\n"
    assert (tmp_path / "train.lst").read_text().startswith("42\t4.000000\t6.000000\t32.000000\t32.000000\t7.000000\t")


def test_recordio_reader_keeps_file_order_and_numbers_names_without_list(tmp_path: Path):
    path = tmp_path / "train.rec"
    write_shard(path, make_encoder("recordio"), make_classify_samples(4))
    lines = (tmp_path / "train.idx").read_text().splitlines()
    (tmp_path / "train.idx").write_text("\n".join(reversed(lines)))
    assert read_shard(RecordIOShard(path)) == make_classify_samples(4)
    (tmp_path / "train.lst").unlink()
    assert [sample.name for sample in read_shard(RecordIOShard(path))] == [f"{number:08d}.jpg" for number in range(4)]
    assert read_shard(RecordIOShard(path), "read_annotations")[0].labels == [(0, ClassName(""))]


def test_is_detection_recognises_label_vectors():
    nan, inf = float("nan"), float("inf")
    for labels in ((4, 6, 32, 32), (2, 5, 0, 0.1, 0.1, 0.2, 0.2), (4, 5, 1, 1, 0, 0.1, 0.1, 0.2, 0.2)):
        assert is_detection(tuple(map(float, labels)))
    for labels in ((4, 6, 32, 32, 1), (1, 5), (9, 5), (2, 4, 1, 1, 1, 1), (2.5, 6), (nan, inf), (3,)):
        assert not is_detection(tuple(map(float, labels)))


@pytest.mark.parametrize(
    ("storage", "file", "sidecars"),
    [
        ("recordio", "train_3.rec", ("train_3.idx", "train_3.lst", "train_3-boxes.csv")),
        ("tfrecord", "train-00000-of-01024", ("idx/train-00000-of-01024.idx",)),
        ("tfrecord", "train.0_of_4.tfrecord", ("train.0_of_4.idx",)),
    ],
)
def test_sidecars_are_named_after_their_shard(storage: str, file: str, sidecars: tuple[str, ...]):
    assert make_encoder(storage).sidecars(Shard("train", file, 0, 1)) == sidecars


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("n01/n01_1.JPEG", "n01/n01_1"),
        ("a.jpg", "a"),
        ("a.png", "a%2epng"),  # a.jpg and a.png are two samples
        ("a%2epng.jpg", "a%252epng"),
        ("a b/c d.e.jpg", "a%20b/c%20d%2ee"),
        ("dot.ted/a.jpg", "dot.ted/a"),
        ("100%.jpg", "100%25"),
        (".jpg", "%2ejpg"),
        ("a\u2003b.jpg", "a%e2%80%83b"),
    ],
)
def test_format_key_escapes_dots_and_spaces(name: str, key: str):
    assert format_key(name) == key


def test_wds_encoder_writes_image_label_and_json(tmp_path: Path):
    samples = [Sample("a/x.jpg", JPEGS[0], 7, BOXES[:1]), Sample("y.png", make_png(), id=5, values=(0.5,))]
    write_shard(tmp_path / "train.tar", make_encoder("wds"), samples)
    with tarfile.open(tmp_path / "train.tar") as tar:
        found = {info.name: tar.extractfile(info).read() for info in tar}  # type: ignore[union-attr]
    assert list(found) == ["a/x.jpg", "a/x.cls", "a/x.json", "y%2epng.png", "y%2epng.json"]
    assert (found["a/x.jpg"], found["a/x.cls"]) == (JPEGS[0], b"7")
    assert json.loads(found["a/x.json"]) == {"name": "a/x.jpg", "boxes": [[0, 0.25, 0.125, 0.75, 0.5, 0]]}
    assert json.loads(found["y%2epng.json"]) == {"name": "y.png", "id": 5, "values": [0.5]}


def test_wds_index_matches_dali(tmp_path: Path):
    samples = [Sample("a/x.jpg", JPEGS[0], 7), Sample("b/long name.jpg", JPEGS[1], 1)]
    spans = write_shard(tmp_path / "train.tar", make_encoder("wds"), samples)
    head, first, second = (tmp_path / "train.idx").read_text().splitlines()
    assert head == "v1.2 2"
    after = 512 + len(JPEGS[0]) + -len(JPEGS[0]) % 512 + 512
    assert first == f"jpg 512 {len(JPEGS[0])} a/x.jpg cls {after} 1 a/x.cls json {after + 1024} 18 a/x.json"
    assert second.startswith(f"jpg {spans[1].offset + 512} {len(JPEGS[1])} b/long%20name.jpg cls ")


@pytest.mark.parametrize(
    ("files", "sample"),
    [
        ({"x.jpeg": JPEGS[0], "x.cls": b"3\n"}, Sample("x.jpeg", JPEGS[0], 3)),
        ({"x.cls": b"3", "x.PNG": make_png()}, Sample("x.png", make_png(), 3)),
        ({"x.jpg": JPEGS[0], "x.label.txt": b"4"}, Sample("x.jpg", JPEGS[0], 4)),
        ({"c/x.jpg": JPEGS[0], "c/x.json": b'{"label": 5, "id": 9}'}, Sample("c/x.jpg", JPEGS[0], 5, id=9)),
        ({"x.jpg": JPEGS[0], "x.json": b'{"label": "cat", "id": "abc"}'}, Sample("x.jpg", JPEGS[0])),
        ({"x.jpg": JPEGS[0], "x.json": b'{"label": true, "id": -1}'}, Sample("x.jpg", JPEGS[0])),
        ({"x.jpg": JPEGS[0], "x.json": b'{"label": 1.0, "id": 9223372036854775808}'}, Sample("x.jpg", JPEGS[0])),
        ({"x.jpg": JPEGS[0], "x.seg.png": make_png()}, Sample("x.jpg", JPEGS[0])),
        ({"a b.jpg": JPEGS[0], "a b.cls": b"1"}, Sample("a b.jpg", JPEGS[0], 1)),  # no index can describe it
    ],
)
def test_wds_reader_supports_tars_of_other_tools(tmp_path: Path, files: dict[str, bytes], sample: Sample):
    (tmp_path / "x.tar").write_bytes(make_tar(files))
    (tmp_path / "x.idx").write_text("something")
    assert read_shard(WdsShard(tmp_path / "x.tar"))[0] == sample
    folder = sample.name.rpartition("/")[0]
    with closing(WdsShard(tmp_path / "x.tar")) as shard:
        assert shard.read_annotations(0).labels == ([] if sample.label is None else [(sample.label, ClassName(folder))])
        assert len(list(shard.index_files())) == (" " not in sample.name)


def test_wds_spans_report_damaged_header_instead_of_incomplete_sample(tmp_path: Path):
    spans = write_shard(tmp_path / "train.tar", make_encoder("wds"), make_classify_samples(4))
    flip_byte(tmp_path / "train.tar", spans[2].end - 1024)  # the header of its last member
    with closing(WdsShard(tmp_path / "train.tar")) as shard:
        found = shard.file.spans()
        assert [next(found), next(found)] == spans[:2]
        with pytest.raises(DataError, match=f"byte {spans[2].end - 1024}: "):
            next(found)


def encode(kind: str, sample: Sample, number: int = 0, storage: str = "folder") -> Encoded:
    return make_encoder(storage, kind).encode(sample, number, read_header(sample.image))


@pytest.mark.parametrize(
    ("name", "image", "file"),
    [
        ("x.jpg", JPEGS[0], "x.jpg"),
        ("b/x.jpg", JPEGS[0], "x.jpg"),
        ("other/below/x.jpg", JPEGS[0], "x.jpg"),
        ("x", JPEGS[0], "x.jpg"),  # without an extension it gets that of its format
        ("img.v2", make_png(), "img.v2.png"),
    ],
)
def test_folder_encoder_names_image_in_class_folder(name: str, image: bytes, file: str):
    assert encode("classify", Sample(name, image, 1)) == Encoded(f"b/{file}", (image,), "", f"b/{file}")


@pytest.mark.parametrize(
    ("storage", "kind", "sample", "message"),
    [
        ("folder", "classify", Sample("x.jpg", JPEGS[0]), "x.jpg has no class label"),
        ("folder", "classify", Sample("x.jpg", JPEGS[0], 2), "invalid label 2: the data set has 2 classes"),
        ("folder", "classify", Sample("x.jpg", JPEGS[0], -1), "invalid label -1: the data set has 2 classes"),
        ("folder", "detect", Sample("x.jpg", JPEGS[0], boxes=(Box(2, 0, 0, 1, 1),)), "invalid label 2"),
        ("tfrecord", "classify", Sample("x.jpg", JPEGS[0], 2), "invalid label 2: the data set has 2 classes"),
        ("tfrecord", "detect", Sample("x.jpg", JPEGS[0], boxes=(Box(-1, 0, 0, 1, 1),)), "invalid label -1"),
        ("recordio", "classify", Sample("a\tb.jpg", JPEGS[0], 1), "without tabs and line breaks"),
    ],
)
def test_encode_rejects_samples_that_the_format_cannot_store(storage: str, kind: str, sample: Sample, message: str):
    with pytest.raises(DataError, match=message):
        encode(kind, sample, storage=storage)


def test_folder_encoder_writes_detections_as_coco_annotations(tmp_path: Path):
    encoder = make_encoder("folder", "detect")
    samples = [Sample("below/x y.ü%.jpg", JPEGS[0], boxes=BOXES, id=139), Sample("empty.png", make_png(5, 3))]
    made = [encode("detect", sample, number) for number, sample in enumerate(samples)]
    assert [(one.name, one.buffers) for one in made] == [(s.name, (s.image,)) for s in samples]
    text = encoder.format_sidecar("".join(encoder.sidecar_lines(one, ByteSpan(0, 1))[0] for one in made), 2)
    assert encoder.sidecars(Shard("train", "train", 0, 2)) == ("annotations/instances_train.json",)
    (tmp_path / "x.json").write_text(text)
    instances = read_instances(tmp_path / "x.json")
    assert [(i.id, i.file_name, i.width, i.height) for i in instances.images] == [
        (139, "below/x y.ü%.jpg", SIDE, SIDE),
        (1, "empty.png", 5, 3),
    ]
    first, second = instances.annotations
    assert (first.id, first.image_id, first.category_id, first.bbox) == (1, 139, 1, (8, 4, 16, 12))
    assert (first.crowd, second.crowd, second.category_id) == (False, True, 2)
    document = json.loads(text)
    assert document["annotations"][0]["area"] == 16 * 12
    assert [category["name"] for category in document["categories"]] == ["a", "b"]


def test_make_instances_uses_coco_category_ids_for_coco_classes():
    classes = [ClassName(name) for name in NAME_OF_ID.values()]
    instances = make_instances([[1, "x.jpg", 10, 10, [[79, 0, 0, 1, 1, 0]]]], classes)
    assert instances.annotations[0].category_id == 90
    assert [category.id for category in instances.categories] == list(NAME_OF_ID)


def read_boxes(folder: Path, text: str) -> dict:
    (folder / "train-boxes.csv").write_bytes(text.encode("utf-8", "surrogateescape"))
    return read_box_file(folder / "train-boxes.csv")


def test_format_box_lines_has_four_decimals_or_more_if_needed():
    boxes = [Box(0, 0.25, 0.0, 0.5, 1.0), Box(0, 1 / 3, 0.1, 0.99999, 0.2)]
    assert format_box_lines("n01/x.JPEG", boxes) == (
        "n01/x.JPEG,0.2500,0.0000,0.5000,1.0000\nn01/x.JPEG,0.3333333333333333,0.1000,0.99999,0.2000\n"
    )
    for name in ("line\nbreak.jpg", "line\rbreak.jpg"):
        with pytest.raises(DataError, match="line breaks are not allowed"):
            format_box_lines(name, [Box(0, 0, 0, 1, 1)])


@pytest.mark.parametrize(
    "name", ["a/x.jpg", "a/with space.jpg", 'a/quo"te,comma.jpg', "ünï%.two.jpg", "\udcff.jpg", "x"]
)
def test_box_file_round_trip(tmp_path: Path, name: str):
    boxes = [Box(3, 1 / 3, 0.1, 0.7, 0.2), Box(3, 0.0, 0.0, 1.0, 1.0)]
    text = format_box_lines("first.jpg", boxes[:1]) + format_box_lines(name, boxes)
    assert read_boxes(tmp_path, text)[drop_extension(name)] == tuple(tuple(box[1:5]) for box in boxes)


def test_read_box_file_skips_boxes_without_area(tmp_path: Path):
    assert read_boxes(tmp_path, "x.jpg,0.1,0.2,0.1,0.3\ny.jpg,0,0,1,1\n\n") == {"y": ((0.0, 0.0, 1.0, 1.0),)}
