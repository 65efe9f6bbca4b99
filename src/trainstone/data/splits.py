"""Open one split of a data set for training or validation."""

import hashlib
import logging
import shlex
import time
from pathlib import Path
from typing import NamedTuple

from trainstone.data.recognise import open_dataset, select_images_with_boxes
from trainstone.data.sample import DataSet, Source
from trainstone.errors import DataError

log = logging.getLogger(__name__)

NUM_DIGESTED_SAMPLES = 32


class OpenSplit(NamedTuple):
    dataset: DataSet
    name: str
    source: Source


def open_split(path: Path, name: str, *, skip_empty: bool = False) -> OpenSplit:
    """Return the split of that name, or the only split of the data set.

    `skip_empty`: keep only images of a detection set that have a box; this reads all records each time.
    """
    dataset = open_dataset(path)
    sources = {split.name: split.source for split in dataset.splits}
    if name not in sources and name in dataset.missing_splits:
        raise DataError(
            f"{path} has no images of split {name}: {dataset.missing_splits[name]}",
            hint="put the images into that folder, or into a folder of the same name below images/",
        )
    if len(sources) == 1 and name not in sources:
        only = next(iter(sources))
        log.warning("%s has only one split, %s: using it for %s", path, only, name)
        name = only
    if name not in sources:
        available = ", ".join(sources) or "none"
        raise DataError(
            f"{path} has no split {name}; available: {available}", hint=f"trainstone data info {shlex.quote(str(path))}"
        )
    source = sources[name]
    if not len(source):
        raise DataError(
            f"split {name} of {path} has no images", hint=f"trainstone data verify {shlex.quote(str(path))}"
        )
    if skip_empty:
        if dataset.kind != "detect":
            hint = "this recipe trains detection: give COCO, or another data set with boxes"
            raise DataError(f"{path} has no boxes; data.skip_empty requires a data set with boxes", hint=hint)
        begin, num_images = time.perf_counter(), len(source)
        source = select_images_with_boxes(source)
        where = f"split {name} of {path}"
        if not len(source):
            raise DataError(f"{where}: none of {num_images:,} images has a box", hint="--set data.skip_empty=false")
        num_skipped, seconds = f"{num_images - len(source):,}", time.perf_counter() - begin
        log.info("%s: skipped %s images without a box (found in %.1f s)", where, num_skipped, seconds)
    return OpenSplit(dataset, name, source)


def digest_samples(source: Source) -> str:
    """Return a hash that identifies the data: of some evenly spaced images with their labels."""
    digest = hashlib.sha256(f"{len(source)}".encode())
    for number in range(min(NUM_DIGESTED_SAMPLES, len(source))):
        index = number * len(source) // min(NUM_DIGESTED_SAMPLES, len(source))
        try:
            sample = source.read(index)
        except DataError:  # reported when the image is loaded
            continue
        digest.update(f"{sample.label} {len(sample.image)} ".encode())
        digest.update(sample.image)
    return digest.hexdigest()[:16]
