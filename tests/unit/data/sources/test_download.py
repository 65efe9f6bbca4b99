"""Tests of downloads from a local server that drops connections, ignores ranges, changes files and sends wrong data."""

import errno
import hashlib
from pathlib import Path

import pytest

from support.servers.web import Site, serve
from trainstone.data.parallel import WorkProgress
from trainstone.data.sources import download
from trainstone.data.sources.download import (
    WAITS_SECONDS,
    DownloadSpec,
    build_download_spec,
    download_files,
    is_url,
    list_coco_files,
)
from trainstone.errors import ConfigError, DataError

CONTENT = bytes(range(256)) * 4000  # 1 MB, four chunks
OTHER = CONTENT[::-1]
SUM = hashlib.sha256(CONTENT).hexdigest()
NAME = f"net-{SUM[:8]}.pth"
FIRST = "bytes=300000-"


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("no_proxy", "*")


def make_spec(data: bytes, server: str, size: int | None = len(CONTENT)) -> DownloadSpec:
    return DownloadSpec("a.zip", (f"{server}/zips/a.zip",), "sha256", hashlib.sha256(data).hexdigest(), size)


def get(server: str, target: Path, *files: DownloadSpec, waits: list[float] | None = None) -> list[WorkProgress]:
    slept: list[float] = [] if waits is None else waits
    return list(download_files(files or (make_spec(CONTENT, server),), target, timeout_seconds=2, sleep=slept.append))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def find_part(folder: Path) -> Path:
    (part,) = folder.glob("a.zip.????????.partial")
    return part


def interrupt(server: str, target: Path, data: bytes) -> int:
    """Stop after the first chunk, like Ctrl-C; return the size of the partial file."""
    work = download_files([make_spec(data, server)], target)
    next(work)
    work.close()
    return find_part(target).stat().st_size


def test_download_files_yields_progress_and_only_checks_existing_file(tmp_path: Path):
    site = Site(zips__a_zip=CONTENT)
    with serve(site) as server:
        progress = get(server, tmp_path / "new")
        again = get(server, tmp_path / "new")
        assert len(site.requested) == 1
        (tmp_path / "new/a.zip").write_bytes(OTHER)
        with pytest.raises(DataError, match="sha256") as caught:
            get(server, tmp_path / "new")
    assert progress[-1] == WorkProgress("download a.zip", len(CONTENT), len(CONTENT), "bytes")
    assert [p.done for p in progress] == sorted({p.done for p in progress})
    assert {p.phase for p in again} == {"check a.zip"}
    assert "remove it" in (caught.value.hint or "")
    assert names(tmp_path / "new") == ["a.zip"]
    assert (tmp_path / "new/a.zip").read_bytes() == OTHER


@pytest.mark.parametrize(
    ("faults", "ranges", "waits"),
    [
        # Each attempt downloaded something, so the pause does not grow.
        ({"cuts": [300_000, 300_000]}, [None, FIRST, "bytes=600000-"], [1.0, 1.0]),
        ({"cuts": [300_000], "ranges": False}, [None, FIRST], None),
        ({"statuses": [503, 500, 429]}, [None] * 4, [2.0, 4.0, 8.0]),
        ({"length": None}, [None], None),
        *(
            ({"cuts": [300_000], "content_range": text}, [None, FIRST, None], None)
            for text in ("bytes 5-9/10", "bytes 300000-1023999/*", "rubbish", "bytes 300000-1/" + "9" * 40)
        ),
    ],
)
def test_download_files_recovers_from_server_faults(
    tmp_path: Path, faults: dict, ranges: list, waits: list[float] | None
):
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
def test_download_files_rejects_and_removes_wrong_file(tmp_path: Path, data: bytes, faults: dict, size: int | None):
    site = Site(zips__a_zip=data)
    vars(site).update(faults)
    with serve(site) as server, pytest.raises(DataError, match=r"a\.zip"):
        get(server, tmp_path, make_spec(CONTENT, server, size))
    assert names(tmp_path) == []


def test_download_files_gives_up_without_progress(tmp_path: Path):
    site, waits = Site(zips__a_zip=CONTENT), list[float]()
    site.ranges, site.cuts = False, [300_000] * 20
    with serve(site) as server, pytest.raises(DataError, match="byte 300000 of 1024000"):
        get(server, tmp_path, waits=waits)
    assert waits == list(WAITS_SECONDS)
    assert names(tmp_path) == [find_part(tmp_path).name]
    with pytest.raises(DataError, match="Connection refused") as caught:
        get(server, tmp_path / "new")
    assert "it resumes" in str(caught.value.hint)


def test_download_files_resumes_partial_file(tmp_path: Path):
    site = Site(zips__a_zip=CONTENT)
    with serve(site) as server:
        num_bytes = interrupt(server, tmp_path, CONTENT)
        assert 0 < num_bytes < len(CONTENT)
        progress = get(server, tmp_path)
    assert site.requested[-1] == ("/zips/a.zip", f"bytes={num_bytes}-")
    assert progress[0].phase == "check a.zip"
    assert names(tmp_path) == ["a.zip"]
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def test_download_files_detects_file_changed_between_attempts(tmp_path: Path):
    site = Site(zips__a_zip=OTHER)
    with serve(site) as server:
        interrupt(server, tmp_path, OTHER)
        interrupt(server, tmp_path / "b", CONTENT)
        site.files["zips/a.zip"] = CONTENT
        get(server, tmp_path)  # the partial file of another checksum is not used
        assert site.requested[-1][1] is None
        with pytest.raises(DataError, match="sha256"):
            get(server, tmp_path / "b")
        get(server, tmp_path / "b")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b/a.zip").read_bytes() == CONTENT


def test_download_files_reports_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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
        with pytest.raises(DataError, match="1000 KiB needed"):
            get(server, tmp_path)


def test_download_files_locks_file_and_does_not_follow_links(tmp_path: Path):
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine")
    (tmp_path / "t").mkdir()
    with serve(Site(zips__a_zip=CONTENT)) as server:
        first = download_files([make_spec(CONTENT, server)], tmp_path)
        next(first)
        with pytest.raises(DataError, match="another process"):
            get(server, tmp_path)
        (tmp_path / "t" / find_part(tmp_path).name).symlink_to(precious)
        list(first)
        with pytest.raises(DataError, match="cannot download to"):
            get(server, tmp_path / "t")
    assert precious.read_bytes() == b"mine"


def test_coco_files_are_found_on_mirrors_with_and_without_folders(tmp_path: Path):
    site = Site(mine__a_zip=CONTENT)
    with serve(site) as server:
        files = list_coco_files(f"{server}/mine/?token=s3cret")
        flat = [url.replace("val2017", "a") for url in files[1].urls]
        for site.redirect, answer in (("file:///etc/passwd", "302"), ("ftp://a/b", "302"), ("http://[a", "invalid")):
            with pytest.raises(DataError, match=answer):
                get(server, tmp_path, make_spec(CONTENT, server)._replace(urls=tuple(flat)))
        with pytest.raises(DataError, match=r"annotations_trainval2017\.zip returned 404") as caught:
            get(server, tmp_path, files[0])
        site.redirect = f"{server}/zips/b.zip"
        site.files["zips/b.zip"] = CONTENT
        with pytest.raises(DataError, match="30"):  # the redirect points to itself
            get(server, tmp_path, make_spec(CONTENT, server)._replace(urls=tuple(flat)))
    assert "s3cret" not in caught.value.message
    assert site.requested[0] == ("/mine/a.zip?token=s3cret", None)
    assert [spec.urls for spec in files][1] == (
        f"{server}/mine/zips/val2017.zip?token=s3cret",
        f"{server}/mine/val2017.zip?token=s3cret",
    )


@pytest.mark.parametrize(
    "text",
    ["ftp://host/x", "http://", "http://[::1", "http://host:99999/", "file:///x", "/x", "http://a b/",
     "http://user:secret@host/", "http://host/\x1b[31m", "http://hö.st/"],
)  # fmt: skip
def test_list_coco_files_rejects_invalid_urls(text: str):
    with pytest.raises(ConfigError) as caught:
        list_coco_files(text)
    assert "http:// and https://" in caught.value.message


def test_build_download_spec_reads_name_and_checksum_from_url():
    assert [is_url(text) for text in ("http://a/b", "file:///a", "a/b.pth", "C:/x", "")] == [1, 1, 0, 0, 0]
    url = "https://host:81/a/b/resnet34-333f7ec4.pth?token=x&y=1"
    assert build_download_spec(url, None) == DownloadSpec("resnet34-333f7ec4.pth", (url,), "sha256", "333f7ec4")
    assert build_download_spec("http://host/net-333f7ec4.pth", SUM.upper()).digits == SUM
    for name in ("resnet34.pth", "net-12345.pth", "net-zzzzzzzz.pth", "net-1234567g.pth", "333f7ec4"):
        with pytest.raises(DataError) as caught:
            build_download_spec(f"http://host/{name}", None)
        assert "--sha256" in str(caught.value.hint)
    for digits in ("", "12", SUM[:8], SUM + "0", "g" * 64):
        with pytest.raises(ConfigError, match="64 hexadecimal digits"):
            build_download_spec("http://host/net.pth", digits)


@pytest.mark.parametrize(
    "path", ["/", "", "/..", "/a%2F..%2Fb.pth", "/%2e%2e", "/a%5Cb.pth", "/a%00.pth", "/a%1b[31m", "/" + "a" * 300]
)
def test_build_download_spec_rejects_unsafe_file_names(path: str):
    with pytest.raises(ConfigError, match="must end with a file name"):
        build_download_spec(f"http://host{path}", None)
