"""Downloads from a real server on this machine that breaks off, forgets ranges, changes files and lies."""

import errno
import hashlib
from pathlib import Path

import pytest

from support.servers.web import Site, serve
from trainstone.data.parallel import WorkProgress
from trainstone.data.sources import download
from trainstone.data.sources.download import WAITS_SECONDS, DownloadSpec, fetch, find_file, is_address, list_coco_files
from trainstone.errors import ConfigError, DataError

CONTENT = bytes(range(256)) * 4000  # 1 MB, four chunks
OTHER = CONTENT[::-1]
SUM = hashlib.sha256(CONTENT).hexdigest()
NAME = f"net-{SUM[:8]}.pth"
FIRST = "bytes=300000-"


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("no_proxy", "*")


def wanted_of(data: bytes, server: str, size: int | None = len(CONTENT)) -> DownloadSpec:
    return DownloadSpec("a.zip", (f"{server}/zips/a.zip",), "sha256", hashlib.sha256(data).hexdigest(), size)


def get(server: str, target: Path, *files: DownloadSpec, waits: list[float] | None = None) -> list[WorkProgress]:
    slept: list[float] = [] if waits is None else waits
    return list(fetch(files or (wanted_of(CONTENT, server),), target, timeout_seconds=2, sleep=slept.append))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def find_part(folder: Path) -> Path:
    (part,) = folder.glob("a.zip.????????.partial")
    return part


def interrupt(server: str, target: Path, data: bytes) -> int:
    """Stop after the first chunk, as Ctrl-C does; return how much is there."""
    work = fetch([wanted_of(data, server)], target)
    next(work)
    work.close()
    return find_part(target).stat().st_size


def test_fetch_downloads_a_file_with_progress_and_later_only_checks_it(tmp_path: Path):
    site = Site(zips__a_zip=CONTENT)
    with serve(site) as server:
        seen = get(server, tmp_path / "new")
        again = get(server, tmp_path / "new")
        assert len(site.requested) == 1
        (tmp_path / "new/a.zip").write_bytes(OTHER)
        with pytest.raises(DataError, match="sha256") as caught:
            get(server, tmp_path / "new")
    assert seen[-1] == WorkProgress("download a.zip", len(CONTENT), len(CONTENT), "bytes")
    assert [p.done for p in seen] == sorted({p.done for p in seen})
    assert {p.phase for p in again} == {"check a.zip"}
    assert "remove it" in (caught.value.hint or "")
    assert names(tmp_path / "new") == ["a.zip"]
    assert (tmp_path / "new/a.zip").read_bytes() == OTHER


@pytest.mark.parametrize(
    ("faults", "ranges", "waits"),
    [
        # Each try brought something, so the wait does not grow.
        ({"cuts": [300_000, 300_000]}, [None, FIRST, "bytes=600000-"], [1.0, 1.0]),
        ({"cuts": [300_000], "ranges": False}, [None, FIRST], None),
        ({"statuses": [503, 500, 429]}, [None] * 4, [2.0, 4.0, 8.0]),
        ({"length": None}, [None], None),
        *(
            ({"cuts": [300_000], "content_range": message}, [None, FIRST, None], None)
            for message in ("bytes 5-9/10", "bytes 300000-1023999/*", "rubbish", "bytes 300000-1/" + "9" * 40)
        ),
    ],
)
def test_fetch_overcomes_faults_of_a_server(tmp_path: Path, faults: dict, ranges: list, waits: list[float] | None):
    site, slept = Site(zips__a_zip=CONTENT), list[float]()
    vars(site).update(faults)
    with serve(site) as server:
        get(server, tmp_path, waits=slept)
    assert (tmp_path / "a.zip").read_bytes() == CONTENT
    assert [requested for _, requested in site.requested] == ranges
    assert waits is None or slept == waits


@pytest.mark.parametrize(
    ("data", "faults", "size"),
    [
        (OTHER, {}, len(CONTENT)),
        (CONTENT[:-1], {}, len(CONTENT)),
        (CONTENT + b"x", {}, len(CONTENT)),
        (CONTENT, {"length": None, "surplus": b"x"}, len(CONTENT)),
        (CONTENT, {"length": None}, None),
    ],
)
def test_fetch_rejects_another_file_and_removes_it(tmp_path: Path, data: bytes, faults: dict, size: int | None):
    site = Site(zips__a_zip=data)
    vars(site).update(faults)
    with serve(site) as server, pytest.raises(DataError, match=r"a\.zip"):
        get(server, tmp_path, wanted_of(CONTENT, server, size))
    assert names(tmp_path) == []


def test_fetch_gives_up_on_a_server_that_brings_nothing_new(tmp_path: Path):
    site, waits = Site(zips__a_zip=CONTENT), list[float]()
    site.ranges, site.cuts = False, [300_000] * 20
    with serve(site) as server, pytest.raises(DataError, match="byte 300000 of 1024000"):
        get(server, tmp_path, waits=waits)
    assert waits == list(WAITS_SECONDS)
    assert names(tmp_path) == [find_part(tmp_path).name]
    with pytest.raises(DataError, match="Connection refused") as caught:
        get(server, tmp_path / "new")
    assert "it resumes" in str(caught.value.hint)


def test_fetch_resumes_the_partial_file_of_another_process(tmp_path: Path):
    site = Site(zips__a_zip=CONTENT)
    with serve(site) as server:
        held = interrupt(server, tmp_path, CONTENT)
        assert 0 < held < len(CONTENT)
        seen = get(server, tmp_path)
    assert site.requested[-1] == ("/zips/a.zip", f"bytes={held}-")
    assert seen[0].phase == "check a.zip"
    assert names(tmp_path) == ["a.zip"]
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def test_fetch_notices_a_file_that_changed_between_two_tries(tmp_path: Path):
    site = Site(zips__a_zip=OTHER)
    with serve(site) as server:
        interrupt(server, tmp_path, OTHER)
        interrupt(server, tmp_path / "b", CONTENT)
        site.files["zips/a.zip"] = CONTENT
        get(server, tmp_path)  # the part for another checksum is not built on
        assert site.requested[-1][1] is None
        with pytest.raises(DataError, match="sha256"):
            get(server, tmp_path / "b")
        get(server, tmp_path / "b")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b/a.zip").read_bytes() == CONTENT


def test_fetch_reports_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fill(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with serve(Site(zips__a_zip=CONTENT)) as server:
        with monkeypatch.context() as patched:
            patched.setattr(download.os, "fsync", fill)
            with pytest.raises(DataError, match="No space left") as caught:
                get(server, tmp_path)
        find_part(tmp_path).unlink()
        assert "it resumes" in (caught.value.hint or "")
        monkeypatch.setattr(download.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})())
        with pytest.raises(DataError, match="needs 1000 KiB more"):
            get(server, tmp_path)


def test_fetch_locks_the_file_and_follows_no_link(tmp_path: Path):
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine")
    (tmp_path / "t").mkdir()
    with serve(Site(zips__a_zip=CONTENT)) as server:
        first = fetch([wanted_of(CONTENT, server)], tmp_path)
        next(first)
        with pytest.raises(DataError, match="another process"):
            get(server, tmp_path)
        (tmp_path / "t" / find_part(tmp_path).name).symlink_to(precious)
        list(first)
        with pytest.raises(DataError, match="cannot download to"):
            get(server, tmp_path / "t")
    assert precious.read_bytes() == b"mine"


def test_coco_files_are_looked_for_in_its_folders_and_in_a_flat_mirror_with_its_token(tmp_path: Path):
    site = Site(mine__a_zip=CONTENT)
    with serve(site) as server:
        files = list_coco_files(f"{server}/mine/?token=s3cret")
        flat = [address.replace("val2017", "a") for address in files[1].addresses]
        for site.redirect, answer in (("file:///etc/passwd", "302"), ("ftp://a/b", "302"), ("http://[a", "invalid")):
            with pytest.raises(DataError, match=answer):
                get(server, tmp_path, wanted_of(CONTENT, server)._replace(addresses=tuple(flat)))
        with pytest.raises(DataError, match=r"annotations_trainval2017\.zip answers 404") as caught:
            get(server, tmp_path, files[0])
        site.redirect = f"{server}/zips/b.zip"
        site.files["zips/b.zip"] = CONTENT
        with pytest.raises(DataError, match="30"):  # it redirects to itself
            get(server, tmp_path, wanted_of(CONTENT, server)._replace(addresses=tuple(flat)))
    assert "s3cret" not in caught.value.message
    assert site.requested[0] == ("/mine/a.zip?token=s3cret", None)
    assert [wanted.addresses for wanted in files][1] == (
        f"{server}/mine/zips/val2017.zip?token=s3cret",
        f"{server}/mine/val2017.zip?token=s3cret",
    )


@pytest.mark.parametrize(
    "text",
    ["ftp://host/x", "http://", "http://[::1", "http://host:99999/", "file:///x", "/x", "http://a b/",
     "http://user:secret@host/", "http://host/\x1b[31m", "http://hö.st/"],
)  # fmt: skip
def test_other_addresses_are_rejected(text: str):
    with pytest.raises(ConfigError) as caught:
        list_coco_files(text)
    assert "http://" in (caught.value.hint or "")


def test_find_file_takes_name_and_checksum_from_the_address():
    assert [is_address(text) for text in ("http://a/b", "file:///a", "a/b.pth", "C:/x", "")] == [1, 1, 0, 0, 0]
    address = "https://host:81/a/b/resnet34-333f7ec4.pth?token=x&y=1"
    assert find_file(address, None) == DownloadSpec("resnet34-333f7ec4.pth", (address,), "sha256", "333f7ec4")
    assert find_file("http://host/net-333f7ec4.pth", SUM.upper()).digits == SUM
    for name in ("resnet34.pth", "net-12345.pth", "net-zzzzzzzz.pth", "net-1234567g.pth", "333f7ec4"):
        with pytest.raises(DataError) as caught:
            find_file(f"http://host/{name}", None)
        assert "--sha256" in str(caught.value.hint)
    for odd in ("", "12", SUM[:8], SUM + "0", "g" * 64):
        with pytest.raises(ConfigError, match="64 digits"):
            find_file("http://host/net.pth", odd)


@pytest.mark.parametrize(
    "path", ["/", "", "/..", "/a%2F..%2Fb.pth", "/%2e%2e", "/a%5Cb.pth", "/a%00.pth", "/a%1b[31m", "/" + "a" * 300]
)
def test_find_file_needs_a_name_that_stays_in_the_folder(path: str):
    with pytest.raises(ConfigError, match="the name of a file"):
        find_file(f"http://host{path}", None)
