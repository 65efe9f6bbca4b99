"""manifest.json: what a prepared data set holds. It is written last, so a folder that has one is whole."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import google_crc32c
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from trainstone.errors import DataError
from trainstone.files import dump_json, write_atomically
from trainstone.formats.files import is_inside

FORMAT = 1
"""1: first."""
NAME = "manifest.json"
WORK = ".trainstone"
"""The folder of unfinished work in a data set."""
SPLIT_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
READ_BYTES = 16 << 20
TEXT = ("utf-8", "surrogateescape")

Parsed = TypeVar("Parsed", bound=BaseModel)

Count = Annotated[int, Field(ge=0)]


def check_name(name: str) -> str:
    if not is_inside(name):
        raise ValueError(f"{name!r} is not the name of a file in the folder")
    return name


FileName = Annotated[str, AfterValidator(check_name)]


class ManifestRecord(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FileFacts(ManifestRecord):
    """A file: its length and CRC-32C (eight hex digits)."""

    file: FileName
    bytes: Count
    crc32c: Annotated[str, Field(pattern="^[0-9a-f]{8}$")]


class ShardFacts(FileFacts):
    """A shard: its samples, the files beside it, and what was done to single images."""

    records: Count
    sidecars: tuple[FileFacts, ...] = ()
    repaired: tuple[tuple[str, str], ...] = ()
    """Name and cause."""
    skipped: tuple[tuple[str, str], ...] = ()


class SplitFacts(ManifestRecord):
    name: Annotated[str, Field(pattern=SPLIT_NAME)]
    records: Count
    bytes: Count
    shards: tuple[ShardFacts, ...]


Storage = Literal["recordio", "tfrecord", "folder", "wds"]


class Manifest(ManifestRecord):
    format: Annotated[int, Field(ge=1, le=FORMAT)] = FORMAT
    dataset: str
    kind: Literal["classify", "detect"]
    storage: Storage
    first_label: Literal[0, 1]
    """What the first class is called in the records: 1 where 0 means background."""
    classes: tuple[tuple[str, str], ...]
    """Name and text of each class, in the order of labels."""
    treatment: dict[str, Any]
    plan: str
    """Checksum of all that decided the bytes: the same command finds the same."""
    splits: tuple[SplitFacts, ...]

    @property
    def shards(self) -> list[ShardFacts]:
        return [shard for split in self.splits for shard in split.shards]


def read_manifest(folder: Path) -> Manifest | None:
    """Return a folder's manifest; None: it has none."""
    path = folder / NAME
    try:
        return parse_record(Manifest, path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as err:
        first = err.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        what = "is of a newer trainstone, or damaged," if where == "format" else "is damaged"
        raise DataError(f"{path} {what} at {where or 'its top'}: {first['msg']}") from err
    except (OSError, ValueError, RecursionError) as err:
        raise DataError(f"cannot read {path}: {err}") from err


def write_manifest(folder: Path, manifest: Manifest) -> None:
    write_atomically(folder / NAME, dump_json(manifest.model_dump(mode="json")))


def parse_record(kind: type[Parsed], data: bytes) -> Parsed:
    """Return a record that was written as JSON; ValueError or RecursionError where it is none.

    Not by pydantic's own parser, which rejects names that are not UTF-8.
    """
    return kind.model_validate(freeze(json.loads(data)))


def freeze(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: freeze(value) for key, value in document.items()}
    return tuple(freeze(value) for value in document) if isinstance(document, list) else document


def check_files(folder: Path, manifest: Manifest) -> None:
    """Raise DataError where a file that a manifest names is missing or has another length."""
    for shard in manifest.shards:
        for facts in (shard, *shard.sidecars):
            path = folder / facts.file
            is_folder = manifest.storage == "folder" and facts is shard
            if path.suffix == ".idx" and not path.exists():
                continue  # readers do without
            if not (path.is_dir() if is_folder else path.is_file()):
                raise DataError(f"{path} is missing, though {NAME} names it")
            if not is_folder and path.stat().st_size != facts.bytes:
                raise DataError(f"{path} has {path.stat().st_size} bytes; {NAME} says {facts.bytes}")


def measure(folder: Path, name: str) -> FileFacts:
    crc = size = 0
    with (folder / name).open("rb") as file:
        while block := file.read(READ_BYTES):
            crc = google_crc32c.extend(crc, block)
            size += len(block)
    return FileFacts(file=name, bytes=size, crc32c=f"{crc:08x}")


def sum_file(name: str, data: bytes) -> int:
    """Return an image file's share of its folder's checksum: their sum does not depend on the order."""
    return int(google_crc32c.extend(google_crc32c.value(name.encode(*TEXT)), data))
