"""What the features of a TFRecord say, whoever wrote them: picture, label, name, boxes."""

import math
from collections.abc import Mapping, Sequence

from trainstone.data.picture.look import Look, look
from trainstone.data.sample import Box, make_box, shorten
from trainstone.errors import DataError
from trainstone.formats.example import Feature, float_feature

LABELS = ("image/class/label", "image/label", "label", "class", "cls")
NAMES = ("image/filename", "image/fname", "image/source_id", "filename", "key")
PICTURES = ("image/encoded", "image_raw", "image", "jpg", "jpeg", "png")
EDGES = ("image/object/bbox/xmin", "image/object/bbox/ymin", "image/object/bbox/xmax", "image/object/bbox/ymax")
BOX_LABELS = ("image/object/bbox/label", "image/object/class/label", "image/object/label")
BOX_NAMES = ("image/object/name", "image/object/class/text")
MAX_DIGITS = 18


def encode_text(text: str) -> bytes:
    """Return a name's bytes, whatever they were."""
    return text.encode("utf-8", "surrogateescape")


def find_picture(features: Mapping[str, Feature], where: str) -> bytes:
    """Return the picture: by its usual names, or the one feature that is a picture."""
    for name in (*PICTURES, *features):
        feature = features.get(name)
        if feature is None or feature.kind != "bytes" or len(feature.values) != 1:
            continue
        try:
            look(feature.values[0])
        except DataError:
            if name == PICTURES[0]:
                return bytes(feature.values[0])  # damaged, but surely meant; who decodes it will tell
            continue
        return bytes(feature.values[0])
    raise DataError(f"{where}: no feature is a picture; it has {', '.join(sorted(features)) or 'none'}")


def find_integer(features: Mapping[str, Feature], names: Sequence[str]) -> int | None:
    """Return the first of these that is one whole number; some writers put it into text or a float."""
    for name in names:
        feature = features.get(name)
        if feature is None or len(feature.values) != 1:
            continue
        value = feature.values[0]
        if feature.kind == "int64":
            return int(value)
        if feature.kind == "float" and float(value).is_integer():
            return int(value)
        if feature.kind == "bytes" and value.isdigit() and len(value) <= MAX_DIGITS:
            return int(value)
    return None


def find_label(features: Mapping[str, Feature], where: str) -> int | None:
    """Return a picture's label; a text would need a list of classes that nobody gives."""
    label = find_integer(features, LABELS)
    texts = [text for name in LABELS for text in find_texts(features, name)]
    if label is None and len(texts) == 1 and texts[0]:
        raise DataError(f"{where}: its label is the text {texts[0][:80]!r}; trainstone reads numbers")
    return label


def find_text(features: Mapping[str, Feature], name: str) -> str:
    """Return a feature that is one text; empty where it is none."""
    texts = find_texts(features, name)
    return texts[0] if len(texts) == 1 else ""


def find_texts(features: Mapping[str, Feature], name: str) -> list[str]:
    """Return a feature's texts; none where it is something else."""
    feature = features.get(name)
    if feature is None or feature.kind != "bytes":
        return []
    return [value.decode("utf-8", "surrogateescape") for value in feature.values]


def find_name(features: Mapping[str, Feature], label: int | None, fallback: str) -> str:
    """Return the picture's name, below its class where that is told."""
    base = next((text for name in NAMES if (text := find_text(features, name))), fallback)
    synset = find_text(features, "image/class/synset")
    return f"{synset}/{base}" if synset and "/" not in base and label is not None else base


def tell_areas(boxes: Sequence[Box], seen: Look) -> dict[str, Feature]:
    """Return the objects' areas in pixels, as TensorFlow's detection API has them; nothing where none is known."""
    if all(box.area is None for box in boxes):
        return {}
    shares = ((b.right - b.left) * (b.bottom - b.top) if b.area is None else b.area for b in boxes)
    return {"image/object/area": float_feature(*(share * seen.width * seen.height for share in shares))}


def find_areas(features: Mapping[str, Feature], count: int, where: str, image: bytes) -> list[float | None]:
    """Return the objects' areas as shares of the picture's; None where the record has none."""
    areas = find_numbers(features, ("image/object/area",), where)
    if len(areas) not in (0, count):
        raise DataError(f"{where}: {len(areas)} areas of {count} boxes")
    if not areas:
        return [None] * count
    try:
        seen = look(image)
    except DataError:  # who decodes it will tell
        return [None] * count
    pixels = max(1, seen.width * seen.height)
    return [shorten(area) / pixels if area >= 0 else None for area in areas]


def find_boxes(features: Mapping[str, Feature], first: int, where: str, image: bytes = b"") -> tuple[Box, ...]:
    """Return the boxes: four lists of edges, or one flat list; classes and, with the picture, areas where told."""
    flat = find_numbers(features, ("image/object/bbox",), where)
    if len(flat) % 4:
        raise DataError(f"{where}: image/object/bbox has {len(flat)} numbers, no multiple of 4")
    edges = [flat[place::4] for place in range(4)] if flat else [find_numbers(features, (n,), where) for n in EDGES]
    count = len(edges[0])
    labels = find_numbers(features, BOX_LABELS, where)
    crowd = find_numbers(features, ("image/object/is_crowd",), where)
    if any(len(values) != count for values in edges) or len(labels) not in (0, count) or len(crowd) not in (0, count):
        raise DataError(f"{where}: boxes with unlike numbers of edges, classes or crowd marks")
    areas = find_areas(features, count, where, image) if image else [None] * count
    boxes = zip(labels or [first] * count, zip(*edges, strict=True), crowd or [0] * count, areas, strict=True)
    return tuple(
        make_box(label - first, [shorten(edge) for edge in four], crowded, area) for label, four, crowded, area in boxes
    )


def find_numbers(features: Mapping[str, Feature], names: Sequence[str], where: str) -> list[float]:
    """Return the numbers of the first of these features that has any."""
    for name in names:
        feature = features.get(name)
        if feature is None or not feature.values:
            continue
        if feature.kind == "bytes" or not all(math.isfinite(value) for value in feature.values):
            raise DataError(f"{where}: {name} holds something that is no number")
        return feature.values
    return []
