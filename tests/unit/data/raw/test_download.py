"""Downloads against a real server on this machine that breaks off, forgets ranges, changes files and lies."""

import errno
import hashlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from trainstone.data.progress import Progress
from trainstone.data.raw import download
from trainstone.data.raw.download import WAITS_SECONDS, fetch
from trainstone.data.raw.mirrors import Wanted
from trainstone.errors import DataError
from web_server import Site, serve

CONTENT = bytes(range(256)) * 4000  # 1 MB, four chunks
OTHER = CONTENT[::-1]


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("no_proxy", "*")


def wanted_of(data: bytes, path: str = "zips/a.zip") -> Wanted:
    return Wanted(path, len(data), hashlib.md5(data).hexdigest())


def get(mirror: str, target: Path, *files: Wanted, waits: list[float] | None = None) -> list[Progress]:
    slept: list[float] = [] if waits is None else waits
    return list(fetch(mirror, files or (wanted_of(CONTENT),), target, timeout_seconds=2, sleep=slept.append))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


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
    assert told.value.hint == "remove it to fetch it anew"
    assert (tmp_path / "a.zip").read_bytes() == OTHER


def test_a_broken_connection_is_resumed_where_it_broke(tmp_path: Path):
    site = Site(zips__a_zip=CONTENT)
    site.validators, site.cuts = {"ETag": '"v1"'}, [300_000, 300_000]
    waits: list[float] = []
    with serve(site) as mirror:
        get(mirror, tmp_path, waits=waits)
    assert (tmp_path / "a.zip").read_bytes() == CONTENT
    assert site.asked[1:] == [
        ("/zips/a.zip", "bytes=300000-", '"v1"'),
        ("/zips/a.zip", "bytes=600000-", '"v1"'),
    ]
    assert waits == [1.0, 1.0]  # each try brought something, so the wait does not grow


def test_a_weak_tag_is_not_used_but_the_date_is(tmp_path: Path):
    date = "Wed, 21 Oct 2015 07:28:00 GMT"
    site = Site(zips__a_zip=CONTENT)
    site.validators, site.cuts = {"ETag": 'W/"v1"', "Last-Modified": date}, [300_000]
    with serve(site) as mirror:
        get(mirror, tmp_path)
    assert site.asked[1] == ("/zips/a.zip", "bytes=300000-", date)


def interrupt(mirror: str, target: Path, wanted: Wanted) -> None:
    """Stop after the first chunk, as Ctrl-C does."""
    work = fetch(mirror, [wanted], target)
    next(work)
    work.close()


def test_another_process_goes_on_from_the_partial_file(tmp_path: Path):
    site = Site(zips__a_zip=CONTENT)
    site.validators = {"ETag": '"v1"'}
    with serve(site) as mirror:
        interrupt(mirror, tmp_path, wanted_of(CONTENT))
        assert names(tmp_path) == ["a.zip.partial", "a.zip.partial.json"]
        held = (tmp_path / "a.zip.partial").stat().st_size
        assert 0 < held < len(CONTENT)
        seen = get(mirror, tmp_path)
    assert site.asked[-1] == ("/zips/a.zip", f"bytes={held}-", '"v1"')
    assert seen[0].phase == "check a.zip"
    assert names(tmp_path) == ["a.zip"]
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def test_a_file_changed_in_between_is_fetched_from_the_start(tmp_path: Path):
    site = Site(zips__a_zip=OTHER, SHA256SUMS=f"{hashlib.sha256(CONTENT).hexdigest()}  a.zip\n".encode())
    site.validators = {"ETag": '"old"'}
    with serve(site) as mirror:
        interrupt(mirror, tmp_path, wanted_of(CONTENT))
        site.files["zips/a.zip"] = CONTENT
        site.validators = {"ETag": '"new"'}
        get(mirror, tmp_path)
    assert site.asked[-1][2] == '"old"'
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def test_a_part_of_another_version_is_not_built_on(tmp_path: Path):
    site = Site(zips__a_zip=OTHER)
    with serve(site) as mirror:
        interrupt(mirror, tmp_path, wanted_of(OTHER))
        site.files["zips/a.zip"] = CONTENT
        get(mirror, tmp_path)
    assert site.asked[-1][1] is None
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def test_a_part_can_be_ended_from_another_mirror(tmp_path: Path):
    site = Site(zips__a_zip=CONTENT)
    site.validators = {"ETag": '"here"'}
    with serve(site) as mirror:
        interrupt(mirror, tmp_path / "t", wanted_of(CONTENT))
    (tmp_path / "m").mkdir()
    (tmp_path / "m/a.zip").write_bytes(CONTENT)
    get(str(tmp_path / "m"), tmp_path / "t")
    assert (tmp_path / "t/a.zip").read_bytes() == CONTENT


def test_a_damaged_note_only_costs_the_part(tmp_path: Path):
    (tmp_path / "a.zip.partial").write_bytes(OTHER)
    for note in (b"\xff{", b"[1]", b'{"sum": "x"}', b"[" * 100_000):
        (tmp_path / "a.zip.partial.json").write_bytes(note)
        with serve(Site(zips__a_zip=CONTENT)) as mirror:
            get(mirror, tmp_path)
        assert (tmp_path / "a.zip").read_bytes() == CONTENT
        (tmp_path / "a.zip").unlink()


def test_a_server_without_ranges_starts_over(tmp_path: Path):
    site = Site(zips__a_zip=CONTENT)
    site.ranges, site.cuts = False, [300_000]
    with serve(site) as mirror:
        get(mirror, tmp_path)
    assert site.asked[1][1] == "bytes=300000-"
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def test_a_server_that_always_breaks_at_the_same_place_is_given_up(tmp_path: Path):
    site = Site(zips__a_zip=CONTENT)
    site.ranges, site.cuts = False, [300_000] * 20
    waits: list[float] = []
    with serve(site) as mirror, pytest.raises(DataError, match="breaks off at byte 300000 of 1024000; tried 6 times"):
        get(mirror, tmp_path, waits=waits)
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert "a.zip" not in names(tmp_path)


@pytest.mark.parametrize("told", ["bytes 5-9/10", "bytes 300000-1023999/*", "rubbish", "bytes 300000-1/" + "9" * 40])
def test_a_wrong_content_range_starts_over(tmp_path: Path, told: str):
    site = Site(zips__a_zip=CONTENT)
    site.cuts, site.content_range = [300_000], told
    with serve(site) as mirror:
        get(mirror, tmp_path)
    assert (tmp_path / "a.zip").read_bytes() == CONTENT
    assert [wanted for _, wanted, _ in site.asked] == [None, "bytes=300000-", None]


def test_passing_errors_are_waited_out(tmp_path: Path):
    site = Site(zips__a_zip=CONTENT)
    site.statuses = [503, 500, 429]
    waits: list[float] = []
    with serve(site) as mirror:
        get(mirror, tmp_path, waits=waits)
    assert waits == [2.0, 4.0, 8.0]
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def test_nobody_listening_is_told_after_a_few_tries(tmp_path: Path):
    with serve(Site()) as mirror:
        pass
    waits: list[float] = []
    with pytest.raises(DataError, match="Connection refused; tried 6 times") as caught:
        get(mirror, tmp_path, waits=waits)
    assert waits == list(WAITS_SECONDS)
    assert "--sha256" not in str(caught.value.hint)  # `trainstone data` has no such option


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


def test_a_wrong_sum_names_both_and_removes_the_part(tmp_path: Path):
    with serve(Site(zips__a_zip=OTHER)) as mirror, pytest.raises(DataError) as told:
        get(mirror, tmp_path)
    assert hashlib.md5(OTHER).hexdigest() in told.value.message
    assert hashlib.md5(CONTENT).hexdigest() in told.value.message
    assert names(tmp_path) == []


@pytest.mark.parametrize("data", [CONTENT[:-1], CONTENT + b"x"])
def test_a_file_of_another_length_is_not_fetched_at_all(tmp_path: Path, data: bytes):
    with serve(Site(zips__a_zip=data)) as mirror, pytest.raises(DataError, match="the published file 1,024,000"):
        get(mirror, tmp_path)
    assert names(tmp_path) == []


def test_more_bytes_than_there_should_be_are_refused(tmp_path: Path):
    site = Site(zips__a_zip=CONTENT)
    site.length, site.surplus = None, b"x"
    with serve(site) as mirror, pytest.raises(DataError, match="more than the 1,024,000 bytes"):
        get(mirror, tmp_path)
    assert names(tmp_path) == []


def test_bytes_after_the_stated_length_are_not_read(tmp_path: Path):
    site = Site(zips__a_zip=CONTENT)
    site.surplus = b"x" * 1000
    with serve(site) as mirror:
        get(mirror, tmp_path)
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def test_without_any_length_nothing_is_fetched(tmp_path: Path):
    site = Site(zips__a_zip=CONTENT, MD5SUMS=f"{hashlib.md5(CONTENT).hexdigest()}  a.zip".encode())
    site.length = None
    with serve(site) as mirror, pytest.raises(DataError, match="does not say how long"):
        get(mirror, tmp_path)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_folder_is_a_mirror_and_is_resumed_too(tmp_path: Path, scheme: str):
    (tmp_path / "my mirror/zips").mkdir(parents=True)
    (tmp_path / "my mirror/zips/a.zip").write_bytes(CONTENT)
    mirror = f"{scheme}{tmp_path}/my mirror".replace(" ", "%20" if scheme else " ")
    interrupt(mirror, tmp_path / "t", wanted_of(CONTENT))
    seen = get(mirror, tmp_path / "t")
    assert seen[0].phase == "check a.zip"
    assert (tmp_path / "t/a.zip").read_bytes() == CONTENT
    assert get(str(tmp_path / "my mirror/zips"), tmp_path / "my mirror/zips")[0].phase == "check a.zip"


def test_a_changed_file_of_a_folder_is_copied_anew(tmp_path: Path):
    (tmp_path / "a.zip").write_bytes(OTHER)
    (tmp_path / "SHA256SUMS").write_text(f"{hashlib.sha256(CONTENT).hexdigest()}  a.zip\n")
    interrupt(str(tmp_path), tmp_path / "t", wanted_of(CONTENT))
    (tmp_path / "a.zip").write_bytes(CONTENT)
    os.utime(tmp_path / "a.zip", (1, 1))
    get(str(tmp_path), tmp_path / "t")
    assert (tmp_path / "t/a.zip").read_bytes() == CONTENT


def test_a_full_disk_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a.zip").write_bytes(CONTENT)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(DataError, match="needs 1000 KiB more") as told:
        get(str(tmp_path), tmp_path / "t")
    assert "make room" in (told.value.hint or "")


def test_a_disk_that_fills_on_the_way_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a.zip").write_bytes(CONTENT)

    def fill(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(download, "write_atomically", fill)
    with pytest.raises(DataError, match=r"disk of .* is full") as told:
        get(str(tmp_path), tmp_path / "t")
    assert "goes on where it was" in (told.value.hint or "")


def test_two_cannot_fetch_the_same_file_at_once(tmp_path: Path):
    (tmp_path / "a.zip").write_bytes(CONTENT)
    first = fetch(str(tmp_path), [wanted_of(CONTENT)], tmp_path / "t")
    next(first)
    with pytest.raises(DataError, match="being fetched by another process"):
        get(str(tmp_path), tmp_path / "t")
    list(first)
    assert (tmp_path / "t/a.zip").read_bytes() == CONTENT


def test_a_link_in_place_of_the_part_is_not_followed(tmp_path: Path):
    (tmp_path / "t").mkdir()
    (tmp_path / "precious").write_bytes(b"mine")
    (tmp_path / "t/a.zip.partial").symlink_to(tmp_path / "precious")
    (tmp_path / "a.zip").write_bytes(CONTENT)
    with pytest.raises(DataError, match="cannot write"):
        get(str(tmp_path), tmp_path / "t")
    assert (tmp_path / "precious").read_bytes() == b"mine"


KILLED = """
import os, signal, sys
from pathlib import Path
from trainstone.data.raw.download import fetch
from trainstone.data.raw.mirrors import Wanted
for item in fetch(sys.argv[1], [Wanted("a.zip", int(sys.argv[3]), sys.argv[4])], Path(sys.argv[2])):
    if item.done > 500_000:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_after_a_kill_it_goes_on(tmp_path: Path):
    (tmp_path / "a.zip").write_bytes(CONTENT)
    wanted = wanted_of(CONTENT, "a.zip")
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(tmp_path / "t"), str(wanted.size_bytes), wanted.md5]
    assert subprocess.run(command, timeout=60).returncode == -signal.SIGKILL
    held = (tmp_path / "t/a.zip.partial").stat().st_size
    assert 0 < held < len(CONTENT)
    seen = get(str(tmp_path), tmp_path / "t", wanted)
    assert max(item.done for item in seen if item.phase == "check a.zip") == held
    assert names(tmp_path / "t") == ["a.zip"]
    assert (tmp_path / "t/a.zip").read_bytes() == CONTENT
