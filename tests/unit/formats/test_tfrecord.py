"""TFRecord's framing as TensorFlow writes it, and DALI's index. Damage: test_damage.py."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from damage import quick, real_data, write
from trainstone.errors import DataError
from trainstone.formats.files import Span
from trainstone.formats.tfrecord import TFRecordFile, frame, index_line, read_index

RECORDS = [b"", b"a", b"hello world" * 30, bytes(100), b"\xff" * 3]
SOUND = b"".join(map(frame, RECORDS))


def read_all(path: Path) -> list[bytes]:
    with TFRecordFile(path) as file:
        return [bytes(file.read(span.offset)) for span in file.spans()]


def test_known_bytes():
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


def test_real_records_are_read():
    path = real_data("records/tfrecord/flowers_validation_00001-of-00005.tfrecord")
    records = read_all(path)
    assert len(records) == 70
    assert b"".join(map(frame, records)) == path.read_bytes()
