"""Fetches files from a mirror: resumable at any byte, checked against their sums, whole under their name or not at all.

What is not whole yet is NAME.partial, and beside it NAME.partial.json with what it is a part of.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

from trainstone.data.progress import Progress
from trainstone.data.raw.mirrors import (
    Answer,
    Mirror,
    Sum,
    Unreachable,
    Wanted,
    open_wanted,
    parse_mirror,
    read_sums,
    reading,
)
from trainstone.errors import DataError
from trainstone.files import write_atomically
from trainstone.units import format_bytes

CHUNK_BYTES = 1 << 18
TIMEOUT_SECONDS = 30.0
"""For a connection, and for each next byte."""
WAITS_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Between tries that bring nothing new; then it is given up."""
AGAIN = "run it again later: it goes on where it was"
AGAIN_OR_SUM = "run it again later, or give --sha256 DIGITS: else the mirror is asked first what the file must be"


class Insistence(NamedTuple):
    """How long to wait, and how."""

    timeout_seconds: float
    sleep: Callable[[float], None]


def fetch(
    mirror: str,
    files: Sequence[Wanted],
    target: Path,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Progress]:
    """Bring files from a mirror (http://, https://, file://, a folder) to a folder; those there are only checked."""
    source, insistence = parse_mirror(mirror), Insistence(timeout_seconds, sleep)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise DataError(f"cannot make the folder {target}: {err.strerror}") from err
    sums = _ask_sums(source, files, insistence) if any(wanted.believed is None for wanted in files) else {}
    for wanted in files:
        expected = _expect(wanted, sums)
        final = target / wanted.name
        if final.exists():
            yield from _check_present(final, expected)
            continue
        with Partial(final, expected, str(source.folder or source.address)) as partial:
            yield from partial.hash_present()
            yield from _bring(source, wanted, partial, insistence)
            partial.finish()


def _ask_sums(source: Mirror, files: Sequence[Wanted], insistence: Insistence) -> dict[str, Sum]:
    for wait in (*WAITS_SECONDS, None):
        try:
            return read_sums(source, insistence.timeout_seconds)
        except Unreachable as err:
            if wait is None:
                published = all(wanted.believed or wanted.md5 for wanted in files)
                raise _give_up(err, AGAIN if published else AGAIN_OR_SUM) from err
            insistence.sleep(wait)
    raise AssertionError("the last try returns or raises")


def _expect(wanted: Wanted, sums: dict[str, Sum]) -> Sum:
    """Return the sum that a file must have: the believed one, the mirror's, the published one."""
    expected = wanted.believed or sums.get(wanted.name)
    if expected is None and wanted.md5:
        expected = Sum("md5", wanted.md5, "published")
    if expected is None:
        raise DataError(
            f"nothing says what {wanted.name} must be",
            hint="give its --sha256 DIGITS, or put a SHA256SUMS file beside it on the mirror",
        )
    return expected


def _bring(source: Mirror, wanted: Wanted, partial: "Partial", insistence: Insistence) -> Iterator[Progress]:
    """Append what is missing, trying again as long as each try brings something new."""
    furthest, failures = partial.done, 0
    size = wanted.size_bytes if partial.expected.origin == "published" else None
    while not partial.is_whole:
        try:
            answer = open_wanted(source, wanted, partial.done, partial.validator, insistence.timeout_seconds)
            with reading(answer):
                partial.begin(answer, size)
                yield from _pour(answer, partial)
        except Unreachable as err:
            failures = 0 if partial.done > furthest else failures + 1
            furthest = max(furthest, partial.done)
            if failures >= len(WAITS_SECONDS):
                raise _give_up(err) from err
            insistence.sleep(WAITS_SECONDS[failures])


def _pour(answer: Answer, partial: "Partial") -> Iterator[Progress]:
    while chunk := answer.stream.read(CHUNK_BYTES):
        partial.append(chunk)
        yield Progress(f"download {partial.final.name}", partial.done, partial.total_bytes, "bytes")
    if not partial.is_whole:
        raise Unreachable(f"{answer.where} breaks off at byte {partial.done} of {partial.total_bytes}")


def _give_up(err: Unreachable, hint: str = AGAIN) -> DataError:
    return DataError(f"{err}; tried {len(WAITS_SECONDS) + 1} times", hint=hint)


def _check_present(final: Path, expected: Sum) -> Iterator[Progress]:
    digest = hashlib.new(expected.kind, usedforsecurity=False)
    try:
        with final.open("rb") as file:
            yield from _hash(file, digest, final)
    except OSError as err:
        raise DataError(f"cannot read {final}: {err.strerror}") from err
    if not digest.hexdigest().startswith(expected.digits):
        raise DataError(_tell_sums(str(final), digest.hexdigest(), expected), hint="remove it to fetch it anew")
    _note_of(final).unlink(missing_ok=True)


def _hash(file: IO[bytes], digest: "hashlib._Hash", final: Path) -> Iterator[Progress]:
    total, done = os.fstat(file.fileno()).st_size, 0
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
        done += len(chunk)
        yield Progress(f"check {final.name}", done, total, "bytes")


def _tell_sums(what: str, found: str, expected: Sum) -> str:
    return f"{what} has {expected.kind} {found}; {expected.digits} is right ({expected.origin})"


def _note_of(final: Path) -> Path:
    return final.with_name(f"{final.name}.partial.json")


class Partial:
    """A file that is not whole yet, held against a second writer, with the sum of what is there."""

    def __init__(self, final: Path, expected: Sum, origin: str) -> None:
        self.final = final
        self.expected = expected
        self._origin = origin
        self.done = 0
        self.total_bytes: int | None = None
        self.validator = ""
        self._path = final.with_name(f"{final.name}.partial")
        self._digest = hashlib.new(expected.kind, usedforsecurity=False)

    def __enter__(self) -> Self:
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            self._file = os.fdopen(os.open(self._path, flags, 0o666), "r+b")
        except OSError as err:
            raise DataError(f"cannot write {self._path}: {err.strerror}") from err
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The other process may have finished and renamed it between our opening and our locking.
            if not os.path.samestat(os.fstat(self._file.fileno()), self._path.stat()):
                raise BlockingIOError
        except (BlockingIOError, FileNotFoundError) as err:
            self._file.close()
            raise DataError(f"{self._path} is being fetched by another process", hint="let it end") from err
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # a full disk was told when it was met
            self._file.close()

    @property
    def is_whole(self) -> bool:
        """Say whether all bytes are there; their sum is another question."""
        return self.done == self.total_bytes

    def hash_present(self) -> Iterator[Progress]:
        """Take up what an earlier time left, if it is a part of the same file."""
        note = self._read_note()
        size = os.fstat(self._file.fileno()).st_size
        if note.get("sum") != self.expected.digits or not isinstance(note.get("total"), int) or size > note["total"]:
            self._file.truncate(0)
            return
        yield from _hash(self._file, self._digest, self.final)
        self.done = self._file.tell()
        self.total_bytes = note["total"]
        # Another mirror's tags and dates say nothing here; the sum alone will tell.
        self.validator = str(note.get("validator", "")) if note.get("origin") == self._origin else ""

    def begin(self, answer: Answer, size_bytes: int | None) -> None:
        """Make ready for an answer's bytes: from the start again where the mirror cannot go on or has another file."""
        total = answer.total_bytes if answer.total_bytes is not None else size_bytes
        if total is None:
            raise DataError(f"{answer.where}: the server does not say how long it is")
        if size_bytes not in (None, total):
            self.remove()
            raise DataError(
                f"{answer.where} has {total:,} bytes, the published file {size_bytes:,}",
                hint="a mirror of an own or partial set needs a SHA256SUMS file",
            )
        if answer.start != self.done or total != self.total_bytes:
            if answer.start:
                self._restart()
                raise Unreachable(f"{answer.where} has changed on the way")
            self._restart()
        self.total_bytes, self.validator = total, answer.validator
        note = {"sum": self.expected.digits, "total": total, "origin": self._origin, "validator": answer.validator}
        try:
            free = shutil.disk_usage(self._path.parent).free
            write_atomically(_note_of(self.final), json.dumps(note))
        except OSError as err:
            raise _tell_full(self._path, err) from err
        if free < total - self.done:
            raise DataError(
                f"{self.final.name} needs {format_bytes(total - self.done)} more, {self._path.parent} has "
                f"{format_bytes(free)} free",
                hint="make room, or choose a folder on another disk",
            )

    def append(self, chunk: bytes) -> None:
        """Add bytes; DataError where they are more than there should be, or the disk is full."""
        if self.total_bytes is not None and self.done + len(chunk) > self.total_bytes:
            self.remove()
            raise DataError(f"the mirror sends more than the {self.total_bytes:,} bytes of {self.final.name}")
        try:
            self._file.write(chunk)
        except OSError as err:
            raise _tell_full(self._path, err) from err
        self._digest.update(chunk)
        self.done += len(chunk)

    def finish(self) -> None:
        """Give the file its name, if its sum is right; it is removed otherwise."""
        found = self._digest.hexdigest()
        if not found.startswith(self.expected.digits):
            self.remove()
            raise DataError(
                _tell_sums(f"{self.final.name} as fetched", found, self.expected),
                hint="run it again; if it stays so, the mirror's file is damaged or another one",
            )
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._path.replace(self.final)
        except OSError as err:
            raise _tell_full(self._path, err) from err
        _note_of(self.final).unlink(missing_ok=True)

    def remove(self) -> None:
        """Drop what was fetched."""
        self._path.unlink(missing_ok=True)
        _note_of(self.final).unlink(missing_ok=True)

    def _restart(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self.done, self.total_bytes, self.validator = 0, None, ""
        self._digest = hashlib.new(self.expected.kind, usedforsecurity=False)

    def _read_note(self) -> dict[str, Any]:
        try:
            note = json.loads(_note_of(self.final).read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return note if isinstance(note, dict) else {}


def _tell_full(path: Path, err: OSError) -> DataError:
    if err.errno in (errno.ENOSPC, errno.EDQUOT):
        return DataError(f"the disk of {path} is full", hint="make room and run it again: it goes on where it was")
    return DataError(f"cannot write {path}: {err.strerror}")
