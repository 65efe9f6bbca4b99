"""Tests of RecordIO (im2rec), TFRecord (tf.train.Example) and tar (WebDataset) files, their indexes and lists.

Damaged files: test_damage.py.
"""

import io
import struct
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.builders.archives import build_tar_header
from support.builders.damage import quick, real_data, write
from support.builders.raw_data_sets import pack_image, pack_payload
from trainstone.errors import DataError
from trainstone.formats import recordio, tfrecord
from trainstone.formats.files import ByteSpan
from trainstone.formats.recordio import (
    MAGIC_BYTES,
    ImageRecord,
    ListLine,
    RecordIOFile,
    format_list_line,
    pack_labels,
    read_list,
    rebuild_index,
    unpack_image,
)
from trainstone.formats.tar import END, TarMember, WebDatasetFile, encode_member
from trainstone.formats.tfrecord import (
    Feature,
    TFRecordFile,
    bytes_feature,
    encode_example,
    float_feature,
    frame_record,
    int64_feature,
)
from trainstone.formats.tfrecord import decode_example as decode_at

M = bytes.fromhex("0a23d7ce")
RECORDS = [b"", b"a", M, b"abcd" + M + M + b"x", b"ab" + M + b"cd", bytes(100), b"hello world" * 30, b"\xff" * 3]
KINDS: dict[str, Any] = {"a.rec": (RecordIOFile, pack_payload), "a.tfrecord": (TFRecordFile, frame_record)}
REC, TFRECORD = (b"".join(map(pack, RECORDS)) for _, pack in KINDS.values())


def read_all(path: Path) -> list[bytes]:
    kind, _ = KINDS[f"a{path.suffix}"]
    with kind(path) as file:
        return [bytes(file.read(span.offset)) for span in file.spans()]


def head(flag: int, length: int) -> bytes:
    return M + struct.pack("<I", flag << 29 | length)


def test_pack_record_matches_known_bytes():
    assert MAGIC_BYTES == M
    assert pack_payload(b"") == M + bytes(4)
    assert pack_payload(b"hello") == bytes.fromhex("0a23d7ce 05000000 68656c6c6f 000000")
    assert pack_payload(b"ab" + M) == head(0, 6) + b"ab" + M + bytes(2)  # not aligned: not split
    assert pack_payload(M) == head(1, 0) + head(3, 0)
    assert pack_payload(b"abcd" + M + b"x") == bytes.fromhex("0a23d7ce 04000020 61626364 0a23d7ce 01000060 78000000")
    assert pack_payload(M + M + b"abcd") == head(1, 0) + head(2, 0) + head(3, 4) + b"abcd"


def test_frame_record_matches_known_bytes():
    """The bytes were written by TensorFlow 2.21."""
    assert frame_record(b"") == bytes.fromhex("0000000000000000 29039807 d8ea82a2")
    assert frame_record(b"hello") == bytes.fromhex("0500000000000000 eab2043e 68656c6c6f bb1f1c19")


@pytest.mark.parametrize("name", KINDS)
def test_record_files_read_back_records_from_any_offset(tmp_path: Path, name: str):
    kind, pack = KINDS[name]
    path = write(tmp_path / name, b"".join(map(pack, RECORDS)))
    assert read_all(path) == RECORDS
    with kind(path) as file:
        spans = list(file.spans())
        assert [span.size for span in spans] == [len(pack(record)) for record in RECORDS]
        assert list(file.spans(spans[3].offset)) == spans[3:]
        assert list(file.spans(file.size)) == []
        kept = file.read(spans[1].offset)
    assert bytes(kept) == b"a"  # a view stays valid after close
    assert read_all(write(tmp_path / name, b"")) == []


pieces = st.lists(st.one_of(st.just(M), st.binary(max_size=6), st.sampled_from([M[:2], M[2:], M * 3000])), max_size=12)


@given(pieces.map(b"".join))
@quick
def test_recordio_reads_back_any_payload(tmp_path, payload):
    packed = pack_payload(payload)
    assert len(packed) % 4 == 0
    assert read_all(write(tmp_path / "a.rec", packed + pack_payload(b"next"))) == [payload, b"next"]
    # An aligned magic is always a header, whatever the payload.
    flags = [packed[at + 7] >> 5 for at in range(0, len(packed), 4) if packed[at : at + 4] == M]
    assert flags == ([0] if len(flags) == 1 else [1, *[2] * (len(flags) - 2), 3])


def test_tfrecord_damage_affects_one_record_and_length_may_look_like_gzip(tmp_path: Path):
    content = bytearray(TFRECORD)
    content[16 + 12] ^= 1
    with TFRecordFile(write(tmp_path / "a.tfrecord", bytes(content))) as file:
        assert len(list(file.spans())) == len(RECORDS)
        with pytest.raises(DataError, match="byte 16: checksum mismatch in the 1 bytes of the record"):
            file.read(16)
        assert bytes(file.read(33)) == RECORDS[2]
    looks_compressed = frame_record(bytes(0x8B1F))
    assert looks_compressed[:2] == b"\x1f\x8b"
    assert read_all(write(tmp_path / "b.tfrecord", looks_compressed)) == [bytes(0x8B1F)]


def test_recordio_resync_finds_next_header(tmp_path: Path):
    garbage = b"!!!!" + M + M + head(2, 0) + head(3, 0) + head(0, 1000) + b"ab" + M + b"cd"
    with RecordIOFile(write(tmp_path / "a.rec", garbage + REC + b"xy")) as file:
        assert file.resync(0) == len(garbage)
        spans = list(RecordIOFile(write(tmp_path / "b.rec", REC)).spans())
        starts = [len(garbage) + span.offset for span in spans]
        assert [file.resync(at) for at in starts] == [*starts[1:], None]


@given(st.binary(max_size=40))
@quick
@example(bytes(40))
@example(b"\x01\0\0\0\0\0\0\0" * 5)
@example(b"\x1f\x8b\0\0\0\0")
@example(frame_record(bytes(5000))[:40])  # a record that does not fit
def test_tfrecord_resync_finds_next_record_after_garbage(tmp_path, garbage):
    with TFRecordFile(write(tmp_path / "a", b"!" + garbage + TFRECORD[16:])) as file:
        assert file.resync(0) == 1 + len(garbage)


@pytest.mark.parametrize(
    ("name", "start"),
    [
        *(("a.rec", 4 * ((1 << 20) + words)) for words in range(-2, 2)),
        *(("a.tfrecord", (1 << 20) - 9 + shift) for shift in range(5)),
    ],
)
def test_resync_finds_records_across_chunk_borders(tmp_path: Path, name: str, start: int):
    kind, pack = KINDS[name]
    with kind(write(tmp_path / name, bytes(start) + pack(b"found"))) as file:
        assert file.resync(0) == start
        assert file.resync(start) is None


def test_index_is_read_back_in_file_order_and_rebuilt(tmp_path: Path):
    entries = [(13, 0), (8, 171296), (36, 1 << 40)]
    text = "".join(recordio.format_index_line(*entry) for entry in entries)
    assert text == "13\t0\n8\t171296\n36\t1099511627776\n"
    assert recordio.read_index(write(tmp_path / "a.idx", text.encode())) == entries
    assert recordio.read_index(write(tmp_path / "b.idx", b"1\t2\r\n\r\n 3 \t 4")) == [(1, 2), (3, 4)]
    first, second = (pack_image(ImageRecord((0.0,), key, b"x" * 9)) for key in (7, 3))
    assert rebuild_index(write(tmp_path / "a.rec", first + second)) == [(7, 0), (3, len(first))]
    spans = [ByteSpan(0, 16), ByteSpan(16, 17)]
    assert "".join(map(tfrecord.format_index_line, spans)) == "0 16\n16 17\n"
    assert tfrecord.read_index(write(tmp_path / "idx", b"0 16\r\n\n16 17")) == spans


def test_pack_labels_matches_known_bytes(tmp_path):
    known = {
        ImageRecord((3.0,), 7, b"JPEG"): "00000000 00004040 0700000000000000 0000000000000000",
        ImageRecord((1.0, -2.0), 1 << 40, b"JPEG", vector=True): (
            "02000000 00000000 0000000000010000 0000000000000000 0000803f 000000c0"
        ),
        ImageRecord((1.0,), 1, b"", vector=True): "01000000 00000000 0100000000000000 0000000000000000 0000803f",
    }
    for record, labels in known.items():
        assert pack_labels(record) == bytes.fromhex(labels)
        (payload,) = read_all(write(tmp_path / "a.rec", pack_image(record)))
        assert unpack_image(memoryview(payload), "a.rec") == record


@pytest.mark.parametrize(
    "record",
    [ImageRecord((), 1, b""), ImageRecord((), 1, b"", vector=True), ImageRecord((1.0, 2.0), 1, b""),
     ImageRecord((1.0,), -1, b""), ImageRecord((1.0,), 1 << 64, b""), ImageRecord((1e39,), 1, b"")],
)  # fmt: skip
def test_pack_labels_rejects_values_out_of_range(record):
    with pytest.raises(DataError, match=f"image {record.id}[ :]"):
        pack_labels(record)


def test_list_lines_match_im2rec_and_float_indexes_are_read(tmp_path):
    lines = [ListLine(3, (0.0,), "n01440764/n01440764_10027.JPEG"), ListLine(0, (1.0, -2.5), "a b.jpg")]
    text = "3\t0.000000\tn01440764/n01440764_10027.JPEG\n0\t1.000000\t-2.500000\ta b.jpg\n"
    assert "".join(map(format_list_line, lines)) == text
    assert list(read_list(write(tmp_path / "a.lst", text.encode()))) == lines
    path = write(tmp_path / "old.lst", b"\n3.000000\t1\t\xe4.jpg\r\n  \n4.\t1e1\tb.jpg")
    assert list(read_list(path)) == [ListLine(3, (1.0,), "\udce4.jpg"), ListLine(4, (10.0,), "b.jpg")]


def test_recordio_rewrites_real_file_byte_for_byte():
    path = real_data("records/recordio/dali_extra/train.rec")
    records = [unpack_image(payload, "train.rec") for payload in read_all(path)]
    assert len(records) == 47
    assert all(bytes(record.image[:2]) == b"\xff\xd8" for record in records)
    assert b"".join(map(pack_image, records)) == path.read_bytes()
    index = path.with_suffix(".idx")
    entries = rebuild_index(path)
    assert entries == recordio.read_index(index)
    assert "".join(recordio.format_index_line(*entry) for entry in entries) == index.read_text()


decode_example = partial(decode_at, where="a.tfrecord, byte 17")

NONE = Feature("none", [])


def entry(name: bytes, feature: bytes) -> bytes:
    """Encode one feature of an Example; all lengths are below 128."""
    inner = b"\x0a" + bytes([len(name)]) + name + b"\x12" + bytes([len(feature)]) + feature
    return b"\x0a" + bytes([len(inner)]) + inner


def message(*entries: bytes) -> bytes:
    features = b"".join(entries)
    return b"\x0a" + bytes([len(features)]) + features


def test_encode_example_matches_known_bytes():
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
def test_decode_example_reads_back_any_features(made):
    data = encode_example(made)
    assert decode_example(memoryview(data)) == made
    assert encode_example(dict(reversed(made.items()))) == data


def test_decode_example_reads_unpacked_values():
    integers = b"\x1a\x07\x08\x05\x08\xac\x02\x08\x01"
    floats = b"\x12\x0a\x0d" + struct.pack("<f", 1.5) + b"\x0d" + struct.pack("<f", -2)
    assert decode_example(message(entry(b"i", integers), entry(b"f", floats))) == {
        "i": int64_feature(5, 300, 1),
        "f": float_feature(1.5, -2.0),
    }


def test_decode_example_merges_duplicates_like_protocol_buffers():
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


def test_decode_example_returns_empty_values_for_missing_parts():
    assert decode_example(b"") == {}
    assert decode_example(message(b"\x0a\x00")) == {"": NONE}
    assert decode_example(message(b"\x0a\x03\x0a\x01a")) == {"a": NONE}


def test_decode_example_skips_unknown_fields():
    unknown = b"\x78\xff\x01" + b"\x79" + bytes(8) + b"\x7a\x02hi" + b"\x7d" + bytes(4)  # field 15, first a varint
    known = message(unknown + entry(b"a", unknown + b"\x1a\x05\x0a\x01\x07\x10\x01"))
    assert decode_example(unknown + known + unknown) == {"a": int64_feature(7)}


def test_decode_example_skips_known_fields_with_other_wire_type():
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
def test_decode_example_names_position_of_damage(data):
    with pytest.raises(DataError, match=r"^a.tfrecord, byte 17: ") as caught:
        decode_example(data)
    assert caught.value.hint


@pytest.mark.parametrize("feature", [int64_feature(1 << 63), int64_feature(-(1 << 63) - 1), float_feature(1e39)])
def test_encode_example_rejects_values_out_of_range(feature):
    with pytest.raises(DataError, match="cannot encode feature a"):
        encode_example({"a": feature})
    with pytest.raises(DataError, match="cannot encode feature"):
        encode_example({"\udcff": int64_feature(1)})


def test_tfrecord_rewrites_real_file_byte_for_byte():
    path = real_data("records/tfrecord/flowers_validation_00001-of-00005.tfrecord")
    records = read_all(path)
    assert len(records) == 70
    assert b"".join(map(frame_record, records)) == path.read_bytes()
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


LONG = "folder/" * 20 + "n01440764_10026.jpg"
LONGER = "x" * 120 + ".jpg"
FILES = {"a.jpg": b"JPEG" * 200, "a.cls": b"7", "d/b.seg.PNG": b"", "d/b.json": b"{}"}
TAR = b"".join(encode_member(name, data) for name, data in FILES.items()) + END


def read_samples(path: Path) -> dict[str, dict[str, bytes]]:
    with WebDatasetFile(path) as file:
        return {
            sample.key: {extension: bytes(file.read(entry.data)) for extension, entry in sample.members.items()}
            for sample in file.samples()
        }


def test_encode_member_matches_known_bytes():
    made = encode_member("a.cls", b"7")
    expected = b"a.cls".ljust(100, b"\0") + b"0000644\x000000000\x000000000\x0000000000001\x0000000000000\x00"
    expected += b"006657\0 " + b"0" + bytes(100) + b"ustar\x0000"
    assert made == expected.ljust(512, b"\0") + b"7" + bytes(511)
    assert bytes(1024) == END


member_names = st.sampled_from(
    [*FILES, LONG, LONGER, "ünï/ö.jpg", "日本語.jpg", "\udcff.jpg", "x" * 100, "a/" + "y" * 99 + "/z.cls"]
)


@given(st.dictionaries(member_names, st.binary(max_size=1100)))
@quick
def test_tarfile_reads_encoded_members(files):
    tar = b"".join(encode_member(name, data) for name, data in files.items()) + END
    with tarfile.open(fileobj=io.BytesIO(tar), encoding="utf-8", errors="surrogateescape") as found:
        infos = found.getmembers()
        assert {info.name: found.extractfile(info).read() for info in infos} == files
        assert {(info.mode, info.mtime, info.uid, info.gid, info.uname) for info in infos} <= {(0o644, 0, 0, 0, "")}


@pytest.mark.parametrize("name", ["", "/a", "a/", "../a", "a/../b", "a\0b"])
def test_encode_member_rejects_unsafe_names(name):
    with pytest.raises(DataError, match="invalid name of a tar member"):
        encode_member(name, b"")


def test_webdataset_reads_back_samples_from_any_offset(tmp_path):
    path = write(tmp_path / "a.tar", TAR)
    with WebDatasetFile(path) as file:
        samples = list(file.samples())
        assert [(sample.key, sample.span) for sample in samples] == [
            ("a", ByteSpan(0, 2560)),
            ("d/b", ByteSpan(2560, 1536)),
        ]
        assert samples[0].members["cls"] == TarMember("a.cls", ByteSpan(2048, 1), ByteSpan(1536, 1024), is_file=True)
        assert [entry.name for entry in samples[1].members.values()] == ["d/b.seg.PNG", "d/b.json"]
        assert list(file.spans(2560)) == [samples[1].span]
        assert file.first_sample(2560) == samples[1]
    assert read_samples(path) == {"a": {"jpg": b"JPEG" * 200, "cls": b"7"}, "d/b": {"seg.png": b"", "json": b"{}"}}


def test_encode_member_uses_pax_header_only_if_ustar_cannot_hold_name():
    kinds = [encode_member(name, b"")[156:157] for name in ("a" * 100, "folder/" + "a" * 99, "é.jpg", "a" * 101)]
    assert kinds == [b"0", b"0", b"x", b"x"]


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_webdataset_reads_tars_from_tarfile(tmp_path, kind):
    files = ["./", "./d/", "./d/a.jpg", "./d/README", "./d/a.cls", "./d/.hidden", LONG, "ünï.jpg"]
    files += [LONGER] if kind != tarfile.USTAR_FORMAT else []
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as tar:
        for name in files:
            info, data = tarfile.TarInfo(name), b"" if name.endswith("/") else name.encode()
            info.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            info.size, info.mtime, info.uname = len(data), 1.5, "ü"
            tar.addfile(info, io.BytesIO(data))
    found = read_samples(write(tmp_path / "a.tar", buffer.getvalue()))
    assert found == {
        "./d/a": {"jpg": b"./d/a.jpg", "cls": b"./d/a.cls"},
        **{name[:-4]: {"jpg": name.encode()} for name in files[6:]},
    }


def test_webdataset_reads_old_tars_with_unusual_names_and_sizes(tmp_path):
    content = build_tar_header(b"          1\0", b"\xe4.jpg", b"\0", ustar=False, signed=True) + b"1".ljust(512, b"\0")
    pax = b"10 size=3\n"
    content += build_tar_header(b"%011o\0" % len(pax), b"pax", b"x") + pax.ljust(512, b"\0")
    content += build_tar_header(b"00000000000\0") + b"abc".ljust(512, b"\0")
    content += build_tar_header(b"\x80" + (2).to_bytes(11, "big"), b"b.jpg") + b"xy".ljust(512, b"\0") + END
    expected = {"\udce4": {"jpg": b"1"}, "a": {"jpg": b"abc"}, "b": {"jpg": b"xy"}}
    assert read_samples(write(tmp_path / "a.tar", content)) == expected


@pytest.mark.parametrize(
    "size", [b"00000000003\0", b"          3 ", b"3\0\0\0\0\0\0\0\0\0\0\0", b"3 \0garbage..", b"3" + b" " * 11]
)
def test_webdataset_reads_sizes_from_different_programs(tmp_path, size):
    content = build_tar_header(size) + b"abc".ljust(512, b"\0") + END
    assert read_samples(write(tmp_path / "a.tar", content)) == {"a": {"jpg": b"abc"}}


def test_webdataset_skips_other_extended_headers(tmp_path):
    for kind, body, key in ((b"K", b"target", "a"), (b"g", b"11 mtime=1\n", "a"), (b"L", b"long.jpg\0x", "long")):
        note = build_tar_header(b"%011o\0" % len(body), b"note", kind) + body.ljust(512, b"\0")
        content = note + build_tar_header(b"00000000003\0") + b"abc".ljust(512, b"\0") + END
        assert read_samples(write(tmp_path / "a.tar", content)) == {key: {"jpg": b"abc"}}


def test_webdataset_resync_finds_next_header(tmp_path):
    content = bytearray(TAR)
    content[2048 - 512 + 3] ^= 1
    with WebDatasetFile(write(tmp_path / "a.tar", bytes(content))) as file:
        with pytest.raises(DataError, match="byte 1536: "):
            list(file.samples())
        assert [sample.key for sample in file.samples(2560)] == ["d/b"]
        assert [file.resync(at) for at in (0, 1536, 2560, 3072)] == [2560, 2560, 3072, None]
