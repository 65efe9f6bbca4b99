"""Read and write samples in WebDataset tars: <key>.jpg, <key>.cls (label as text), <key>.json (name, boxes, other)."""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from trainstone.data.image.inspect import EXTENSIONS, ImageHeader
from trainstone.data.sample import Box, ClassName, Sample, build_box, list_box_values
from trainstone.data.storage.records import Encoded, Encoder, RecordAnnotations, Shard, ShardReader
from trainstone.errors import DataError
from trainstone.formats.files import ByteSpan
from trainstone.formats.tar import END, TarSample, WebDatasetFile, encode_member, format_index

IMAGES = ("jpg", "jpeg", "png", "webp", "ppm", "bmp", "gif", "tiff", "tif", "img")
LABELS = ("cls", "cls.txt", "label", "label.txt", "class", "cls2")
BLOCK = 512
SPACES = re.compile(r"[%\s]")
DOTS_AND_SPACES = re.compile(r"[%.\s]")


class WdsEncoder(Encoder):
    tail = END

    def encode(self, sample: Sample, number: int, header: ImageHeader) -> Encoded:
        key = format_key(sample.name)
        parts = [(EXTENSIONS[header.kind], sample.image)]
        if sample.label is not None:
            parts.append(("cls", str(sample.label).encode()))
        document: dict[str, Any] = {"name": sample.name}
        if sample.id is not None:
            document["id"] = sample.id
        if sample.boxes or self._kind == "detect":  # detection images always have the key, even without boxes
            document["boxes"] = [list_box_values(box) for box in sample.boxes]
        if sample.values:
            document["values"] = list(sample.values)
        parts.append(("json", json.dumps(document, separators=(",", ":"), allow_nan=False).encode()))
        buffers = [encode_member(f"{key}.{extension}", data) for extension, data in parts]
        return Encoded(sample.name, buffers, [(f"{key}.{extension}", len(data)) for extension, data in parts], key)

    def sidecar_lines(self, encoded: Encoded, span: ByteSpan) -> tuple[str, ...]:
        """Return DALI's index line: extension, byte offset, size and name of each part."""
        parts = []
        end = span.offset
        for (name, size), buffer in zip(encoded.metadata, encoded.buffers, strict=True):
            end += len(buffer)
            parts.append(f"{name.rpartition('.')[2]} {end - size - -size % BLOCK} {size} {name}")
        return (" ".join(parts) + "\n",)

    def sidecars(self, shard: Shard) -> tuple[str, ...]:
        return (f"{shard.file.removesuffix('.tar')}.idx",)

    def format_sidecar(self, lines: str, records: int) -> str:
        return f"v1.2 {records}\n{lines}"


def find_integer(metadata: Mapping[str, Any], key: str) -> int | None:
    """Return a non-negative integer, or None: other tools' JSON may have any value under this key."""
    value = metadata.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


def format_key(name: str) -> str:
    """Return a sample's key: its name without .jpg or .jpeg.

    Dots and spaces are percent-encoded: a key ends at the first dot of a file name, and DALI's index splits at spaces.
    """
    folder, slash, base = name.rpartition("/")
    stem, _, extension = base.rpartition(".")
    if not stem or extension.lower() not in ("jpg", "jpeg"):
        stem = base  # a.jpg and a.png are two samples
    return SPACES.sub(escape, folder + slash) + DOTS_AND_SPACES.sub(escape, stem)


def escape(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02x}" for byte in match[0].encode("utf-8", "surrogateescape"))


def parse_boxes(metadata: Mapping[str, Any]) -> tuple[Box, ...]:
    return tuple(build_box(b[0], b[1:5], *b[5:7]) for b in metadata.get("boxes", ()))


@contextlib.contextmanager
def convert_errors(where: str) -> Iterator[None]:
    """Raise DataError if a JSON document has unexpected types under known keys."""
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as err:
        raise DataError(f"{where}: invalid json: {err}") from err


class WdsShard(ShardReader):
    # The index is not used: it has the offsets of member data, not of headers, and reading the headers is as fast.
    kind = WebDatasetFile
    file: WebDatasetFile

    def _sample(self, offset: int) -> tuple[TarSample, str]:
        found = self.file.first_sample(offset)
        return found, f"{self.path}, {found.key} at byte {offset}"

    def read(self, offset: int) -> Sample:
        found, where = self._sample(offset)
        extension = next((e for e in IMAGES if e in found.members), None)
        if extension is None:
            raise DataError(f"{where}: no image; members: {', '.join(found.members)}")
        image = bytes(self.file.read(found.members[extension].data))
        label, metadata = self._describe(found, where)
        with convert_errors(where):
            name = str(metadata.get("name", f"{found.key}.{extension}"))
            name.encode("utf-8", "surrogateescape")  # JSON may contain a lone surrogate, which cannot be a file name
            return Sample(
                name=name,
                image=image,
                label=label if label is not None else find_integer(metadata, "label"),
                boxes=parse_boxes(metadata),
                values=tuple(float(value) for value in metadata.get("values", ())),
                id=find_integer(metadata, "id"),
            )

    def read_annotations(self, offset: int) -> RecordAnnotations:
        found, where = self._sample(offset)
        label, metadata = self._describe(found, where)
        with convert_errors(where):
            boxes = parse_boxes(metadata)
        is_detection = label is None and "boxes" in metadata and "label" not in metadata
        label = find_integer(metadata, "label") if label is None else label
        if label is None:
            return RecordAnnotations([(box.label, ClassName("")) for box in boxes], boxes, is_detection)
        folder = unquote(found.key.rpartition("/")[0], errors="surrogateescape")
        return RecordAnnotations([(label, ClassName(folder))], boxes)

    def _describe(self, found: TarSample, where: str) -> tuple[int | None, dict[str, Any]]:
        """Return the label from its own member, and the JSON document."""
        label, metadata = None, {}
        extension = next((e for e in LABELS if e in found.members), None)
        if extension is not None:
            text = bytes(self.file.read(found.members[extension].data)).strip()
            if not text.isdigit() or len(text) > 9:
                raise DataError(f"{where}: invalid label {text[:40]!r}; a class number is required")
            label = int(text)
        if "json" in found.members:
            try:
                metadata = json.loads(bytes(self.file.read(found.members["json"].data)))
            except (ValueError, RecursionError) as err:
                raise DataError(f"{where}: invalid json: {err}") from err
            if not isinstance(metadata, dict):
                raise DataError(f"{where}: json is not an object")
        return label, metadata

    def index_files(self) -> Iterable[tuple[Path, str]]:
        index = self.path.with_suffix(".idx")
        if index.is_file():
            with contextlib.suppress(DataError):  # names with spaces cannot be indexed
                yield index, format_index(self.file.samples())
