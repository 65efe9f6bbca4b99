"""Write samples as files: class folders, or COCO's layout for detection (readers: data/sources/)."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from trainstone.data.image.inspect import EXTENSIONS, ImageHeader
from trainstone.data.sample import ClassName, Sample, list_box_values
from trainstone.data.sources.listing import is_image_file
from trainstone.data.storage.box_file import SUFFIX, format_box_lines
from trainstone.data.storage.records import Encoded, Encoder, Shard
from trainstone.errors import DataError
from trainstone.formats.coco import NAME_OF_ID, CocoAnnotation, CocoCategory, CocoImage, Instances, format_full
from trainstone.formats.files import ByteSpan, find_invalid_character, is_safe_path

BYTES = ("utf-8", "surrogateescape")
MAX_PART_BYTES = 255


class FolderEncoder(Encoder):
    """Writes <split>/<class>/<name>, and boxes as a CSV file (classification) or COCO's JSON (detection)."""

    def encode(self, sample: Sample, number: int, header: ImageHeader) -> Encoded:
        name = sample.name
        if not is_image_file(name):  # readers ignore other extensions
            name += f".{EXTENSIONS[header.kind]}"
        elif header.kind == "jpeg" and not name.lower().endswith((".jpg", ".jpeg")):
            name = f"{name.rpartition('.')[0]}.jpg"
        if self._kind == "detect":
            number = number if sample.id is None else sample.id
            for box in sample.boxes:
                self.find_class(box.label)
            boxes = [list_box_values(box) for box in sample.boxes]
            line = json.dumps([number, name, header.width, header.height, boxes]) + "\n"
        else:
            if sample.label is None:
                raise DataError(f"{name} has no class label; class folders require one")
            name = f"{self.find_class(sample.label).name}/{name.rpartition('/')[2]}"
            line = format_box_lines(name, sample.boxes) if sample.boxes else ""
        return Encoded(check_name(name), (sample.image,), line, name)

    def sidecar_lines(self, encoded: Encoded, span: ByteSpan) -> tuple[str, ...]:
        return (encoded.metadata,)

    def sidecars(self, shard: Shard) -> tuple[str, ...]:
        if self._kind == "detect":
            return (f"annotations/instances_{shard.split}.json",)
        return (f"{shard.split}{SUFFIX}",)

    def format_sidecar(self, lines: str, records: int) -> str:
        if self._kind != "detect":
            return lines
        return "".join(format_full(make_instances((json.loads(line) for line in lines.splitlines()), self._classes)))


def make_instances(lines: Iterable[list[Any]], classes: Sequence[ClassName]) -> Instances:
    """Return COCO's records of images and boxes; COCO's classes get COCO's category ids."""
    names = [known.name for known in classes]
    known_ids = {name: number for number, name in NAME_OF_ID.items()}
    ids = [known_ids[name] for name in names] if names == list(NAME_OF_ID.values()) else range(1, len(names) + 1)
    images: list[CocoImage] = []
    annotations: list[CocoAnnotation] = []
    for number, name, width, height, boxes in lines:
        images.append(CocoImage(number, name, width, height))
        for label, left, top, right, bottom, crowd, *known in boxes:
            box = (left * width, top * height, (right - left) * width, (bottom - top) * height)
            area = round(known[0] * width * height if known else box[2] * box[3], 3)
            annotations.append(
                CocoAnnotation(len(annotations) + 1, number, ids[label], box, crowd=bool(crowd), area=area)
            )
    return Instances(images, annotations, [CocoCategory(i, name) for i, name in zip(ids, names, strict=True)])


def check_name(name: str) -> str:
    """Return a safe relative file name; record files may contain any text."""
    parts = name.split("/")
    hidden = any(part.startswith(".") or not part for part in parts)  # includes "." and ".."
    long = any(len(part.encode(*BYTES)) > MAX_PART_BYTES for part in parts)
    if hidden or long or not is_safe_path(name) or find_invalid_character(name):
        raise DataError(f"invalid image name {name!r}; a relative path of visible names is required")
    return name
