import bz2
import gzip
import io
import lzma
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from damage import damaged, quick, read_damaged
from trainstone.errors import DataError
from trainstone.formats.span import Span
from trainstone.formats.wds import END, TarSample, WdsFile, index_text, member, read_index

LONG = "folder/" * 20 + "n01440764_10026.jpg"  # fits name and prefix
LONGER = "x" * 120 + ".jpg"  # fits neither
FILES = {"a.jpg": b"JPEG" * 200, "a.cls": b"7", "d/b.seg.PNG": b"", "d/b.json": b"{}"}
SOUND = b"".join(member(name, data) for name, data in FILES.items()) + END


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def read_all(path: Path) -> dict[str, dict[str, bytes]]:
    with WdsFile(path) as file:
        return {
            sample.key: {extension: bytes(file.read(span)) for extension, span in sample.members.items()}
            for sample in file.samples()
        }


def make_tar(kind: int, *members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def make_info(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def forge(size: bytes = b"00000000000\0", name: bytes = b"a.jpg", kind: bytes = b"0") -> bytes:
    """A header with any size, its checksum right."""
    block = bytearray(member("x", b"")[:512])
    block[:100] = name.ljust(100, b"\0")
    block[124:136] = size
    block[156:157] = kind
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def test_known_bytes():
    made = member("a.cls", b"7")
    assert len(made) == 1024
    expected = b"a.cls".ljust(100, b"\0") + b"0000644\x000000000\x000000000\x0000000000001\x0000000000000\x00"
    expected += b"006657\0 " + b"0" + bytes(100) + b"ustar\x0000"
    assert made[: len(expected)] == expected
    assert made[len(expected) : 512] == bytes(512 - len(expected))
    assert made[512:] == b"7" + bytes(511)
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


def test_gnu_tar_reads_what_we_write(tmp_path):
    if shutil.which("tar") is None:
        pytest.skip("needs tar")
    files = {**FILES, LONG: b"1", LONGER: b"2", "ünï/ö.jpg": b"3"}
    tar = write(tmp_path / "a.tar", b"".join(member(name, data) for name, data in files.items()) + END)
    done = subprocess.run(["tar", "-xvf", tar, "-C", tmp_path], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert {name: (tmp_path / name).read_bytes() for name in files} == files


def test_names_that_fit_a_header_get_no_extended_one():
    assert len(member(LONG, b"")) == 512
    assert len(member("x" * 100, b"")) == 512
    assert len(member(LONGER, b"")) == 1536


@pytest.mark.parametrize("name", ["", "/a", "a/", "../a", "a/../b", "a\0b"])
def test_names_that_lead_elsewhere_are_not_written(name):
    with pytest.raises(DataError, match="cannot be the name of a file in a tar"):
        member(name, b"")


def test_samples_are_read_back(tmp_path):
    path = write(tmp_path / "a.tar", SOUND)
    with WdsFile(path) as file:
        samples = list(file.samples())
        assert samples == [
            TarSample("a", {"jpg": Span(512, 800), "cls": Span(2048, 1)}, Span(0, 2560), ("a.jpg", "a.cls")),
            TarSample(
                "d/b", {"seg.png": Span(3072, 0), "json": Span(3584, 2)}, Span(2560, 1536), ("d/b.seg.PNG", "d/b.json")
            ),
        ]
        assert list(file.samples(2560)) == samples[1:]
    assert read_all(path) == {"a": {"jpg": b"JPEG" * 200, "cls": b"7"}, "d/b": {"seg.png": b"", "json": b"{}"}}


def test_a_sample_is_read_by_its_span_without_a_look_at_the_next(tmp_path):
    content = member("d.jpg", b"") + member(LONGER, b"1") + SOUND
    with WdsFile(write(tmp_path / "a.tar", content)) as file:
        samples = list(file.samples())
    for sample in samples:
        cut = content[: sample.span.end] + b"no header".ljust(512, b"x")
        with WdsFile(write(tmp_path / "cut.tar", cut)) as file:
            assert file.sample_at(sample.span) == sample
            with pytest.raises(DataError, match="no header"):
                list(file.samples(sample.span.offset))


@pytest.mark.parametrize(
    "span", [Span(0, 4096), Span(0, 512), Span(0, 0), Span(1536, 2560), Span(4096, 512), Span(1, 9)]
)
def test_a_span_that_is_not_of_one_sample_is_told(tmp_path, span):
    with (
        WdsFile(write(tmp_path / "a.tar", SOUND)) as file,
        pytest.raises(DataError, match=f"a.tar, byte {span.offset}: "),
    ):
        file.sample_at(span)


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tars_of_others_are_read(tmp_path, kind):
    infos = [make_info("./"), make_info("./d", tarfile.DIRTYPE), make_info("./d/a.jpg"), make_info("./d/README")]
    infos[0].type = tarfile.DIRTYPE
    infos += [
        make_info("./d/a.cls", mtime=1.5),
        make_info("./d/.hidden"),
        make_info(LONG),
        make_info("ünï.jpg", uname="ü"),
    ]
    if kind != tarfile.USTAR_FORMAT:
        infos.append(make_info(LONGER))
    content = make_tar(kind, *((info, b"" if info.isdir() else info.name.encode()) for info in infos))
    found = read_all(write(tmp_path / "a.tar", content))
    assert list(found) == ["./d/a", LONG[:-4], "ünï", *([LONGER[:-4]] if kind != tarfile.USTAR_FORMAT else [])]
    assert found["./d/a"] == {"jpg": b"./d/a.jpg", "cls": b"./d/a.cls"}
    assert found["ünï"] == {"jpg": "ünï.jpg".encode()}


def test_old_tars_and_names_of_other_encodings_are_read(tmp_path):
    block = bytearray(forge(b"          1\0", b"\xe4.jpg", b"\0"))
    block[257:] = bytes(255)
    signed = bytes(block[:148]) + b" " * 8 + bytes(block[156:])
    block[148:156] = b"%06o\0 " % sum(memoryview(signed).cast("b"))
    content = bytes(block) + b"1".ljust(512, b"\0") + END
    assert read_all(write(tmp_path / "a.tar", content)) == {"\udce4": {"jpg": b"1"}}


def test_sizes_of_extended_headers_and_of_gnu_count(tmp_path):
    pax = b"10 size=3\n"
    extended = forge(b"%011o\0" % len(pax), b"pax", b"x") + pax.ljust(512, b"\0")
    content = extended + forge() + b"abc".ljust(512, b"\0")
    content += forge(b"\x80" + (2).to_bytes(11, "big"), b"b.jpg") + b"xy".ljust(512, b"\0") + END
    assert read_all(write(tmp_path / "a.tar", content)) == {"a": {"jpg": b"abc"}, "b": {"jpg": b"xy"}}


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (tarfile.SYMTYPE, "a symbolic link"),
        (tarfile.LNKTYPE, "a hard link"),
        (tarfile.CHRTYPE, "a character device"),
        (tarfile.BLKTYPE, "a block device"),
        (tarfile.FIFOTYPE, "a pipe"),
        (tarfile.GNUTYPE_SPARSE, "a sparse file"),
        (b"Z", "of type"),
    ],
)
def test_what_is_no_plain_file_is_refused(tmp_path, kind, what):
    path = write(tmp_path / "a.tar", SOUND[:-1024] + forge(kind=kind, name=b"evil.jpg") + END)
    with pytest.raises(DataError, match=f"a.tar, byte 4096: the tar member evil.jpg is {what}"):
        read_all(path)


@pytest.mark.parametrize("name", ["/etc/passwd.jpg", "../a.jpg", "a/../../b.jpg", LONGER + "/../b.jpg", ".."])
def test_names_that_lead_elsewhere_are_refused(tmp_path, name):
    content = make_tar(tarfile.PAX_FORMAT, (make_info(name), b""))
    with pytest.raises(
        DataError, match=r"a.tar, byte 0: the tar member '.*' has (an absolute name|'\.\.' in its name)"
    ):
        read_all(write(tmp_path / "a.tar", content))


@pytest.mark.parametrize(
    "pax", [b"99 size=3\n", b"10 size=3X", b"size=3\n", b"9 size=x\n", b"5 =a\n", b"4 a\n", b"22 GNU.sparse.major=1\n"]
)
def test_damaged_extended_headers_are_told(tmp_path, pax):
    content = forge(b"%011o\0" % len(pax), b"pax", b"x") + pax.ljust(512, b"\0") + forge() + END
    with pytest.raises(DataError, match=r"a.tar, byte 0: "):
        read_all(write(tmp_path / "a.tar", content))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (
            forge(b"77777777777\0"),
            "byte 0: the tar member a.jpg of 8589934591 bytes does not fit; the file has 512 bytes",
        ),
        (
            forge(b"\x80" + b"\xff" * 11),
            "byte 0: the tar member a.jpg of 309485009821345068724781055 bytes does not fit",
        ),
        (forge(b"\xff" * 12), "byte 0: the size of a tar member cannot be read"),
        (forge(b"0000000009\0\0"), "byte 0: the size of a tar member cannot be read"),
        (forge(b"77777777777\0", kind=b"x"), "byte 0: an extended header of 8589934591 bytes; at most 1048576"),
        (forge(b"00000001000\0", kind=b"L"), "byte 0: an extended header of 512 bytes does not fit"),
        (forge(kind=b"L") + END, "byte 512: the tar ends where the member of an extended header is due"),
        (forge(name=b""), "byte 0: the tar member '' has no name"),
        (b"x" * 512, "byte 0: no header of a tar member: its checksum does not fit"),
        (b"", "byte 0: the tar was cut off: it ends at byte 0 without an end mark"),
        (member("a.jpg", b"1"), "byte 1024: the tar was cut off"),
        (member("a.jpg", b"1") * 2 + END, "byte 1024: the tar member a.jpg is there twice in one sample"),
    ],
)
def test_damage_names_its_byte(tmp_path, content, what):
    with pytest.raises(DataError, match=f"a.tar, {what}"):
        read_all(write(tmp_path / "a.tar", content))


def test_cut_off_anywhere_is_an_error(tmp_path):
    path = write(tmp_path / "cut.tar", member("a.jpg", b"1") + bytes(512))
    assert read_all(path) == {"a": {"jpg": b"1"}}
    for length in reversed(range(path.stat().st_size)):
        os.truncate(path, length)
        with pytest.raises(DataError, match=r"cut.tar, byte (0|1024): "):
            read_all(path)


@pytest.mark.parametrize(
    ("packed", "kind"), [(gzip.compress(SOUND), "gzip"), (bz2.compress(SOUND), "bzip2"), (lzma.compress(SOUND), "xz")]
)
def test_a_compressed_tar_is_told_as_such(tmp_path, packed, kind):
    with pytest.raises(DataError, match=f"byte 0: the tar is compressed with {kind}") as caught:
        read_all(write(tmp_path / "a.tar", packed))
    assert "decompress it first" in caught.value.hint


@pytest.mark.parametrize("span", [Span(-1, 1), Span(0, 1 << 60), Span(0, -1), Span(1 << 60, 0)])
def test_a_span_from_a_wrong_index_is_told(tmp_path, span):
    with (
        WdsFile(write(tmp_path / "a.tar", SOUND)) as file,
        pytest.raises(DataError, match=f"a.tar, byte {span.offset}: "),
    ):
        file.read(span)


@pytest.mark.parametrize("start", [-512, 100, 1 << 40])
def test_a_start_from_a_wrong_index_is_told(tmp_path, start):
    with WdsFile(write(tmp_path / "a.tar", SOUND)) as file, pytest.raises(DataError, match=f"a.tar, byte {start}: "):
        list(file.samples(start))


def test_resync_finds_the_next_header(tmp_path):
    content = bytearray(SOUND)
    content[2048 - 512 + 3] ^= 1
    with WdsFile(write(tmp_path / "a.tar", bytes(content))) as file:
        with pytest.raises(DataError, match="byte 1536: no header"):
            list(file.samples())
        assert file.resync(1536) == 2560
        assert [sample.key for sample in file.samples(2560)] == ["d/b"]
        assert file.resync(0) == 2560
        assert file.resync(2560) == 3072
        assert file.resync(3072) is None


@given(damaged(SOUND))
@quick
def test_damage_is_told_with_file_and_byte(tmp_path, content):
    def read(path: Path) -> None:
        with WdsFile(path) as file:
            found = file.resync(0)
            assert found is None or (0 < found < file.size and found % 512 == 0)
            for sample in file.samples():
                for span in sample.members.values():
                    file.read(span)

    read_damaged(tmp_path / "damaged.tar", content, read)


@given(
    damaged(
        make_tar(tarfile.PAX_FORMAT, (make_info(LONGER), b"1")) + make_tar(tarfile.GNU_FORMAT, (make_info(LONGER), b""))
    )
)
@quick
def test_damage_of_extended_headers_is_told(tmp_path, content):
    # Right checksums, so that damage gets past them.
    blocks = [content[at : at + 512] for at in range(0, len(content), 512)]
    for place, block in enumerate(blocks):
        if block[257:262] == b"ustar" and len(block) == 512:
            blanked = block[:148] + b" " * 8 + block[156:]
            blocks[place] = block[:148] + b"%06o\0 " % sum(blanked) + block[156:]
    read_damaged(tmp_path / "damaged.tar", b"".join(blocks), read_all)


def test_an_index_is_dalis(tmp_path):
    with WdsFile(write(tmp_path / "a.tar", SOUND)) as file:
        samples = list(file.samples())
    text = "v1.2 2\njpg 512 800 a.jpg cls 2048 1 a.cls\nseg.PNG 3072 0 d/b.seg.PNG json 3584 2 d/b.json\n"
    assert index_text(samples) == text
    assert index_text(sample._replace(names=()) for sample in samples[:1]) == "v1.2 1\n" + text.splitlines(True)[1]
    assert read_index(write(tmp_path / "a.idx", text.encode())) == samples


@pytest.mark.parametrize("name", ["a b.jpg", "a.", "a.j\tpg"])
def test_an_index_does_not_hold_every_name(name):
    sample = TarSample(name.partition(".")[0], {"jpg": Span(512, 1)}, Span(0, 1024), (name,))
    with pytest.raises(DataError, match="DALI's index cannot hold the name"):
        index_text([sample])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "v1.1 1\njpg 512 800",
        "v1.2",
        "v1.2 x\n",
        "v1.2 2\njpg 512 800 a.jpg",
        "v1.2 1\njpg 512 800",
        "v1.2 1\njpg 0 800 a.jpg",
        "v1.2 1\njpg 512 -1 a.jpg",
        "v1.2 1\njpg 512 1 a.jpg JPG 512 1 a.JPG",
    ],
)
def test_a_damaged_index_names_its_line(tmp_path, text):
    with pytest.raises(DataError, match=r"a.idx, line [12]: "):
        read_index(write(tmp_path / "a.idx", text.encode()))


@given(damaged(b"v1.2 2\njpg 512 800 a.jpg cls 2048 1 a.cls\njson 3584 2 d/b.json\n"))
@quick
def test_a_damaged_index_is_told_with_file_and_line(tmp_path, content):
    read_damaged(tmp_path / "damaged.idx", content, read_index, "line")
