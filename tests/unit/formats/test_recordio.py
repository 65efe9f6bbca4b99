"""RecordIO's bytes, and the texts beside it, as im2rec writes them. Damage: test_damage.py."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from damage import quick, real_data, write
from made_sets import pack_image, pack_payload
from trainstone.errors import DataError
from trainstone.formats.recordio import (
    MAGIC_BYTES,
    ImageRecord,
    ListLine,
    RecordIOFile,
    index_line,
    list_line,
    pack_labels,
    read_index,
    read_list,
    rebuild_index,
    unpack_image,
)

M = bytes.fromhex("0a23d7ce")
RECORDS = [b"", b"a", M, b"abcd" + M + M + b"x", b"ab" + M + b"cd", bytes(100)]
SOUND = b"".join(map(pack_payload, RECORDS))


def read_all(path: Path) -> list[bytes]:
    with RecordIOFile(path) as file:
        return [bytes(file.read(span.offset)) for span in file.spans()]


def head(flag: int, length: int) -> bytes:
    return M + struct.pack("<I", flag << 29 | length)


def test_known_bytes():
    assert MAGIC_BYTES == M
    assert pack_payload(b"") == M + bytes(4)
    assert pack_payload(b"hello") == bytes.fromhex("0a23d7ce 05000000 68656c6c6f 000000")
    assert pack_payload(b"ab" + M) == head(0, 6) + b"ab" + M + bytes(2)  # not aligned: not cut
    assert pack_payload(M) == head(1, 0) + head(3, 0)
    assert pack_payload(b"abcd" + M + b"x") == bytes.fromhex("0a23d7ce 04000020 61626364 0a23d7ce 01000060 78000000")
    assert pack_payload(M + M + b"abcd") == head(1, 0) + head(2, 0) + head(3, 4) + b"abcd"


def test_records_are_read_back(tmp_path):
    path = write(tmp_path / "a.rec", SOUND)
    assert read_all(path) == RECORDS
    with RecordIOFile(path) as file:
        spans = list(file.spans())
        assert [span.size for span in spans] == [len(pack_payload(record)) for record in RECORDS]
        assert list(file.spans(spans[3].offset)) == spans[3:]
    assert read_all(write(tmp_path / "empty.rec", b"")) == []


pieces = st.lists(st.one_of(st.just(M), st.binary(max_size=6), st.sampled_from([M[:2], M[2:], M * 3000])), max_size=12)


@given(pieces.map(b"".join))
@quick
def test_any_payload_is_read_back(tmp_path, payload):
    packed = pack_payload(payload)
    assert len(packed) % 4 == 0
    assert read_all(write(tmp_path / "a.rec", packed + pack_payload(b"next"))) == [payload, b"next"]
    # An aligned magic is always a head, whatever the payload.
    flags = [packed[at + 7] >> 5 for at in range(0, len(packed), 4) if packed[at : at + 4] == M]
    assert flags == ([0] if len(flags) == 1 else [1, *[2] * (len(flags) - 2), 3])


def test_resync_finds_the_next_head(tmp_path):
    garbage = b"!!!!" + M + M + head(2, 0) + head(3, 0) + head(0, 1000) + b"ab" + M + b"cd"
    with RecordIOFile(write(tmp_path / "a.rec", garbage + SOUND + b"xy")) as file:
        assert file.resync(0) == len(garbage)
        spans = list(RecordIOFile(write(tmp_path / "b.rec", SOUND)).spans())
        starts = [len(garbage) + span.offset for span in spans]
        assert [file.resync(at) for at in starts] == [*starts[1:], None]


@pytest.mark.parametrize("words", [(1 << 20) - 2, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_resync_finds_heads_across_the_pieces_it_looks_at(tmp_path, words):
    with RecordIOFile(write(tmp_path / "a.rec", bytes(4 * words) + pack_payload(b"found"))) as file:
        assert file.resync(0) == 4 * words


def test_known_bytes_of_an_image(tmp_path):
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
    [
        ImageRecord((), 1, b""),
        ImageRecord((), 1, b"", vector=True),
        ImageRecord((1.0, 2.0), 1, b""),
        ImageRecord((1.0,), -1, b""),
        ImageRecord((1.0,), 1 << 64, b""),
        ImageRecord((1e39,), 1, b""),
    ],
)
def test_what_no_record_can_hold_is_refused(record):
    with pytest.raises(DataError, match=f"image {record.id} "):
        pack_labels(record)


def test_an_index_is_read_back_in_its_own_order_and_rebuilt(tmp_path):
    entries = [(13, 0), (8, 171296), (36, 1 << 40)]
    text = "".join(index_line(*entry) for entry in entries)
    assert text == "13\t0\n8\t171296\n36\t1099511627776\n"
    assert read_index(write(tmp_path / "a.idx", text.encode())) == entries
    assert read_index(write(tmp_path / "b.idx", b"1\t2\r\n\r\n 3 \t 4")) == [(1, 2), (3, 4)]
    first, second = (pack_image(ImageRecord((0.0,), key, b"x" * 9)) for key in (7, 3))
    assert rebuild_index(write(tmp_path / "a.rec", first + second)) == [(7, 0), (3, len(first))]


def test_list_lines_are_im2recs_and_those_of_old_tools_are_read(tmp_path):
    lines = [ListLine(3, (0.0,), "n01440764/n01440764_10027.JPEG"), ListLine(0, (1.0, -2.5), "a b.jpg")]
    text = "3\t0.000000\tn01440764/n01440764_10027.JPEG\n0\t1.000000\t-2.500000\ta b.jpg\n"
    assert "".join(map(list_line, lines)) == text
    assert list(read_list(write(tmp_path / "a.lst", text.encode()))) == lines
    path = write(tmp_path / "old.lst", b"\n3.000000\t1\t\xe4.jpg\r\n  \n4.\t1e1\tb.jpg")
    assert list(read_list(path)) == [ListLine(3, (1.0,), "\udce4.jpg"), ListLine(4, (10.0,), "b.jpg")]


def test_real_records_are_read_and_written_alike():
    path = real_data("records/recordio/dali_extra/train.rec")
    records = [unpack_image(payload, "train.rec") for payload in read_all(path)]
    assert len(records) == 47
    assert all(bytes(record.image[:2]) == b"\xff\xd8" for record in records)
    assert b"".join(map(pack_image, records)) == path.read_bytes()
    index = path.with_suffix(".idx")
    entries = rebuild_index(path)
    assert entries == read_index(index)
    assert "".join(index_line(*entry) for entry in entries) == index.read_text()
