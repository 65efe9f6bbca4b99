"""What the storages have in common: a sample becomes bytes to append and lines in the files beside them; shards of
records (RecordIO, TFRecord, WebDataset) are read in any order.
"""

import abc
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainstone.data.image.inspect import Look
from trainstone.data.sample import Box, ClassName, Sample, fingerprint_files
from trainstone.errors import DataError
from trainstone.formats.files import ByteSpan
from trainstone.formats.recordio import RecordIOFile
from trainstone.formats.tar import WdsFile
from trainstone.formats.tfrecord import TFRecordFile


class Shard(NamedTuple):
    """A file (or, in the storage `folder`, a folder) to write: which places of its split's order it holds."""

    split: str
    file: str
    start: int
    end: int


class Encoded(NamedTuple):
    name: str
    buffers: Sequence[bytes | memoryview]
    """What is appended, in pieces: joining them would copy every image once more."""
    about: Any = None
    """What the encoder needs to know of it once its place is known."""
    key: str = ""
    """What no other sample of the shard may be called, where the storage finds samples by name."""


class Encoder(abc.ABC):
    """How a storage writes. `encode` is called from several threads, or in other processes."""

    tail = b""
    """What ends a shard."""

    def __init__(self, kind: str, classes: Sequence[ClassName] = (), first_label: int = 0) -> None:
        """`first_label`: what TFRecord files call the first class."""
        self._kind, self._classes, self._first_label = kind, classes, first_label

    @abc.abstractmethod
    def encode(self, sample: Sample, number: int, seen: Look) -> Encoded:
        """Return a sample as it is stored; `number` is its place in the source."""

    @abc.abstractmethod
    def lines(self, made: Encoded, span: ByteSpan) -> tuple[str, ...]:
        """Return what each sidecar says of a sample that lies here."""

    @abc.abstractmethod
    def sidecars(self, shard: Shard) -> tuple[str, ...]:
        """Return the names of the files beside a shard, one for each of `lines`."""

    def finish(self, lines: str, records: int) -> str:
        """Return a sidecar's text from its lines; boxes of no image are not written."""
        return lines

    def find_class(self, label: int) -> ClassName:
        """Return the class of a label; records may have labels that no class has."""
        if not 0 <= label < len(self._classes):
            raise DataError(f"label {label}, but there are {len(self._classes)} classes")
        return self._classes[label]


Offsets = NDArray[np.int64]
"""Where the records of a shard begin."""
RecordFile = RecordIOFile | TFRecordFile | WdsFile
OPEN_SHARDS = 64
"""A map keeps a descriptor: 1,152 shards at once would meet the usual limit of 1,024."""


class Glance(NamedTuple):
    """What a record states without its image."""

    labels: Sequence[tuple[int, ClassName]]
    """Its class, or those of its boxes, and what it calls them."""
    boxes: Sequence[Box] = ()
    is_detection: bool = False
    """Whether it has a place for boxes instead of a class."""


class ShardReader(abc.ABC):
    """Samples in a file of records."""

    kind: ClassVar[type[RecordFile]]
    file: RecordFile

    def __init__(self, path: Path, first_label: int | None = None) -> None:
        """`first_label`: what TFRecord files call the first class; None: their features tell."""
        self.path, self._first_label = path, first_label
        self.file = self.kind(path)

    def offsets(self) -> Offsets:
        """Return where its records begin, from an index that fits or by walking through."""
        return np.fromiter((span.offset for span in self.file.spans()), dtype=np.int64)

    @abc.abstractmethod
    def read(self, offset: int) -> Sample:
        """Return the sample that begins here."""

    @abc.abstractmethod
    def glance(self, offset: int) -> Glance:
        """Return what a record states, without reading its image."""

    @abc.abstractmethod
    def index_files(self) -> Iterable[tuple[Path, str]]:
        """Return the index files that lie beside it, each with the text that it should have."""

    def check_beside(self) -> None:  # noqa: B027  (most have no such file)
        """Raise DataError where a file beside it, on which all its samples depend, cannot be read."""

    def close(self) -> None:
        self.file.close()


class RecordSource:
    """A split in shards. Offsets are kept (8 bytes a record), files are opened as they are needed."""

    def __init__(self, paths: Sequence[Path], open_shard: Callable[[Path], ShardReader]) -> None:
        self.paths = tuple(paths)
        self.open_shard = open_shard
        self._open: OrderedDict[int, ShardReader] = OrderedDict()
        self._lock = threading.Lock()

    @cached_property
    def _offsets(self) -> list[Offsets]:
        return [self._shard(number).offsets() for number in range(len(self.paths))]

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(len(offsets) for offsets in self._offsets))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def locate(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        shard = bisect_right(self._ends, index)
        start = self._ends[shard - 1] if shard else 0
        return shard, int(self._offsets[shard][index - start])

    def read(self, index: int) -> Sample:
        shard, offset = self.locate(index)
        return self._shard(shard).read(offset)

    def glance(self, index: int) -> Glance:
        shard, offset = self.locate(index)
        return self._shard(shard).glance(offset)

    def name(self, index: int) -> str:
        return self.read(index).name

    def where(self, index: int) -> str:
        shard, offset = self.locate(index)
        start = self._ends[shard - 1] if shard else 0
        return f"{self.paths[shard]}, record {index - start} at byte {offset}"

    def fingerprint(self) -> str:
        return fingerprint_files(self.paths)

    def _shard(self, number: int) -> ShardReader:
        """Return an open shard; those not used for long are let go, and closed when no thread reads them any more."""
        with self._lock:
            if number in self._open:
                self._open.move_to_end(number)
                return self._open[number]
            opened = self._open[number] = self.open_shard(self.paths[number])
            if len(self._open) > OPEN_SHARDS:
                self._open.popitem(last=False)
            return opened


class DamagedRecords(RecordSource):
    """Record files that may be damaged: a place that cannot be read is one bad sample, and the next are found."""

    @cached_property
    def _offsets(self) -> list[Offsets]:
        shards = (self._shard(number) for number in range(len(self.paths)))
        return [np.array([span.offset for _, span, _ in walk(shard)], np.int64) for shard in shards]


def walk(shard: ShardReader) -> Iterator[tuple[int, ByteSpan, str]]:
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
            yield number, ByteSpan(at, size), err.message
            if after is None:
                return
            number, at = number + 1, after
