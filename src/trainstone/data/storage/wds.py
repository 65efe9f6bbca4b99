"""Samples in WebDataset tars: <key>.jpg, <key>.cls with the label as text, <key>.json with name, boxes and the rest."""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from trainstone.data.image.inspect import ENDINGS, Look
from trainstone.data.sample import Box, ClassName, Sample, list_numbers, make_box
from trainstone.data.storage.records import Encoded, Encoder, Glance, Shard, ShardReader
from trainstone.errors import DataError
from trainstone.formats.files import ByteSpan
from trainstone.formats.tar import END, TarSample, WdsFile, index_text, member

IMAGES = ("jpg", "jpeg", "png", "webp", "ppm", "bmp", "gif", "tiff", "tif", "img")
LABELS = ("cls", "cls.txt", "label", "label.txt", "class", "cls2")
BLOCK = 512
SPACES = re.compile(r"[%\s]")
DOTS_AND_SPACES = re.compile(r"[%.\s]")


class WdsEncoder(Encoder):
    tail = END

    def encode(self, sample: Sample, number: int, seen: Look) -> Encoded:
        key = make_key(sample.name)
        parts = [(ENDINGS[seen.kind], sample.image)]
        if sample.label is not None:
            parts.append(("cls", str(sample.label).encode()))
        document: dict[str, Any] = {"name": sample.name}
        if sample.id is not None:
            document["id"] = sample.id
        if sample.boxes or self._kind == "detect":  # an image to detect objects in has boxes, if only none
            document["boxes"] = [list_numbers(box) for box in sample.boxes]
        if sample.values:
            document["values"] = list(sample.values)
        parts.append(("json", json.dumps(document, separators=(",", ":"), allow_nan=False).encode()))
        buffers = [member(f"{key}.{extension}", data) for extension, data in parts]
        return Encoded(sample.name, buffers, [(f"{key}.{extension}", len(data)) for extension, data in parts], key)

    def lines(self, made: Encoded, span: ByteSpan) -> tuple[str, ...]:
        """DALI's form: extension, first byte of the data, bytes and name of each part."""
        message = []
        end = span.offset
        for (name, size), buffer in zip(made.about, made.buffers, strict=True):
            end += len(buffer)
            message.append(f"{name.rpartition('.')[2]} {end - size - -size % BLOCK} {size} {name}")
        return (" ".join(message) + "\n",)

    def sidecars(self, shard: Shard) -> tuple[str, ...]:
        return (f"{shard.file.removesuffix('.tar')}.idx",)

    def finish(self, lines: str, records: int) -> str:
        return f"v1.2 {records}\n{lines}"


def find_count(about: Mapping[str, Any], key: str) -> int | None:
    """Return a whole number, not below 0; other people's JSON may have anything under this key."""
    value = about.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


def make_key(name: str) -> str:
    """Return a sample's key: its name without .jpg or .jpeg.

    A key ends at the first dot of its file name, and DALI's index is split at spaces: both are written as in a URL.
    """
    folder, slash, base = name.rpartition("/")
    stem, _, extension = base.rpartition(".")
    if not stem or extension.lower() not in ("jpg", "jpeg"):
        stem = base  # a.jpg and a.png are two samples
    return SPACES.sub(escape, folder + slash) + DOTS_AND_SPACES.sub(escape, stem)


def escape(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02x}" for byte in match[0].encode("utf-8", "surrogateescape"))


def read_boxes(about: Mapping[str, Any]) -> tuple[Box, ...]:
    return tuple(make_box(b[0], b[1:5], *b[5:7]) for b in about.get("boxes", ()))


@contextlib.contextmanager
def convert_errors(where: str) -> Iterator[None]:
    """Raise DataError for a JSON that has other things than expected under the names we know."""
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as err:
        raise DataError(f"{where}: json does not describe an image: {err}") from err


class WdsShard(ShardReader):
    # An index tells where the data of members begin, not their headers; walking the headers is as quick.
    kind = WdsFile
    file: WdsFile

    def _sample(self, offset: int) -> tuple[TarSample, str]:
        found = self.file.first_sample(offset)
        return found, f"{self.path}, {found.key} at byte {offset}"

    def read(self, offset: int) -> Sample:
        found, where = self._sample(offset)
        extension = next((e for e in IMAGES if e in found.members), None)
        if extension is None:
            raise DataError(f"{where}: no image among {', '.join(found.members)}")
        image = bytes(self.file.read(found.members[extension].data))
        label, about = self._describe(found, where)
        with convert_errors(where):
            name = str(about.get("name", f"{found.key}.{extension}"))
            name.encode("utf-8", "surrogateescape")  # JSON can spell half a character, which no file name is
            return Sample(
                name=name,
                image=image,
                label=label if label is not None else find_count(about, "label"),
                boxes=read_boxes(about),
                values=tuple(float(value) for value in about.get("values", ())),
                id=find_count(about, "id"),
            )

    def glance(self, offset: int) -> Glance:
        found, where = self._sample(offset)
        label, about = self._describe(found, where)
        with convert_errors(where):
            boxes = read_boxes(about)
        is_detection = label is None and "boxes" in about and "label" not in about
        label = find_count(about, "label") if label is None else label
        if label is None:
            return Glance([(box.label, ClassName("")) for box in boxes], boxes, is_detection)
        folder = unquote(found.key.rpartition("/")[0], errors="surrogateescape")
        return Glance([(label, ClassName(folder))], boxes)

    def _describe(self, found: TarSample, where: str) -> tuple[int | None, dict[str, Any]]:
        """Return the label in a file of its own, and what the JSON says."""
        label, about = None, {}
        extension = next((e for e in LABELS if e in found.members), None)
        if extension is not None:
            text = bytes(self.file.read(found.members[extension].data)).strip()
            if not text.isdigit() or len(text) > 9:
                raise DataError(f"{where}: label {text[:40]!r} is no class number")
            label = int(text)
        if "json" in found.members:
            try:
                about = json.loads(bytes(self.file.read(found.members["json"].data)))
            except (ValueError, RecursionError) as err:
                raise DataError(f"{where}: json is damaged: {err}") from err
            if not isinstance(about, dict):
                raise DataError(f"{where}: json is no table")
        return label, about

    def index_files(self) -> Iterable[tuple[Path, str]]:
        index = self.path.with_suffix(".idx")
        if index.is_file():
            with contextlib.suppress(DataError):  # names with spaces have no place in it
                yield index, index_text(self.file.samples())
