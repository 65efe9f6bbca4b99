"""Tests of TFRecord features: those of the original tools, those of other tools, and invalid ones."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from support.builders.data_sets import (
    BOXES,
    JPEGS,
    SIDE,
    make_classify_samples,
    make_encoder,
    make_png,
    read_shard,
    write_shard,
)
from trainstone.data.image.inspect import read_header
from trainstone.data.sample import Box, ClassName, Sample, shorten_float
from trainstone.data.storage.tfrecord import TFRecordShard
from trainstone.errors import DataError
from trainstone.formats.tfrecord import (
    Feature,
    TFRecordFile,
    bytes_feature,
    decode_example,
    encode_example,
    float_feature,
    frame_record,
    int64_feature,
)


def features_of(kind: str, sample: Sample) -> dict[str, Feature]:
    (buffer,) = make_encoder("tfrecord", kind).encode(sample, 17, read_header(sample.image)).buffers
    return decode_example(buffer[12:-4], "x")


def read_features(path: Path, features: dict[str, Feature], method: str = "read") -> Any:
    path.write_bytes(frame_record(encode_example(features)))
    return read_shard(TFRecordShard(path), method)[0]


def test_classify_features_match_build_imagenet_data():
    sample = Sample("n01/n01_1.JPEG", JPEGS[0], 0, (BOXES[0], Box(0, 0.0, 0.5, 1.0, 0.875)))
    assert features_of("classify", sample) == {
        "image/height": int64_feature(SIDE),
        "image/width": int64_feature(SIDE),
        "image/colorspace": bytes_feature(b"RGB"),
        "image/channels": int64_feature(3),
        "image/class/label": int64_feature(1),
        "image/class/synset": bytes_feature(b"a"),
        "image/class/text": bytes_feature(b"first letter"),
        "image/object/bbox/xmin": float_feature(0.25, 0.0),
        "image/object/bbox/xmax": float_feature(0.75, 1.0),
        "image/object/bbox/ymin": float_feature(0.125, 0.5),
        "image/object/bbox/ymax": float_feature(0.5, 0.875),
        "image/object/bbox/label": int64_feature(1, 1),
        "image/format": bytes_feature(b"JPEG"),
        "image/filename": bytes_feature(b"n01_1.JPEG"),
        "image/encoded": bytes_feature(JPEGS[0]),
    }


def test_classify_features_have_empty_lists_without_boxes():
    features = features_of("classify", Sample("x.png", make_png(5, 3), 1))
    for edge in ("xmin", "xmax", "ymin", "ymax"):
        assert features[f"image/object/bbox/{edge}"] == float_feature()
    assert features["image/object/bbox/label"] == int64_feature()
    assert (features["image/height"], features["image/width"]) == (int64_feature(3), int64_feature(5))
    assert features["image/format"] == bytes_feature(b"PNG")
    assert features["image/class/label"] == int64_feature(2)
    assert features["image/class/text"] == bytes_feature(b"")


def test_detect_features_match_create_tfrecord():
    sample = Sample("000000000139.jpg", JPEGS[0], boxes=BOXES, id=139)
    features = features_of("detect", sample)
    edges = features.pop("image/object/bbox")
    assert edges.kind == "float"
    assert [shorten_float(edge) for edge in edges.values] == [0.25, 0.125, 0.75, 0.5, 0.1, 0.2, 0.3, 0.4]
    assert features == {
        "image/fname": bytes_feature(b"000000000139.jpg"),
        "image/encoded": bytes_feature(JPEGS[0]),
        "image/id": int64_feature(139),
        "image/shape": int64_feature(SIDE, SIDE, 3),
        "image/object/label": int64_feature(1, 2),
        "image/object/name": bytes_feature(b"a", b"b"),
        "image/object/is_crowd": int64_feature(0, 1),
    }


def test_areas_round_trip_in_pixels(tmp_path: Path):
    boxes = (BOXES[0]._replace(area=0.0625), BOXES[1])
    sample = Sample("a.jpg", JPEGS[0], boxes=boxes, id=1)
    features = features_of("detect", sample)
    assert features["image/object/area"].values == pytest.approx([0.0625 * SIDE**2, 0.2 * 0.2 * SIDE**2])
    read = read_features(tmp_path / "x.tfrecord", features)
    assert [box.area for box in read.boxes] == pytest.approx([0.0625, 0.04])
    assert read.boxes[0] == boxes[0]


def test_read_supports_areas_of_detection_api(tmp_path: Path):
    none = [None, None]
    for areas, image, expected in [((-1, 256), JPEGS[0], [None, 0.25]), ((), JPEGS[0], none), ((3, 4), b"torn", none)]:
        features = {**DETECTION_API, "image/object/area": float_feature(*areas), "image/encoded": bytes_feature(image)}
        assert [box.area for box in read_features(tmp_path / "x.tfrecord", features).boxes] == expected


@pytest.mark.parametrize("place", ["idx/x.tfrecord.idx", "x.tfrecord.idx", "x.idx"])
def test_index_matches_tfrecord2idx_and_is_used_from_usual_places(tmp_path: Path, place: str, monkeypatch):
    spans = write_shard(tmp_path / "x.tfrecord", make_encoder("tfrecord"), make_classify_samples(3))
    assert (tmp_path / "x.idx").read_text() == "".join(f"{span.offset} {span.size}\n" for span in spans)
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / "x.idx").rename(tmp_path / place)
    with closing(TFRecordShard(tmp_path / "x.tfrecord")) as shard:
        monkeypatch.setattr(TFRecordFile, "spans", lambda *_: pytest.fail("read the whole file"))
        assert shard.offsets().tolist() == [span.offset for span in spans]


SLIM = {
    "image/encoded": bytes_feature(JPEGS[0]),
    "image/format": bytes_feature(b"jpg"),
    "image/class/label": int64_feature(0),
    "image/height": int64_feature(SIDE),
    "image/width": int64_feature(SIDE),
}


def test_read_tf_slim_labels_start_at_0(tmp_path: Path):
    sample = read_features(tmp_path / "x.tfrecord", SLIM)
    assert (sample.label, sample.name, sample.image) == (0, "x.tfrecord-0.jpg", JPEGS[0])
    assert read_features(tmp_path / "x.tfrecord", SLIM, "read_annotations").labels == [(0, ClassName(""))]


DETECTION_API = {
    "image/encoded": bytes_feature(JPEGS[0]),
    "image/filename": bytes_feature(b"street.jpg"),
    "image/source_id": bytes_feature(b"17"),
    "image/object/bbox/xmin": float_feature(0.1, 0.5),
    "image/object/bbox/xmax": float_feature(0.2, 0.75),
    "image/object/bbox/ymin": float_feature(0.3, 0.0),
    "image/object/bbox/ymax": float_feature(0.4, 1.0),
    "image/object/class/label": int64_feature(3, 1),
    "image/object/class/text": bytes_feature("zebra ü".encode(), b"cat"),
}


def test_read_supports_boxes_of_detection_api(tmp_path: Path):
    sample = read_features(tmp_path / "x.tfrecord", DETECTION_API)
    assert (sample.name, sample.label) == ("street.jpg", None)
    assert sample.boxes == (Box(3, 0.1, 0.3, 0.2, 0.4), Box(1, 0.5, 0.0, 0.75, 1.0))
    for extra in ({}, {"image/object/name": int64_feature(1, 2)}):  # names that are not text are ignored
        annotations = read_features(tmp_path / "x.tfrecord", {**DETECTION_API, **extra}, "read_annotations")
        assert annotations.labels == [(3, ClassName("zebra ü")), (1, ClassName("cat"))]


@pytest.mark.parametrize(
    ("label", "read"),
    [
        (bytes_feature(b"12"), 12),
        (float_feature(3.0), 3),
        *((float_feature(number), None) for number in (3.5, float("nan"), float("inf"))),
        *((feature, None) for feature in (bytes_feature(b""), int64_feature(1, 2), int64_feature(), int64_feature(-1))),
    ],
)
def test_read_converts_labels_of_other_types(tmp_path: Path, label: Feature, read: int | None):
    features = {"image": bytes_feature(JPEGS[0]), "label": label}
    assert read_features(tmp_path / "x.tfrecord", features).label == read


@pytest.mark.parametrize("name", ["image_raw", "image", "jpg", "png", "anything at all"])
def test_read_finds_image_by_content(tmp_path: Path, name: str):
    features = {"mask": bytes_feature(b"none"), "several": bytes_feature(JPEGS[1], JPEGS[1]), "label": int64_feature(1)}
    assert read_features(tmp_path / "x.tfrecord", {**features, name: bytes_feature(JPEGS[0])}).image == JPEGS[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image/encoded": int64_feature(1)}, "no feature is an image; features: image/class/label, image/encoded"),
        ({"image/object/bbox": float_feature(0, 0, 1)}, "image/object/bbox has 3 numbers; a multiple of 4 is required"),
        ({"image/object/bbox": bytes_feature(b"0")}, "image/object/bbox has a value that is not a finite number"),
        ({"image/object/bbox": float_feature(0, 0, 1, float("nan"))}, "has a value that is not a finite number"),
        (
            {"image/object/bbox/xmin": float_feature(0.5)},
            "boxes have different numbers of edges, classes or crowd flags",
        ),
        (
            {"image/object/bbox": float_feature(0, 0, 1, 1), "image/object/label": int64_feature(1, 2)},
            "different numbers",
        ),
        ({**DETECTION_API, "image/object/area": float_feature(3.0)}, "1 areas for 2 boxes"),
        ({"label": bytes_feature(b"cat"), "image/class/label": int64_feature()}, "invalid label 'cat'"),
        ({"label": bytes_feature(b"1" * 5000), "image/class/label": int64_feature()}, "invalid label '1"),
        ({"image/class/values": bytes_feature(b"x")}, "image/class/values has a value that is not a finite number"),
    ],
)
def test_read_reports_invalid_features_with_location(tmp_path: Path, changes: dict[str, Feature], message: str):
    before = frame_record(encode_example(SLIM))
    path = tmp_path / "x.tfrecord"
    path.write_bytes(before + frame_record(encode_example({**SLIM, **changes})))
    with closing(TFRecordShard(path)) as shard, pytest.raises(DataError) as caught:
        shard.read(len(before))
    assert caught.value.message.startswith(f"{path}, record at byte {len(before)}: ")
    assert message in caught.value.message
