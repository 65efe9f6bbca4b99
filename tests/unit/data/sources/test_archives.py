"""Tests of untrusted archives: valid ones are listed, read and extracted; malicious or damaged ones are rejected."""

import bz2
import gzip
import io
import lzma
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from support.builders.archives import assert_archive_rejected, list_everything, make_tar, make_zip, read_files
from trainstone.data.parallel import WorkProgress
from trainstone.data.sources import archives
from trainstone.data.sources.archives import extract_once, extract_tar, extract_zip, list_tar, list_zip, read_tar
from trainstone.errors import DataError

FILES = {"n01/a.JPEG": b"one", "n01/b.JPEG": b"", "n02/c.JPEG": os.urandom(3000)}
MANY = {f"n{n % 7}/{n:03d}.JPEG": os.urandom(n * 7) for n in range(200)}
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "x.tar": bytes,
    "x.tar.gz": gzip.compress,
    "x.tar.bz2": bz2.compress,
    "x.tar.xz": lzma.compress,
}
needs_filter = pytest.mark.skipif(not hasattr(tarfile, "data_filter"), reason="this Python has no filters of tarfile")


def info(
    name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = "", pax: dict[str, str] | None = None
) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.size, made.linkname, made.pax_headers = kind, size, link, pax or {}
    return made


def make_odd_tar(members: Sequence[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member, content in members:
            tar.addfile(member, io.BytesIO(content) if content else None)
    return out.getvalue()


MALICIOUS: dict[str, tuple[tarfile.TarInfo, bytes, str]] = {
    "dots": (info("../x", size=4), b"data", r"'\.\./x' has '\.\.' in its name"),
    "hidden dots": (info("a/../../x", size=4), b"data", r"'\.\.'"),
    "absolute": (info("/tmp/trainstone-x", size=4), b"data", "absolute"),
    "drive": (info("C:/x", size=4), b"data", "Windows"),
    "backslash": (info("..\\x", size=4), b"data", "Windows"),
    "symbolic link": (info("link", tarfile.SYMTYPE, link="/etc"), b"", "link.* is a.* link"),
    "hard link": (info("hard", tarfile.LNKTYPE, link="good.txt"), b"", "hard.* is a.* link"),
    "device": (info("null", tarfile.CHRTYPE), b"", "null.* device"),
    "fifo": (info("pipe", tarfile.FIFOTYPE), b"", "pipe.* is a"),
    "control": (info("a\nb", size=4), b"data", "control character 0x0a"),
    "twice": (info("./good.txt", size=4), b"data", "'good.txt' occurs twice"),
    "larger than the file": (info("long", size=10**9), b"", "long"),
    "not UTF-8": (info("\udcff", size=4), b"data", "not UTF-8"),
    "PAX sparse": (info("huge", size=4, pax={"GNU.sparse.map": "0,4", "GNU.sparse.size": "4"}), b"data", "sparse file"),
    "PAX size": (info("big", size=4, pax={"size": str(10 * 2**30)}), b"data", "big.*10737418240|10,737,418,240"),
    "PAX path": (info("fine", size=4, pax={"path": "../x"}), b"data", r"'\.\.'"),
}


@pytest.mark.parametrize("has_filter", [pytest.param(True, marks=needs_filter), False])
@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
@pytest.mark.parametrize("case", MALICIOUS)
def test_malicious_tar_is_rejected_without_writing(tmp_path, monkeypatch, case, name, has_filter):
    if not has_filter:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    member, content, message = MALICIOUS[case]
    data = make_odd_tar([(info("good.txt", size=4), b"good"), (member, content)])
    # A compressed tar that claims too much may end early before it reaches the limit.
    early = "|unexpected end" if name == "x.tar.gz" else ""
    assert_archive_rejected(tmp_path, name, PACKERS[name](data), message + early, extract_tar)
    assert not Path("/tmp/trainstone-x").exists()
    if name == "x.tar":
        with pytest.raises(DataError, match=message):
            list(list_tar(tmp_path / name))
        with pytest.raises(DataError, match=message):
            list(read_tar(tmp_path / name))


def test_name_that_is_file_and_folder_is_rejected(tmp_path):
    assert_archive_rejected(tmp_path, "x.tar", make_tar({"a": b"x", "a/b": b"x"}), "cannot extract", extract_tar)
    assert_archive_rejected(tmp_path, "x.zip", make_zip({"a": b"x", "a/b": b"x"}), "cannot extract", extract_zip)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_list_tar_returns_offset_and_size_of_content(tmp_path, form):
    files = FILES | {"d/" * 60 + "long name.JPEG": b"deep"}
    path = tmp_path / "x.tar"
    path.write_bytes(make_tar(files, form))
    data = path.read_bytes()
    assert {name: data[offset : offset + size] for name, offset, size in list_tar(path)} == files
    assert dict(read_tar(path)) == files


def test_list_tar_of_nested_tar_returns_outer_offsets(tmp_path):
    inner = {"n01.tar": make_tar({"n01_1.JPEG": b"first", "n01_2.JPEG": b"second"})}
    path = tmp_path / "train.tar"
    path.write_bytes(make_tar({**inner, "n02.tar": make_tar({"n02_1.JPEG": b"x"})}))
    data = path.read_bytes()
    found = [member for _, *place in list_tar(path) for member in list_tar(path, *place)]
    assert [(name, data[offset : offset + size]) for name, offset, size in found] == [
        ("n01_1.JPEG", b"first"),
        ("n01_2.JPEG", b"second"),
        ("n02_1.JPEG", b"x"),
    ]


def test_list_tar_rejects_nested_tar_beyond_its_end(tmp_path):
    inner = make_odd_tar([(info("n01_1.JPEG", size=20_000), bytes(20_000))])[:1024]
    path = tmp_path / "train.tar"
    path.write_bytes(make_tar({"n01.tar": inner, "n02.tar": bytes(90_000)}))
    _, *first = next(iter(list_tar(path)))
    with pytest.raises(DataError, match=r"tar at byte 512: member 'n01_1.JPEG' claims 20,000 bytes; 512 are left"):
        list(list_tar(path, *first))
    path.write_bytes(make_tar({"n01.tar": make_tar({"a": b"x" * 512})[:1024], "n02.tar": bytes(90_000)}))
    with pytest.raises(DataError, match="no end marker"):
        list(list_tar(path, 512, 1024))


@pytest.mark.parametrize("has_filter", [pytest.param(True, marks=needs_filter), False])
@pytest.mark.parametrize("name", PACKERS)
def test_extract_tar_writes_files_with_safe_modes(tmp_path, monkeypatch, name, has_filter):
    if not has_filter:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    path, target = tmp_path / name, tmp_path / "new/target"
    script = info("run.sh", size=4)
    script.mode = 0o6777
    folders = [(info("./", tarfile.DIRTYPE), b""), (info("empty", tarfile.DIRTYPE), b"")]
    members = [(script, b"#!/x"), *folders, *((info(n, size=len(c)), c) for n, c in FILES.items())]
    path.write_bytes(PACKERS[name](make_odd_tar(members)))
    extract_tar(path, target)
    assert read_files(target) == {**FILES, "run.sh": b"#!/x"}
    assert (target / "empty").is_dir()
    assert stat.S_IMODE((target / "run.sh").stat().st_mode) & 0o7111 == 0
    assert list_everything(tmp_path / "new") == {"target"} | {f"target/{n}" for n in list_everything(target)}


def test_extract_once_extracts_again_only_after_change(tmp_path):
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(make_tar(FILES)))
    first = extract_once(path, tmp_path / "work")
    assert extract_once(path, tmp_path / "work") == first
    path.write_bytes(gzip.compress(make_tar({"other": b"x"})))
    assert list_everything(extract_once(path, tmp_path / "work")) == {"other"}


@pytest.mark.parametrize("name", list(PACKERS)[1:])
def test_decompression_bomb_is_rejected(tmp_path, monkeypatch, name):
    monkeypatch.setattr(archives, "MAX_RATIO_FREE_BYTES", 2**20)
    one = make_tar({"zeros": bytes(8 * 2**20)})
    assert_archive_rejected(
        tmp_path, name, PACKERS[name](one), r"'zeros' claims 8,388,608 bytes; the limit is \d", extract_tar
    )
    many = make_tar({f"{i}": bytes(2**20) for i in range(8)})
    assert_archive_rejected(
        tmp_path, name, PACKERS[name](many), "claims 1,048,576 bytes; the limit|decompression bomb", extract_tar
    )
    pax = make_odd_tar([(info("a", pax={"comment": "x" * 4 * 2**20}), b"")])
    assert_archive_rejected(tmp_path, name, PACKERS[name](pax), "decompression bomb", extract_tar)


def test_extract_rejects_archive_larger_than_free_space(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    assert_archive_rejected(
        tmp_path, "x.tar.gz", gzip.compress(make_tar(FILES)), "the disk has 1000 B free", extract_tar
    )
    assert_archive_rejected(tmp_path, "x.zip", make_zip(FILES), "the disk has 1000 B free", extract_zip)


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


WHOLE = {name: pack(make_tar(FILES | {"big": os.urandom(50_000)}).rstrip(b"\0")) for name, pack in PACKERS.items()}
DAMAGED = [
    *((name, data[: int(len(data) * share)], "x.tar") for name, data in WHOLE.items() for share in (0.3, 0.6, 0.97)),
    ("x.tar", flip(make_tar({f"{n}": b"x" * 512 for n in range(30)}), 20 * 1024 + 10), "bad checksum"),  # 21st header
    ("x.tar.gz", flip(gzip.compress(make_tar(FILES)), -6), "invalid tar"),  # gzip's own checksum
    *(("x.tar", data, r"x\.tar") for data in (b"", b"not a tar", bytes(100), b"\1" * 1024)),
]


@pytest.mark.parametrize(("name", "data", "message"), DAMAGED)
def test_damaged_tar_is_rejected(tmp_path, name, data, message):
    assert_archive_rejected(tmp_path, name, data, message, extract_tar)
    if name == "x.tar":
        with pytest.raises(DataError, match=r"x\.tar"):
            list(list_tar(tmp_path / "x.tar"))


def as_link(made: zipfile.ZipInfo) -> None:
    made.create_system, made.external_attr = 3, (stat.S_IFLNK | 0o777) << 16


def patch_directory(data: bytes, place: int, value: bytes) -> bytes:
    """Return the zip with a changed entry in its central directory."""
    at = data.index(b"PK\1\2") + place
    return data[:at] + value + data[at + len(value) :]


MALICIOUS_ZIPS = {
    r"'\.\.'": make_zip({"../x": b"data"}),
    "absolute": make_zip({"/x": b"data"}),
    "Windows": make_zip({"..\\x": b"data"}),
    "control character 0x00": make_zip({"aXb": b"data"}).replace(b"aXb", b"a\0b"),
    "control character 0x1b": make_zip({"a\x1bb": b"data"}),
    "is a link or a device": make_zip({"link": b"/etc"}, as_link),
    "is encrypted": patch_directory(make_zip({"secret": b"data"}), 8, b"\1"),
    "times larger than the zip": make_zip({f"{i}": bytes(9 * 2**20) for i in range(9)}),
    "occurs twice": make_zip({"a/b": b"x", "a//b": b"y"}),
    "invalid zip": b"PK not a zip",
}


@pytest.mark.parametrize("message", MALICIOUS_ZIPS)
def test_malicious_zip_is_rejected_without_writing(tmp_path, message):
    assert_archive_rejected(tmp_path, "x.zip", MALICIOUS_ZIPS[message], message, extract_zip)
    with pytest.raises(DataError, match=message):
        list_zip(tmp_path / "x.zip")


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_extract_zip_with_any_number_of_threads(tmp_path, workers, method):
    path = tmp_path / "x.zip"
    path.write_bytes(make_zip({"empty/": b"", **MANY}, method=method))
    assert list_zip(path) == {name: len(content) for name, content in MANY.items()}
    seen = list(extract_zip(path, tmp_path / "target", workers))
    total = sum(map(len, MANY.values()))
    unpacked = [item for item in seen if item.phase == "unpack x.zip"]
    assert unpacked[-1] == WorkProgress("unpack x.zip", total, total, "bytes")
    assert len(unpacked) > 1
    assert read_files(tmp_path / "target") == MANY
    assert (tmp_path / "target/empty").is_dir()


@pytest.mark.parametrize("workers", [1, 4])
def test_damaged_zip_leaves_no_files(tmp_path, workers):
    stored = bytearray(make_zip(MANY | {"last": os.urandom(5000)}, method=zipfile.ZIP_STORED))
    stored[stored.index(b"PK\1\2") - 100] ^= 1
    packed = bytearray(make_zip(MANY | {"last": b"last" * 5000}))
    packed[packed.index(b"PK\1\2") - 12] ^= 0xFF
    for data in (stored, packed):
        assert_archive_rejected(
            tmp_path, "x.zip", bytes(data), "'last' is damaged", lambda a, b: extract_zip(a, b, workers)
        )
    shorter = patch_directory(make_zip({"a": b"x" * 1000}), 24, (10).to_bytes(4, "little"))
    longer = patch_directory(make_zip({"a": b"x" * 1000}), 24, (10**6).to_bytes(4, "little"))
    for data in (shorter, longer):
        assert_archive_rejected(tmp_path, "x.zip", data, "'a' is damaged", extract_zip)


@pytest.mark.parametrize("name", ["x.tar", "x.zip"])
def test_extract_syncs_files_before_renaming_folder(tmp_path, monkeypatch, name):
    extract, data = (extract_tar, make_tar(MANY)) if name == "x.tar" else (extract_zip, make_zip(MANY))
    synced = []
    monkeypatch.setattr(os, "sync", lambda: synced.append((tmp_path / "target").exists()))
    (tmp_path / name).write_bytes(data)
    list(extract(tmp_path / name, tmp_path / "target") or ())
    assert synced == [False]

    def fail() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "sync", fail)
    assert_archive_rejected(tmp_path, name, data, "No space left on device", extract)
