"""Tests of all file readers with damaged input: they return records or raise an error with file and position."""

import bz2
import functools
import gzip
import io
import json
import lzma
import re
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import pytest
import scipy.io
from hypothesis import given
from hypothesis import strategies as st

from support.builders.archives import build_tar_header, fix_checksums, make_instances, make_tar
from support.builders.damage import damaged, quick
from support.builders.data_sets import BOXES, CLASSES, JPEGS
from support.builders.ncu_files import AFTER, BEFORE, make_long, make_wide
from support.builders.raw_data_sets import pack_image, pack_payload
from support.builders.traces import document, mark, small_trace
from trainstone.data.image.inspect import read_header
from trainstone.data.sample import Sample
from trainstone.data.sources.archives import list_tar, read_tar
from trainstone.data.storage.box_file import read_box_file
from trainstone.data.storage.recordio import RecordIOShard
from trainstone.data.storage.tfrecord import TFRecordEncoder, TFRecordShard
from trainstone.data.storage.wds import WdsShard
from trainstone.errors import DataError
from trainstone.formats import recordio, tfrecord
from trainstone.formats.coco import format_full, read_instances
from trainstone.formats.kineto import read_trace
from trainstone.formats.mat5 import read_mat
from trainstone.formats.mllog import read_mllog
from trainstone.formats.ncu import read_ncu
from trainstone.formats.recordio import MAGIC_BYTES, ImageRecord, RecordIOFile, pack_labels, read_list
from trainstone.formats.tar import END, WebDatasetFile, encode_member
from trainstone.formats.tfrecord import (
    TFRecordFile,
    bytes_feature,
    decode_example,
    encode_example,
    float_feature,
    frame_record,
    int64_feature,
)

LONGER = "x" * 120 + ".jpg"
VECTOR = ImageRecord((4.0, 6.0, 32.0, 32.0, 1.0, 0.1, 0.2, 0.3, 0.4, 0.0), 7, JPEGS[0][:200], vector=True)
ABOUT = b'{"name":"a/x.jpg","id":7,"boxes":[[0,0.25,0.125,0.75,0.5,0],[1,0.1,0.2,0.3,0.4,1]],"values":[0.5,1]}'
EXAMPLE = {
    "label": int64_feature(-1, 300, 1 << 40),
    "box": float_feature(0.5, -1.0),
    "ünï": bytes_feature(b"", b"two"),
}


class Reader(NamedTuple):
    """Reader of a kind of file, with valid content."""

    sound: bytes
    read: Callable[[Path], Any]
    place: str = "byte"
    """Position that error messages contain."""
    wrap: Callable[[bytes], bytes] = bytes
    """Put the damaged content into a valid container."""


def find_error(act: Callable[[], Any]) -> str | None:
    """Return the message of a DataError, None if there is none; other errors fail the test."""
    try:
        act()
    except DataError as err:
        return err.message
    return None


def read_records(kind: Any) -> Callable[[Path], Any]:
    def read(path: Path) -> None:
        with kind(path) as file:
            found = file.resync(0)
            assert found is None or 0 < found < file.size
            for span in file.spans():
                file.read(span if kind is WebDatasetFile else span.offset)

    return read


def read_shard(kind: Any) -> Callable[[Path], Any]:
    """Read samples and annotations of a shard; errors must name the file and the record's first byte."""

    def read(path: Path) -> None:
        shard = kind(path)
        for span in shard.file.spans():
            for read_part in (shard.read, shard.read_annotations):
                message = find_error(functools.partial(read_part, span.offset))
                assert message is None or f"byte {span.offset}" in message
            sample = shard.read(span.offset)
            sample.name.encode("utf-8", "surrogateescape")
        shard.close()

    return read


def read_coco(path: Path) -> None:
    found = read_instances(path)
    known = {image.id for image in found.images}
    assert all(item.image_id in known and len(item.bbox) == 4 for item in found.annotations)
    assert json.loads("".join(format_full(found)))


def list_archive(path: Path) -> None:
    for name, offset, size in list_tar(path):
        assert offset + size <= path.stat().st_size
        assert not name.startswith(("/", "../"))


def save_mat(compress: bool) -> bytes:
    out = io.BytesIO()
    made = np.zeros((2, 1), dtype=[("WNID", object), ("words", object)])
    made[:, 0] = [("n01", "fish, ü"), ("n02", np.zeros((1, 0)))]
    scipy.io.savemat(out, {"synsets": made, "n": np.arange(5, dtype="u2")}, do_compression=compress)
    return out.getvalue()


def pack_mat(mat: bytes) -> bytes:
    """Compress the content again, so that only the inner data is damaged."""
    body = zlib.compress(mat[128:])
    return mat[:128] + (15).to_bytes(4, "little") + len(body).to_bytes(4, "little") + body


def encode_features(kind: str, sample: Sample) -> bytes:
    (record,) = TFRecordEncoder(kind, CLASSES, 1).encode(sample, 7, read_header(sample.image)).buffers
    return bytes(record[12:-4])


def wrap_image(payload: bytes) -> bytes:
    return pack_image(ImageRecord((1.0,), 0, JPEGS[0])) + pack_payload(payload)


def wrap_example(example: bytes) -> bytes:
    return frame_record(encode_example({"image": bytes_feature(JPEGS[0])})) + frame_record(example)


def wrap_member(extension: str) -> Callable[[bytes], bytes]:
    def wrap(data: bytes) -> bytes:
        return (
            b"".join(encode_member(*one) for one in (("a.jpg", b"1"), ("x.jpg", JPEGS[0]), (f"x.{extension}", data)))
            + END
        )

    return wrap


TAR = b"".join(encode_member(f"{n}.{e}", d) for n in "ab" for e, d in (("jpg", JPEGS[0][:90]), ("cls", b"3"))) + END
SMALL = make_tar({"n01/a.JPEG": b"one" * 300, "b": b"", "c" * 120: b"two"})
REC = b"".join(map(pack_payload, (b"", MAGIC_BYTES + b"xyz", bytes(99))))
CLASSIFIED = encode_features("classify", Sample("a/x.jpg", JPEGS[0], 0, BOXES[:1]))
TRACE = json.dumps(document([*small_trace()[:20], mark("data", 1, 2)]), indent=1).encode()
COCO = "".join(format_full(make_instances(3))).encode()
MLLOG = b':::MLLOG {"namespace": "", "time_ms": 15, "event_type": "POINT_IN_TIME", "key": "seed", "value": 7}\n'
MLLOG += b':::MLL 1.5 k: {"value": 7}\n:::MLPv0.5.0 resnet 1.5 (a:1) run_stop: {"success": "true"}\n'
DETECTED = encode_features("detect", Sample("x.jpg", JPEGS[0], boxes=BOXES, id=7))
READERS = {
    "a.rec": Reader(REC, read_records(RecordIOFile)),
    "image.rec": Reader(pack_labels(VECTOR) + JPEGS[0][:200], read_shard(RecordIOShard), wrap=wrap_image),
    "class.rec": Reader(struct.pack("<IfQQ", 0, 3.0, 7, 0) + JPEGS[0], read_shard(RecordIOShard), wrap=wrap_image),
    "a.tfrecord": Reader(b"".join(map(frame_record, (b"", b"a", bytes(99)))), read_records(TFRecordFile)),
    "example.tfrecord": Reader(
        encode_example(EXAMPLE), lambda path: decode_example(path.read_bytes(), f"{path}, byte 0")
    ),
    "class.tfrecord": Reader(CLASSIFIED, read_shard(TFRecordShard), wrap=wrap_example),
    "boxes.tfrecord": Reader(DETECTED, read_shard(TFRecordShard), wrap=wrap_example),
    "a.tar": Reader(TAR, read_records(WebDatasetFile)),
    "sample.tar": Reader(TAR, read_shard(WdsShard)),
    "json.tar": Reader(ABOUT, read_shard(WdsShard), wrap=wrap_member("json")),
    "label.tar": Reader(b"123", read_shard(WdsShard), wrap=wrap_member("cls")),
    "long.tar": Reader(
        make_tar({LONGER: b"1"}, tarfile.PAX_FORMAT) + make_tar({LONGER: b""}),
        read_records(WebDatasetFile),
        wrap=fix_checksums,
    ),
    "listed.tar": Reader(SMALL, list_archive, "", wrap=fix_checksums),
    "small.tar": Reader(SMALL, lambda path: list(read_tar(path)), "", wrap=fix_checksums),
    "a.idx": Reader(b"13\t0\n8\t171296\n36\t553272\n", recordio.read_index, "line"),
    "tf.idx": Reader(b"0 16\n16 17\n33 100\n", tfrecord.read_index, "line"),
    "a.lst": Reader(b"3\t0.000000\tn/n_1.JPEG\n0\t1.0\t-2.5\ta b.jpg\n", lambda path: list(read_list(path)), "line"),
    "a-boxes.csv": Reader(
        b'n01/a.JPEG,0.2500,0.1250,0.7500,0.5000\n"b,\xc3\xbc.jpg",0.0,0.0,1.0,1.0\n', read_box_file, "line"
    ),
    "instances.json": Reader(COCO, read_coco, ""),
    "trace.json": Reader(TRACE, lambda path: read_trace(path, piece_bytes=50)),
    "trace.json.gz": Reader(TRACE, read_trace, wrap=gzip.compress),
    "packed.json.gz": Reader(gzip.compress(TRACE), read_trace),
    "cores.csv": Reader((BEFORE + make_long() + AFTER).encode(), read_ncu, ""),
    "wide.csv": Reader((BEFORE + make_wide() + AFTER).encode(), read_ncu, ""),
    "mlperf.log": Reader(MLLOG, read_mllog, ""),
    "meta.mat": Reader(save_mat(compress=True), lambda path: read_mat(path.read_bytes(), str(path)), ""),
    "inside.mat": Reader(
        save_mat(compress=False), lambda path: read_mat(path.read_bytes(), str(path)), "", wrap=pack_mat
    ),
}


def read(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    READERS[path.name].read(path)


@pytest.mark.parametrize("name", READERS)
@quick
@given(data=st.data())
def test_readers_return_records_or_name_file_and_position_of_damage(tmp_path: Path, name: str, data: st.DataObject):
    reader = READERS[name]
    message = find_error(lambda: read(tmp_path / name, reader.wrap(data.draw(damaged(reader.sound)))))
    assert message is None or (name in message and reader.place in message)


@pytest.mark.parametrize("name", READERS)
def test_readers_accept_valid_input_and_reject_missing_files_and_folders(tmp_path: Path, name: str):
    read(tmp_path / name, READERS[name].wrap(READERS[name].sound))
    (tmp_path / name).unlink()
    if name not in ("example.tfrecord", "meta.mat", "inside.mat"):
        for path in (tmp_path / name, tmp_path):
            with pytest.raises(DataError, match=r"cannot read|not a file|[Nn]o such file"):
                READERS[name].read(path)


@pytest.mark.parametrize(
    ("name", "sound", "ends"),
    [
        ("a.rec", pack_payload(b"a") + pack_payload(MAGIC_BYTES + b"bcd"), [0, 12, 32]),
        ("a.tfrecord", frame_record(b"") + frame_record(b"a"), [0, 16, 33]),
        ("a.tar", encode_member("a.jpg", b"1") + bytes(512), [1536]),
    ],
)
def test_readers_reject_truncation_within_records(tmp_path: Path, name: str, sound: bytes, ends: list[int]):
    for length in range(len(sound) + 1):
        message = find_error(functools.partial(read, tmp_path / name, sound[:length]))
        assert (message is None) == (length in ends)
        assert message is None or re.search(rf"{name}, byte \d+: ", message)


def head(flag: int, length: int) -> bytes:
    return MAGIC_BYTES + struct.pack("<I", flag << 29 | length)


def claim(length: int) -> bytes:
    """Return a TFRecord header for any length with a valid checksum."""
    crc = google_crc32c.value(struct.pack("<Q", length))
    return struct.pack("<QI", length, (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def extend(pax: bytes, kind: bytes = b"x") -> bytes:
    return build_tar_header(b"%011o\0" % len(pax), b"pax", kind) + pax.ljust(512, b"\0") + build_tar_header() + END


CASES: list[tuple[str, bytes, str]] = [
    *(("a.rec", pack_payload(b"a") + after, "byte 12") for after in (bytes(8), head(2, 0))),
    *(("a.rec", head(1, 0) + after, "byte 8") for after in (head(0, 0), b"")),
    *(("a.rec", data, "byte 0") for data in (head(0, (1 << 29) - 1) + bytes(30), head(0, 5) + b"hello")),
    *(("image.rec", pack_payload(data), "byte 0") for data in (bytes(23), b"\xff" * 4 + bytes(24))),
    *(("image.rec", pack_image(ImageRecord((2.0, 5.0, bad, 0.1, 0.1, 0.2, 0.2), 1, b"", vector=True)), "byte 0")
      for bad in (float("nan"), float("inf"), -1.0, 0.5)),
    ("a.tfrecord", frame_record(b"") + b"\2" + frame_record(b"a")[1:], "byte 16"),
    ("a.tfrecord", frame_record(b"x") + frame_record(b"a")[:12] + b"b" + frame_record(b"a")[13:], "byte 17"),
    *(("a.tfrecord", frame_record(b"x") + claim(length) + bytes(20), "byte 17")
      for length in (1 << 63, (1 << 64) - 1, 1 << 40, 100)),
    *(("a.tfrecord", pack(TAR), "byte 0") for pack in (gzip.compress, zlib.compress)),
    *(("a.tar", build_tar_header(size), "byte 0")
      for size in (b"77777777777\0", b"\x80" + b"\xff" * 11, b"\xff" * 12, b"0000000009\0\0", b"-0000000003\0",
                   b"0000000000x\0")),
    *(("a.tar", data, "byte 0")
      for data in (build_tar_header(b"77777777777\0", kind=b"x"), build_tar_header(b"00000001000\0", kind=b"L"),
                   build_tar_header(name=b""), b"x" * 512,
                   gzip.compress(TAR), bz2.compress(TAR), lzma.compress(TAR))),
    ("a.tar", build_tar_header(kind=b"L") + END, "byte 512"),
    ("a.tar", encode_member("a.jpg", b"1") * 2 + END, "byte 1024"),
    *(("a.tar", extend(pax), "byte 0")
      for pax in (b"99 size=3\n", b"10 size=3X", b"size=3\n", b"9 size=x\n", b"5 =a\n", b"4 a\n", b"0 a=b\n", b"2 \n",
                  b"11 size=-1\n", b"29 size=" + b"9" * 20 + b"\n", b"22 GNU.sparse.major=1\n")),
    ("a.tar", extend(b"10 size=3\n", b"g"), "byte 0"),
    ("a.tar", build_tar_header(b"%011o\0" % ((1 << 20) + 1), kind=b"x"), "byte 0"),
    *(("a.tar", make_tar({name: b""}, tarfile.PAX_FORMAT), "byte 0")
      for name in ("/etc/passwd.jpg", "../a.jpg", "a/../../b.jpg", LONGER + "/../b.jpg", "..")),
    *(("a.tar", TAR[:-1024] + build_tar_header(kind=kind, name=b"evil.jpg") + END, "byte 4096")
      for kind in (b"2", b"1", b"3", b"4", b"6", b"S", b"Z")),
    ("sample.tar", encode_member("x.txt", b"words") + END, "byte 0"),
    *(("label.tar", wrap_member("cls")(label), "byte 1024") for label in (b"cat", b"9" * 5000)),
    *(("json.tar", wrap_member("json")(data), "byte 1024")
      for data in (b"{", b"[" * 100_000, b"[]", b'{"boxes": 5}',
                   b'{"boxes": [{"left": 1}]}', b'{"boxes": [[1, 2]]}', b'{"values": [null]}',
                   b'{"boxes": [[1e999, 0, 0, 1, 1]]}', b'{"name": "\\ud800.jpg"}')),
    *(("a.idx", b"1\t2\n" + line, "line 2")
      for line in (b"1", b"1 2", b"a\t1", b"1\t-1", b"1\t2\t3", b"1\t1e3", b"\xff\t1", b"1\t" + b"9" * 5000)),
    ("a.idx", b"1" * (1 << 21), "line 1"),
    *(("tf.idx", b"0 16\n" + line, "line 2")
      for line in (b"1", b"a b", b"-1 20", b"1 2 3", b"0 15", b"0x1 20", "٣ 20".encode(), b"9" * 30 + b" 16")),
    *(("a.lst", b"3\t0.000000\ta b.jpg\n" + line, "line 2")
      for line in (b"1", b"1\tb.jpg", b"1\t2\t", b"x\t1\tb.jpg", b"1.5\t1\tb.jpg", b"-1\t1\tb.jpg", b"1\tcat\tb.jpg",
                   b"1\tnan\tb")),
    *(("a-boxes.csv", b"good.jpg,0,0,1,1\n" + line, "line 2")
      for line in (b"x.jpg", b"x.jpg,0,0,1", b"x.jpg,0,0,1,1,1", b"x.jpg,a,0,1,1", b'"x.jpg,0,0,1,1',
                   b"x.jpg,0,0,1,nan", b"x.jpg,0,0,1,1.1", b"x.jpg,-0.1,0,1,1", b"x.jpg,0.5,0,0.4,1",
                   b"x.jpg,0,inf,1,1")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "what"), CASES)
def test_readers_name_position_of_known_damage(tmp_path: Path, name: str, content: bytes, what: str):
    with pytest.raises(DataError, match=rf"{name}, (x at |\S* at )?(record at )?{what}: ") as message:
        read(tmp_path / name, content)
    assert message.value.message.startswith(str(tmp_path))


@pytest.mark.parametrize("name", ["a.rec", "a.tfrecord", "a.tar"])
@pytest.mark.parametrize("offset", [-4, 1, 4, 10_000])
def test_shards_reject_offsets_from_a_wrong_index(tmp_path: Path, name: str, offset: int):
    (tmp_path / name).write_bytes(READERS[name].sound)
    shard = {"a.rec": RecordIOShard, "a.tfrecord": TFRecordShard, "a.tar": WdsShard}[name](tmp_path / name)
    with pytest.raises(DataError, match=rf"{name}, (record at )?byte {offset}: "):
        shard.read(offset)
    shard.close()


def test_read_members_detects_any_changed_header_byte(tmp_path: Path):
    data = make_tar({"a.jpg": b"abc"})
    for at in set(range(512)) - set(range(148, 156)):
        with pytest.raises(DataError, match="byte 0: "):
            read(tmp_path / "a.tar", data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
