"""tf.train.Example as protocol buffers have it. Files damaged at random: test_damage.py."""

import struct
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from damage import quick, real_data
from trainstone.errors import DataError
from trainstone.formats.tfrecord import (
    Feature,
    TFRecordFile,
    bytes_feature,
    encode_example,
    float_feature,
    int64_feature,
)
from trainstone.formats.tfrecord import decode_example as decode_at

decode_example = partial(decode_at, where="a.tfrecord, byte 17")

NONE = Feature("none", [])


def entry(name: bytes, feature: bytes) -> bytes:
    """One feature of an Example, by hand; all lengths below 128."""
    inner = b"\x0a" + bytes([len(name)]) + name + b"\x12" + bytes([len(feature)]) + feature
    return b"\x0a" + bytes([len(inner)]) + inner


def message(*entries: bytes) -> bytes:
    features = b"".join(entries)
    return b"\x0a" + bytes([len(features)]) + features


def test_known_bytes():
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
    unknown = (
        b"\x78\xff\x01"  # field 15: a varint
        + b"\x79"
        + bytes(8)
        + b"\x7a\x02hi"
        + b"\x7d"
        + bytes(4)
    )
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
    with TFRecordFile(path) as file:
        for span in file.spans():
            data = file.read(span.offset)
            found = decode_example(data)
            assert {name: feature.kind for name, feature in found.items()} == {
                "image/encoded": "bytes",
                "image/format": "bytes",
                "image/class/label": "int64",
                "image/height": "int64",
                "image/width": "int64",
            }
            assert 0 <= found["image/class/label"].values[0] < 5
            assert found["image/encoded"].values[0].startswith(b"\xff\xd8")
            again = encode_example(found)
            assert len(again) == len(data)
            assert decode_example(again) == found
