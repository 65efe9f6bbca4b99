"""Further sources: picture files without classes, a choice out of another source, record files with damage in them."""

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from trainstone.data.raw.coco import CocoSource
from trainstone.data.sample import Sample, Source, clip_box, fingerprint_files
from trainstone.data.storage.records import Offsets, RecordSource, ShardReader
from trainstone.errors import DataError
from trainstone.formats.files import Span


class PictureSource:
    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> Sample:
        path = self.paths[index]
        try:
            image = path.read_bytes()
        except OSError as err:
            raise DataError(f"cannot read {path}: {err.strerror}") from err
        if not image:
            raise DataError(f"{path} is empty")
        return Sample(path.name, image)

    def name(self, index: int) -> str:
        return self.paths[index].name

    def where(self, index: int) -> str:
        return str(self.paths[index])

    def fingerprint(self) -> str:
        return fingerprint_files(self.paths)


class Selection:
    def __init__(self, source: Source, numbers: Sequence[int]) -> None:
        self._source = source
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def read(self, index: int) -> Sample:
        return self._source.read(self._numbers[index])

    def name(self, index: int) -> str:
        return self._source.name(self._numbers[index])

    def where(self, index: int) -> str:
        return self._source.where(self._numbers[index])

    def fingerprint(self) -> str:
        chosen = hashlib.sha256(str(list(self._numbers)).encode()).hexdigest()
        return f"{chosen} of {self._source.fingerprint()}"


class DamagedRecords(RecordSource):
    """Record files that may be damaged: a place that cannot be read is one bad sample, and the next are found."""

    @cached_property
    def _offsets(self) -> list[Offsets]:
        shards = (self._shard(number) for number in range(len(self.paths)))
        return [np.array([span.offset for _, span, _ in walk(shard)], np.int64) for shard in shards]


def walk(shard: ShardReader) -> Iterator[tuple[int, Span, str]]:
    """Yield number, place and "" of each record; a place where they break off has the reason, and the walk resumes."""
    number = at = 0
    while True:
        try:
            for span in shard.file.spans(at):
                yield number, span, ""
                number, at = number + 1, span.end
            return
        except DataError as err:
            after = shard.file.resync(at)
            size = (shard.path.stat().st_size if after is None else after) - at
            yield number, Span(at, size), err.message
            if after is None:
                return
            number, at = number + 1, after


def keep_boxed(source: Source) -> Source:
    """Return the pictures with at least one box; those that cannot be read stay, for whoever reads them to tell.

    Records are gone through for that, without their pictures: 10 to 20 s for COCO's 118,287.
    """
    if isinstance(source, CocoSource):
        return source.without_empty()
    numbers = [number for number in range(len(source)) if has_boxes(source, number)]
    return Selection(source, numbers) if len(numbers) < len(source) else source


def has_boxes(source: Source, number: int) -> bool:
    """Say whether a picture has a box that lies in it, or cannot be read."""
    try:
        if isinstance(source, RecordSource):
            return any(clip_box(box) for box in source.glance(number).boxes)
        return any(clip_box(box) for box in source.read(number).boxes)
    except DataError:
        return True
