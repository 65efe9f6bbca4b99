"""One file by its address: where it is, what it must be, and the way it comes."""

import hashlib
from pathlib import Path

import pytest

from trainstone.data.raw.download import fetch
from trainstone.data.raw.mirrors import Sum
from trainstone.data.raw.onefile import find_file, is_address
from trainstone.errors import ConfigError, DataError
from web_server import Site, serve

CONTENT = bytes(range(256)) * 4000
SUM = hashlib.sha256(CONTENT).hexdigest()
NAME = f"net-{SUM[:8]}.pth"
WRONG = "0" * 64


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("no_proxy", "*")


def make_site(**files: bytes) -> Site:
    site = Site()
    site.files = {name.replace("__", "/"): data for name, data in files.items()}
    return site


def bring(address: str, folder: Path, sha256: str | None = None) -> Path:
    found = find_file(address, sha256)
    for _ in fetch(found.mirror, [found.wanted], folder, timeout_seconds=2, sleep=lambda seconds: None):
        pass
    return folder / found.wanted.name


@pytest.mark.parametrize(
    ("text", "expected"),
    [("http://a/b", True), ("https://a", True), ("file:///a", True), ("a/b.pth", False), ("C:/x", False), ("", False)],
)
def test_addresses_are_told_from_paths(text: str, expected: bool):
    assert is_address(text) is expected


def test_an_address_is_taken_apart():
    found = find_file("https://host:81/a/b/resnet34-333f7ec4.pth?token=x&y=1", None)
    assert found.mirror == "https://host:81/a/b?token=x&y=1"
    assert found.wanted.name == "resnet34-333f7ec4.pth"
    assert found.wanted.believed == Sum("sha256", "333f7ec4", "the first digits, by its name")


@pytest.mark.parametrize("name", ["resnet34.pth", "net-12345.pth", "net-zzzzzzzz.pth", "net-1234567g.pth", "333f7ec4"])
def test_other_names_say_nothing_of_the_sum(name: str):
    assert find_file(f"http://host/{name}", None).wanted.believed is None


def test_digits_asked_for_go_before_those_in_the_name():
    found = find_file("http://host/net-333f7ec4.pth", SUM.upper())
    assert found.wanted.believed == Sum("sha256", SUM, "--sha256")
    for odd in ("", "12", SUM[:8], SUM + "0", "g" * 64):
        with pytest.raises(ConfigError, match="64 digits"):
            find_file("http://host/net.pth", odd)


@pytest.mark.parametrize(
    "address",
    [
        "http://host/",
        "http://host",
        "http://host/..",
        "http://host/a%2F..%2Fb.pth",
        "http://host/%2e%2e",
        "http://host/a%5Cb.pth",
        "http://host/a%00.pth",
        "http://host/a%1b[31m",
        "http://host/" + "a" * 300,
        "http://[host/a.pth",
    ],
)
def test_an_address_must_end_in_a_name_that_stays_in_the_folder(address: str):
    with pytest.raises(ConfigError, match=r"does not end in the name of a file|is no address"):
        find_file(address, None)


@pytest.mark.parametrize("address", ["ftp://host/a-333f7ec4.pth", "http://me:secret@host/a-333f7ec4.pth"])
def test_other_ways_than_the_web_are_refused(tmp_path: Path, address: str):
    with pytest.raises(ConfigError, match="is no address of a mirror"):
        bring(address, tmp_path)


def test_a_file_comes_by_the_digits_in_its_name(tmp_path: Path):
    site = make_site(**{f"w/{NAME}": CONTENT})
    with serve(site) as mirror:
        path = bring(f"{mirror}/w/{NAME}?token=1", tmp_path / "new")
    assert path.read_bytes() == CONTENT
    assert [asked[0] for asked in site.asked] == [f"/w/{NAME}?token=1"]
    assert [one.name for one in (tmp_path / "new").iterdir()] == [NAME]


def test_a_file_that_is_there_is_not_fetched_again(tmp_path: Path):
    (tmp_path / NAME).write_bytes(CONTENT)
    site = make_site(**{NAME: CONTENT})
    with serve(site) as mirror:
        bring(f"{mirror}/{NAME}", tmp_path)
        assert site.asked == []
        (tmp_path / NAME).write_bytes(CONTENT[1:])
        with pytest.raises(DataError, match=rf"has sha256 \w+; {SUM[:8]} is right \(the first digits, by its name\)"):
            bring(f"{mirror}/{NAME}", tmp_path)


def test_a_broken_download_goes_on_where_it_was(tmp_path: Path):
    site = make_site(**{NAME: CONTENT})
    site.validators, site.cuts = {"ETag": '"v1"'}, [300_000]
    with serve(site) as mirror:
        assert bring(f"{mirror}/{NAME}", tmp_path).read_bytes() == CONTENT
    assert site.asked[1] == (f"/{NAME}", "bytes=300000-", '"v1"')


def test_wrong_content_is_not_kept(tmp_path: Path):
    with serve(make_site(**{NAME: CONTENT[::-1]})) as mirror, pytest.raises(DataError, match="as fetched has sha256"):
        bring(f"{mirror}/{NAME}", tmp_path)
    assert list(tmp_path.iterdir()) == []
    with serve(make_site(**{NAME: CONTENT})) as mirror, pytest.raises(DataError, match=r"is right \(--sha256\)"):
        bring(f"{mirror}/{NAME}", tmp_path, WRONG)
    assert list(tmp_path.iterdir()) == []


def test_what_nothing_vouches_for_is_not_fetched(tmp_path: Path):
    site = make_site(**{"net.pth": CONTENT})
    with serve(site) as mirror:
        with pytest.raises(DataError, match=r"nothing says what net\.pth must be") as caught:
            bring(f"{mirror}/net.pth", tmp_path)
        assert "--sha256 DIGITS" in str(caught.value.hint)
        assert site.asked == []
        site.files["SHA256SUMS"] = f"{SUM}  net.pth\n".encode()
        assert bring(f"{mirror}/net.pth", tmp_path).read_bytes() == CONTENT
        (tmp_path / "net.pth").unlink()
        assert bring(f"{mirror}/net.pth", tmp_path, SUM).read_bytes() == CONTENT


def test_a_missing_file_is_told_without_a_hint_of_folders(tmp_path: Path):
    with serve(make_site()) as mirror, pytest.raises(DataError, match=r"has no net-.*answers 404") as caught:
        bring(f"{mirror}/w/{NAME}", tmp_path)
    assert caught.value.hint is None


def test_a_file_address_works_too(tmp_path: Path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / NAME).write_bytes(CONTENT)
    assert bring(f"file://{tmp_path}/there/{NAME}", tmp_path / "here").read_bytes() == CONTENT


def test_a_believed_sum_goes_before_the_mirrors_own(tmp_path: Path):
    sums = f"{WRONG}  {NAME}\n{SUM}  net.pth\n".encode()
    site = make_site(**{NAME: CONTENT, "net.pth": CONTENT, "SHA256SUMS": sums})
    with serve(site) as mirror:
        files = [find_file(f"{mirror}/{name}", None).wanted for name in (NAME, "net.pth")]
        for _ in fetch(mirror, files, tmp_path, timeout_seconds=2, sleep=lambda seconds: None):
            pass
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([NAME, "net.pth"])


def test_a_mirror_that_is_down_is_told_with_the_way_round_its_sums(tmp_path: Path):
    with serve(make_site()) as mirror:
        pass
    hints = {}
    for name, sha256 in (("net.pth", None), ("net.pth", SUM), (NAME, None)):
        with pytest.raises(DataError, match="Connection refused; tried 6 times") as caught:
            bring(f"{mirror}/{name}", tmp_path, sha256)
        asked = caught.value.message.partition(": ")[0].rpartition("/")[2]
        hints[asked, sha256] = str(caught.value.hint)
    assert "or give --sha256 DIGITS" in hints["SHA256SUMS", None]
    assert hints["net.pth", SUM] == hints[NAME, None] == "run it again later: it goes on where it was"
