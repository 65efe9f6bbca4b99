import io
import tarfile

import pytest

from trainstone.formats.tarheader import (
    MAX_NOTE_BYTES,
    BadTar,
    Described,
    Header,
    check_note,
    describe,
    is_header,
    pad,
    parse_header,
    parse_pax,
    read_note,
)


def make_block(name: str = "a.jpg", size: int = 3, form: int = tarfile.USTAR_FORMAT) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(form)


def with_field(start: int, value: bytes) -> bytes:
    """A header with other bytes and a checksum that fits them."""
    block = bytearray(make_block())
    block[start : start + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def test_python_and_we_agree_on_headers():
    assert parse_header(make_block()) == Header("a.jpg", 3, "0")
    long = "d/" * 60 + "a.jpg"
    assert parse_header(make_block(long)) == Header(long, 3, "0")
    assert parse_header(make_block(size=2**40, form=tarfile.GNU_FORMAT)) == Header("a.jpg", 2**40, "0")
    assert parse_header(bytes(512)) is None


@pytest.mark.parametrize(
    "field", [b"00000000003\0", b"          3 ", b"3\0\0\0\0\0\0\0\0\0\0\0", b"3 \0garbage..", b"3" + b" " * 11]
)
def test_sizes_as_different_programs_write_them(field: bytes):
    header = parse_header(with_field(124, field))
    assert header is not None
    assert header.size == 3


@pytest.mark.parametrize(
    "field", [b"0000000000x\0", b"-0000000003\0", b"00000 00003\0", b"\xff" * 12, b"00000000009\0"]
)
def test_sizes_that_are_no_numbers_are_refused(field: bytes):
    with pytest.raises(BadTar, match="size of a tar member cannot be read"):
        parse_header(with_field(124, field))


def test_any_changed_byte_breaks_the_checksum():
    block = make_block()
    assert is_header(block)
    for at in range(512):
        changed = block[:at] + bytes([block[at] ^ 1]) + block[at + 1 :]
        assert at in range(148, 156) or not is_header(changed)
    with pytest.raises(BadTar, match="checksum does not fit"):
        parse_header(b"x" * 512)


def test_notes_say_more_of_the_next_member():
    assert read_note(Header("././@LongLink", 6, "L"), b"long\0x") == {"path": "long"}
    assert read_note(Header("././@LongLink", 4, "K"), b"link") == {}
    assert read_note(Header("pax", 21, "x"), b"10 size=3\n11 mtime=1\n") == {"size": "3"}
    assert read_note(Header("pax", 11, "g"), b"11 mtime=1\n") == {}


def test_notes_that_must_not_be_believed_are_refused():
    with pytest.raises(BadTar, match=r"8 bytes does not fit; 4 are left"):
        read_note(Header("x", 8, "L"), b"long")
    with pytest.raises(BadTar, match=r"at most 1048576 are allowed"):
        check_note(Header("x", MAX_NOTE_BYTES + 1, "x"))
    with pytest.raises(BadTar, match=r"a global header that sets size for all members"):
        read_note(Header("x", 10, "g"), b"10 size=3\n")


@pytest.mark.parametrize("data", [b"99 size=3\n", b"10 size=3X", b"size=3\n", b"5 =a\n", b"4 a\n", b"0 a=b\n", b"2 \n"])
def test_damaged_pax_records_are_refused(data: bytes):
    with pytest.raises(BadTar, match=r"an extended header .* at byte 0 of it"):
        parse_pax(data)


def test_members_are_described_with_their_notes():
    assert describe(Header("a", 3, "0"), {}) == Described("a", 3, False)
    assert describe(Header("a", 3, "7"), {"path": "b", "size": "5"}) == Described("b", 5, False)
    assert describe(Header("a", 3, "5"), {}) == Described("a", 0, True)
    assert describe(Header("a", 3, "\0"), {"path": "long/"}) == Described("long/", 0, True)
    assert describe(Header("a", 3, "\0"), {}) == Described("a", 3, False)


@pytest.mark.parametrize(
    ("header", "notes", "what"),
    [
        (Header("a", 0, "1"), {}, "is a hard link; only plain files and folders are allowed"),
        (Header("a", 0, "S"), {}, "is a sparse file"),
        (Header("a", 0, "0"), {"GNU.sparse.major": "1"}, "is a sparse file"),
        (Header("a", 0, "\x1b"), {}, r"is of type '\\x1b'"),
        (Header("a", 0, "0"), {"size": "-1"}, "claims a size of '-1'"),
        (Header("a", 0, "0"), {"size": "٣"}, "claims a size of"),
        (Header("a", 0, "0"), {"size": "9" * 20}, "claims a size of"),
    ],
)
def test_what_is_no_plain_file_is_refused(header: Header, notes: dict[str, str], what: str):
    with pytest.raises(BadTar, match=what):
        describe(header, notes)


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_of_python_are_understood(form: int):
    name = "d/" * 80 + "ö" * 60
    data = io.BytesIO(make_block(name, form=form))
    notes: dict[str, str] = {}
    while (header := parse_header(data.read(512))) is not None and header.kind in "xL":
        notes |= read_note(header, data.read(pad(header.size))[: header.size])
    assert header is not None
    assert describe(header, notes) == Described(name, 3, False)
