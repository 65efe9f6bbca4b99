"""Which addresses are mirrors, what they hold, whose sums count and where a redirect may lead."""

import hashlib
from pathlib import Path

import pytest

from trainstone.data.raw.download import fetch
from trainstone.data.raw.mirrors import COCO_FILES, Wanted, parse_mirror, parse_sums
from trainstone.errors import ConfigError, DataError
from trainstone.text import printable
from web_server import Site, serve

CONTENT = bytes(range(256)) * 4


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("no_proxy", "*")


def get(mirror: str, target: Path, wanted: Wanted | None = None) -> None:
    wanted = wanted or Wanted("zips/a.zip", len(CONTENT), hashlib.md5(CONTENT).hexdigest())
    list(fetch(mirror, [wanted], target, timeout_seconds=2, sleep=lambda _: None))


def test_a_flat_mirror_will_do_and_a_query_is_kept(tmp_path: Path):
    site = Site(mine__a_zip=CONTENT)
    with serve(site) as mirror:
        get(f"{mirror}/mine/?token=s3cret", tmp_path)
    assert (tmp_path / "a.zip").read_bytes() == CONTENT
    assert site.asked == [("/mine/a.zip?token=s3cret", None, None)]


def test_what_is_not_there_is_named_with_its_addresses(tmp_path: Path):
    with serve(Site()) as mirror, pytest.raises(DataError) as told:
        get(f"{mirror}/coco?key=s3cret", tmp_path, COCO_FILES[0])
    assert f"{mirror}/coco/annotations/annotations_trainval2017.zip answers 404" in told.value.message
    assert f"{mirror}/coco/annotations_trainval2017.zip answers 404" in told.value.message
    assert "s3cret" not in told.value.message
    assert told.value.message == printable(told.value.message)
    assert "annotations/annotations_trainval2017.zip" in (told.value.hint or "")


def test_a_mirrors_own_sums_are_believed(tmp_path: Path):
    own = b"our own small set"
    site = Site(a_zip=own, SHA256SUMS=f"{hashlib.sha256(own).hexdigest()} *./zips/a.zip\n".encode())
    with serve(site) as mirror:
        get(mirror, tmp_path)
    assert (tmp_path / "a.zip").read_bytes() == own


def test_a_file_against_the_mirrors_own_sum_is_refused(tmp_path: Path):
    site = Site(a_zip=CONTENT, MD5SUMS=f"{'0' * 32}  a.zip\n".encode())
    with serve(site) as mirror, pytest.raises(DataError, match=r"0{32} is right \(http.*MD5SUMS\)"):
        get(mirror, tmp_path)


def test_sums_that_are_none_are_told_with_their_line():
    assert parse_sums(f"# ours\n\n{'A' * 32}  x y.zip\n", "md5", "m") == {"x y.zip": "a" * 32}
    with pytest.raises(DataError, match="m, line 2: not 64 digits") as told:
        parse_sums(f"{'a' * 64}  x\n<html>", "sha256", "m")
    assert "sha256sum" in (told.value.hint or "")


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/a.zip", "/zips/a.zip"])
def test_redirects_lead_to_the_web_only_and_end(tmp_path: Path, target: str):
    site = Site(zips__a_zip=CONTENT)
    site.redirect = target
    with serve(site) as mirror, pytest.raises(DataError, match="redirects too often, or to what is not http"):
        get(mirror, tmp_path)
    assert len(site.asked) <= 6
    assert not (tmp_path / "a.zip").exists()


def test_a_redirect_to_another_server_is_followed(tmp_path: Path):
    site = Site(zips__a_zip=CONTENT)
    with serve(Site(zips__a_zip=CONTENT)) as other, serve(site) as mirror:
        site.redirect = f"{other}/zips/a.zip"
        get(mirror, tmp_path)
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def test_what_is_missing_in_a_folder_is_told(tmp_path: Path):
    with pytest.raises(DataError, match=r"mirror has no a.zip: .*zips/a.zip is no file; .*/a.zip is no file"):
        get(str(tmp_path), tmp_path / "t")
    with pytest.raises(DataError, match="is no folder"):
        get(str(tmp_path / "none"), tmp_path / "t")


@pytest.mark.parametrize(
    "text",
    ["ftp://host/x", "s3://bucket", "http://", "http://[::1", "http://host:99999/", "file://host/x", "http://a b/",
     "http://user:secret@host/", "http://host/\x1b[31m", "http://hö.st/"],
)  # fmt: skip
def test_other_addresses_are_refused(text: str):
    with pytest.raises(ConfigError, match="is no address of a mirror") as told:
        parse_mirror(text)
    assert "http://" in (told.value.hint or "")
    assert told.value.message == printable(told.value.message)


def test_the_published_files_of_coco_are_complete():
    assert [wanted.name for wanted in COCO_FILES] == ["annotations_trainval2017.zip", "val2017.zip", "train2017.zip"]
    assert all(len(wanted.md5) == 32 and wanted.size_bytes > 1e8 for wanted in COCO_FILES)
