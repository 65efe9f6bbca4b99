"""TFRecord: the feature sets of the originals, those of other people, and damaged Examples with good checksums."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from damage import damaged, quick, real_data
from small_sets import BOXES, CLASSES, JPEGS, SIDE, expect_place, make_png, to_classify, to_detect, write_shard
from trainstone.data.picture.look import look
from trainstone.data.sample import Box, ClassName, Sample, shorten
from trainstone.data.storage.encoding import Shard
from trainstone.data.storage.tfrecord import TFRecordEncoder, TFRecordShard
from trainstone.errors import DataError
from trainstone.formats.example import (
    Feature,
    bytes_feature,
    decode_example,
    encode_example,
    float_feature,
    int64_feature,
)
from trainstone.formats.tfrecord import TFRecordFile, frame

BASES = ["plain.jpg", "with space.jpg", "two.dots.jpg", "ünï-日本.jpg", "50%20.jpg", "no-utf8-\udcff.jpg", "no-dot"]


def classify(first_label: int = 1) -> TFRecordEncoder:
    return TFRecordEncoder("classify", CLASSES, first_label)


def read_all(path: Path, first_label: int | None = None) -> list[Sample]:
    shard = TFRecordShard(path, first_label)
    try:
        return [shard.read(int(offset)) for offset in shard.offsets()]
    finally:
        shard.close()


def features_of(encoder: TFRecordEncoder, sample: Sample) -> dict[str, Feature]:
    (buffer,) = encoder.encode(sample, 17, look(sample.image)).buffers
    return decode_example(buffer[12:-4])


def read_features(path: Path, features: dict[str, Feature]) -> Sample:
    path.write_bytes(frame(encode_example(features)))
    return read_all(path)[0]


def glance_features(path: Path, features: dict[str, Feature]) -> list[tuple[int, ClassName]]:
    path.write_bytes(frame(encode_example(features)))
    shard = TFRecordShard(path)
    try:
        return list(shard.glance(0))
    finally:
        shard.close()


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("boxes", [(), (Box(1, 0.25, 0.125, 0.75, 0.5), Box(1, 0.1, 0.2, 0.3, 0.4))])
@pytest.mark.parametrize("first_label", [0, 1])
def test_a_classified_picture_comes_back(tmp_path: Path, base: str, boxes: tuple[Box, ...], first_label: int):
    samples = [Sample("a/1.jpg", JPEGS[0], 0), Sample(f"b/{base}", JPEGS[1], 1, boxes), Sample("a/x", make_png(), 0)]
    write_shard(tmp_path / "train-00000-of-00001", classify(first_label), samples)
    assert read_all(tmp_path / "train-00000-of-00001", first_label) == samples


def test_what_has_no_class_comes_back(tmp_path: Path):
    samples = [Sample("none.jpg", JPEGS[0]), Sample("vector.jpg", JPEGS[1], values=(1.0, -2.5, 0.1))]
    write_shard(tmp_path / "train-00000-of-00001", classify(), samples)
    assert read_all(tmp_path / "train-00000-of-00001") == samples


def test_detections_come_back(tmp_path: Path):
    samples = [*to_detect(6), Sample("ünï %.dots.png", make_png(), boxes=BOXES, id=(1 << 63) - 1)]
    write_shard(tmp_path / "train.0_of_1.tfrecord", TFRecordEncoder("detect", CLASSES, 1), samples)
    assert read_all(tmp_path / "train.0_of_1.tfrecord") == samples


def test_imagenets_features_are_those_of_build_imagenet_data():
    sample = Sample("n01/n01_1.JPEG", JPEGS[0], 0, (BOXES[0], Box(0, 0.0, 0.5, 1.0, 0.875)))
    assert features_of(classify(), sample) == {
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


def test_without_boxes_their_lists_are_there_and_empty():
    features = features_of(classify(), Sample("x.png", make_png(5, 3), 1))
    for edge in ("xmin", "xmax", "ymin", "ymax"):
        assert features[f"image/object/bbox/{edge}"] == float_feature()
    assert features["image/object/bbox/label"] == int64_feature()
    assert (features["image/height"], features["image/width"]) == (int64_feature(3), int64_feature(5))
    assert features["image/format"] == bytes_feature(b"PNG")
    assert features["image/class/label"] == int64_feature(2)
    assert features["image/class/text"] == bytes_feature(b"")


def test_cocos_features_are_those_of_create_tfrecord():
    sample = Sample("000000000139.jpg", JPEGS[0], boxes=BOXES, id=139)
    features = features_of(TFRecordEncoder("detect", CLASSES, 1), sample)
    edges = features.pop("image/object/bbox")
    assert edges.kind == "float"
    assert [shorten(edge) for edge in edges.values] == [0.25, 0.125, 0.75, 0.5, 0.1, 0.2, 0.3, 0.4]
    assert features == {
        "image/fname": bytes_feature(b"000000000139.jpg"),
        "image/encoded": bytes_feature(JPEGS[0]),
        "image/id": int64_feature(139),
        "image/shape": int64_feature(SIDE, SIDE, 3),
        "image/object/label": int64_feature(1, 2),
        "image/object/name": bytes_feature(b"a", b"b"),
        "image/object/is_crowd": int64_feature(0, 1),
    }


def test_areas_are_written_in_pixels_where_one_is_known_and_read_again(tmp_path: Path):
    boxes = (BOXES[0]._replace(area=0.0625), BOXES[1])
    sample = Sample("a.jpg", JPEGS[0], boxes=boxes, id=1)
    features = features_of(TFRecordEncoder("detect", CLASSES, 1), sample)
    assert features["image/object/area"].values == pytest.approx([0.0625 * SIDE**2, 0.2 * 0.2 * SIDE**2])
    read = read_features(tmp_path / "x.tfrecord", features)
    assert [box.area for box in read.boxes] == pytest.approx([0.0625, 0.04])
    assert read.boxes[0] == boxes[0]


@pytest.mark.parametrize(("areas", "told"), [((-1.0, 256.0), [None, 0.25]), ((), [None, None])])
def test_the_object_detection_apis_areas_are_read(tmp_path: Path, areas: tuple[float, ...], told: list[float | None]):
    features = {**DETECTION_API, "image/object/area": float_feature(*areas)}
    assert [box.area for box in read_features(tmp_path / "x.tfrecord", features).boxes] == told


def test_areas_that_do_not_fit_the_boxes_are_told(tmp_path: Path):
    with pytest.raises(DataError, match=r"x\.tfrecord, record at byte 0: 1 areas of 2 boxes"):
        read_features(tmp_path / "x.tfrecord", {**DETECTION_API, "image/object/area": float_feature(3.0)})


def test_areas_of_a_damaged_picture_do_not_keep_its_record_from_being_read(tmp_path: Path):
    features = {**DETECTION_API, "image/object/area": float_feature(3.0, 4.0), "image/encoded": bytes_feature(b"torn")}
    assert [box.area for box in read_features(tmp_path / "x.tfrecord", features).boxes] == [None, None]


def test_a_picture_without_number_gets_its_place_as_one():
    features = features_of(TFRecordEncoder("detect", CLASSES, 1), Sample("x.jpg", JPEGS[0]))
    assert features["image/id"] == int64_feature(17)
    assert features["image/object/bbox"] == float_feature()


@pytest.mark.parametrize(
    ("encoder", "sample"),
    [
        (classify(), Sample("x.jpg", JPEGS[0], 2)),
        (TFRecordEncoder("detect", CLASSES, 1), Sample("x.jpg", JPEGS[0], boxes=(Box(-1, 0, 0, 1, 1),))),
        (TFRecordEncoder("detect", (), 1), Sample("x.jpg", JPEGS[0], boxes=(Box(0, 0, 0, 1, 1),))),
    ],
)
def test_a_label_that_no_class_has_is_told(encoder: TFRecordEncoder, sample: Sample):
    with pytest.raises(DataError, match=r"label -?\d, but there are [02] classes"):
        encoder.encode(sample, 0, look(sample.image))


def test_the_index_is_that_of_tfrecord2idx(tmp_path: Path):
    spans = write_shard(tmp_path / "train-00000-of-00001", classify(), to_classify(3))
    text = (tmp_path / "idx/train-00000-of-00001.idx").read_text()
    assert text == "".join(f"{span.offset} {span.size}\n" for span in spans)
    shard = TFRecordShard(tmp_path / "train-00000-of-00001")
    assert list(shard.index_files()) == [(tmp_path / "idx/train-00000-of-00001.idx", text)]
    shard.close()


def test_where_index_files_lie():
    assert classify().sidecars(Shard("train", "train-00000-of-01024", 0, 1)) == ("idx/train-00000-of-01024.idx",)
    assert classify().sidecars(Shard("train", "train.0_of_4.tfrecord", 0, 1)) == ("train.0_of_4.idx",)


@pytest.mark.parametrize("place", ["idx/x.tfrecord.idx", "x.tfrecord.idx", "x.idx"])
def test_an_index_is_used_wherever_people_put_it(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch):
    spans = write_shard(tmp_path / "x.tfrecord", classify(), to_classify(3))
    (tmp_path / "x.idx").unlink()
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("".join(f"{span.offset} {span.size}\n" for span in spans))
    shard = TFRecordShard(tmp_path / "x.tfrecord")
    monkeypatch.setattr(TFRecordFile, "spans", lambda *_: pytest.fail("walked through the file"))
    assert shard.offsets().tolist() == [span.offset for span in spans]
    shard.close()


@pytest.mark.parametrize("text", ["", "no index\n", "0 5\n", "0 100\n", "16 1000\n", "0 99999999999\n", "x" * 100])
def test_an_index_that_does_not_fit_is_done_without(tmp_path: Path, text: str):
    spans = write_shard(tmp_path / "x.tfrecord", classify(), to_classify(3))
    (tmp_path / "x.idx").write_text(text)
    shard = TFRecordShard(tmp_path / "x.tfrecord")
    assert shard.offsets().tolist() == [span.offset for span in spans]
    shard.close()


SLIM = {
    "image/encoded": bytes_feature(JPEGS[0]),
    "image/format": bytes_feature(b"jpg"),
    "image/class/label": int64_feature(0),
    "image/height": int64_feature(SIDE),
    "image/width": int64_feature(SIDE),
}


def test_tf_slims_labels_begin_at_0(tmp_path: Path):
    sample = read_features(tmp_path / "x.tfrecord", SLIM)
    assert (sample.label, sample.name, sample.image) == (0, "x.tfrecord-0.jpg", JPEGS[0])
    assert glance_features(tmp_path / "x.tfrecord", SLIM) == [(0, ClassName(""))]


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


def test_the_object_detection_apis_boxes_are_read(tmp_path: Path):
    sample = read_features(tmp_path / "x.tfrecord", DETECTION_API)
    assert (sample.name, sample.label) == ("street.jpg", None)
    assert sample.boxes == (Box(3, 0.1, 0.3, 0.2, 0.4), Box(1, 0.5, 0.0, 0.75, 1.0))
    told = glance_features(tmp_path / "x.tfrecord", DETECTION_API)
    assert told == [(3, ClassName("zebra ü")), (1, ClassName("cat"))]


@pytest.mark.parametrize(
    ("label", "read"),
    [
        (bytes_feature(b"12"), 12),
        (float_feature(3.0), 3),
        (float_feature(3.5), None),
        (float_feature(float("nan")), None),
        (float_feature(float("inf")), None),
        (bytes_feature(b""), None),
        (int64_feature(1, 2), None),
        (int64_feature(), None),
        (int64_feature(-1), None),
    ],
)
def test_labels_in_other_forms(tmp_path: Path, label: Feature, read: int | None):
    features = {"image": bytes_feature(JPEGS[0]), "label": label}
    assert read_features(tmp_path / "x.tfrecord", features).label == read


@pytest.mark.parametrize("label", [b"cat", b"1" * 5000])
def test_a_label_that_is_text_is_told(tmp_path: Path, label: bytes):
    features = {"image": bytes_feature(JPEGS[0]), "label": bytes_feature(label)}
    with pytest.raises(DataError, match=r"x\.tfrecord, record at byte 0: its label is the text '(cat|1+)'"):
        read_features(tmp_path / "x.tfrecord", features)


@pytest.mark.parametrize("name", ["image_raw", "image", "jpg", "png", "anything at all"])
def test_the_picture_is_found_by_looking(tmp_path: Path, name: str):
    features = {"mask": bytes_feature(b"none"), "several": bytes_feature(JPEGS[1], JPEGS[1]), "label": int64_feature(1)}
    assert read_features(tmp_path / "x.tfrecord", {**features, name: bytes_feature(JPEGS[0])}).image == JPEGS[0]


def test_a_damaged_picture_that_is_surely_meant_is_returned_as_it_is(tmp_path: Path):
    assert read_features(tmp_path / "x.tfrecord", {**SLIM, "image/encoded": bytes_feature(b"rubbish")}).image == (
        b"rubbish"
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"image/encoded": int64_feature(1)}, "no feature is a picture; it has image/class/label, image/encoded"),
        ({"image/object/bbox": float_feature(0, 0, 1)}, "image/object/bbox has 3 numbers, no multiple of 4"),
        ({"image/object/bbox": bytes_feature(b"0")}, "image/object/bbox holds something that is no number"),
        ({"image/object/bbox": float_feature(0, 0, 1, float("nan"))}, "holds something that is no number"),
        ({"image/object/bbox/xmin": float_feature(0.5)}, "boxes with unlike numbers of edges, classes or crowd marks"),
        ({"image/object/bbox": float_feature(0, 0, 1, 1), "image/object/label": int64_feature(1, 2)}, "unlike numbers"),
        ({"image/class/values": bytes_feature(b"x")}, "image/class/values holds something that is no number"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(tmp_path: Path, changes: dict[str, Feature], told: str):
    before = frame(encode_example(SLIM))
    path = tmp_path / "x.tfrecord"
    path.write_bytes(before + frame(encode_example({**SLIM, **changes})))
    shard = TFRecordShard(path)
    with pytest.raises(DataError) as caught:
        shard.read(len(before))
    assert caught.value.message.startswith(f"{path}, record at byte {len(before)}: ")
    assert told in caught.value.message
    shard.close()


def test_an_empty_example_is_told(tmp_path: Path):
    with pytest.raises(DataError, match=r"record at byte 0: no feature is a picture; it has none"):
        read_features(tmp_path / "x.tfrecord", {})


def test_names_of_boxes_that_are_no_text_are_passed_over(tmp_path: Path):
    features = {**DETECTION_API, "image/object/name": int64_feature(1, 2)}
    assert glance_features(tmp_path / "x.tfrecord", features)[0] == (3, ClassName("zebra ü"))


def test_a_glance_tells_class_and_text(tmp_path: Path):
    write_shard(tmp_path / "train-00000-of-00001", classify(), [*to_classify(2), Sample("x.jpg", JPEGS[0])])
    shard = TFRecordShard(tmp_path / "train-00000-of-00001")
    told = [list(shard.glance(int(offset))) for offset in shard.offsets()]
    assert told == [[(0, ClassName("a", "first letter"))], [(1, ClassName("b"))], []]
    shard.close()


EXAMPLES: list[dict[str, Any]] = [
    features_of(classify(), Sample("a/x.jpg", JPEGS[0][:200], 0, BOXES[:1])),
    features_of(TFRecordEncoder("detect", CLASSES, 1), Sample("x.jpg", JPEGS[0][:200], boxes=BOXES, id=7)),
    {**DETECTION_API, "image/encoded": bytes_feature(JPEGS[0][:200])},
]
KINDS = {
    "bytes": st.lists(st.binary(max_size=30), max_size=3).map(lambda v: bytes_feature(*v)),
    "int64": st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=9).map(lambda v: int64_feature(*v)),
    "float": st.lists(st.floats(width=32), max_size=9).map(lambda v: float_feature(*v)),
}


def expect_sample_or_place(path: Path, example: bytes) -> None:
    before = frame(encode_example(SLIM))
    path.write_bytes(before + frame(example))
    shard = TFRecordShard(path)
    for ask in (shard.read, shard.glance):
        assert isinstance(expect_place(ask, len(before), path.name), Sample | list | None)
    shard.close()


@quick
@given(st.data())
def test_a_damaged_example_gives_a_sample_or_a_place(tmp_path: Path, data: st.DataObject):
    sound = encode_example(data.draw(st.sampled_from(EXAMPLES)))
    expect_sample_or_place(tmp_path / "x.tfrecord", data.draw(damaged(sound)))


@quick
@given(st.data())
def test_features_of_any_kind_give_a_sample_or_a_place(tmp_path: Path, data: st.DataObject):
    features = dict(data.draw(st.sampled_from(EXAMPLES)))
    for name in data.draw(st.lists(st.sampled_from([*features, "image/class/label"]), min_size=1, max_size=3)):
        features[name] = data.draw(KINDS[data.draw(st.sampled_from(sorted(KINDS)))])
    expect_sample_or_place(tmp_path / "x.tfrecord", encode_example(features))


def test_tf_slims_flowers_are_read():
    path = real_data("records/tfrecord/flowers_validation_00001-of-00005.tfrecord")
    samples = read_all(path)
    assert len(samples) == 70
    assert {sample.label for sample in samples} == {0, 1, 2, 3, 4}
    assert all(look(sample.image).kind == "jpeg" for sample in samples)
