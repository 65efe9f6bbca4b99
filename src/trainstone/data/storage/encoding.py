"""What the four storages have in common: a sample becomes bytes to append, and lines in the files beside them."""

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple

from trainstone.data.picture.look import Look
from trainstone.data.sample import ClassName, Sample
from trainstone.errors import DataError
from trainstone.formats.files import Span


class Shard(NamedTuple):
    """A file (or, in the storage `folder`, a folder) to write: which places of its split's order it holds."""

    split: str
    file: str
    start: int
    end: int


class Encoded(NamedTuple):
    """A sample in a storage's form."""

    name: str
    buffers: Sequence[bytes | memoryview]
    """What is appended, in pieces: joining them would copy every picture once more."""
    about: Any = None
    """What the encoder needs to know of it once its place is known."""
    key: str = ""
    """What no other sample of the shard may be called, where the storage finds samples by name."""


def find_class(classes: Sequence[ClassName], label: int) -> ClassName:
    """Return the class of a label; records may have labels that no class has."""
    if not 0 <= label < len(classes):
        raise DataError(f"label {label}, but there are {len(classes)} classes")
    return classes[label]


class Encoder(abc.ABC):
    """How a storage writes. `encode` is called from several threads, or in other processes."""

    tail = b""
    """What ends a shard."""

    @abc.abstractmethod
    def encode(self, sample: Sample, number: int, seen: Look) -> Encoded:
        """Return a sample as it is stored; `number` is its place in the source."""

    @abc.abstractmethod
    def lines(self, made: Encoded, span: Span) -> tuple[str, ...]:
        """Return what each sidecar says of a sample that lies here."""

    @abc.abstractmethod
    def sidecars(self, shard: Shard) -> tuple[str, ...]:
        """Return the names of the files beside a shard, one for each of `lines`."""

    def finish(self, lines: str, records: int) -> str:
        """Return a sidecar's text from its lines; boxes of no picture are not written."""
        return lines
