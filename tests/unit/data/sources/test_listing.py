"""Tests of file listings in folders, zips and tars."""

import os
import zipfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.builders.archives import make_tar, make_zip, write_files
from support.builders.damage import write
from support.builders.data_sets import flip_byte
from trainstone.data.sample import Source
from trainstone.data.sources import listing as listing_module
from trainstone.data.sources.listing import FileListing, FileLocation, ListingBuilder, walk_files
from trainstone.errors import DataError

IMAGES = {f"n0{i % 3}/n0{i % 3}_{i}.JPEG": os.urandom(50 + i) for i in range(12)}


def list_locations(root: Path, locations: Iterable[tuple[str, FileLocation]]) -> FileListing:
    builder = ListingBuilder(root)
    for name, location in locations:
        builder.add(name, name[:3], location)
    return builder.build(["n00", "n01", "n02"])


def list_folder(root: Path) -> FileListing:
    return list_locations(write_files(root, IMAGES), walk_files(root))


def list_archive(path: Path, content: bytes) -> FileListing:
    return list_locations(path, walk_files(write(path, content)))


MAKERS = {
    "folder": list_folder,
    "tar": lambda root: list_archive(root / "x.tar", make_tar(IMAGES)),
    "stored zip": lambda root: list_archive(root / "x.zip", make_zip(IMAGES, method=zipfile.ZIP_STORED)),
    "zip": lambda root: list_archive(root / "x.zip", make_zip(IMAGES)),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_listing_reads_same_samples_from_every_container(tmp_path, kind):
    listing: Source = MAKERS[kind](tmp_path)
    assert isinstance(listing, FileListing)
    expected = sorted(IMAGES)  # by class, then by name
    assert [listing.name(i) for i in range(len(listing))] == expected
    for index, name in enumerate(expected):
        sample = listing.read(index)
        assert (sample.name, sample.image, sample.label) == (name, IMAGES[name], int(name[2]))
        assert sample.boxes == ()
        assert listing.size_bytes(index) == len(IMAGES[name])
        assert listing.label(index) == sample.label
        assert name in listing.where(index)


@pytest.mark.parametrize("kind", MAKERS)
def test_listing_reads_from_many_threads(tmp_path, kind):
    listing = MAKERS[kind](tmp_path)
    wanted = [i % len(listing) for i in range(400)]
    with ThreadPoolExecutor(8) as pool:
        samples = list(pool.map(listing.read, wanted))
    assert all(IMAGES[sample.name] == sample.image for sample in samples)


@pytest.mark.parametrize(
    ("kind", "file", "damage", "index", "message"),
    [
        ("folder", "n00/n00_0.JPEG", Path.unlink, 0, r"n00/n00_0\.JPEG: .*No such file"),
        ("folder", "n00/n00_0.JPEG", lambda path: os.truncate(path, 0), 0, r"n00/n00_0\.JPEG: empty file"),
        ("tar", "x.tar", lambda path: os.truncate(path, 530), -1, r"x\.tar, byte \d+ "),
        ("tar", "x.tar", Path.unlink, 0, "No such file"),
        ("stored zip", "x.zip", lambda path: flip_byte(path, 60), 0, r"x\.zip, member 0 \(n00/n00_0\.JPEG\): "),
    ],
)
def test_listing_reports_file_that_changed_after_listing(tmp_path, kind, file, damage, index, message):
    listing = MAKERS[kind](tmp_path)
    damage(tmp_path / file)
    with pytest.raises(DataError, match=message):
        listing.read(index % len(listing))
    if kind == "folder" and damage is Path.unlink:
        with pytest.raises(DataError, match=message):
            listing.size_bytes(index)


def test_listing_rejects_too_large_image(tmp_path, monkeypatch):
    monkeypatch.setattr(listing_module, "MAX_IMAGE_BYTES", 10)
    monkeypatch.setattr(listing_module, "READ_BYTES", 4)
    for kind in ("folder", "tar"):
        with pytest.raises(DataError, match="image too large"):
            MAKERS[kind](tmp_path).read(0)


def test_build_rejects_duplicate_names(tmp_path):
    builder = ListingBuilder(tmp_path)
    builder.add("n0/a.JPEG", "n0", FileLocation(tmp_path / "one"))
    builder.add("n0/a.JPEG", "n0", FileLocation(tmp_path / "two"))
    with pytest.raises(DataError, match=r"two images are named n0/a\.JPEG"):
        builder.build(["n0"])


@pytest.mark.parametrize("name", ["n0/a\tb.JPEG", "n0/a\nb.JPEG", "n0/\udcff.JPEG"])
def test_add_rejects_names_with_control_characters_or_invalid_utf8(tmp_path, name):
    with pytest.raises(DataError, match=r"control character|not UTF-8"):
        ListingBuilder(tmp_path).add(name, "n0", FileLocation(tmp_path))


def test_fingerprint_changes_with_names_labels_and_files(tmp_path):
    locations = list(walk_files(write_files(tmp_path, IMAGES)))
    listing = list_locations(tmp_path, locations)
    assert list_locations(tmp_path, reversed(locations)).fingerprint() == listing.fingerprint()
    assert list_locations(tmp_path, locations[:1]).fingerprint() != listing.fingerprint()
    for changed, file in ((listing, tmp_path / listing.name(2)), (MAKERS["tar"](tmp_path), tmp_path / "x.tar")):
        before = changed.fingerprint()
        assert changed.fingerprint() == before
        os.utime(file, (1, 1))
        assert changed.fingerprint() != before
