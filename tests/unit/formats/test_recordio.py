import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from damage import damaged, quick, read_damaged, real_data
from trainstone.errors import DataError
from trainstone.formats.recordio import MAGIC_BYTES, ImageRecord, RecordIOFile, pack, pack_image, unpack_image

M = bytes.fromhex("0a23d7ce")
RECORDS = [b"", b"a", M, b"abcd" + M + M + b"x", b"ab" + M + b"cd", bytes(100)]
SOUND = b"".join(map(pack, RECORDS))


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def read_all(path: Path) -> list[bytes]:
    with RecordIOFile(path) as file:
        return [bytes(file.read(span.offset)) for span in file.spans()]


def head(flag: int, length: int) -> bytes:
    return M + struct.pack("<I", flag << 29 | length)


def test_known_bytes():
    assert MAGIC_BYTES == M
    assert pack(b"") == M + bytes(4)
    assert pack(b"hello") == bytes.fromhex("0a23d7ce 05000000 68656c6c6f 000000")
    assert pack(b"ab" + M) == head(0, 6) + b"ab" + M + bytes(2)  # not aligned: not cut
    assert pack(M) == head(1, 0) + head(3, 0)
    assert pack(b"abcd" + M + b"x") == bytes.fromhex("0a23d7ce 04000020 61626364 0a23d7ce 01000060 78000000")
    assert pack(M + M + b"abcd") == head(1, 0) + head(2, 0) + head(3, 4) + b"abcd"


def test_records_are_read_back(tmp_path):
    path = write(tmp_path / "a.rec", SOUND)
    assert read_all(path) == RECORDS
    with RecordIOFile(path) as file:
        spans = list(file.spans())
        assert [span.size for span in spans] == [len(pack(record)) for record in RECORDS]
        assert list(file.spans(spans[3].offset)) == spans[3:]


pieces = st.lists(st.one_of(st.just(M), st.binary(max_size=6), st.sampled_from([M[:2], M[2:]])), max_size=12)


@given(pieces.map(b"".join))
@quick
def test_any_payload_is_read_back(tmp_path, payload):
    packed = pack(payload)
    assert len(packed) % 4 == 0
    assert read_all(write(tmp_path / "a.rec", packed + pack(b"next"))) == [payload, b"next"]
    # An aligned magic is always a head, whatever the payload.
    flags = [packed[at + 7] >> 5 for at in range(0, len(packed), 4) if packed[at : at + 4] == M]
    assert flags == ([0] if len(flags) == 1 else [1, *[2] * (len(flags) - 2), 3])


def test_a_payload_full_of_magics_is_read_back(tmp_path):
    payloads = [M * 5000, b"x" + M * 5000, M * 5000 + b"y"]
    assert read_all(write(tmp_path / "a.rec", b"".join(map(pack, payloads)))) == payloads


def test_an_empty_file_has_no_records(tmp_path):
    path = write(tmp_path / "a.rec", b"")
    assert read_all(path) == []
    with RecordIOFile(path) as file:
        assert file.resync(0) is None
        with pytest.raises(DataError, match="byte 0: no record starts there"):
            file.read(0)


def test_cut_off_anywhere_but_between_records_is_an_error(tmp_path):
    first, second = pack(b"a"), pack(M + b"bcd")
    ends = [0, len(first), len(first + second)]
    for length in range(ends[-1] + 1):
        path = write(tmp_path / "cut.rec", (first + second)[:length])
        if length in ends:
            assert len(read_all(path)) == ends.index(length)
        else:
            with pytest.raises(DataError, match=r"cut.rec, byte \d+: "):
                read_all(path)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\0" * 8, "byte 12: no RecordIO record: it starts with 0x00000000 instead of 0xced7230a"),
        (head(2, 0), "byte 12: flag 2 where 0 or 1 is due"),
        (head(7, 0), "byte 12: flag 7 where 0 or 1 is due"),
        (head(1, 0) + head(0, 0), "byte 20: flag 0 where 2 or 3 is due within the record that starts at byte 12"),
        (head(1, 0), "byte 20: the file ends within a record's header, at byte 20"),
        (
            head(0, (1 << 29) - 1) + bytes(30),
            "byte 12: a record of 536870911 bytes does not fit; the file has 50 bytes",
        ),
        (head(0, 5) + b"hello", "byte 12: a record of 5 bytes does not fit"),
    ],
)
def test_damage_names_its_byte(tmp_path, content, what):
    with pytest.raises(DataError, match=what):
        read_all(write(tmp_path / "a.rec", pack(b"a") + content))


@pytest.mark.parametrize("offset", [-4, 1, 4, 10_000])
def test_an_offset_from_a_wrong_index_is_told(tmp_path, offset):
    with RecordIOFile(write(tmp_path / "a.rec", SOUND)) as file, pytest.raises(DataError, match=f"byte {offset}: "):
        file.read(offset)


def test_resync_finds_the_next_head(tmp_path):
    garbage = b"!!!!" + M + M + head(2, 0) + head(3, 0) + head(0, 1000) + b"ab" + M + b"cd"
    with RecordIOFile(write(tmp_path / "a.rec", garbage + SOUND + b"xy")) as file:
        assert file.resync(0) == len(garbage)
        spans = list(RecordIOFile(write(tmp_path / "b.rec", SOUND)).spans())
        starts = [len(garbage) + span.offset for span in spans]
        found = [file.resync(at) for at in starts]
        assert found == [*starts[1:], None]


@pytest.mark.parametrize("words", [(1 << 20) - 2, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_resync_finds_heads_across_the_pieces_it_looks_at(tmp_path, words):
    with RecordIOFile(write(tmp_path / "a.rec", bytes(4 * words) + pack(b"found"))) as file:
        assert file.resync(0) == 4 * words


@given(damaged(SOUND))
@quick
def test_damage_is_told_with_file_and_byte(tmp_path, content):
    def read(path: Path) -> None:
        with RecordIOFile(path) as file:
            found = file.resync(0)
            assert found is None or 0 < found < file.size
            for span in file.spans():
                unpack_image(file.read(span.offset), f"{path}, byte {span.offset}")

    read_damaged(tmp_path / "damaged.rec", content, read)


def test_known_bytes_of_an_image():
    one = ImageRecord((3.0,), 7, b"JPEG")
    assert pack_image(one) == bytes.fromhex("00000000 00004040 0700000000000000 0000000000000000") + b"JPEG"
    two = ImageRecord((1.0, -2.0), 1 << 40, b"JPEG", 5, vector=True)
    assert (
        pack_image(two)
        == bytes.fromhex("02000000 00000000 0000000000010000 0500000000000000 0000803f 000000c0") + b"JPEG"
    )
    single = ImageRecord((1.0,), 1, b"", vector=True)
    for record in (one, two, single):
        assert unpack_image(pack_image(record)) == record
        assert unpack_image(memoryview(pack_image(record))) == record


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
        pack_image(record)


def test_a_damaged_image_header_is_told():
    payload = pack_image(ImageRecord((1.0,), 1, b"JPEG"))
    for length in range(24):
        with pytest.raises(DataError, match=f"^a.rec, byte 8: the record has {length} bytes"):
            unpack_image(payload[:length], "a.rec, byte 8")
    with pytest.raises(DataError, match="claims 4294967295 labels but has 28 bytes"):
        unpack_image(b"\xff\xff\xff\xff" + payload[4:])


def test_real_records_are_read_and_written_alike():
    path = real_data("records/recordio/dali_extra/train.rec")
    records = [unpack_image(payload) for payload in read_all(path)]
    assert len(records) == 47
    assert all(bytes(record.image[:2]) == b"\xff\xd8" for record in records)
    assert b"".join(pack(pack_image(record)) for record in records) == path.read_bytes()
