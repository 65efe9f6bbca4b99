import os
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainstone.data.raw import listing as listing_module
from trainstone.data.raw.archives import list_tar, list_zip
from trainstone.data.raw.listing import FileListing, ListingBuilder, Place
from trainstone.data.sample import Source
from trainstone.errors import DataError

PICTURES = {f"n0{i % 3}/n0{i % 3}_{i}.JPEG": os.urandom(50 + i) for i in range(12)}


def list_folder(root: Path) -> FileListing:
    builder = ListingBuilder(root)
    for name, content in PICTURES.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        builder.add(name, name[:3], Place(file.parent))
    return builder.finish(["n00", "n01", "n02"])


def list_archive(path: Path, members) -> FileListing:
    builder = ListingBuilder(path)
    for name, *place in members:
        builder.add(name, name[:3], Place(path, *place))
    return builder.finish(["n00", "n01", "n02"])


def tarred(root: Path) -> FileListing:
    list_folder(root / "made")
    with tarfile.open(root / "x.tar", "w") as tar:
        for name in PICTURES:
            tar.add(root / "made" / name, name)
    return list_archive(root / "x.tar", list_tar(root / "x.tar"))


def zipped(root: Path, method: int) -> FileListing:
    with zipfile.ZipFile(root / "x.zip", "w", method) as archive:
        for name, content in PICTURES.items():
            archive.writestr(name, content)
    members = enumerate(list_zip(root / "x.zip").items())
    return list_archive(root / "x.zip", [(name, number, size) for number, (name, size) in members])


MAKERS = {
    "folder": list_folder,
    "tar": tarred,
    "stored zip": lambda root: zipped(root, zipfile.ZIP_STORED),
    "zip": lambda root: zipped(root, zipfile.ZIP_DEFLATED),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_every_kind_of_place_reads_alike(tmp_path, kind):
    listing: Source = MAKERS[kind](tmp_path)
    assert isinstance(listing, FileListing)
    expected = sorted(PICTURES)  # by class, then by name
    assert [listing.name(i) for i in range(len(listing))] == expected
    for index, name in enumerate(expected):
        sample = listing.read(index)
        assert (sample.name, sample.image, sample.label) == (name, PICTURES[name], int(name[2]))
        assert sample.boxes == ()
        assert listing.size_bytes(index) == len(PICTURES[name])
        assert listing.label(index) == sample.label
        assert name in listing.where(index)


@pytest.mark.parametrize("kind", MAKERS)
def test_many_threads_read_at_once(tmp_path, kind):
    listing = MAKERS[kind](tmp_path)
    wanted = [i % len(listing) for i in range(400)]
    with ThreadPoolExecutor(8) as pool:
        samples = list(pool.map(listing.read, wanted))
    assert all(PICTURES[sample.name] == sample.image for sample in samples)


def test_a_file_that_vanished_or_is_empty_is_named(tmp_path):
    listing = list_folder(tmp_path)
    gone, empty = tmp_path / listing.name(0), tmp_path / listing.name(1)
    gone.unlink()
    empty.write_bytes(b"")
    with pytest.raises(DataError, match="No such file") as caught:
        listing.read(0)
    assert str(gone) in caught.value.message
    with pytest.raises(DataError, match="No such file"):
        listing.size_bytes(0)
    with pytest.raises(DataError, match="empty, no picture") as caught:
        listing.read(1)
    assert str(empty) in caught.value.message


def test_a_tar_that_shrank_or_vanished_is_named(tmp_path):
    listing = tarred(tmp_path)
    with (tmp_path / "x.tar").open("r+b") as file:
        file.truncate(530)
    with pytest.raises(DataError, match=r"x.tar, byte \d+ "):
        listing.read(len(listing) - 1)
    listing = tarred(tmp_path)
    (tmp_path / "x.tar").unlink()
    with pytest.raises(DataError, match="No such file"):
        listing.read(0)


def test_a_member_of_a_zip_that_changed_is_named(tmp_path):
    listing = zipped(tmp_path, zipfile.ZIP_STORED)
    data = bytearray((tmp_path / "x.zip").read_bytes())
    data[60] ^= 1
    (tmp_path / "x.zip").write_bytes(data)
    with pytest.raises(DataError, match=r"x.zip, member 0 \(n00/n00_0.JPEG\): "):
        listing.read(0)


def test_what_is_too_large_for_a_picture_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(listing_module, "MAX_PICTURE_BYTES", 10)
    monkeypatch.setattr(listing_module, "READ_BYTES", 4)
    for maker in (list_folder, tarred):
        with pytest.raises(DataError, match="no picture"):
            maker(tmp_path).read(0)


def test_two_pictures_of_one_name_are_refused(tmp_path):
    builder = ListingBuilder(tmp_path)
    builder.add("n0/a.JPEG", "n0", Place(tmp_path / "one"))
    builder.add("n0/a.JPEG", "n0", Place(tmp_path / "two"))
    with pytest.raises(DataError, match=r"two pictures are named n0/a\.JPEG"):
        builder.finish(["n0"])


@pytest.mark.parametrize("name", ["n0/a\tb.JPEG", "n0/a\nb.JPEG", "n0/\udcff.JPEG"])
def test_names_that_no_list_can_hold_are_refused(tmp_path, name):
    with pytest.raises(DataError, match=r"control character|not UTF-8"):
        ListingBuilder(tmp_path).add(name, "n0", Place(tmp_path))


def test_the_fingerprint_follows_names_labels_and_archives(tmp_path):
    listing = list_folder(tmp_path)
    assert list_folder_again(tmp_path).fingerprint() == listing.fingerprint()
    builder = ListingBuilder(tmp_path)
    name = next(iter(PICTURES))
    builder.add(name, name[:3], Place(tmp_path / name[:3]))
    assert builder.finish(["n00", "n01", "n02"]).fingerprint() != listing.fingerprint()
    before = listing.fingerprint()
    os.utime(tmp_path / listing.name(2), (1, 1))
    assert listing.fingerprint() != before
    archive = tarred(tmp_path)
    first = archive.fingerprint()
    assert archive.fingerprint() == first
    for path in tmp_path.rglob("*.tar"):
        os.utime(path, (1, 1))
    assert archive.fingerprint() != first


def list_folder_again(root: Path) -> FileListing:
    builder = ListingBuilder(root)
    for name in reversed(PICTURES):
        builder.add(name, name[:3], Place(root / name[:3]))
    return builder.finish(["n00", "n01", "n02"])
