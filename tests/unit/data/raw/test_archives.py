import bz2
import gzip
import io
import lzma
import os
import stat
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from made_archives import expect_refusal, list_everything, make_tar, members_or_error
from trainstone.data.raw.archives import list_tar, read_tar
from trainstone.data.raw.extract import extract_tar, unpack_once
from trainstone.errors import DataError

FILES = {"n01/a.JPEG": b"one", "n01/b.JPEG": b"", "n02/c.JPEG": os.urandom(3000)}
TEN_GB = 10 * 2**30


def info(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.size, made.linkname = kind, size, link
    return made


def make_odd_tar(members: Sequence[tuple[tarfile.TarInfo, bytes]], form: int = tarfile.GNU_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for member, content in members:
            tar.addfile(member, io.BytesIO(content) if content else None)
    return out.getvalue()


def sparse_bomb() -> tuple[tarfile.TarInfo, bytes]:
    return info("huge.JPEG", tarfile.GNUTYPE_SPARSE, TEN_GB), b""


EVIL: dict[str, tuple[tuple[tarfile.TarInfo, bytes], str]] = {
    "dots": ((info("../x", size=4), b"evil"), r"'\.\./x' has '\.\.' in its name"),
    "hidden dots": ((info("a/../../x", size=4), b"evil"), r"'\.\.'"),
    "absolute": ((info("/tmp/trainstone-x", size=4), b"evil"), "absolute"),
    "drive": ((info("C:/x", size=4), b"evil"), "Windows"),
    "backslash": ((info("..\\x", size=4), b"evil"), "Windows"),
    "symbolic link": ((info("link", tarfile.SYMTYPE, link="/etc"), b""), "'link' is a symbolic link"),
    "hard link": ((info("hard", tarfile.LNKTYPE, link="good.txt"), b""), "'hard' is a hard link"),
    "device": ((info("null", tarfile.CHRTYPE), b""), "'null' is a character device"),
    "disk": ((info("sda", tarfile.BLKTYPE), b""), "'sda' is a block device"),
    "fifo": ((info("pipe", tarfile.FIFOTYPE), b""), "'pipe' is a pipe"),
    "sparse": (sparse_bomb(), "'huge.JPEG' is a sparse file"),
    "control": ((info("a\nb", size=4), b"evil"), "control character 0x0a"),
    "twice": ((info("./good.txt", size=4), b"evil"), "'good.txt' is there twice"),
    "in a file": ((info("good.txt/x", size=4), b"evil"), "'good.txt' is both a file and a folder"),
    "more than there is": ((info("long", size=10**9), b""), "'long' claims 1,000,000,000 bytes"),
    "not UTF-8": ((info("\udcff", size=4), b"evil"), "not UTF-8"),
}
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "x.tar": bytes,
    "x.tar.gz": gzip.compress,
    "x.tar.bz2": bz2.compress,
    "x.tar.xz": lzma.compress,
}


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
@pytest.mark.parametrize("case", EVIL)
def test_an_evil_tar_is_refused_and_nothing_is_written(tmp_path, case, name):
    member, message = EVIL[case]
    data = make_odd_tar([(info("good.txt", size=4), b"good"), member])
    expect_refusal(tmp_path, name, PACKERS[name](data), message, extract_tar)
    assert not Path("/tmp/trainstone-x").exists()


@pytest.mark.parametrize("name", PACKERS)
def test_all_evils_together_are_refused(tmp_path, name):
    members = [member for member, _ in EVIL.values() if member[0].size < 10**9]
    expect_refusal(tmp_path, name, PACKERS[name](make_odd_tar([*members, sparse_bomb()])), "is refused", extract_tar)


def test_a_listing_refuses_the_same(tmp_path):
    for case, (member, message) in EVIL.items():
        path = tmp_path / f"{case}.tar"
        path.write_bytes(make_odd_tar([(info("good.txt", size=4), b"good"), member]))
        with pytest.raises(DataError, match=message):
            list(list_tar(path))
        with pytest.raises(DataError, match=message):
            list(read_tar(path))


@pytest.mark.parametrize("key", ["GNU.sparse.major", "GNU.sparse.size", "GNU.sparse.map"])
def test_pax_sparse_members_are_refused(tmp_path, key):
    member = info("sparse", size=4)
    member.pax_headers = {key: "1"}
    data = make_odd_tar([(member, b"evil")], tarfile.PAX_FORMAT)
    expect_refusal(tmp_path, "x.tar", data, "'sparse' is a sparse file", extract_tar)


@pytest.mark.parametrize("size", ["-1", "1e3", "9" * 30, str(TEN_GB)])
def test_a_pax_size_is_not_believed(tmp_path, size):
    member = info("big", size=4)
    member.pax_headers = {"size": size}
    expect_refusal(
        tmp_path, "x.tar", make_odd_tar([(member, b"evil")], tarfile.PAX_FORMAT), "'big' claims", extract_tar
    )


def test_notes_must_be_sound_and_have_a_member(tmp_path):
    member = info("a", size=4)
    member.pax_headers = {"path": "b"}
    data = make_odd_tar([(member, b"evil")], tarfile.PAX_FORMAT)
    path = tmp_path / "x.tar"
    path.write_bytes(data[:1024] + bytes(1024))
    with pytest.raises(
        DataError, match=r"x\.tar, byte 1024: the tar ends where the member of an extended header is due"
    ):
        list(list_tar(path))
    path.write_bytes(data[:512] + b"x" * 512 + data[1024:])
    with pytest.raises(DataError, match=r"x\.tar, byte 0: an extended header that cannot be read at byte 0 of it"):
        list(list_tar(path))


def test_a_pax_name_is_judged_like_any(tmp_path):
    member = info("fine", size=4)
    member.pax_headers = {"path": "../x"}
    expect_refusal(tmp_path, "x.tar", make_odd_tar([(member, b"evil")], tarfile.PAX_FORMAT), r"'\.\.'", extract_tar)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_listing_says_where_content_lies(tmp_path, form):
    files = FILES | {"d/" * 60 + "long name.JPEG": b"deep"}
    path = tmp_path / "x.tar"
    path.write_bytes(make_tar(files, form))
    data = path.read_bytes()
    found = {name: data[offset : offset + size] for name, offset, size in list_tar(path)}
    assert found == files
    assert dict(read_tar(path)) == files


def test_a_tar_in_a_tar_is_listed_in_place(tmp_path):
    inner = {
        "n01.tar": make_tar({"n01_1.JPEG": b"first", "n01_2.JPEG": b"second"}),
        "n02.tar": make_tar({"n02_1.JPEG": b"x"}),
    }
    path = tmp_path / "train.tar"
    path.write_bytes(make_tar(inner))
    data = path.read_bytes()
    found = [member for outer in list_tar(path) for member in list_tar(path, outer.offset, outer.size)]
    assert [(name, data[offset : offset + size]) for name, offset, size in found] == [
        ("n01_1.JPEG", b"first"),
        ("n01_2.JPEG", b"second"),
        ("n02_1.JPEG", b"x"),
    ]


def test_a_tar_in_a_tar_may_not_reach_beyond_it(tmp_path):
    inner = make_odd_tar([(info("n01_1.JPEG", size=20_000), bytes(20_000))])[:1024]
    path = tmp_path / "train.tar"
    path.write_bytes(make_tar({"n01.tar": inner, "n02.tar": bytes(90_000)}))
    first = next(iter(list_tar(path)))
    with pytest.raises(DataError, match=r"tar at byte 512: member 'n01_1.JPEG' claims 20,000 bytes, 512 are left"):
        list(list_tar(path, first.offset, first.size))


@pytest.mark.parametrize("name", PACKERS)
def test_a_good_tar_is_extracted_with_plain_modes(tmp_path, name):
    path = tmp_path / name
    member = info("run.sh", size=4)
    member.mode = 0o6777
    folder = info("empty", tarfile.DIRTYPE)
    data = make_odd_tar([(member, b"#!/x"), (folder, b""), *((info(n, size=len(c)), c) for n, c in FILES.items())])
    path.write_bytes(PACKERS[name](data))
    target = tmp_path / "new/target"
    list(extract_tar(path, target))
    assert {n: (target / n).read_bytes() for n in FILES} == FILES
    assert (target / "empty").is_dir()
    assert stat.S_IMODE((target / "run.sh").stat().st_mode) & 0o7111 == 0
    assert list_everything(tmp_path / "new") == {"target"} | {
        f"target/{n}" for n in [*FILES, "n01", "n02", "empty", "run.sh"]
    }


def test_an_existing_target_is_left_alone(tmp_path):
    (tmp_path / "x.tar").write_bytes(make_tar(FILES))
    (tmp_path / "target").mkdir()
    with pytest.raises(DataError, match="is there already"):
        list(extract_tar(tmp_path / "x.tar", tmp_path / "target"))
    assert list_everything(tmp_path / "target") == set()


def test_a_tar_is_unpacked_once_and_again_when_it_changed(tmp_path):
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(make_tar(FILES)))
    first = unpack_once(path, tmp_path / "work")
    assert unpack_once(path, tmp_path / "work") == first
    path.write_bytes(gzip.compress(make_tar({"other": b"x"})))
    assert list_everything(unpack_once(path, tmp_path / "work")) == {"other"}


@pytest.mark.parametrize("name", list(PACKERS)[1:])
def test_a_compression_bomb_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr("trainstone.data.raw.tarwalk.MAX_RATIO_FREE_BYTES", 2**20)
    one = make_tar({"zeros": bytes(8 * 2**20)})
    expect_refusal(
        tmp_path, name, PACKERS[name](one), r"'zeros' claims 8,388,608 bytes, at most \d,\d+,\d+ in all", extract_tar
    )
    many = make_tar({f"{i}": bytes(2**20) for i in range(8)})
    expect_refusal(tmp_path, name, PACKERS[name](many), "claims 1,048,576 bytes, at most|compression bomb", extract_tar)


def test_what_does_not_fit_the_disk_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    for name in ("x.tar", "x.tar.gz"):
        expect_refusal(tmp_path, name, PACKERS[name](make_tar(FILES)), "the disk has 1000 B free", extract_tar)


def test_xz_that_asks_for_much_memory_is_refused(tmp_path):
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 2**30}]
    data = lzma.compress(make_tar({"a": b"x"}), filters=filters)
    expect_refusal(tmp_path, "x.tar.xz", data, "Memory usage limit", extract_tar)


@pytest.mark.parametrize("name", PACKERS)
@pytest.mark.parametrize("share", [0.3, 0.6, 0.97])
def test_a_tar_cut_short_is_refused(tmp_path, name, share):
    data = PACKERS[name](make_tar(FILES | {"big": os.urandom(50_000)}))
    if name == "x.tar":
        data = data.rstrip(b"\0")
    expect_refusal(tmp_path, name, data[: int(len(data) * share)], "x.tar", extract_tar)


def test_a_damaged_checksum_of_gzip_is_noticed(tmp_path):
    data = bytearray(gzip.compress(make_tar(FILES)))
    data[-6] ^= 1
    expect_refusal(tmp_path, "x.tar.gz", bytes(data), "cannot be unpacked", extract_tar)


@pytest.mark.parametrize("content", [b"", b"no tar at all", bytes(100), b"\1" * 1024])
def test_what_is_no_tar_is_refused(tmp_path, content):
    expect_refusal(tmp_path, "x.tar", content, "byte 0", extract_tar)


def test_a_compressed_tar_cannot_be_listed_in_place(tmp_path):
    (tmp_path / "x.tar").write_bytes(gzip.compress(make_tar(FILES)))
    with pytest.raises(DataError, match="compressed"):
        list(list_tar(tmp_path / "x.tar"))
    with pytest.raises(DataError, match="no such file"):
        list(list_tar(tmp_path / "none.tar"))


GOOD = make_tar({"n01/a.JPEG": b"one" * 300, "b": b"", "c" * 120: b"two"})


@settings(
    max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(changes=st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=6), cut=st.booleans())
def test_a_changed_tar_gives_members_or_a_data_error(tmp_path, changes, cut):
    data = bytearray(GOOD)
    for at, value in changes:
        data[at] = value
    for at in range(0, 4096, 512):  # with sums that fit, so that the changes are believed
        block = data[at : at + 512]
        if changes and any(block) and len(block) == 512:
            block[148:156] = b" " * 8
            data[at + 148 : at + 156] = b"%06o\0 " % sum(block)
    path = tmp_path / "x.tar"
    path.write_bytes(data[: changes[0][0]] if cut and changes else data)
    for member in members_or_error(list_tar, path):
        assert member.offset + member.size <= len(data)
        assert not member.name.startswith(("/", "../"))
