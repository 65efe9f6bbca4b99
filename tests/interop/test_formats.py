"""Records at the edges of their formats are TensorFlow's and MXNet's byte for byte (whole sets: test_sets_*.py)."""

from pathlib import Path

from made_sets import pack_image
from peers import ask_peer
from trainstone.formats import recordio
from trainstone.formats.recordio import MAGIC_BYTES, ImageRecord
from trainstone.formats.tfrecord import Feature, bytes_feature, encode_example, float_feature, int64_feature

JPEG = b"\xff\xd8" + bytes(range(256)) * 430
EXAMPLES: list[dict[str, Feature]] = [
    {},
    {
        "image/encoded": bytes_feature(JPEG),
        "image/class/label": int64_feature(7),
        "image/object/bbox/xmin": float_feature(0.25, 0.5),
    },
    {
        "image/encoded": bytes_feature(b""),
        "image/class/label": int64_feature(-1, 0, 127, 128, -(1 << 63), (1 << 63) - 1),
        "image/object/bbox/xmin": float_feature(),
        "no bytes": bytes_feature(),
        "no integers": int64_feature(),
        "ünï": bytes_feature(b"one", b"", b"three"),
        "floats": float_feature(-0.0, 1e-45, 3.4028234663852886e38, float("inf"), 0.1),
    },
]
IMAGES = [
    ImageRecord((3.0,), 0, JPEG),
    ImageRecord((0.5,), 1, b""),
    ImageRecord((1.0, -2.5, 3.0), 2, JPEG[:1001], vector=True),
    ImageRecord((4.0,), 3, b"x", vector=True),
    ImageRecord((-1.0,), 4, MAGIC_BYTES * 7),
    ImageRecord((1.0,), 5, b"abcd" + MAGIC_BYTES + b"ab" + MAGIC_BYTES + JPEG[:50] + MAGIC_BYTES),
    ImageRecord((2.0,), 1 << 40, b"last"),
]


def test_our_examples_are_tensorflows_byte_for_byte():
    jobs = [
        {
            name: [feature.kind, [value.hex() if isinstance(value, bytes) else value for value in feature.values]]
            for name, feature in example.items()
        }
        for example in EXAMPLES
    ]
    theirs = ask_peer("tensorflow", encode=jobs)["encode"]
    assert [encode_example(example).hex() for example in EXAMPLES[1:]] == theirs[1:]
    # Without any feature TensorFlow leaves out the empty table of features.
    assert (encode_example({}), theirs[0]) == (b"\x0a\x00", "")


def test_our_records_and_index_are_mxnets_byte_for_byte(tmp_path: Path):
    jobs = [
        {"key": image.id, "labels": image.labels, "vector": image.vector, "image": image.image.hex()}
        for image in IMAGES
    ]
    ask_peer("mxnet", write={str(tmp_path / "theirs.rec"): jobs})
    ours = b"".join(pack_image(image) for image in IMAGES)
    assert (tmp_path / "theirs.rec").read_bytes() == ours
    index = "".join(recordio.index_line(*entry) for entry in recordio.rebuild_index(tmp_path / "theirs.rec"))
    assert (tmp_path / "theirs.idx").read_text() == index
