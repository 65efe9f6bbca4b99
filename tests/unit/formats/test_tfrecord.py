"""TFRecord's framing as TensorFlow writes it, DALI's index, tf.train.Example as protocol buffers have it.

Damage: test_damage.py.
"""

import struct
from functools import partial
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from damage import quick, real_data, write
from trainstone.errors import DataError
from trainstone.formats.files import Span
from trainstone.formats.tfrecord import (
    Feature,
    TFRecordFile,
    bytes_feature,
    encode_example,
    float_feature,
    frame,
    index_line,
    int64_feature,
    read_index,
)
from trainstone.formats.tfrecord import decode_example as decode_at

RECORDS = [b"", b"a", b"hello world" * 30, bytes(100), b"\xff" * 3]
SOUND = b"".join(map(frame, RECORDS))


def read_all(path: Path) -> list[bytes]:
    with TFRecordFile(path) as file:
        return [bytes(file.read(span.offset)) for span in file.spans()]


def test_known_bytes_of_a_record():
    """As TensorFlow 2.21 writes them."""
    assert frame(b"") == bytes.fromhex("0000000000000000 29039807 d8ea82a2")
    assert frame(b"hello") == bytes.fromhex("0500000000000000 eab2043e 68656c6c6f bb1f1c19")


def test_records_are_read_back(tmp_path):
    path = write(tmp_path / "a.tfrecord", SOUND)
    assert read_all(path) == RECORDS
    with TFRecordFile(path) as file:
        spans = list(file.spans())
        assert list(file.spans(spans[2].offset)) == spans[2:]
        assert [span.size for span in spans] == [16 + len(record) for record in RECORDS]
        assert list(file.spans(file.size)) == []
        kept = file.read(spans[1].offset)
    assert bytes(kept) == b"a"  # a record outlives its file
    looks_compressed = frame(bytes(0x8B1F))
    assert looks_compressed[:2] == b"\x1f\x8b"
    assert read_all(write(tmp_path / "b", looks_compressed)) == [bytes(0x8B1F)]
    assert read_all(write(tmp_path / "empty", b"")) == []


def test_damaged_data_costs_one_record(tmp_path):
    content = bytearray(SOUND)
    content[16 + 12] ^= 1
    with TFRecordFile(write(tmp_path / "a", bytes(content))) as file:
        assert len(list(file.spans())) == 5
        with pytest.raises(DataError, match="byte 16: the 1 bytes of the record do not fit their checksum"):
            file.read(16)
        assert bytes(file.read(33)) == RECORDS[2]


@given(st.binary(max_size=40))
@quick
@example(bytes(40))
@example(b"\x01\0\0\0\0\0\0\0" * 5)
@example(b"\x1f\x8b\0\0\0\0")
@example(frame(bytes(5000))[:40])  # a record that does not fit
def test_resync_finds_the_next_record_behind_any_garbage(tmp_path, garbage):
    with TFRecordFile(write(tmp_path / "a", b"!" + garbage + SOUND[16:])) as file:
        assert file.resync(0) == 1 + len(garbage)


@pytest.mark.parametrize("shift", range(5))
def test_resync_finds_records_across_the_pieces_it_looks_at(tmp_path, shift):
    garbage = bytes((1 << 20) - 10 + shift)
    with TFRecordFile(write(tmp_path / "a", b"!" + garbage + frame(b"found"))) as file:
        assert file.resync(0) == 1 + len(garbage)
        assert file.resync(1 + len(garbage)) is None


def test_an_index_is_read_back(tmp_path):
    spans = [Span(0, 16), Span(16, 17)]
    assert "".join(map(index_line, spans)) == "0 16\n16 17\n"
    assert read_index(write(tmp_path / "idx", b"0 16\r\n\n16 17")) == spans


decode_example = partial(decode_at, where="a.tfrecord, byte 17")

NONE = Feature("none", [])


def entry(name: bytes, feature: bytes) -> bytes:
    """One feature of an Example, by hand; all lengths below 128."""
    inner = b"\x0a" + bytes([len(name)]) + name + b"\x12" + bytes([len(feature)]) + feature
    return b"\x0a" + bytes([len(inner)]) + inner


def message(*entries: bytes) -> bytes:
    features = b"".join(entries)
    return b"\x0a" + bytes([len(features)]) + features


def test_known_bytes_of_an_example():
    assert encode_example({}) == b"\x0a\x00"
    assert encode_example({"a": int64_feature(3, 300)}) == bytes.fromhex("0a0e 0a0c 0a0161 1207 1a05 0a03 03ac02")
    assert encode_example({"a": float_feature(1.0)}) == bytes.fromhex("0a0f 0a0d 0a0161 1208 1206 0a04 0000803f")
    assert encode_example({"a": bytes_feature(b"hi", b"")}) == bytes.fromhex("0a0f 0a0d 0a0161 1208 0a06 0a026869 0a00")
    assert encode_example({"a": int64_feature(-1)}) == message(entry(b"a", b"\x1a\x0c\x0a\x0a" + b"\xff" * 9 + b"\x01"))


numbers = st.integers(-(1 << 63), (1 << 63) - 1)
features = st.one_of(
    st.lists(st.binary(max_size=50)).map(lambda values: bytes_feature(*values)),
    st.lists(numbers | st.integers(0, 300)).map(lambda values: int64_feature(*values)),
    st.lists(st.floats(width=32, allow_nan=False)).map(lambda values: float_feature(*values)),
)


@given(st.dictionaries(st.text(max_size=20), features, max_size=5))
@quick
def test_any_features_are_read_back(made):
    data = encode_example(made)
    assert decode_example(memoryview(data)) == made
    assert encode_example(dict(reversed(made.items()))) == data


def test_values_that_are_not_packed_are_read():
    integers = b"\x1a\x07\x08\x05\x08\xac\x02\x08\x01"
    floats = b"\x12\x0a\x0d" + struct.pack("<f", 1.5) + b"\x0d" + struct.pack("<f", -2)
    assert decode_example(message(entry(b"i", integers), entry(b"f", floats))) == {
        "i": int64_feature(5, 300, 1),
        "f": float_feature(1.5, -2.0),
    }


def test_messages_met_twice_are_merged_as_protocol_buffers_do():
    one, two = b"\x1a\x03\x0a\x01\x01", b"\x1a\x03\x0a\x01\x02"
    text = b"\x0a\x03\x0a\x01x"
    assert decode_example(message(entry(b"a", one + two))) == {"a": int64_feature(1, 2)}
    assert decode_example(message(entry(b"a", one), entry(b"a", two))) == {"a": int64_feature(2)}
    assert decode_example(message(entry(b"a", one)) + message(entry(b"b", two))) == {
        "a": int64_feature(1),
        "b": int64_feature(2),
    }
    assert decode_example(message(entry(b"a", one + text))) == {"a": bytes_feature(b"x")}
    twice = b"\x0a\x01a\x12\x05" + one + b"\x12\x05" + two
    assert decode_example(message(b"\x0a" + bytes([len(twice)]) + twice)) == {"a": int64_feature(1, 2)}


def test_what_is_missing_is_empty():
    assert decode_example(b"") == {}
    assert decode_example(message(b"\x0a\x00")) == {"": NONE}
    assert decode_example(message(b"\x0a\x03\x0a\x01a")) == {"a": NONE}


def test_unknown_fields_are_skipped_by_their_wire_type():
    unknown = b"\x78\xff\x01" + b"\x79" + bytes(8) + b"\x7a\x02hi" + b"\x7d" + bytes(4)  # field 15, first a varint
    known = message(unknown + entry(b"a", unknown + b"\x1a\x05\x0a\x01\x07\x10\x01"))
    assert decode_example(unknown + known + unknown) == {"a": int64_feature(7)}


def test_a_known_field_of_another_wire_type_is_unknown():
    assert decode_example(b"\x08\x05") == {}
    assert decode_example(message(entry(b"a", b"\x18\x05"))) == {"a": NONE}
    assert decode_example(message(entry(b"a", b"\x1a\x05\x0d" + bytes(4)))) == {"a": int64_feature()}
    assert decode_example(message(entry(b"a", b"\x12\x02\x08\x05"))) == {"a": float_feature()}


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\x05abc", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x0a" + b"\xff" * 11, b"\x0a", b"\x00\x00",
        b"\x0e\x00", b"\x7b\x08\x01\x7c", b"\x79abc", message(entry(b"\xff", b"")),
        message(entry(b"a", b"\x12\x05\x0a\x03abc")), message(entry(b"a", b"\x1a\x03\x0a\x01\x80")),
        *(encode_example({"a": int64_feature(300), "b": bytes_feature(b"x")})[:length] for length in range(1, 20)),
    ],
)  # fmt: skip
def test_damaged_example_is_rejected_with_its_place(data):
    with pytest.raises(DataError, match=r"^a.tfrecord, byte 17: ") as caught:
        decode_example(data)
    assert caught.value.hint


@pytest.mark.parametrize("feature", [int64_feature(1 << 63), int64_feature(-(1 << 63) - 1), float_feature(1e39)])
def test_what_no_example_can_hold_is_refused(feature):
    with pytest.raises(DataError, match="feature a cannot be stored"):
        encode_example({"a": feature})
    with pytest.raises(DataError, match="cannot be stored"):
        encode_example({"\udcff": int64_feature(1)})


def test_real_examples_are_read_and_written_alike():
    path = real_data("records/tfrecord/flowers_validation_00001-of-00005.tfrecord")
    records = read_all(path)
    assert len(records) == 70
    assert b"".join(map(frame, records)) == path.read_bytes()
    kinds = {"image/encoded": "bytes", "image/format": "bytes"}
    kinds |= {f"image/{name}": "int64" for name in ("class/label", "height", "width")}
    for data in records:
        found = decode_example(data)
        assert {name: feature.kind for name, feature in found.items()} == kinds
        assert 0 <= found["image/class/label"].values[0] < 5
        assert found["image/encoded"].values[0].startswith(b"\xff\xd8")
        again = encode_example(found)
        assert len(again) == len(data)
        assert decode_example(again) == found
