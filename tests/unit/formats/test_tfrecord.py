import gzip
import struct
import zlib
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from damage import damaged, quick, read_damaged, real_data
from trainstone.errors import DataError
from trainstone.formats.span import Span
from trainstone.formats.tfrecord import TFRecordFile, frame, index_line, read_index

# As TensorFlow 2.21 writes them: no data at all, and b"hello"
EMPTY = bytes.fromhex("0000000000000000 29039807 d8ea82a2")
HELLO = bytes.fromhex("0500000000000000 eab2043e 68656c6c6f bb1f1c19")
RECORDS = [b"", b"a", b"hello world" * 30, bytes(100), b"\xff" * 3]
SOUND = b"".join(map(frame, RECORDS))


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def read_all(path: Path) -> list[bytes]:
    with TFRecordFile(path) as file:
        return [bytes(file.read(span.offset)) for span in file.spans()]


def test_known_bytes():
    assert frame(b"") == EMPTY
    assert frame(b"hello") == HELLO


def test_records_are_read_back(tmp_path):
    path = write(tmp_path / "a.tfrecord", SOUND)
    assert read_all(path) == RECORDS
    with TFRecordFile(path) as file:
        spans = list(file.spans())
        assert file.size == len(SOUND)
        assert list(file.spans(spans[2].offset)) == spans[2:]
        assert [span.size for span in spans] == [16 + len(record) for record in RECORDS]
        assert list(file.spans(file.size)) == []


def test_an_empty_file_has_no_records(tmp_path):
    path = write(tmp_path / "empty", b"")
    assert read_all(path) == []
    with TFRecordFile(path) as file:
        assert file.resync(0) is None
        with pytest.raises(DataError, match="byte 0: no record starts there"):
            file.read(0)


def test_records_outlive_their_file(tmp_path):
    file = TFRecordFile(write(tmp_path / "a", frame(b"kept")))
    kept = file.read(0)
    file.close()
    assert bytes(kept) == b"kept"


def test_cut_off_anywhere_but_between_records_is_an_error(tmp_path):
    ends = {0, 16, 16 + 17}
    whole = SOUND[: 16 + 17]
    for length in range(len(whole) + 1):
        path = write(tmp_path / "cut", whole[:length])
        if length in ends:
            assert len(read_all(path)) == sorted(ends).index(length)
        else:
            with pytest.raises(DataError, match=r"cut, byte (0|16): "):
                read_all(path)


def test_a_damaged_length_names_its_byte(tmp_path):
    content = bytearray(SOUND)
    content[16] ^= 1
    with pytest.raises(DataError, match="byte 16: a record's length does not fit its checksum"):
        read_all(write(tmp_path / "a", bytes(content)))


def test_damaged_data_costs_one_record(tmp_path):
    content = bytearray(SOUND)
    content[16 + 12] ^= 1
    with TFRecordFile(write(tmp_path / "a", bytes(content))) as file:
        assert len(list(file.spans())) == 5
        with pytest.raises(DataError, match="byte 16: the 1 bytes of the record do not fit their checksum"):
            file.read(16)
        assert bytes(file.read(33)) == RECORDS[2]


@pytest.mark.parametrize("length", [1 << 63, (1 << 64) - 1, 1 << 40, 100])
def test_a_length_that_is_merely_claimed_is_not_believed(tmp_path, length):
    head = struct.pack("<Q", length)
    crc = google_crc32c.value(head)
    masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    path = write(tmp_path / "a", frame(b"x") + head + struct.pack("<I", masked) + bytes(20))
    with pytest.raises(DataError, match=f"byte 17: a record of {length} bytes does not fit"):
        read_all(path)


@pytest.mark.parametrize("offset", [-1, 1, 10_000])
def test_an_offset_from_a_wrong_index_is_told(tmp_path, offset):
    with TFRecordFile(write(tmp_path / "a", SOUND)) as file, pytest.raises(DataError, match=f"byte {offset}: "):
        file.read(offset)


@pytest.mark.parametrize(("packed", "name"), [(gzip.compress(SOUND, mtime=0), "gzip"), (zlib.compress(SOUND), "zlib")])
def test_a_compressed_file_is_told_as_such(tmp_path, packed, name):
    with pytest.raises(DataError, match=f"byte 0: the TFRecord file is compressed with {name}") as caught:
        read_all(write(tmp_path / "a", packed))
    assert caught.value.hint


def test_a_record_that_only_looks_compressed_is_read(tmp_path):
    record = frame(bytes(0x8B1F))
    assert record[:2] == b"\x1f\x8b"
    assert read_all(write(tmp_path / "a", record)) == [bytes(0x8B1F)]


@pytest.mark.parametrize("name", ["", "missing"])
def test_what_is_no_file_is_told(tmp_path, name):
    with pytest.raises(DataError, match="cannot read"):
        TFRecordFile(tmp_path / name)


@given(st.binary(max_size=40))
@quick
@example(bytes(40))
@example(b"\x01\0\0\0\0\0\0\0" * 5)
@example(b"\x1f\x8b\0\0\0\0")
def test_resync_finds_the_next_record_behind_any_garbage(tmp_path, garbage):
    with TFRecordFile(write(tmp_path / "a", b"!" + garbage + SOUND[16:])) as file:
        assert file.resync(0) == 1 + len(garbage)


@pytest.mark.parametrize("shift", range(5))
def test_resync_finds_records_across_the_pieces_it_looks_at(tmp_path, shift):
    garbage = bytes((1 << 20) - 10 + shift)
    with TFRecordFile(write(tmp_path / "a", b"!" + garbage + frame(b"found"))) as file:
        assert file.resync(0) == 1 + len(garbage)
        assert file.resync(1 + len(garbage)) is None


def test_resync_passes_over_a_record_that_does_not_fit(tmp_path):
    with TFRecordFile(write(tmp_path / "a", b"!" + frame(bytes(500))[:40] + frame(b"found"))) as file:
        assert file.resync(0) == 41


@given(damaged(SOUND))
@quick
def test_damage_is_told_with_file_and_byte(tmp_path, content):
    def read(path: Path) -> None:
        with TFRecordFile(path) as file:
            found = file.resync(0)
            assert found is None or 0 < found < file.size
            for span in file.spans():
                file.read(span.offset)

    read_damaged(tmp_path / "damaged.tfrecord", content, read)


def test_an_index_is_read_back(tmp_path):
    spans = [Span(0, 16), Span(16, 17)]
    assert "".join(map(index_line, spans)) == "0 16\n16 17\n"
    assert read_index(write(tmp_path / "idx", b"0 16\r\n\n16 17")) == spans


@pytest.mark.parametrize(
    "line", [b"1", b"a b", b"-1 20", b"1 2 3", b"0 15", b"0x1 20", "٣ 20".encode(), b"9" * 30 + b" 16"]
)
def test_a_damaged_index_names_its_line(tmp_path, line):
    with pytest.raises(DataError, match="idx, line 2: "):
        read_index(write(tmp_path / "idx", b"0 16\n" + line))


@given(damaged(b"0 16\n16 17\n33 100\n"))
@quick
def test_a_damaged_index_is_told_with_file_and_line(tmp_path, content):
    read_damaged(tmp_path / "damaged.idx", content, read_index, "line")


def test_real_records_are_read():
    path = real_data("records/tfrecord/flowers_validation_00001-of-00005.tfrecord")
    records = read_all(path)
    assert len(records) == 70
    assert b"".join(map(frame, records)) == path.read_bytes()
