"""The data sets that `trainstone data imagenet` knows, as people have them on disk before any preparation."""

import logging
from pathlib import Path

from trainstone.data.manifest import WORK
from trainstone.data.raw.classfolders import find_class_folders, find_imagenetv2, find_tiny_imagenet
from trainstone.data.raw.imagenet import find_imagenet
from trainstone.data.sample import DataSet
from trainstone.errors import DataError

log = logging.getLogger(__name__)

IMAGENET_CLASSES = 1000


def find_raw(
    dataset: str, source: Path, target: Path, *, val_labels: Path | None = None, boxes: Path | None = None
) -> DataSet:
    """Find a raw data set; what must be extracted first goes into the target's work folder."""
    if not source.exists():
        raise DataError(f"no such folder: {source}")
    work = target / WORK / "extracted"
    if dataset == "tiny-imagenet":
        return find_tiny_imagenet(source)
    if dataset == "imagenetv2":
        return find_imagenetv2(source, work=work)
    if dataset == "folder":
        return find_class_folders(source)
    found = find_imagenet(source, val_labels=val_labels, boxes=boxes, work=work)
    if len(found.classes) != IMAGENET_CLASSES:
        told = "%s has %d classes, ImageNet 1,000; other sets have a --dataset of their own"
        log.warning(told, source, len(found.classes))
    return found
