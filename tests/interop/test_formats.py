"""Record formats in both directions: what we write TensorFlow, MXNet and DALI read, and what they write we read."""

import random
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from made_sets import pack_image
from peers import ask_peer, digest, find_peer, run_peer
from trainstone.errors import DataError
from trainstone.formats import recordio, tfrecord, wds
from trainstone.formats.example import (
    Feature,
    bytes_feature,
    decode_example,
    encode_example,
    float_feature,
    int64_feature,
)
from trainstone.formats.recordio import MAGIC_BYTES, ImageRecord, RecordIOFile, unpack_image
from trainstone.formats.span import Span

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
FILES = {
    "a/0001.jpg": JPEG,
    "a/0001.cls": b"7",
    "a/0002.jpg": JPEG[:512],
    "a/0002.seg.PNG": b"",
    "a/0002.cls": b"-1",
    "folder/" * 20 + "0003.jpg": b"in name and prefix",
    "x" * 130 + ".jpg": b"in an extended header",
    "ünï.jpg": b"not ASCII",
}


def write_tfrecord(path: Path, examples: list[dict[str, Feature]]) -> None:
    """Examples with their index beside them."""
    records = [tfrecord.frame(encode_example(example)) for example in examples]
    path.write_bytes(b"".join(records))
    with tfrecord.TFRecordFile(path) as file:
        path.with_suffix(".idx").write_text("".join(map(tfrecord.index_line, file.spans())))


def write_recordio(path: Path) -> None:
    """IMAGES with their index beside them."""
    path.write_bytes(b"".join(pack_image(image) for image in IMAGES))
    index = recordio.rebuild_index(path)
    path.with_suffix(".idx").write_text("".join(recordio.index_line(*entry) for entry in index))


def write_wds(path: Path) -> None:
    """FILES with their index beside them."""
    path.write_bytes(b"".join(wds.member(name, data) for name, data in FILES.items()) + wds.END)
    with wds.WdsFile(path) as file:
        path.with_suffix(".idx").write_text(wds.index_text(file.samples()))


def describe(example: dict[str, Feature]) -> dict[str, list[Any]]:
    """An example as peer_tensorflow.py describes it."""
    shown = {"bytes": digest, "float": lambda value: struct.pack("<f", value).hex()}
    return {
        name: [feature.kind, [shown.get(feature.kind, int)(value) for value in feature.values]]
        for name, feature in example.items()
    }


def spell(example: dict[str, Feature]) -> dict[str, list[Any]]:
    """An example as a job for peer_tensorflow.py."""
    return {
        name: [feature.kind, [value.hex() if isinstance(value, bytes) else value for value in feature.values]]
        for name, feature in example.items()
    }


def make_odd_messages() -> list[bytes]:
    """Messages that are nearly examples: the same ones in every run."""
    chance = random.Random(1)
    sound = encode_example({**EXAMPLES[2], "image/encoded": bytes_feature(b"JPEG")})
    messages = [sound + sound, sound + encode_example({"ünï": int64_feature(1)}), b""]
    for _ in range(3000):
        data = bytearray(sound)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(data))
            data[at] = chance.choice([chance.randrange(256), data[at] ^ 1 << chance.randrange(8)])
        messages.append(bytes(data))
    return messages


@pytest.fixture(scope="module")
def tensorflow(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What TensorFlow says of our file, and where its own are."""
    find_peer("tensorflow")
    folder = tmp_path_factory.mktemp("tensorflow")
    write_tfrecord(folder / "ours.tfrecord", EXAMPLES)
    spelled = [spell(example) for example in EXAMPLES]
    answers = ask_peer(
        "tensorflow",
        write={str(folder / name): spelled for name in ("theirs.tfrecord", "theirs.tfrecord.gz")},
        read=[str(folder / "ours.tfrecord")],
        parse=[message.hex() for message in make_odd_messages()],
        encode=spelled,
    )
    return {"folder": folder, **answers}


@pytest.fixture(scope="module")
def mxnet(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What MXNet says of our file, and where its own is."""
    find_peer("mxnet")
    folder = tmp_path_factory.mktemp("mxnet")
    write_recordio(folder / "ours.rec")
    records = [
        {"key": image.id, "labels": image.labels, "vector": image.vector, "image": image.image.hex()}
        for image in IMAGES
    ]
    answers = ask_peer("mxnet", write={str(folder / "theirs.rec"): records}, read=[str(folder / "ours.rec")])
    return {"folder": folder, **answers}


@pytest.fixture(scope="module")
def dali(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What DALI's readers make of our files with our indexes."""
    find_peer("dali")
    folder = tmp_path_factory.mktemp("dali")
    write_tfrecord(folder / "a.tfrecord", EXAMPLES[1:])  # DALI has no place for a record without a picture
    write_recordio(folder / "b.rec")
    write_wds(folder / "c.tar")
    kinds = {"image/encoded": "bytes", "image/class/label": "int64", "image/object/bbox/xmin": "float"}
    tar = {"path": str(folder / "c.tar"), "count": 5, "extensions": ["jpg", "cls"]}
    answers = ask_peer(
        "dali",
        tfrecord=("tfrecord", {**place(folder / "a.tfrecord"), "count": len(EXAMPLES) - 1, "features": kinds}),
        mxnet=("mxnet", {**place(folder / "b.rec"), "count": len(IMAGES)}),
        webdataset=("webdataset", {**tar, "index": str(folder / "c.idx")}),
        scanned=("webdataset", {**tar, "index": None}),
    )
    return {"folder": folder, **answers}


def place(path: Path) -> dict[str, str]:
    return {"path": str(path), "index": str(path.with_suffix(".idx"))}


def test_tensorflow_reads_our_examples(tensorflow):
    (found,) = tensorflow["read"].values()
    assert found == [describe(example) for example in EXAMPLES]


def test_we_read_tensorflows_examples(tensorflow):
    with tfrecord.TFRecordFile(tensorflow["folder"] / "theirs.tfrecord") as file:
        found = [decode_example(file.read(span.offset), "theirs") for span in file.spans()]
    assert [describe(example) for example in found] == [describe(example) for example in EXAMPLES]


def test_our_examples_are_tensorflows_byte_for_byte(tensorflow):
    assert [encode_example(example).hex() for example in EXAMPLES[1:]] == tensorflow["encode"][1:]
    # Without any feature TensorFlow leaves out the empty table of features.
    assert (encode_example({}), tensorflow["encode"][0]) == (b"\x0a\x00", "")


def test_tensorflows_compressed_file_is_told_as_such(tensorflow):
    with (
        tfrecord.TFRecordFile(tensorflow["folder"] / "theirs.tfrecord.gz") as file,
        pytest.raises(DataError, match="compressed with gzip"),
    ):
        list(file.spans())


def test_odd_messages_are_read_or_refused_as_tensorflow_does(tensorflow):
    messages = make_odd_messages()
    assert 100 < tensorflow["parse"].count(None) < len(messages) - 100
    for message, expected in zip(messages, tensorflow["parse"], strict=True):
        try:
            found = describe(decode_example(message, "odd"))
        except DataError:
            found = None
        # TensorFlow's protobuf drops a feature whose entry in the table has unknown fields; we keep it.
        assert (found is None) == (expected is None), message.hex()
        assert (expected or {}).items() <= (found or {}).items(), message.hex()


def test_mxnet_reads_our_records(mxnet):
    (found,) = mxnet["read"].values()
    assert found == [
        {
            "key": image.id,
            "labels": list(image.labels),
            "vector": image.vector,
            "image": digest(image.image),
        }
        for image in IMAGES
    ]


def test_we_read_mxnets_records(mxnet):
    path = mxnet["folder"] / "theirs.rec"
    index = recordio.read_index(path.with_suffix(".idx"))
    assert [key for key, _ in index] == [image.id for image in IMAGES]
    with RecordIOFile(path) as file:
        assert [unpack_image(file.read(offset), "theirs") for _, offset in index] == IMAGES
        assert [span.offset for span in file.spans()] == [offset for _, offset in index]


@pytest.mark.parametrize("suffix", [".rec", ".idx"])
def test_our_records_are_mxnets_byte_for_byte(mxnet, suffix):
    folder = mxnet["folder"]
    assert (folder / f"ours{suffix}").read_bytes() == (folder / f"theirs{suffix}").read_bytes()


def test_dali_reads_our_examples(dali):
    found = dali["tfrecord"]
    assert found["image/encoded"] == [digest(example["image/encoded"].values[0]) for example in EXAMPLES[1:]]
    for name in ("image/class/label", "image/object/bbox/xmin"):
        assert found[name] == [example[name].values for example in EXAMPLES[1:]]


def test_dali_reads_our_records(dali):
    assert dali["mxnet"] == [{"labels": list(image.labels), "image": digest(image.image)} for image in IMAGES]


@pytest.mark.parametrize("how", ["webdataset", "scanned"])
def test_dali_reads_our_tars(dali, how):
    with wds.WdsFile(dali["folder"] / "c.tar") as file:
        expected = [
            {extension: digest(file.read(sample.members.get(extension, Span(0, 0)))) for extension in ("jpg", "cls")}
            for sample in file.samples()
        ]
    assert dali[how] == expected


def test_dalis_indexes_are_ours(dali):
    folder = dali["folder"]
    tools = find_peer("dali") / "bin"
    run_peer("dali", tools / "tfrecord2idx", folder / "a.tfrecord", folder / "a.theirs")
    run_peer("dali", tools / "wds2idx", folder / "c.tar", folder / "c.theirs")
    for name in ("a", "c"):
        assert (folder / f"{name}.idx").read_text() == (folder / f"{name}.theirs").read_text()
    spans = tfrecord.read_index(folder / "a.theirs")
    with tfrecord.TFRecordFile(folder / "a.tfrecord") as file:
        assert spans == list(file.spans())


def test_rec2idx_finds_our_records(mxnet, tmp_path):
    (tool,) = find_peer("dali").glob("lib/python*/site-packages/rec2idx.py")  # it wants MXNet, which DALI's has not
    copied = shutil.copy(tool, tmp_path)  # or it would import what lies beside it: DALI's numpy
    run_peer("mxnet", copied, mxnet["folder"] / "ours.rec", tmp_path / "theirs.idx")
    expected = [offset for _, offset in recordio.rebuild_index(mxnet["folder"] / "ours.rec")]
    assert recordio.read_index(tmp_path / "theirs.idx") == list(enumerate(expected))
