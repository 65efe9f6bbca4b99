"""Opens one part of a data set for training or validation."""

import hashlib
import logging
import time
from pathlib import Path
from typing import NamedTuple

from trainstone.data.recognise import keep_boxed, open_dataset
from trainstone.data.sample import DataSet, Source
from trainstone.errors import DataError

log = logging.getLogger(__name__)

DIGESTED = 32


class OpenSplit(NamedTuple):
    dataset: DataSet
    name: str
    source: Source


def open_split(path: Path, name: str, *, skip_empty: bool = False) -> OpenSplit:
    """Return the split of that name; the only one there is, whatever it is called.

    `skip_empty`: only those images of a detection set that have a box. Records are gone through for that, each time.
    """
    dataset = open_dataset(path)
    sources = {split.name: split.source for split in dataset.splits}
    if name not in sources and name in dataset.lacking:
        raise DataError(
            f"{path} has no images of split {name}: {dataset.lacking[name]}",
            hint="put the images into that folder, or into one of its name below images/",
        )
    if len(sources) == 1 and name not in sources:
        only = next(iter(sources))
        log.warning("%s has one split, %s: took it for %s", path, only, name)
        name = only
    if name not in sources:
        there = ", ".join(sources) or "none"
        raise DataError(f"{path} has no split {name}; there: {there}", hint="trainstone data info tells what it holds")
    source = sources[name]
    if not len(source):
        raise DataError(f"split {name} of {path} holds no image", hint="trainstone data verify tells what is wrong")
    if skip_empty:
        if dataset.kind != "detect":
            hint = "this recipe detects: give COCO, or another set with boxes"
            raise DataError(f"{path} is no set of boxes: data.skip_empty has no meaning for it", hint=hint)
        begin, every = time.perf_counter(), len(source)
        source = keep_boxed(source)
        where = f"split {name} of {path}"
        if not len(source):
            raise DataError(f"{where}: none of {every:,} images has a box", hint="--set data.skip_empty=false")
        left_out, seconds = f"{every - len(source):,}", time.perf_counter() - begin
        log.info("%s: %s images without a box are left out (found in %.1f s)", where, left_out, seconds)
    return OpenSplit(dataset, name, source)


def digest_samples(source: Source) -> str:
    """Return what tells this set from others: a hash of some evenly spaced images with their labels."""
    digest = hashlib.sha256(f"{len(source)}".encode())
    for number in range(min(DIGESTED, len(source))):
        index = number * len(source) // min(DIGESTED, len(source))
        try:
            sample = source.read(index)
        except DataError:  # told elsewhere
            continue
        digest.update(f"{sample.label} {len(sample.image)} ".encode())
        digest.update(sample.image)
    return digest.hexdigest()[:16]
