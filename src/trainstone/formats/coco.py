"""COCO's annotation files (instances_*.json) as plain records, read and written. Masks are skipped, images untouched.

Any list of categories will do, not only COCO's 80. The shape of these files: https://cocodataset.org/#format-data
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec

from trainstone.errors import DataError
from trainstone.formats.files import is_inside

_NAMES = (
    "person|bicycle|car|motorcycle|airplane|bus|train|truck|boat|traffic light|fire hydrant|stop sign|"
    "parking meter|bench|bird|cat|dog|horse|sheep|cow|elephant|bear|zebra|giraffe|backpack|umbrella|"
    "handbag|tie|suitcase|frisbee|skis|snowboard|sports ball|kite|baseball bat|baseball glove|"
    "skateboard|surfboard|tennis racket|bottle|wine glass|cup|fork|knife|spoon|bowl|banana|apple|"
    "sandwich|orange|broccoli|carrot|hot dog|pizza|donut|cake|chair|couch|potted plant|bed|"
    "dining table|toilet|tv|laptop|mouse|remote|keyboard|cell phone|microwave|oven|toaster|sink|"
    "refrigerator|book|clock|vase|scissors|teddy bear|hair drier|toothbrush"
)
# Of the numbers 0 to 91 these are no category: 80 are left.
_MISSING_IDS = frozenset((0, 12, 26, 29, 30, 45, 66, 68, 69, 71, 83, 91))
NAME_OF_ID = dict(zip((n for n in range(92) if n not in _MISSING_IDS), _NAMES.split("|"), strict=True))


_Id = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Pixels = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
_Number = Annotated[int, msgspec.Meta(ge=-(10**12), le=10**12)] | Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
_Crowd = Annotated[int, msgspec.Meta(ge=0, le=1)] | bool


# The decoder fills these: keys not named here, masks above all, are skipped without being built (gc: no cycles here).
class CocoImage(msgspec.Struct, gc=False):
    id: _Id
    file_name: str
    """Relative name with /."""
    width: _Pixels
    height: _Pixels


class CocoAnnotation(msgspec.Struct, gc=False):
    """A box; whole numbers stay whole, so that they are written as they were read."""

    id: _Id
    image_id: _Id
    category_id: _Id
    bbox: tuple[_Number, _Number, _Number, _Number]
    """Left, top, width, height in pixels."""
    crowd: _Crowd = msgspec.field(default=False, name="iscrowd")
    area: _Number | None = None
    """Of the mask, in pixels; None where the file has none."""


class CocoCategory(msgspec.Struct, gc=False):
    id: _Id
    name: str
    supercategory: str | None = None


class Instances(msgspec.Struct):
    images: list[CocoImage]
    annotations: list[CocoAnnotation]
    categories: list[CocoCategory] = []


def read_instances(path: Path) -> Instances:
    """Read instances_*.json, or a file with boxes only; without categories, the numbers are taken to be COCO's.

    Refused are numbers that are none, names that lead out of the folder, the same id or file name twice, and
    annotations of images or categories that the file does not have.
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
        _refuse(path, "JSON", f"damaged or cut off at byte {found[1] if found else len(data)}", err)
    del data  # half a gigabyte of COCO's
    if not document.categories:
        document.categories = [CocoCategory(number, name) for number, name in NAME_OF_ID.items()]
    _check(path, document)
    return document


def _check(path: Path, document: Instances) -> None:
    for place, image in enumerate(document.images):
        if not is_inside(image.file_name) or not image.file_name.isprintable():  # they are in lists, one per line
            _refuse(path, f"images[{place}].file_name", f"{image.file_name!r} is not a relative name of a file")
    for group, key in (("images", "id"), ("images", "file_name"), ("categories", "id"), ("annotations", "id")):
        values = [getattr(item, key) for item in getattr(document, group)]
        first: dict[int | str, int] = {}
        for place, value in enumerate(values if len(set(values)) < len(values) else ()):
            if first.setdefault(value, place) != place:
                _refuse(path, f"{group}[{place}].{key}", f"{value!r} is already that of {group}[{first[value]}]")
    known = {"image": {image.id for image in document.images}, "category": {item.id for item in document.categories}}
    for noun, ids in known.items():
        for place, item in enumerate(document.annotations):
            number = item.image_id if noun == "image" else item.category_id
            if number not in ids:
                _refuse(path, f"annotations[{place}].{noun}_id", f"{number} is no {noun} of this file")


def number_categories(categories: Iterable[CocoCategory]) -> dict[int, int]:
    """Return category id -> 1, 2, 3 ... in the order of ids, as detectors count: 0 is the background."""
    return {category: number for number, category in enumerate(sorted({item.id for item in categories}), start=1)}


def box_only(instances: Instances) -> Iterator[str]:
    """Yield JSON, in pieces, with what box training needs: no masks, no areas, no crowd flags, no licences.

    The same as prepare-json.py writes without --keep-keys, byte for byte if the source has COCO's order of keys. Scores
    are to be computed with the full file: without crowd flags and areas they come out otherwise.
    """
    yield from _write(
        instances,
        lambda image: {"file_name": image.file_name, "height": image.height, "width": image.width, "id": image.id},
        lambda item: {"image_id": item.image_id, "bbox": item.bbox, "category_id": item.category_id, "id": item.id},
    )


def full(instances: Instances) -> Iterator[str]:
    """Yield JSON, in pieces, with all keys evaluators ask for; three decimals, unknown areas are the box's."""
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
    """Yield an annotation file, in pieces, without these images and their annotations; the rest stays as written."""
    try:
        parts = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
        images = msgspec.json.decode(parts["images"], type=list[msgspec.Raw])
        annotations = msgspec.json.decode(parts["annotations"], type=list[msgspec.Raw])
        heads = [msgspec.json.decode(item, type=_Head) for item in images]
        image_ids = [msgspec.json.decode(item, type=_Head).image_id for item in annotations]
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, KeyError, RecursionError) as err:
        raise DataError(f"{path} is no annotation file of COCO: {err}") from err
    gone = {head.id for head in heads if head.file_name in names}
    kept = {
        "images": [item for item, head in zip(images, heads, strict=True) if head.id not in gone],
        "annotations": [item for item, number in zip(annotations, image_ids, strict=True) if number not in gone],
    }
    yield b"{"
    for place, (key, value) in enumerate(parts.items()):
        yield (b"," if place else b"") + msgspec.json.encode(key) + b":"
        yield b"[" + b",".join(kept[key]) + b"]" if key in kept else bytes(value)
    yield b"}"


def _write(
    instances: Instances,
    describe_image: Callable[[CocoImage], dict[str, Any]],
    describe_annotation: Callable[[CocoAnnotation], dict[str, Any]],
) -> Iterator[str]:
    """Yield a file, some thousand items a piece: a whole list of COCO would fill gigabytes."""

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
    raise DataError(
        f"{path}: {where}: {fault}", hint="an annotation file looks like COCO's instances_val2017.json"
    ) from err
