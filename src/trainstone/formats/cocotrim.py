"""Takes pictures out of COCO's annotation files. What stays, stays as it is written: every key, every digit."""

from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from trainstone.errors import DataError

_STEP = 4096


class _Image(msgspec.Struct, gc=False):
    id: int
    file_name: str


class _Annotation(msgspec.Struct, gc=False):
    image_id: int


class Trimmable:
    """An annotation file, open for one change; its items are views of its bytes, not built."""

    def __init__(self, path: Path) -> None:
        try:
            data = path.read_bytes()
        except OSError as err:
            raise DataError(f"cannot read {path}: {err.strerror or err}") from err
        try:
            self._parts = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
            self._images = msgspec.json.decode(self._parts["images"], type=list[msgspec.Raw])
            self._annotations = msgspec.json.decode(self._parts["annotations"], type=list[msgspec.Raw])
            self._heads = [msgspec.json.decode(item, type=_Image) for item in self._images]
            annotation = msgspec.json.Decoder(_Annotation)
            self._image_ids = [annotation.decode(item).image_id for item in self._annotations]
        except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, RecursionError) as err:
            raise DataError(f"{path} is no annotation file of COCO: {err}") from err

    @property
    def names(self) -> list[str]:
        """The pictures' file names."""
        return [head.file_name for head in self._heads]

    def without(self, names: Collection[str]) -> Iterator[bytes]:
        """Yield the file, in pieces, without these pictures and their annotations."""
        gone = {head.id for head in self._heads if head.file_name in names}
        images = [item for item, head in zip(self._images, self._heads, strict=True) if head.id not in gone]
        kept = [item for item, number in zip(self._annotations, self._image_ids, strict=True) if number not in gone]
        yield b"{"
        for place, (key, value) in enumerate(self._parts.items()):
            yield (b"," if place else b"") + msgspec.json.encode(key) + b":"
            changed = {"images": images, "annotations": kept}.get(key)
            yield from [value] if changed is None else _join(changed)
        yield b"}"


def _join(items: list[msgspec.Raw]) -> Iterator[bytes]:
    yield b"["
    for start in range(0, len(items), _STEP):
        yield (b"," if start else b"") + b",".join(items[start : start + _STEP])
    yield b"]"
