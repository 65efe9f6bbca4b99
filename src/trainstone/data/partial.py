"""A shard while it is written: under a temporary name, with a journal to go on from after any end, kill -9 included.

Bytes before the journal's mark are on disk; whatever lies behind it is cut off and written again. A shard gets its name
only when it is whole.
"""

import fcntl
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import google_crc32c
from pydantic import BaseModel, ConfigDict

from trainstone.data.finished import put_in_place
from trainstone.data.manifest import Count, FileFacts, ShardFacts, parse_record
from trainstone.data.storage.boxfile import SUFFIX
from trainstone.data.storage.encoding import Encoded, Encoder, Shard
from trainstone.errors import DataError
from trainstone.files import dump_json, sync_path, write_atomically
from trainstone.formats.span import Span

JOURNAL_BYTES = 64 << 20
"""So much is written between two marks of the journal."""
LINES_BUFFER_BYTES = 1 << 20
TEXT = ("utf-8", "surrogateescape")
MAX_BUFFERS = 1024
"""The system's limit of buffers a call."""


class Journal(BaseModel):
    """How far a shard has come: everything before this is safe on disk."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    plan: str
    places: Count = 0
    """Places of the plan's order that are done, skipped ones included."""
    records: Count = 0
    bytes: Count = 0
    crc32c: Count = 0
    sidecar_bytes: tuple[Count, ...] = ()
    repaired: tuple[tuple[str, str], ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()


class PartialShard:
    """Appends samples to a shard; `with` holds it against a second writer."""

    def __init__(self, work: Path, target: Path, shard: Shard, encoder: Encoder, plan: str, *, folder: bool) -> None:
        self._target = target
        self._shard = shard
        self._encoder = encoder
        stem = shard.file.replace("/", "%")
        self._path = work / f"{stem}.partial"
        self._journal_path = work / f"{stem}.journal"
        self._done_path = work / f"{stem}.done"
        self._names = encoder.sidecars(shard)
        # One more than there are names: the keys so far, which no later sample may have.
        self._sidecar_paths = [work / f"{stem}.{number}.sidecar" for number in range(len(self._names) + 1)]
        self._folder = self._path if folder else None
        self._unsynced: list[Path] = []
        self._keys: set[str] = set()
        self._state = Journal(plan=plan, sidecar_bytes=(0,) * len(self._sidecar_paths))
        self._marked_bytes = 0
        self._syncer = ThreadPoolExecutor(1, thread_name_prefix="sync")
        self._syncing: Future[None] | None = None
        self._lock = os.open(work / f"{stem}.lock", os.O_RDWR | os.O_CREAT, 0o666)

    def __enter__(self) -> Self:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            os.close(self._lock)
            raise DataError(
                f"{self._target / self._shard.file} is being written by another process", hint="let it end"
            ) from err
        self._restore()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._syncer.shutdown(wait=True)
        for file in self._files():
            file.close()
        os.close(self._lock)

    def _files(self) -> list[IO[bytes]]:
        return [*([] if self._folder else [self._file]), *self._sidecars]

    def _restore(self) -> None:
        """Go back to the journal's mark, or begin."""
        try:
            found = parse_record(Journal, self._journal_path.read_bytes())
        except (FileNotFoundError, ValueError, RecursionError):
            found = None
        if found is not None and found.plan == self._state.plan and self._reaches(found):
            self._state = found
        if self._folder:
            self._folder.mkdir(exist_ok=True)
        else:
            self._file = open_at(self._path, self._state.bytes)
        self._sidecars = [
            open_at(path, size, LINES_BUFFER_BYTES)
            for path, size in zip(self._sidecar_paths, self._state.sidecar_bytes, strict=True)
        ]
        self._marked_bytes = self._state.bytes
        self._keys = set(self._sidecar_paths[-1].read_bytes().decode(*TEXT).splitlines())

    def _reaches(self, found: Journal) -> bool:
        """Say whether the journal can be true: no more places than there are, files as long as it knew them."""
        wanted = [*zip(self._sidecar_paths, found.sidecar_bytes, strict=False)]
        if not self._folder:
            wanted.append((self._path, found.bytes))
        elif not self._folder.is_dir():
            return False
        fits = len(found.sidecar_bytes) == len(self._sidecar_paths)
        fits &= found.places <= self._shard.end - self._shard.start
        return fits and all(path.is_file() and path.stat().st_size >= size for path, size in wanted)

    @property
    def places(self) -> int:
        """How many places of the order are done."""
        return self._state.places

    @property
    def bytes(self) -> int:
        """How many bytes are written."""
        return self._state.bytes

    def append(
        self, made: Sequence[Encoded], repaired: Sequence[tuple[str, str]], skipped: Sequence[tuple[str, str]]
    ) -> None:
        """Write samples, in order."""
        crc, offset = self._state.crc32c, self._state.bytes
        lines: list[list[str]] = [[] for _ in self._sidecar_paths]
        for sample in made:
            size = sum(len(buffer) for buffer in sample.buffers)
            crc = self._add_to_sum(crc, sample)
            told = (*self._encoder.lines(sample, Span(offset, size)), f"{sample.key}\n" if sample.key else "")
            for some, line in zip(lines, told, strict=True):
                some.append(line)
            offset += size
        self._write(made)
        texts = ["".join(some).encode(*TEXT) for some in lines]
        for file, text in zip(self._sidecars, texts, strict=True):
            file.write(text)
        state = self._state
        self._state = state.model_copy(
            update={
                "places": state.places + len(made) + len(skipped),
                "records": state.records + len(made),
                "bytes": offset,
                "crc32c": crc,
                "sidecar_bytes": tuple(a + len(b) for a, b in zip(state.sidecar_bytes, texts, strict=True)),
                "repaired": (*state.repaired, *repaired),
                "skipped": (*state.skipped, *skipped),
            }
        )
        if offset - self._marked_bytes >= JOURNAL_BYTES:
            self._mark()

    def is_taken(self, key: str) -> bool:
        """Say whether a sample of this shard has the key already; if not, it is taken now."""
        if not key or key not in self._keys:
            self._keys.add(key)
            return False
        return True

    def _add_to_sum(self, crc: int, sample: Encoded) -> int:
        if self._folder:
            return (crc + sum_file(sample.name, b"".join(sample.buffers))) % (1 << 32)
        for buffer in sample.buffers:
            crc = google_crc32c.extend(crc, buffer)
        return crc

    def _write(self, made: Sequence[Encoded]) -> None:
        if self._folder is None:
            write_all(self._file, [buffer for sample in made for buffer in sample.buffers])
            return
        for sample in made:
            path = self._folder / sample.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.writelines(sample.buffers)
            self._unsynced.append(path)

    def _mark(self) -> None:
        """Begin to bring all that is written to disk, and to say so in the journal; meanwhile more can be written."""
        self._await_mark()
        for file in self._files():
            file.flush()
        self._syncing = self._syncer.submit(self._sync, self._unsynced, self._state)
        self._unsynced = []
        self._marked_bytes = self._state.bytes

    def _await_mark(self) -> None:
        if self._syncing is not None:
            self._syncing.result()

    def _sync(self, pictures: Sequence[Path], state: Journal | None) -> None:
        for file in self._files():
            os.fsync(file.fileno())
        for path in (*pictures, *{path.parent for path in pictures}):
            sync_path(path)
        if state is not None:
            write_atomically(self._journal_path, dump_json(state.model_dump(mode="json")))

    def finish(self) -> ShardFacts:
        """End the shard: everything on disk, then its facts, then its name."""
        tail = self._encoder.tail
        crc, size = self._state.crc32c, self._state.bytes
        if tail and not self._folder:
            write_all(self._file, [tail])
            crc, size = google_crc32c.extend(crc, tail), size + len(tail)
        self._await_mark()
        for file in self._sidecars:
            file.flush()
        self._sync(self._unsynced, None)
        sidecars = tuple(
            facts for number in range(len(self._names)) if (facts := self._finish_sidecar(number)) is not None
        )
        facts = ShardFacts(
            file=self._shard.file,
            bytes=size,
            crc32c=f"{crc:08x}",
            records=self._state.records,
            sidecars=sidecars,
            repaired=self._state.repaired,
            skipped=self._state.skipped,
        )
        write_atomically(self._done_path, dump_json(facts.model_dump(mode="json")))
        put_in_place(self._path.parent, self._target, facts)
        self._journal_path.unlink(missing_ok=True)
        for path in self._sidecar_paths:
            path.unlink(missing_ok=True)
        return facts

    def _finish_sidecar(self, number: int) -> FileFacts | None:
        lines = self._sidecar_paths[number].read_bytes().decode(*TEXT)
        text = self._encoder.finish(lines, self._state.records).encode(*TEXT)
        name = self._names[number]
        if not text and name.endswith(SUFFIX):  # an index of no records is an empty file, as im2rec's
            return None
        path = self._path.parent / f"{name.replace('/', '%')}.partial"
        with path.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        return FileFacts(file=name, bytes=len(text), crc32c=f"{google_crc32c.value(text):08x}")


def sum_file(name: str, data: bytes) -> int:
    """Return a picture file's share of its folder's checksum: their sum does not depend on the order."""
    return int(google_crc32c.extend(google_crc32c.value(name.encode(*TEXT)), data))


def write_all(file: IO[bytes], buffers: Sequence[bytes | memoryview]) -> None:
    """Write buffers by one call to the system: a thread waits once. More calls if it takes only a part."""
    for start in range(0, len(buffers), MAX_BUFFERS):
        some = buffers[start : start + MAX_BUFFERS]
        written = os.writev(file.fileno(), some)
        if written < sum(len(buffer) for buffer in some):
            rest = memoryview(b"".join(some))[written:]
            while rest:
                rest = rest[os.write(file.fileno(), rest) :]


def open_at(path: Path, size: int, buffer_bytes: int = 0) -> IO[bytes]:
    """Open a file for writing at this length; what is behind it was never promised."""
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=buffer_bytes)
    file.truncate(size)
    file.seek(size)
    return file
