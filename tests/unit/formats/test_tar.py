"""WebDataset tars: what others read of ours, and we of theirs. Damage: test_damage.py."""

import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from damage import quick, write
from trainstone.errors import DataError
from trainstone.formats.files import Span
from trainstone.formats.tar import END, Member, WdsFile, member

LONG = "folder/" * 20 + "n01440764_10026.jpg"
LONGER = "x" * 120 + ".jpg"
FILES = {"a.jpg": b"JPEG" * 200, "a.cls": b"7", "d/b.seg.PNG": b"", "d/b.json": b"{}"}
SOUND = b"".join(member(name, data) for name, data in FILES.items()) + END


def read_all(path: Path) -> dict[str, dict[str, bytes]]:
    with WdsFile(path) as file:
        return {
            sample.key: {extension: bytes(file.read(entry.data)) for extension, entry in sample.members.items()}
            for sample in file.samples()
        }


def forge(size: bytes, name: bytes = b"a.jpg", kind: bytes = b"0", ustar: bool = True, signed: bool = False) -> bytes:
    """A header of any size, its checksum right."""
    block = bytearray(member("x", b"")[:512])
    block[:100] = name.ljust(100, b"\0")
    block[124:136] = size
    block[156:157] = kind
    if not ustar:
        block[257:] = bytes(255)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(memoryview(bytes(block)).cast("b") if signed else block)
    return bytes(block)


def test_known_bytes():
    made = member("a.cls", b"7")
    expected = b"a.cls".ljust(100, b"\0") + b"0000644\x000000000\x000000000\x0000000000001\x0000000000000\x00"
    expected += b"006657\0 " + b"0" + bytes(100) + b"ustar\x0000"
    assert made == expected.ljust(512, b"\0") + b"7" + bytes(511)
    assert bytes(1024) == END


names = st.sampled_from(
    [*FILES, LONG, LONGER, "ünï/ö.jpg", "日本語.jpg", "\udcff.jpg", "x" * 100, "a/" + "y" * 99 + "/z.cls"]
)


@given(st.dictionaries(names, st.binary(max_size=1100)))
@quick
def test_python_reads_what_we_write(files):
    tar = b"".join(member(name, data) for name, data in files.items()) + END
    with tarfile.open(fileobj=io.BytesIO(tar), encoding="utf-8", errors="surrogateescape") as found:
        infos = found.getmembers()
        assert {info.name: found.extractfile(info).read() for info in infos} == files
        assert {(info.mode, info.mtime, info.uid, info.gid, info.uname) for info in infos} <= {(0o644, 0, 0, 0, "")}


@pytest.mark.parametrize("name", ["", "/a", "a/", "../a", "a/../b", "a\0b"])
def test_names_that_lead_elsewhere_are_not_written(name):
    with pytest.raises(DataError, match="cannot be the name of a file in a tar"):
        member(name, b"")


def test_samples_are_read_back_from_any_of_them_on(tmp_path):
    path = write(tmp_path / "a.tar", SOUND)
    with WdsFile(path) as file:
        samples = list(file.samples())
        assert [(sample.key, sample.span) for sample in samples] == [("a", Span(0, 2560)), ("d/b", Span(2560, 1536))]
        assert samples[0].members["cls"] == Member("a.cls", Span(2048, 1), Span(1536, 1024), is_file=True)
        assert [entry.name for entry in samples[1].members.values()] == ["d/b.seg.PNG", "d/b.json"]
        assert list(file.spans(2560)) == [samples[1].span]
        assert file.first_sample(2560) == samples[1]
    assert read_all(path) == {"a": {"jpg": b"JPEG" * 200, "cls": b"7"}, "d/b": {"seg.png": b"", "json": b"{}"}}


def test_member_needs_a_pax_header_only_beyond_what_ustar_holds():
    kinds = [member(name, b"")[156:157] for name in ("a" * 100, "folder/" + "a" * 99, "é.jpg", "a" * 101)]
    assert kinds == [b"0", b"0", b"x", b"x"]


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tars_of_others_are_read(tmp_path, kind):
    files = ["./", "./d/", "./d/a.jpg", "./d/README", "./d/a.cls", "./d/.hidden", LONG, "ünï.jpg"]
    files += [LONGER] if kind != tarfile.USTAR_FORMAT else []
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as tar:
        for name in files:
            info, data = tarfile.TarInfo(name), b"" if name.endswith("/") else name.encode()
            info.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            info.size, info.mtime, info.uname = len(data), 1.5, "ü"
            tar.addfile(info, io.BytesIO(data))
    found = read_all(write(tmp_path / "a.tar", buffer.getvalue()))
    assert found == {
        "./d/a": {"jpg": b"./d/a.jpg", "cls": b"./d/a.cls"},
        **{name[:-4]: {"jpg": name.encode()} for name in files[6:]},
    }


def test_old_tars_odd_names_and_sizes_are_read(tmp_path):
    content = forge(b"          1\0", b"\xe4.jpg", b"\0", ustar=False, signed=True) + b"1".ljust(512, b"\0")
    pax = b"10 size=3\n"
    content += forge(b"%011o\0" % len(pax), b"pax", b"x") + pax.ljust(512, b"\0")
    content += forge(b"00000000000\0") + b"abc".ljust(512, b"\0")
    content += forge(b"\x80" + (2).to_bytes(11, "big"), b"b.jpg") + b"xy".ljust(512, b"\0") + END
    expected = {"\udce4": {"jpg": b"1"}, "a": {"jpg": b"abc"}, "b": {"jpg": b"xy"}}
    assert read_all(write(tmp_path / "a.tar", content)) == expected


@pytest.mark.parametrize(
    "size", [b"00000000003\0", b"          3 ", b"3\0\0\0\0\0\0\0\0\0\0\0", b"3 \0garbage..", b"3" + b" " * 11]
)
def test_sizes_as_different_programs_write_them(tmp_path, size):
    content = forge(size) + b"abc".ljust(512, b"\0") + END
    assert read_all(write(tmp_path / "a.tar", content)) == {"a": {"jpg": b"abc"}}


def test_other_notes_are_passed_over(tmp_path):
    for kind, body, key in ((b"K", b"target", "a"), (b"g", b"11 mtime=1\n", "a"), (b"L", b"long.jpg\0x", "long")):
        note = forge(b"%011o\0" % len(body), b"note", kind) + body.ljust(512, b"\0")
        content = note + forge(b"00000000003\0") + b"abc".ljust(512, b"\0") + END
        assert read_all(write(tmp_path / "a.tar", content)) == {key: {"jpg": b"abc"}}


def test_resync_finds_the_next_header(tmp_path):
    content = bytearray(SOUND)
    content[2048 - 512 + 3] ^= 1
    with WdsFile(write(tmp_path / "a.tar", bytes(content))) as file:
        with pytest.raises(DataError, match="byte 1536: "):
            list(file.samples())
        assert [sample.key for sample in file.samples(2560)] == ["d/b"]
        assert [file.resync(at) for at in (0, 1536, 2560, 3072)] == [2560, 2560, 3072, None]
