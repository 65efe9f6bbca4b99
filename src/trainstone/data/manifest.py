"""manifest.json: files, classes and splits of a prepared data set. Written last, so its folder is complete."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import google_crc32c
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from trainstone.errors import DataError
from trainstone.files import dump_json, write_atomically
from trainstone.formats.files import is_safe_path

FORMAT = 1
"""Version of the manifest format. 1: first."""
NAME = "manifest.json"
WORK = ".trainstone"
"""Folder for unfinished files inside a data set."""
SPLIT_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
READ_BYTES = 16 << 20
TEXT = ("utf-8", "surrogateescape")

Parsed = TypeVar("Parsed", bound=BaseModel)

Count = Annotated[int, Field(ge=0)]


def check_name(name: str) -> str:
    if not is_safe_path(name):
        raise ValueError(f"{name!r} is not the name of a file in the folder")
    return name


FileName = Annotated[str, AfterValidator(check_name)]


class ManifestRecord(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FileEntry(ManifestRecord):
    """A file with its length and CRC-32C (eight hex digits)."""

    file: FileName
    bytes: Count
    crc32c: Annotated[str, Field(pattern="^[0-9a-f]{8}$")]


class ShardEntry(FileEntry):
    """A shard: number of records, sidecar files, and the repaired and skipped images."""

    records: Count
    sidecars: tuple[FileEntry, ...] = ()
    repaired: tuple[tuple[str, str], ...] = ()
    """Name and reason."""
    skipped: tuple[tuple[str, str], ...] = ()


class SplitEntry(ManifestRecord):
    name: Annotated[str, Field(pattern=SPLIT_NAME)]
    records: Count
    bytes: Count
    shards: tuple[ShardEntry, ...]


Storage = Literal["recordio", "tfrecord", "folder", "wds"]


class Manifest(ManifestRecord):
    format: Annotated[int, Field(ge=1, le=FORMAT)] = FORMAT
    dataset: str
    kind: Literal["classify", "detect"]
    storage: Storage
    first_label: Literal[0, 1]
    """Label of the first class in the records: 1 if 0 means background."""
    classes: tuple[tuple[str, str], ...]
    """Name and text of each class, in the order of labels."""
    treatment: dict[str, Any]
    plan: str
    """Checksum of everything that determines the written bytes; the same command gives the same checksum."""
    splits: tuple[SplitEntry, ...]

    @property
    def shards(self) -> list[ShardEntry]:
        return [shard for split in self.splits for shard in split.shards]


def read_manifest(folder: Path) -> Manifest | None:
    """Return a folder's manifest, or None if it has none."""
    path = folder / NAME
    try:
        return parse_record(Manifest, path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as err:
        first = err.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        what = "is damaged, or from a newer trainstone," if where == "format" else "is damaged"
        raise DataError(f"{path} {what} at {where or 'its top'}: {first['msg']}") from err
    except (OSError, ValueError, RecursionError) as err:
        raise DataError(f"cannot read {path}: {err}") from err


def write_manifest(folder: Path, manifest: Manifest) -> None:
    write_atomically(folder / NAME, dump_json(manifest.model_dump(mode="json")))


def parse_record(kind: type[Parsed], data: bytes) -> Parsed:
    """Return a record from JSON; raise ValueError or RecursionError if the JSON is invalid.

    pydantic's own JSON parser is not used because it rejects names that are not UTF-8.
    """
    return kind.model_validate(convert_lists_to_tuples(json.loads(data)))


def convert_lists_to_tuples(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: convert_lists_to_tuples(value) for key, value in document.items()}
    return tuple(convert_lists_to_tuples(value) for value in document) if isinstance(document, list) else document


def check_files(folder: Path, manifest: Manifest) -> None:
    """Raise DataError if a file in the manifest is missing or has another length."""
    for shard in manifest.shards:
        for entry in (shard, *shard.sidecars):
            path = folder / entry.file
            is_folder = manifest.storage == "folder" and entry is shard
            if path.suffix == ".idx" and not path.exists():
                continue  # readers rebuild it
            if not (path.is_dir() if is_folder else path.is_file()):
                raise DataError(f"{path} is missing; {NAME} lists it")
            if not is_folder and path.stat().st_size != entry.bytes:
                raise DataError(f"{path} has {path.stat().st_size} bytes; {NAME} says {entry.bytes}")


def measure_file(folder: Path, name: str) -> FileEntry:
    crc = size = 0
    with (folder / name).open("rb") as file:
        while block := file.read(READ_BYTES):
            crc = google_crc32c.extend(crc, block)
            size += len(block)
    return FileEntry(file=name, bytes=size, crc32c=f"{crc:08x}")


def checksum_file(name: str, data: bytes) -> int:
    """Return the checksum of a file's name and content; a folder's checksum is the sum, independent of the order."""
    return int(google_crc32c.extend(google_crc32c.value(name.encode(*TEXT)), data))
