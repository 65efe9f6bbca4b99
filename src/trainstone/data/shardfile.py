"""A shard while it is written: under a temporary name, on disk and described by a file of facts before it gets its own.

Interrupted at any point, kill -9 included, a shard is either complete or written again from its first record.
"""

import contextlib
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, NamedTuple, Self

import google_crc32c

from trainstone.data.manifest import FileFacts, ShardFacts, parse_record
from trainstone.data.parallel import lock_file
from trainstone.data.storage.boxfile import SUFFIX
from trainstone.data.storage.records import Encoded, Encoder, Shard
from trainstone.files import dump_json, sync_path, write_atomically
from trainstone.formats.files import Span

SYNC_BYTES = 64 << 20
"""So much is written before it is brought to disk, while more is written."""
TEXT = ("utf-8", "surrogateescape")
MAX_BUFFERS = 1024
"""The system's limit of buffers a call."""


class Outcome(NamedTuple):
    """What became of a sample: encoded as it was or repaired, and why; or skipped, and why."""

    name: str
    made: Encoded | None
    why: str | None


class ShardWriter:
    """Appends samples to a new shard; `with` locks it against a second writer."""

    def __init__(self, work: Path, target: Path, shard: Shard, encoder: Encoder, *, folder: bool) -> None:
        self._work = work
        self._target = target
        self._shard = shard
        self._encoder = encoder
        self._path = _temporary(work, shard.file)
        self._folder = self._path if folder else None
        self._exits = contextlib.ExitStack()
        self._file: IO[bytes] | None = None
        self._lines: list[list[str]] = [[] for _ in encoder.sidecars(shard)]
        self._unsynced: list[Path] = []
        self._synced_bytes = 0
        self._syncer = ThreadPoolExecutor(1, thread_name_prefix="sync")
        self._syncing: Future[None] | None = None
        self._crc = 0
        self._records = 0
        self._repaired: list[tuple[str, str]] = []
        self._skipped: list[tuple[str, str]] = []
        self.bytes = 0
        """Written so far."""

    def __enter__(self) -> Self:
        self._exits.enter_context(lock_file(self._path.with_suffix(".lock"), self._target / self._shard.file))
        if self._folder is None:
            self._file = self._exits.enter_context(self._path.open("wb", buffering=0))
        else:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        self._syncer.shutdown(wait=True)
        self._exits.close()

    @property
    def places(self) -> int:
        """How many samples are done, skipped ones included."""
        return self._records + len(self._skipped)

    def append(self, outcomes: Sequence[Outcome]) -> None:
        made = [outcome.made for outcome in outcomes if outcome.made is not None]
        for sample in made:
            size = sum(len(buffer) for buffer in sample.buffers)
            for lines, line in zip(self._lines, self._encoder.lines(sample, Span(self.bytes, size)), strict=True):
                lines.append(line)
            self.bytes += size
        if self._folder is None:
            self._write([buffer for sample in made for buffer in sample.buffers])
        else:
            for sample in made:
                self._write_picture(self._folder / sample.name, sample)
        self._records += len(made)
        for outcome in outcomes:
            if outcome.why is not None:
                (self._skipped if outcome.made is None else self._repaired).append((outcome.name, outcome.why))
        if self.bytes - self._synced_bytes >= SYNC_BYTES:
            self._sync()

    def finish(self) -> ShardFacts:
        """End the shard: everything on disk, then its facts, then its name."""
        if self._encoder.tail and self._folder is None:
            self._write([self._encoder.tail])
            self.bytes += len(self._encoder.tail)
        self._sync()
        names = self._encoder.sidecars(self._shard)
        sidecars = [self._write_sidecar(*pair) for pair in zip(names, self._lines, strict=True)]
        self._await_sync()
        facts = ShardFacts(
            file=self._shard.file,
            bytes=self.bytes,
            crc32c=f"{self._crc:08x}",
            records=self._records,
            sidecars=tuple(sidecar for sidecar in sidecars if sidecar is not None),
            repaired=tuple(self._repaired),
            skipped=tuple(self._skipped),
        )
        write_atomically(_facts_file(self._work, self._shard), dump_json(facts.model_dump(mode="json")))
        put_in_place(self._work, self._target, facts)
        return facts

    def _write(self, buffers: Sequence[bytes | memoryview]) -> None:
        assert self._file is not None
        for buffer in buffers:
            self._crc = google_crc32c.extend(self._crc, buffer)
        write_all(self._file, buffers)

    def _write_picture(self, path: Path, sample: Encoded) -> None:
        self._crc = (self._crc + sum_file(sample.name, b"".join(sample.buffers))) % (1 << 32)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.writelines(sample.buffers)
        self._unsynced.append(path)

    def _sync(self) -> None:
        """Begin to bring all that is written to disk; meanwhile more can be written."""
        self._await_sync()
        paths = self._unsynced if self._folder else [self._path]
        self._syncing = self._syncer.submit(sync_all, [*paths, *{path.parent for path in self._unsynced}])
        self._unsynced = []
        self._synced_bytes = self.bytes

    def _await_sync(self) -> None:
        if self._syncing is not None:
            self._syncing.result()

    def _write_sidecar(self, name: str, lines: list[str]) -> FileFacts | None:
        text = self._encoder.finish("".join(lines), self._records).encode(*TEXT)
        if not text and name.endswith(SUFFIX):  # an index of no records is an empty file, as im2rec's
            return None
        path = _temporary(self._work, name)
        path.write_bytes(text)
        sync_path(path)
        return FileFacts(file=name, bytes=len(text), crc32c=f"{google_crc32c.value(text):08x}")


def find_done(work: Path, target: Path, shard: Shard) -> ShardFacts | None:
    """Return the facts of a complete shard; one that was killed just before it got its name gets it now."""
    done = _facts_file(work, shard)
    try:
        facts = parse_record(ShardFacts, done.read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    if put_in_place(work, target, facts):
        return facts
    done.unlink()  # the shard was removed: it is made again
    return None


def put_in_place(work: Path, target: Path, facts: ShardFacts) -> bool:
    """Give a complete shard and its sidecars their names; say whether all are there."""
    for file in (*facts.sidecars, facts):
        final = target / file.file
        with contextlib.suppress(FileNotFoundError):  # another rank may look at the same moment, and do it
            final.parent.mkdir(parents=True, exist_ok=True)
            _temporary(work, file.file).replace(final)
            sync_path(final.parent)
        if not final.exists():
            return False
    return True


def sum_file(name: str, data: bytes) -> int:
    """Return a picture file's share of its folder's checksum: their sum does not depend on the order."""
    return int(google_crc32c.extend(google_crc32c.value(name.encode(*TEXT)), data))


def sync_all(paths: Sequence[Path]) -> None:
    for path in paths:
        sync_path(path)


def write_all(file: IO[bytes], buffers: Sequence[bytes | memoryview]) -> None:
    """Write buffers by one call to the system: a thread waits once. More calls if it takes only a part."""
    for start in range(0, len(buffers), MAX_BUFFERS):
        some = buffers[start : start + MAX_BUFFERS]
        written = os.writev(file.fileno(), some)
        rest = memoryview(b"".join(some))[written:] if written < sum(map(len, some)) else memoryview(b"")
        while rest:
            rest = rest[os.write(file.fileno(), rest) :]


def _temporary(work: Path, name: str) -> Path:
    return work / f"{name.replace('/', '%')}.partial"


def _facts_file(work: Path, shard: Shard) -> Path:
    return work / f"{shard.file.replace('/', '%')}.done"
