"""Read and write COCO annotation files (instances_*.json) as records, without masks.

Any list of categories is allowed, not only COCO's 80. File format: https://cocodataset.org/#format-data
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec

from trainstone.errors import DataError
from trainstone.formats.files import is_safe_path

_NAMES = (
    "person|bicycle|car|motorcycle|airplane|bus|train|truck|boat|traffic light|fire hydrant|stop sign|"
    "parking meter|bench|bird|cat|dog|horse|sheep|cow|elephant|bear|zebra|giraffe|backpack|umbrella|"
    "handbag|tie|suitcase|frisbee|skis|snowboard|sports ball|kite|baseball bat|baseball glove|"
    "skateboard|surfboard|tennis racket|bottle|wine glass|cup|fork|knife|spoon|bowl|banana|apple|"
    "sandwich|orange|broccoli|carrot|hot dog|pizza|donut|cake|chair|couch|potted plant|bed|"
    "dining table|toilet|tv|laptop|mouse|remote|keyboard|cell phone|microwave|oven|toaster|sink|"
    "refrigerator|book|clock|vase|scissors|teddy bear|hair drier|toothbrush"
)
# Numbers from 0 to 91 that COCO does not use; 80 are left.
_MISSING_IDS = frozenset((0, 12, 26, 29, 30, 45, 66, 68, 69, 71, 83, 91))
NAME_OF_ID = dict(zip((n for n in range(92) if n not in _MISSING_IDS), _NAMES.split("|"), strict=True))


_Id = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Pixels = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
_Number = Annotated[int, msgspec.Meta(ge=-(10**12), le=10**12)] | Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
_Crowd = Annotated[int, msgspec.Meta(ge=0, le=1)] | bool


# Filled by the msgspec decoder, which skips other keys such as masks. gc=False: the records have no cycles.
class CocoImage(msgspec.Struct, gc=False):
    id: _Id
    file_name: str
    """Relative path with /."""
    width: _Pixels
    height: _Pixels


class CocoAnnotation(msgspec.Struct, gc=False):
    """A box; integers stay integers, so that they are written as they were read."""

    id: _Id
    image_id: _Id
    category_id: _Id
    bbox: tuple[_Number, _Number, _Number, _Number]
    """Left, top, width, height in pixels."""
    crowd: _Crowd = msgspec.field(default=False, name="iscrowd")
    area: _Number | None = None
    """Area of the mask in pixels; None if the file has none."""


class CocoCategory(msgspec.Struct, gc=False):
    id: _Id
    name: str
    supercategory: str | None = None


class Instances(msgspec.Struct):
    images: list[CocoImage]
    annotations: list[CocoAnnotation]
    categories: list[CocoCategory] = []


def read_instances(path: Path) -> Instances:
    """Read instances_*.json, or a file with boxes only; without categories, COCO's numbers are assumed.

    Raises DataError for invalid numbers, file names outside of the folder, duplicate ids or file names, and
    annotations with unknown images or categories.
    """
    data = b""
    try:
        data = path.read_bytes()
        document = msgspec.json.decode(data, type=Instances)
    except OSError as err:
        raise DataError(f"cannot read {path}: {err.strerror or err}") from err
    except msgspec.ValidationError as err:
        fault, _, where = str(err).replace("`", "").partition(" - at $.")
        _refuse(path, where or "top level", fault[:1].lower() + fault[1:], err)
    except RecursionError as err:
        _refuse(path, "JSON", "nested too deeply", err)
    except UnicodeDecodeError as err:
        _refuse(path, "JSON", "text is not UTF-8", err)
    except msgspec.DecodeError as err:
        found = re.search(r"\(byte (\d+)\)", str(err))
        _refuse(path, "JSON", f"damaged or truncated at byte {found[1] if found else len(data)}", err)
    del data  # half a gigabyte for COCO
    if not document.categories:
        document.categories = [CocoCategory(number, name) for number, name in NAME_OF_ID.items()]
    _check(path, document)
    return document


def _check(path: Path, document: Instances) -> None:
    for index, image in enumerate(document.images):
        # Names are written to lists, one per line, so they must be printable.
        if not is_safe_path(image.file_name) or not image.file_name.isprintable():
            _refuse(path, f"images[{index}].file_name", f"{image.file_name!r} is not a relative file name")
    for group, key in (("images", "id"), ("images", "file_name"), ("categories", "id"), ("annotations", "id")):
        values = [getattr(item, key) for item in getattr(document, group)]
        first: dict[int | str, int] = {}
        for index, value in enumerate(values if len(set(values)) < len(values) else ()):
            if first.setdefault(value, index) != index:
                _refuse(path, f"{group}[{index}].{key}", f"{value!r} is a duplicate of {group}[{first[value]}]")
    known = {"image": {image.id for image in document.images}, "category": {item.id for item in document.categories}}
    for noun, ids in known.items():
        for index, item in enumerate(document.annotations):
            number = item.image_id if noun == "image" else item.category_id
            if number not in ids:
                _refuse(path, f"annotations[{index}].{noun}_id", f"{number} is an unknown {noun}")


def number_categories(categories: Iterable[CocoCategory]) -> dict[int, int]:
    """Map category ids, in order, to the labels 1, 2, 3 ... of a detector; 0 is the background."""
    return {category: number for number, category in enumerate(sorted({item.id for item in categories}), start=1)}


def format_box_only(instances: Instances) -> Iterator[str]:
    """Yield JSON, in pieces, with the keys that training needs: no masks, areas, crowd flags or licences.

    Equals the output of prepare-json.py without --keep-keys, byte for byte if the source has COCO's key order. Compute
    metrics with the full file: they depend on crowd flags and areas.
    """
    yield from _write(
        instances,
        lambda image: {"file_name": image.file_name, "height": image.height, "width": image.width, "id": image.id},
        lambda item: {"image_id": item.image_id, "bbox": item.bbox, "category_id": item.category_id, "id": item.id},
    )


def format_full(instances: Instances) -> Iterator[str]:
    """Yield JSON, in pieces, with all keys that evaluators need; three decimals, missing areas are those of the box."""
    yield from _write(
        instances,
        msgspec.structs.asdict,
        lambda item: {
            "id": item.id,
            "image_id": item.image_id,
            "category_id": item.category_id,
            "bbox": [round(float(edge), 3) for edge in item.bbox],
            "area": round(float(item.bbox[2] * item.bbox[3] if item.area is None else item.area), 3),
            "iscrowd": int(item.crowd),
            "segmentation": [],
        },
    )
    yield "\n"


class _Head(msgspec.Struct, gc=False):
    id: int = -1
    file_name: str = ""
    image_id: int = -1


def drop_images(path: Path, names: Collection[str]) -> Iterator[bytes]:
    """Yield an annotation file, in pieces, without these images and their annotations; the rest is unchanged."""
    try:
        parts = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
        images = msgspec.json.decode(parts["images"], type=list[msgspec.Raw])
        annotations = msgspec.json.decode(parts["annotations"], type=list[msgspec.Raw])
        heads = [msgspec.json.decode(item, type=_Head) for item in images]
        image_ids = [msgspec.json.decode(item, type=_Head).image_id for item in annotations]
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, KeyError, RecursionError) as err:
        raise DataError(f"{path} is not a COCO annotation file: {err}") from err
    gone = {head.id for head in heads if head.file_name in names}
    kept = {
        "images": [item for item, head in zip(images, heads, strict=True) if head.id not in gone],
        "annotations": [item for item, number in zip(annotations, image_ids, strict=True) if number not in gone],
    }
    yield b"{"
    for index, (key, value) in enumerate(parts.items()):
        yield (b"," if index else b"") + msgspec.json.encode(key) + b":"
        yield b"[" + b",".join(kept[key]) + b"]" if key in kept else bytes(value)
    yield b"}"


def _write(
    instances: Instances,
    describe_image: Callable[[CocoImage], dict[str, Any]],
    describe_annotation: Callable[[CocoAnnotation], dict[str, Any]],
) -> Iterator[str]:
    """Yield a file in pieces of some thousand items, because a whole list of COCO needs gigabytes."""

    def describe_category(category: CocoCategory) -> dict[str, Any]:
        above = {} if category.supercategory is None else {"supercategory": category.supercategory}
        return {**above, "id": category.id, "name": category.name}

    lists: dict[str, tuple[Sequence[Any], Callable[[Any], dict[str, Any]]]] = {
        '{"images":[': (instances.images, describe_image),
        '],"annotations":[': (instances.annotations, describe_annotation),
        '],"categories":[': (instances.categories, describe_category),
    }
    step = 4096
    for opening, (items, describe) in lists.items():
        yield opening
        for start in range(0, len(items), step):
            piece = [describe(item) for item in items[start : start + step]]
            yield ("," if start else "") + json.dumps(piece, separators=(",", ":"), allow_nan=False)[1:-1]
    yield "]}"


def _refuse(path: Path, where: str, fault: str, err: Exception | None = None) -> NoReturn:
    raise DataError(f"{path}: {where}: {fault}", hint="expected the format of COCO's instances_val2017.json") from err
