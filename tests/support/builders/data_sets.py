"""Data sets of a few images in every storage format: single shards by an encoder, whole data sets by `prepare`."""

import contextlib
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from trainstone.data.image.inspect import read_header
from trainstone.data.manifest import read_manifest
from trainstone.data.prepare import prepare
from trainstone.data.recognise import SHARD_READERS, open_dataset
from trainstone.data.sample import Box, ClassName, DataSet, Sample, Split
from trainstone.data.shard_plan import ENCODERS, build_plan
from trainstone.data.storage.records import Encoder, Shard
from trainstone.data.synthetic.generated import GeneratedSource
from trainstone.data.verify import VerifyFindings, verify
from trainstone.errors import DataError
from trainstone.formats.files import ByteSpan
from trainstone.machine.ranks import Rank

STORAGES = ("recordio", "tfrecord", "folder", "wds")
RECORDS = ("recordio", "tfrecord", "wds")
SIDE = 32
JPEGS = tuple(GeneratedSource("classify", "train", 6, SIDE, SIDE, 2).read(number).image for number in range(6))
CLASSES = (ClassName("a", "first letter"), ClassName("b"))
BOXES = (Box(0, 0.25, 0.125, 0.75, 0.5), Box(1, 0.1, 0.2, 0.3, 0.4, crowd=True))
IN_PIXELS = (Box(0, 0.25, 0.125, 0.75, 0.5), Box(1, 0.125, 0.25, 0.375, 1.0, crowd=True))
"""Boxes with whole-pixel edges, which COCO's left, top, width and height represent exactly."""


SHARDS = {"recordio": "train.rec", "tfrecord": "train-00000-of-00001", "wds": "train-000000.tar"}
INDEXES = {"recordio": "train.idx", "tfrecord": "idx/train-00000-of-00001.idx", "wds": "train-000000.idx"}
READERS: dict[str, Any] = {**SHARD_READERS}


def make_png(width: int = 5, height: int = 3) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), (0, 200, 0)).save(out, "PNG")
    return out.getvalue()


class ListSource:
    """A source of the given samples that counts reads; None is an unreadable record."""

    def __init__(self, samples: Sequence[Any]) -> None:
        self.samples, self.reads = list(samples), 0

    def __len__(self) -> int:
        return len(self.samples)

    def read(self, index: int) -> Sample:
        self.reads += 1
        sample = self.samples[index]
        if sample is None:
            raise DataError(f"{self.where(index)}: wrong checksum")
        return sample

    def name(self, index: int) -> str:
        return self.samples[index].name

    def where(self, index: int) -> str:
        return f"listed {index}"

    def fingerprint(self) -> str:
        return " ".join(f"{sample.name!a} {len(sample.image)}" for sample in self.samples)


def make_classify_samples(count: int, first: int = 0) -> list[Sample]:
    return [
        Sample(f"{'ab'[number % 2]}/{number:04d}.jpg", JPEGS[number % 6], number % 2)
        for number in range(first, first + count)
    ]


def make_detect_samples(count: int, first: int = 0) -> list[Sample]:
    return [
        Sample(f"{number:04d}.jpg", JPEGS[number % 6], boxes=IN_PIXELS[: number % 3], id=100 + number)
        for number in range(first, first + count)
    ]


def make_set(
    root: Path, storage: Any, kind: str = "classify", count: int | Sequence[Sample] = 8, val: int = 0,
    described: bool = True, **options: Any,
) -> Path:  # fmt: skip
    """Write a data set of `count` samples, or of the given ones, in order, as `trainstone data` does."""
    make = make_classify_samples if kind == "classify" else make_detect_samples
    samples = make(count) if isinstance(count, int) else count
    splits = [Split("train", ListSource(samples))]
    if val:
        splits.append(Split("val", ListSource(make(val, len(samples)))))
    write_set(root, DataSet(kind, "made up", CLASSES, splits, "made-up"), storage, **options)
    if not described:
        (root / "manifest.json").unlink()
    return root


def write_set(root: Path, found: DataSet, storage: Any, **options: Any) -> Path:
    for _ in prepare(build_plan(found, storage, shuffle=False, **options), root, Rank(), 2):
        pass
    return root


def make_encoder(storage: Any, kind: str = "classify") -> Encoder:
    return ENCODERS[storage](kind, CLASSES, 1)


def write_shard(path: Path, encoder: Encoder, samples: Iterable[Sample]) -> list[ByteSpan]:
    spans, lines = list[ByteSpan](), list[tuple[str, ...]]()
    with path.open("wb") as file:
        for number, sample in enumerate(samples):
            encoded = encoder.encode(sample, number, read_header(sample.image))
            at = file.tell()
            file.writelines(encoded.buffers)
            spans.append(ByteSpan(at, file.tell() - at))
            lines.append(encoder.sidecar_lines(encoded, spans[-1]))
        file.write(encoder.tail)
    for number, name in enumerate(encoder.sidecars(Shard("train", path.name, 0, len(spans)))):
        text = encoder.format_sidecar("".join(texts[number] for texts in lines), len(spans))
        if text:
            sidecar = path.parent / name
            sidecar.parent.mkdir(exist_ok=True)
            sidecar.write_bytes(text.encode("utf-8", "surrogateescape"))
    return spans


def verify_path(path: Path) -> VerifyFindings:
    manifest = read_manifest(path) if path.is_dir() else None
    return list(verify(open_dataset(path, classes=False), 2, manifest, path))[-1]


def list_spans(path: Path, storage: str) -> list[ByteSpan]:
    with contextlib.closing(READERS[storage](path)) as shard:
        return list(shard.file.spans())


def read_shard(shard: Any, method: str = "read") -> list[Any]:
    with contextlib.closing(shard):
        return [getattr(shard, method)(int(offset)) for offset in shard.offsets()]


def flip_byte(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)
