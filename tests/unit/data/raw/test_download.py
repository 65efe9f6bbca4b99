"""Downloads against a real server on this machine that breaks off, forgets ranges, changes files and lies."""

import errno
import hashlib
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from command import LIMIT
from trainstone.data.parallel import Progress
from trainstone.data.raw import download
from trainstone.data.raw.download import COCO_FILES, WAITS_SECONDS, Sum, Wanted, fetch, find_file, is_address
from trainstone.errors import ConfigError, DataError
from trainstone.text import printable
from web_server import Site, serve

CONTENT = bytes(range(256)) * 4000  # 1 MB, four chunks
OTHER = CONTENT[::-1]
SUM = hashlib.sha256(CONTENT).hexdigest()
NAME = f"net-{SUM[:8]}.pth"


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("no_proxy", "*")


def wanted_of(data: bytes, path: str = "zips/a.zip") -> Wanted:
    return Wanted(path, Sum("md5", hashlib.md5(data).hexdigest(), "published"), len(data))


def get(mirror: str, target: Path, *files: Wanted, waits: list[float] | None = None) -> list[Progress]:
    slept: list[float] = [] if waits is None else waits
    return list(fetch(mirror, files or (wanted_of(CONTENT),), target, timeout_seconds=LIMIT, sleep=slept.append))


def bring(address: str, folder: Path, sha256: str | None = None) -> Path:
    mirror, wanted = find_file(address, sha256)
    get(mirror, folder, wanted)
    return folder / wanted.name


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def find_part(folder: Path) -> Path:
    (part,) = folder.glob("a.zip.????????.partial")
    return part


def test_a_file_arrives_whole_with_its_progress(tmp_path: Path):
    with serve(Site(zips__a_zip=CONTENT)) as mirror:
        seen = get(mirror, tmp_path / "new")
    assert (tmp_path / "new/a.zip").read_bytes() == CONTENT
    assert names(tmp_path / "new") == ["a.zip"]
    assert seen[-1] == Progress("download a.zip", len(CONTENT), len(CONTENT), "bytes")
    assert [p.done for p in seen] == sorted({p.done for p in seen})
    assert len(seen) >= 3


def test_a_file_that_is_there_is_only_checked(tmp_path: Path):
    (tmp_path / "a.zip").write_bytes(CONTENT)
    site = Site(zips__a_zip=CONTENT)
    with serve(site) as mirror:
        seen = get(mirror, tmp_path)
    assert {p.phase for p in seen} == {"check a.zip"}
    assert site.asked == []


def test_a_wrong_file_that_is_there_is_left_alone(tmp_path: Path):
    (tmp_path / "a.zip").write_bytes(OTHER)
    with (
        serve(Site(zips__a_zip=CONTENT)) as mirror,
        pytest.raises(DataError, match=r"a\.zip has md5 .* is right") as told,
    ):
        get(mirror, tmp_path)
    assert told.value.hint == "remove it to fetch it again"
    assert (tmp_path / "a.zip").read_bytes() == OTHER


FIRST = "bytes=300000-"


@pytest.mark.parametrize(
    ("faults", "ranges", "waits"),
    [
        # Each try brought something, so the wait does not grow.
        ({"cuts": [300_000, 300_000]}, [None, FIRST, "bytes=600000-"], [1.0, 1.0]),
        ({"cuts": [300_000], "ranges": False}, [None, FIRST], None),
        ({"statuses": [503, 500, 429]}, [None] * 4, [2.0, 4.0, 8.0]),
        *(
            ({"cuts": [300_000], "content_range": told}, [None, FIRST, None], None)
            for told in ("bytes 5-9/10", "bytes 300000-1023999/*", "rubbish", "bytes 300000-1/" + "9" * 40)
        ),
    ],
)
def test_faults_of_a_server_are_overcome(tmp_path: Path, faults: dict, ranges: list, waits: list[float] | None):
    site, slept = Site(zips__a_zip=CONTENT), list[float]()
    vars(site).update(faults)
    with serve(site) as mirror:
        get(mirror, tmp_path, waits=slept)
    assert (tmp_path / "a.zip").read_bytes() == CONTENT
    assert [asked for _, asked in site.asked] == ranges
    assert waits is None or slept == waits


@pytest.mark.parametrize(
    ("data", "faults", "size", "message"),
    [
        (OTHER, {}, len(CONTENT), f"{hashlib.md5(OTHER).hexdigest()}.*{hashlib.md5(CONTENT).hexdigest()}"),
        (CONTENT[:-1], {}, len(CONTENT), "the right file 1,024,000"),
        (CONTENT + b"x", {}, len(CONTENT), "the right file 1,024,000"),
        (CONTENT, {"length": None, "surplus": b"x"}, len(CONTENT), "more than the 1,024,000 bytes"),
        (CONTENT, {"length": None}, None, "does not say how long"),
    ],
)
def test_what_is_not_the_file_is_refused(tmp_path: Path, data: bytes, faults: dict, size: int | None, message: str):
    site = Site(zips__a_zip=data)
    vars(site).update(faults)
    with serve(site) as mirror, pytest.raises(DataError, match=message):
        get(mirror, tmp_path, wanted_of(CONTENT)._replace(size_bytes=size))
    assert not (tmp_path / "a.zip").exists()
    assert size is None or names(tmp_path) == []


def test_a_server_that_always_breaks_at_the_same_place_is_given_up(tmp_path: Path):
    site, waits = Site(zips__a_zip=CONTENT), list[float]()
    site.ranges, site.cuts = False, [300_000] * 20
    with serve(site) as mirror, pytest.raises(DataError, match="breaks off at byte 300000 of 1024000; tried 6 times"):
        get(mirror, tmp_path, waits=waits)
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert names(tmp_path) == [find_part(tmp_path).name]


def interrupt(mirror: str, target: Path, wanted: Wanted) -> None:
    """Stop after the first chunk, as Ctrl-C does."""
    work = fetch(mirror, [wanted], target)
    next(work)
    work.close()


def test_another_process_resumes_from_the_partial_file(tmp_path: Path):
    site = Site(zips__a_zip=CONTENT)
    with serve(site) as mirror:
        interrupt(mirror, tmp_path, wanted_of(CONTENT))
        held = find_part(tmp_path).stat().st_size
        assert 0 < held < len(CONTENT)
        seen = get(mirror, tmp_path)
    assert site.asked[-1] == ("/zips/a.zip", f"bytes={held}-")
    assert seen[0].phase == "check a.zip"
    assert names(tmp_path) == ["a.zip"]
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def test_part_of_a_file_with_another_sum_is_not_built_on(tmp_path: Path):
    site = Site(zips__a_zip=OTHER)
    with serve(site) as mirror:
        interrupt(mirror, tmp_path, wanted_of(OTHER))
        site.files["zips/a.zip"] = CONTENT
        get(mirror, tmp_path)
    assert site.asked[-1][1] is None
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def test_file_that_changed_on_the_way_is_noticed_and_fetched_by_the_next_try(tmp_path: Path):
    site = Site(zips__a_zip=OTHER)
    with serve(site) as mirror:
        interrupt(mirror, tmp_path, wanted_of(CONTENT))
        site.files["zips/a.zip"] = CONTENT
        with pytest.raises(DataError, match="as fetched has md5"):
            get(mirror, tmp_path)
        get(mirror, tmp_path)
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def test_nobody_listening_is_told_after_a_few_tries(tmp_path: Path):
    with serve(Site()) as mirror:
        pass
    waits: list[float] = []
    with pytest.raises(DataError, match="Connection refused; tried 5 times") as caught:
        get(mirror, tmp_path, waits=waits)
    assert waits == list(WAITS_SECONDS[1:])
    assert "it resumes" in str(caught.value.hint)


def test_a_server_that_falls_silent_is_asked_again(tmp_path: Path):
    site = Site(zips__a_zip=CONTENT)
    site.cuts, site.stall = [300_000], threading.Event()
    with serve(site) as mirror:
        list(
            fetch(
                mirror,
                [wanted_of(CONTENT)],
                tmp_path,
                timeout_seconds=0.2,
                sleep=lambda _: setattr(site, "stall", None),
            )
        )
        assert len(site.asked) == 2
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def test_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fill(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with serve(Site(zips__a_zip=CONTENT)) as mirror:
        with monkeypatch.context() as patched:
            patched.setattr(download.os, "fsync", fill)
            with pytest.raises(DataError, match=r"disk of .* is full") as told:
                get(mirror, tmp_path)
        find_part(tmp_path).unlink()
        assert "it resumes" in (told.value.hint or "")
        monkeypatch.setattr(download.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})())
        with pytest.raises(DataError, match="needs 1000 KiB more"):
            get(mirror, tmp_path)


def test_two_processes_cannot_fetch_the_same_file_at_once(tmp_path: Path):
    with serve(Site(zips__a_zip=CONTENT)) as mirror:
        first = fetch(mirror, [wanted_of(CONTENT)], tmp_path)
        next(first)
        with pytest.raises(DataError, match="being fetched by another process"):
            get(mirror, tmp_path)
        list(first)
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def test_link_in_place_of_the_part_is_not_followed(tmp_path: Path):
    (tmp_path / "t").mkdir()
    (tmp_path / "precious").write_bytes(b"mine")
    part = f"a.zip.{hashlib.md5(CONTENT).hexdigest()[:8]}.partial"
    (tmp_path / "t" / part).symlink_to(tmp_path / "precious")
    with serve(Site(zips__a_zip=CONTENT)) as mirror, pytest.raises(DataError, match="cannot write"):
        get(mirror, tmp_path / "t")
    assert (tmp_path / "precious").read_bytes() == b"mine"


KILLED = """
import os, signal, sys
from pathlib import Path
from trainstone.data.raw.download import Sum, Wanted, fetch
wanted = Wanted("zips/a.zip", Sum("md5", sys.argv[3], "published"))
for item in fetch(sys.argv[1], [wanted], Path(sys.argv[2])):
    if item.done > 500_000:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_download_resumes(tmp_path: Path):
    wanted = wanted_of(CONTENT)
    assert wanted.sum is not None
    with serve(Site(zips__a_zip=CONTENT)) as mirror:
        command = [sys.executable, "-c", KILLED, mirror, str(tmp_path), wanted.sum.digits]
        assert subprocess.run(command, timeout=LIMIT).returncode == -signal.SIGKILL
        held = find_part(tmp_path).stat().st_size
        assert 0 < held < len(CONTENT)
        seen = get(mirror, tmp_path, wanted)
    assert max(item.done for item in seen if item.phase == "check a.zip") == held
    assert names(tmp_path) == ["a.zip"]
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def test_flat_mirror_will_do_and_a_query_is_kept(tmp_path: Path):
    site = Site(mine__a_zip=CONTENT)
    with serve(site) as mirror:
        get(f"{mirror}/mine/?token=s3cret", tmp_path)
    assert (tmp_path / "a.zip").read_bytes() == CONTENT
    assert site.asked == [("/mine/a.zip?token=s3cret", None)]


def test_redirect_to_another_server_is_followed(tmp_path: Path):
    site = Site(zips__a_zip=CONTENT)
    with serve(Site(zips__a_zip=CONTENT)) as other, serve(site) as mirror:
        site.redirect = f"{other}/zips/a.zip"
        get(mirror, tmp_path)
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def test_missing_file_is_named_with_its_addresses(tmp_path: Path):
    with serve(Site()) as mirror, pytest.raises(DataError) as told:
        get(mirror, tmp_path, COCO_FILES[0])
    assert f"{mirror}/annotations/annotations_trainval2017.zip answers 404" in told.value.message
    assert told.value.message == printable(told.value.message)
    assert "annotations/annotations_trainval2017.zip" in (told.value.hint or "")


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/a.zip", "/zips/a.zip"])
def test_redirects_lead_to_the_web_only_and_end(tmp_path: Path, target: str):
    site = Site(zips__a_zip=CONTENT)
    site.redirect = target
    with serve(site) as mirror, pytest.raises(DataError, match="redirects too often, or to what is not http"):
        get(mirror, tmp_path)
    assert len(site.asked) <= 6
    assert not (tmp_path / "a.zip").exists()


@pytest.mark.parametrize(
    "text",
    ["ftp://host/x", "s3://bucket", "http://", "http://[::1", "http://host:99999/", "file:///x", "/x", "http://a b/",
     "http://user:secret@host/", "http://host/\x1b[31m", "http://hö.st/"],
)  # fmt: skip
def test_other_addresses_are_refused(tmp_path: Path, text: str):
    with pytest.raises(ConfigError, match="is no address of a mirror") as told:
        get(text, tmp_path)
    assert "http://" in (told.value.hint or "")
    assert told.value.message == printable(told.value.message)


def test_file_names_and_digits_of_one_address():
    assert [is_address(text) for text in ("http://a/b", "file:///a", "a/b.pth", "C:/x", "")] == [1, 1, 0, 0, 0]
    mirror, wanted = find_file("https://host:81/a/b/resnet34-333f7ec4.pth?token=x&y=1", None)
    assert (mirror, wanted.name) == ("https://host:81/a/b?token=x&y=1", "resnet34-333f7ec4.pth")
    assert wanted.sum == Sum("sha256", "333f7ec4", "the first digits, by its name")
    assert find_file("http://host/net-333f7ec4.pth", SUM.upper())[1].sum == Sum("sha256", SUM, "--sha256")
    for name in ("resnet34.pth", "net-12345.pth", "net-zzzzzzzz.pth", "net-1234567g.pth", "333f7ec4"):
        assert find_file(f"http://host/{name}", None)[1].sum is None
    for odd in ("", "12", SUM[:8], SUM + "0", "g" * 64):
        with pytest.raises(ConfigError, match="64 digits"):
            find_file("http://host/net.pth", odd)


@pytest.mark.parametrize(
    "path",
    ["/", "", "/..", "/a%2F..%2Fb.pth", "/%2e%2e", "/a%5Cb.pth", "/a%00.pth", "/a%1b[31m", "/" + "a" * 300, "]/a.pth"],
)
def test_address_must_end_in_a_name_that_stays_in_the_folder(path: str):
    with pytest.raises(ConfigError, match=r"does not end in the name of a file|is no address"):
        find_file(f"http://[host{path}" if path.startswith("]") else f"http://host{path}", None)


def test_one_file_comes_by_the_digits_in_its_name(tmp_path: Path):
    site = Site()
    site.files = {f"w/{NAME}": CONTENT, "net.pth": CONTENT}
    with serve(site) as mirror:
        assert bring(f"{mirror}/w/{NAME}?token=1", tmp_path).read_bytes() == CONTENT
        assert [asked[0] for asked in site.asked] == [f"/w/{NAME}?token=1"]
        with pytest.raises(DataError, match=r"nothing says what net\.pth must be") as caught:
            bring(f"{mirror}/net.pth", tmp_path)
        assert "--sha256 DIGITS" in str(caught.value.hint)
        assert bring(f"{mirror}/net.pth", tmp_path, SUM).read_bytes() == CONTENT
        with pytest.raises(DataError, match=r"is right \(--sha256\)"):
            bring(f"{mirror}/w/{NAME}", tmp_path / "new", "0" * 64)
    assert list((tmp_path / "new").iterdir()) == []
