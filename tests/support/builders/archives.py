"""Small tars, zips, images, folders of files, and data sets in COCO's layout with header-only images."""

import io
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from trainstone.errors import DataError
from trainstone.files import write_atomically
from trainstone.formats.coco import CocoAnnotation, CocoCategory, CocoImage, Instances, format_full
from trainstone.formats.tar import encode_member

CATEGORIES = [CocoCategory(9, "square"), CocoCategory(4, "circle")]


def make_jpeg(shade: int = 0) -> bytes:
    """Return a small red JPEG; each shade gives different bytes."""
    out = io.BytesIO()
    Image.new("RGB", (8, 8), (shade, 0, 0)).save(out, "JPEG")
    return out.getvalue()


def make_tar(files: dict[str, bytes], form: int = tarfile.GNU_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def build_tar_header(
    size: bytes = b"00000000000\0",
    name: bytes = b"a.jpg",
    kind: bytes = b"0",
    *,
    ustar: bool = True,
    signed: bool = False,
) -> bytes:
    """Return a tar header with any size field and a valid checksum."""
    block = bytearray(encode_member("x", b"")[:512])
    block[:100] = name.ljust(100, b"\0")
    block[124:136] = size
    block[156:157] = kind
    if not ustar:
        block[257:] = bytes(255)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(memoryview(bytes(block)).cast("b") if signed else block)
    return bytes(block)


def fix_checksums(tar: bytes) -> bytes:
    """Return the tar with valid header checksums, so that readers reach the damage."""
    blocks = [tar[at : at + 512] for at in range(0, len(tar), 512)]
    for number, block in enumerate(blocks):
        if block[257:262] == b"ustar" and len(block) == 512:
            blanked = block[:148] + b" " * 8 + block[156:]
            blocks[number] = block[:148] + b"%06o\0 " % sum(blanked) + block[156:]
    return b"".join(blocks)


def make_zip(
    files: dict[str, bytes],
    change: Callable[[zipfile.ZipInfo], None] = lambda info: None,
    method: int = zipfile.ZIP_DEFLATED,
) -> bytes:
    """Return a zip of files; `change` may modify their directory entries."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            change(info)
            archive.writestr(info, content)
    return out.getvalue()


def write_files(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def list_everything(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def assert_archive_rejected(
    folder: Path, name: str, data: bytes, message: str, extract: Callable[[Path, Path], Iterable[Any] | None]
) -> None:
    """Assert that the archive is rejected with this message and that no folder has changed."""
    inner = folder / "inner"
    inner.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    before = list_everything(folder)
    with pytest.raises(DataError, match=message) as caught:
        list(extract(folder / name, inner / "target") or ())
    assert str(folder / name) in caught.value.message
    assert list_everything(folder) == before


def make_jpeg_header(width: int, height: int) -> bytes:
    """Return a JPEG with only a header."""
    frame = struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes(9)
    return b"\xff\xd8\xff\xc0" + frame + b"\xff\xd9"


def make_instances(num_images: int) -> Instances:
    images = [CocoImage(100 - n, f"{n:012d}.jpg", 40, 20) for n in range(num_images)]
    annotations = [CocoAnnotation(n + 1, 100 - n, 9 if n % 2 else 4, (10, 5, 20, 10.0)) for n in range(num_images - 1)]
    return Instances(images, annotations, CATEGORIES)


def make_set(root: Path, **splits: Instances) -> Path:
    (root / "annotations").mkdir(parents=True)
    for stem, instances in splits.items():
        (root / stem).mkdir()
        write_atomically(root / f"annotations/instances_{stem}.json", format_full(instances))
        for image in instances.images:
            (root / stem / image.file_name).write_bytes(make_jpeg_header(image.width, image.height))
    return root


def make_zips(folder: Path, target: Path) -> Path:
    target.mkdir()
    for part in sorted(path for path in folder.iterdir() if path.is_dir()):
        name = "annotations_trainval2017" if part.name == "annotations" else part.name
        with zipfile.ZipFile(target / f"{name}.zip", "w") as archive:
            for file in sorted(part.rglob("*")):
                archive.write(file, f"{part.name}/{file.relative_to(part)}")
    return target
