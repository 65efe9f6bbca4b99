"""Interfaces of the storage formats: Encoder writes samples and sidecar files; ShardReader and RecordSource read
record files (RecordIO, TFRecord, WebDataset) at random.
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

from trainstone.data.image.inspect import ImageHeader
from trainstone.data.sample import Box, ClassName, Sample, fingerprint_files
from trainstone.errors import DataError
from trainstone.formats.files import ByteSpan
from trainstone.formats.recordio import RecordIOFile
from trainstone.formats.tar import WebDatasetFile
from trainstone.formats.tfrecord import TFRecordFile


class Shard(NamedTuple):
    """A file to write (a folder in the format `folder`), with its range in the split's sample order."""

    split: str
    file: str
    start: int
    end: int


class Encoded(NamedTuple):
    """A sample as the bytes that a shard stores."""

    name: str
    buffers: Sequence[bytes | memoryview]
    """The bytes in pieces: joining them would copy every image once more."""
    metadata: Any = None
    """Data for the sidecar lines, which are written once the byte offset is known."""
    key: str = ""
    """Must be unique in the shard, in formats that find samples by name."""


class Encoder(abc.ABC):
    """Writes samples in a storage format. `encode` is called from several threads or processes."""

    tail = b""
    """Bytes at the end of a shard."""

    def __init__(self, kind: str, classes: Sequence[ClassName] = (), first_label: int = 0) -> None:
        """`first_label`: label of the first class in TFRecord files."""
        self._kind, self._classes, self._first_label = kind, classes, first_label

    @abc.abstractmethod
    def encode(self, sample: Sample, number: int, header: ImageHeader) -> Encoded:
        """Return the stored bytes of a sample; `number` is its index in the source."""

    @abc.abstractmethod
    def sidecar_lines(self, encoded: Encoded, span: ByteSpan) -> tuple[str, ...]:
        """Return the line of each sidecar for a sample stored at this byte range."""

    @abc.abstractmethod
    def sidecars(self, shard: Shard) -> tuple[str, ...]:
        """Return the names of a shard's sidecar files, one for each of `sidecar_lines`."""

    def format_sidecar(self, lines: str, records: int) -> str:
        """Return a sidecar's text from its lines; an empty box file is not written."""
        return lines

    def find_class(self, label: int) -> ClassName:
        """Return the class of a label; raise DataError for a label without a class."""
        if not 0 <= label < len(self._classes):
            raise DataError(f"invalid label {label}: the data set has {len(self._classes)} classes")
        return self._classes[label]


Offsets = NDArray[np.int64]
"""Byte offsets of the records in a shard."""
RecordFile = RecordIOFile | TFRecordFile | WebDatasetFile
OPEN_SHARDS = 64
"""A memory map holds a file descriptor: 1,152 open shards would exceed the usual limit of 1,024."""


class RecordAnnotations(NamedTuple):
    """Labels and boxes of a record, read without its image."""

    labels: Sequence[tuple[int, ClassName]]
    """The record's label, or those of its boxes, with class names."""
    boxes: Sequence[Box] = ()
    is_detection: bool = False
    """Whether the record has a field for boxes instead of a class."""


class ShardReader(abc.ABC):
    """Reads samples from a record file."""

    kind: ClassVar[type[RecordFile]]
    file: RecordFile

    def __init__(self, path: Path, first_label: int | None = None) -> None:
        """`first_label`: label of the first class in TFRecord files; None: determined by their features."""
        self.path, self._first_label = path, first_label
        self.file = self.kind(path)

    def offsets(self) -> Offsets:
        """Return the byte offsets of the records, from a valid index or by reading the file."""
        return np.fromiter((span.offset for span in self.file.spans()), dtype=np.int64)

    @abc.abstractmethod
    def read(self, offset: int) -> Sample:
        """Return the sample at a byte offset."""

    @abc.abstractmethod
    def read_annotations(self, offset: int) -> RecordAnnotations:
        """Return the labels and boxes of a record without reading its image."""

    @abc.abstractmethod
    def index_files(self) -> Iterable[tuple[Path, str]]:
        """Return the shard's index files, each with the text that it should have."""

    def check_sidecars(self) -> None:  # noqa: B027  (most formats have no such file)
        """Raise DataError if a sidecar file that all samples depend on cannot be read."""

    def close(self) -> None:
        self.file.close()


class RecordSource:
    """A split in record files. Offsets are in memory (8 bytes per record), files are opened when needed."""

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

    def read_annotations(self, index: int) -> RecordAnnotations:
        shard, offset = self.locate(index)
        return self._shard(shard).read_annotations(offset)

    def name(self, index: int) -> str:
        return self.read(index).name

    def where(self, index: int) -> str:
        shard, offset = self.locate(index)
        start = self._ends[shard - 1] if shard else 0
        return f"{self.paths[shard]}, record {index - start} at byte {offset}"

    def fingerprint(self) -> str:
        return fingerprint_files(self.paths)

    def _shard(self, number: int) -> ShardReader:
        """Return an open shard; the least recently used one is dropped, and closes when no thread reads it."""
        with self._lock:
            if number in self._open:
                self._open.move_to_end(number)
                return self._open[number]
            opened = self._open[number] = self.open_shard(self.paths[number])
            if len(self._open) > OPEN_SHARDS:
                self._open.popitem(last=False)
            return opened


class DamagedRecords(RecordSource):
    """Record files that may be damaged: an unreadable byte range is one bad sample, and reading continues after it."""

    @cached_property
    def _offsets(self) -> list[Offsets]:
        shards = (self._shard(number) for number in range(len(self.paths)))
        return [np.array([span.offset for _, span, _ in walk_records(shard)], np.int64) for shard in shards]


def walk_records(shard: ShardReader) -> Iterator[tuple[int, ByteSpan, str]]:
    """Yield index, byte range and "" of each record; a damaged range has the reason, and reading continues after it."""
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
