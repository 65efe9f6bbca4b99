"""The parts of a COCO folder, annotations and pictures: found in a source as zips or folders, put in place whole."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from trainstone.data.manifest import WORK
from trainstone.data.progress import Progress
from trainstone.data.raw.archives import list_zip
from trainstone.data.raw.coco import ANNOTATIONS, find_annotations, find_pictures
from trainstone.data.raw.extract import extract_zip, sync_folder
from trainstone.errors import DataError
from trainstone.files import sync_path
from trainstone.units import format_count


class Part(NamedTuple):
    """A folder to be: annotations, train2017 or val2017, and the zip or folder it comes from."""

    name: str
    origin: Path

    @property
    def is_zip(self) -> bool:
        """Say whether it has to be unpacked."""
        return self.origin.suffix == ".zip"


def survey(source: Path) -> list[Part]:
    """Return what the source offers: annotations first, then the splits with pictures; may be too little."""
    zips = {file.name: file for below in ("annotations", "zips", "") for file in sorted((source / below).glob("*.zip"))}
    packed = zips.get("annotations_trainval2017.zip") or next(
        (file for name, file in zips.items() if name.startswith("annotations")), None
    )
    if packed is not None:
        names = [ANNOTATIONS.fullmatch(member.name.rpartition("/")[2]) for member in list_zip(packed)]
        parts, stems = [Part("annotations", packed)], sorted({named[2] for named in names if named is not None})
    else:
        stems = list(find_annotations(source / "annotations"))
        parts = [Part("annotations", source / "annotations")] if stems else []
    for stem in stems:
        origin = zips.get(f"{stem}.zip") or find_pictures(source, stem)
        if origin is not None:
            parts.append(Part(stem, origin))
    return parts


def measure(parts: Sequence[Part]) -> dict[str, int]:
    """Return the length of zips and of annotation files that lie open."""
    files = [part.origin for part in parts if part.is_zip]
    if parts and not parts[0].is_zip:
        files += find_annotations(parts[0].origin).values()
    return {file.name: file.stat().st_size for file in files}


@contextlib.contextmanager
def hold(target: Path, part: Part) -> Iterator[Path]:
    """Give an empty work folder for a part, held against a second process; it vanishes at the end."""
    work = name_work(target, part)
    descriptor = lock(work, f"{target / part.name} is being prepared by another process")
    try:
        for left in work.iterdir():  # by a time that was killed
            shutil.rmtree(left)
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(descriptor)


def name_work(target: Path, part: Part) -> Path:
    """Return where a part is made."""
    return target / f"{WORK}-{part.name}"


def lock(folder: Path, refusal: str) -> int:
    """Make a folder, if it is not there, and lock it; closing what is returned unlocks it."""
    folder.mkdir(exist_ok=True)
    descriptor = -1
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The other process may have ended and removed it between our opening and our locking.
        if not os.path.samestat(os.fstat(descriptor), folder.stat()):
            raise BlockingIOError
    except (BlockingIOError, FileNotFoundError) as err:
        if descriptor >= 0:
            os.close(descriptor)
        raise DataError(refusal, hint="let it end") from err
    return descriptor


def is_placed(part: Part, target: Path) -> bool:
    """Say whether a part has its name; then it is whole."""
    return (target / part.name).is_dir()


def place(part: Part, target: Path, workers: int) -> Iterator[Progress]:
    """Bring a part to its name below the target, whole or not at all; nothing there already is overwritten."""
    final = target / part.name
    if part.origin.resolve() == final.resolve():
        return
    if final.exists():
        compare(part, final)
        return
    with hold(target, part) as work:
        if final.exists():  # another process was faster
            return
        whole = work / "whole"
        if part.is_zip:
            yield from extract_zip(part.origin, whole, workers)
        else:
            yield from link_all(part, whole)
        inner = whole / part.name if part.is_zip else whole
        (inner if inner.is_dir() else whole).rename(final)
        sync_path(target)


def compare(part: Part, final: Path) -> None:
    """Refuse a folder that is there already but does not hold what the part does."""
    files = list_packed(part) if part.is_zip else list_files(part.origin)
    lacking = files.items() - list_files(final).items()
    num_lacking = sum(not name.startswith("bbox_only_") for name, _ in lacking)  # those we write anew
    if num_lacking:
        raise DataError(
            f"{final} is there already and lacks {num_lacking:,} of the {format_count(len(files), 'file')} of "
            f"{part.origin}, or has them with another length",
            hint=f"move {final} away and run it again",
        )


def link_all(part: Part, folder: Path) -> Iterator[Progress]:
    """Give all files of a part a second name in a new folder."""
    folder.mkdir()
    files = list_files(part.origin)
    for done, name in enumerate(files, start=1):
        link(part.origin / name, folder / name)
        yield Progress(f"link {part.name}", done, len(files), "files")
    yield from sync_folder(folder, part.name)


def list_packed(part: Part) -> dict[str, int]:
    """Return names and lengths in a zip's folder named like the part, or in the whole zip without such a folder."""
    files = {member.name: member.size for member in list_zip(part.origin)}
    prefix = f"{part.name}/"
    inside = {name.removeprefix(prefix): size for name, size in files.items() if name.startswith(prefix)}
    return inside or files


def list_files(folder: Path) -> dict[str, int]:
    """Return relative names and lengths of all files below a folder."""
    return {
        (Path(parent) / name).relative_to(folder).as_posix(): (Path(parent) / name).stat().st_size
        for parent, _, names in os.walk(folder)
        for name in names
    }


def link(source: Path, target: Path) -> None:
    """Give a file a second name; where the file system or its owner does not let us, copy it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        target.hardlink_to(source.resolve())
    except OSError:
        shutil.copyfile(source, target)
