"""Fetches files from the web: resumable at any byte, checked against their sums, whole under their name or not at all.

What is not whole yet is NAME.DIGITS.partial, with the first digits of the sum it must have at its end. A name such as
resnet34-333f7ec4.pth says how the file's SHA-256 begins, as torchvision's do.
"""

import contextlib
import errno
import fcntl
import hashlib
import http.client
import os
import re
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple, NoReturn, Self
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from trainstone.data.parallel import Progress
from trainstone.errors import ConfigError, DataError
from trainstone.units import format_bytes

CHUNK_BYTES = 1 << 18
TIMEOUT_SECONDS = 30.0
"""For a connection, and for each next byte."""
WAITS_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Between tries that bring nothing new; then it is given up."""
AGAIN = "run it again later: it resumes"
IN_NAME = re.compile(r"-([0-9a-f]{8}|[0-9a-f]{64})\.[A-Za-z]+")
_ABSENT = (403, 404, 410)  # object stores say 403 for what is not there
_PASSING = (408, 425, 429)  # and all from 500


class Sum(NamedTuple):
    """What a file's bytes must add up to."""

    kind: str
    """md5 or sha256."""
    digits: str
    """All of them, or the first ones."""
    origin: str
    """Where it comes from, for messages."""


class Wanted(NamedTuple):
    """A file to fetch and what it must be."""

    path: str
    """Below the mirror; the name alone will do there, too."""
    sum: Sum | None
    size_bytes: int | None = None
    """As published, if it is."""

    @property
    def name(self) -> str:
        """The file's name without folders."""
        return self.path.rpartition("/")[2]


# As images.cocodataset.org serves them. COCO publishes no sums itself; these stand in many projects' scripts.
COCO_FILES = (
    Wanted(
        "annotations/annotations_trainval2017.zip",
        Sum("md5", "f4bbac642086de4f52a3fdda2de5fa2c", "published"),
        252_907_541,
    ),
    Wanted("zips/val2017.zip", Sum("md5", "442b8da7639aecaf257c1dceb8ba8c80", "published"), 815_585_330),
    Wanted("zips/train2017.zip", Sum("md5", "cced6f7f71b7629ddf16f17bbcfab6b2", "published"), 19_336_861_798),
)


class Mirror(NamedTuple):
    """A web address without its query (a token, say), which is added to each file's address."""

    address: str
    query: str


class NotThere(Exception):
    """The mirror has no such file; the message says where it was looked for."""


class Unreachable(Exception):
    """It did not work this time and may work the next."""


class Answer(NamedTuple):
    """An open file of a mirror."""

    stream: http.client.HTTPResponse
    start: int
    """The byte it begins with: the one asked for, or 0 where the mirror cannot."""
    total_bytes: int | None
    """Length of the whole file, if the server says."""
    where: str


def is_address(text: str) -> bool:
    """Say whether a text is an address and no path."""
    return re.match("[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


def find_file(address: str, sha256: str | None) -> tuple[str, Wanted]:
    """Return the mirror of a file and what it must be; ConfigError for an address without a file's name, odd digits."""
    try:
        parts = urlsplit(address)
    except ValueError as err:
        raise ConfigError(f"{address!r} is no address of a file: {err}") from err
    folder, _, last = parts.path.rpartition("/")
    name = unquote(last)
    if name.strip(". ") == "" or "/" in name or "\\" in name or not name.isprintable() or len(name.encode()) > 200:
        raise ConfigError(f"{address!r} does not end in the name of a file")
    mirror = urlunsplit((parts.scheme, parts.netloc, folder or "/", parts.query, ""))
    if sha256 is not None:
        if not re.fullmatch("[0-9a-fA-F]{64}", sha256):
            raise ConfigError(f"--sha256 {sha256}: 64 digits from 0 to f", hint="sha256sum FILE prints them")
        return mirror, Wanted(name, Sum("sha256", sha256.lower(), "--sha256"))
    found = IN_NAME.search(name)
    return mirror, Wanted(name, Sum("sha256", found[1], "the first digits, by its name") if found else None)


def fetch(
    mirror: str,
    files: Sequence[Wanted],
    target: Path,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Progress]:
    """Bring files from a mirror (http:// or https://) to a folder; those there are only checked."""
    source = parse_mirror(mirror)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise DataError(f"cannot make the folder {target}: {err.strerror}") from err
    for wanted in files:
        if wanted.sum is None:
            raise DataError(f"nothing says what {wanted.name} must be", hint="give its --sha256 DIGITS")
        final = target / wanted.name
        if final.exists():
            yield from _check_present(final, wanted.sum)
            continue
        with Partial(final, wanted.sum, wanted.size_bytes) as partial:
            yield from partial.hash_present()
            yield from _bring(source, wanted, partial, timeout_seconds, sleep)
            partial.finish()


def parse_mirror(text: str) -> Mirror:
    """Understand http:// and https:// addresses."""
    problem = ""
    try:
        parts = urlsplit(text)
        if not text.isascii() or not text.isprintable() or " " in text or parts.username is not None:
            problem = ": spaces, special characters or a user name in it"
        elif parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            address = urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
            return Mirror(address, parts.query)
    except ValueError as err:
        problem = f": {err}"
    allowed = "http:// and https:// addresses are allowed; files on this machine are given with --from"
    raise ConfigError(f"{text!r} is no address of a mirror{problem}", hint=allowed)


def _bring(
    source: Mirror, wanted: Wanted, partial: "Partial", timeout_seconds: float, sleep: Callable[[float], None]
) -> Iterator[Progress]:
    """Append what is missing, trying again as long as each try brings something new."""
    furthest, failures, tries = partial.done, 0, 0
    while not partial.is_whole:
        tries += 1
        try:
            answer = _open_wanted(source, wanted, partial.done, timeout_seconds)
            with _reading(answer):
                partial.begin(answer)
                yield from _pour(answer, partial)
        except Unreachable as err:
            failures = 0 if partial.done > furthest else failures + 1
            furthest = max(furthest, partial.done)
            if failures >= len(WAITS_SECONDS):
                raise DataError(f"{err}; tried {tries} times", hint=AGAIN) from err
            sleep(WAITS_SECONDS[failures])


def _pour(answer: Answer, partial: "Partial") -> Iterator[Progress]:
    while chunk := answer.stream.read(CHUNK_BYTES):
        partial.append(chunk)
        yield Progress(f"download {partial.final.name}", partial.done, partial.total_bytes, "bytes")
    if not partial.is_whole:
        raise Unreachable(f"{answer.where} breaks off at byte {partial.done} of {partial.total_bytes}")


@contextlib.contextmanager
def _reading(answer: Answer) -> Iterator[None]:
    """Turn what goes wrong while reading into Unreachable, and close the connection at the end."""
    try:
        yield
    except (OSError, http.client.HTTPException) as err:
        raise Unreachable(f"{answer.where}: {_reason(err)}") from err
    finally:
        answer.stream.close()


def _check_present(final: Path, expected: Sum) -> Iterator[Progress]:
    digest = hashlib.new(expected.kind, usedforsecurity=False)
    try:
        with final.open("rb") as file:
            yield from _hash(file, digest, final)
    except OSError as err:
        raise DataError(f"cannot read {final}: {err.strerror}") from err
    if not digest.hexdigest().startswith(expected.digits):
        raise DataError(_describe_sums(str(final), digest.hexdigest(), expected), hint="remove it to fetch it again")


def _hash(file: IO[bytes], digest: "hashlib._Hash", final: Path) -> Iterator[Progress]:
    total, done = os.fstat(file.fileno()).st_size, 0
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
        done += len(chunk)
        yield Progress(f"check {final.name}", done, total, "bytes")


def _describe_sums(what: str, found: str, expected: Sum) -> str:
    return f"{what} has {expected.kind} {found}; {expected.digits} is right ({expected.origin})"


class Partial:
    """A file that is not whole yet, locked against a second writer, with the sum of what is there."""

    def __init__(self, final: Path, expected: Sum, total_bytes: int | None) -> None:
        self.final = final
        self.total_bytes = total_bytes
        self.done = 0
        self._expected = expected
        self._path = final.with_name(f"{final.name}.{expected.digits[:8]}.partial")
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

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # a full disk was reported when it was met
            self._file.close()

    @property
    def is_whole(self) -> bool:
        """Say whether all bytes are there; their sum is another question."""
        return self.done == self.total_bytes

    def hash_present(self) -> Iterator[Progress]:
        """Sum up what an earlier time left."""
        yield from _hash(self._file, self._digest, self.final)
        self.done = self._file.tell()

    def begin(self, answer: Answer) -> None:
        """Make ready for an answer's bytes: from the start again where the mirror cannot resume."""
        total = answer.total_bytes if answer.total_bytes is not None else self.total_bytes
        if total is None:
            raise DataError(f"{answer.where}: the server does not say how long it is")
        if self.total_bytes not in (None, total):
            self.remove()
            raise DataError(
                f"{answer.where} has {total:,} bytes, the right file {self.total_bytes:,}",
                hint="this mirror has another file, or it changed on the way: run it again, or take another mirror",
            )
        if answer.start != self.done:
            self._file.seek(0)
            self._file.truncate()
            self.done = 0
            self._digest = hashlib.new(self._expected.kind, usedforsecurity=False)
        self.total_bytes = total
        free = shutil.disk_usage(self._path.parent).free
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
            raise _disk_error(self._path, err) from err
        self._digest.update(chunk)
        self.done += len(chunk)

    def finish(self) -> None:
        """Give the file its name, if its sum is right; it is removed otherwise."""
        found = self._digest.hexdigest()
        if not found.startswith(self._expected.digits):
            self.remove()
            raise DataError(
                _describe_sums(f"{self.final.name} as fetched", found, self._expected),
                hint="run it again; if it stays so, the mirror's file is damaged or another one",
            )
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._path.replace(self.final)
        except OSError as err:
            raise _disk_error(self._path, err) from err

    def remove(self) -> None:
        """Drop what was fetched."""
        self._path.unlink(missing_ok=True)


def _disk_error(path: Path, err: OSError) -> DataError:
    if err.errno in (errno.ENOSPC, errno.EDQUOT):
        return DataError(f"the disk of {path} is full", hint="make room and run it again: it resumes")
    return DataError(f"cannot write {path}: {err.strerror}")


def _open_wanted(mirror: Mirror, wanted: Wanted, start: int, timeout_seconds: float) -> Answer:
    """Open a file at a byte, by its path or else by its name alone; DataError if neither is there."""
    missed = []
    for path in dict.fromkeys((wanted.path, wanted.name)):
        shown = f"{mirror.address}/{quote(path)}"
        address = f"{shown}?{mirror.query}" if mirror.query else shown
        try:
            return _open_address(address, shown, start, timeout_seconds)
        except NotThere as err:
            missed.append(str(err))
    raise DataError(
        f"the mirror has no {wanted.name}: {'; '.join(missed)}",
        hint=f"a mirror holds {wanted.path}, or {wanted.name} without the folder" if "/" in wanted.path else None,
    )


def _open_address(address: str, shown: str, start: int, timeout_seconds: float) -> Answer:
    """Open a file at a byte, or at byte 0 where the server knows no ranges."""
    # identity: packed on the way, the bytes could not be counted or resumed
    headers = {"User-Agent": "trainstone", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        response = _opener().open(urllib.request.Request(address, headers=headers), timeout=timeout_seconds)
    except urllib.error.HTTPError as err:
        err.close()
        if err.code == 416 and start:  # the file has become shorter
            return _open_address(address, shown, 0, timeout_seconds)
        _refuse(shown, err.code)
    except (OSError, http.client.HTTPException) as err:
        cause = err.reason if isinstance(err, urllib.error.URLError) and isinstance(err.reason, Exception) else err
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise DataError(f"{shown}: the server's certificate is not valid: {cause.verify_message}") from err
        raise Unreachable(f"{shown}: {_reason(cause)}") from err
    return _take(response, address, shown, start, timeout_seconds)


def _take(response: http.client.HTTPResponse, address: str, shown: str, start: int, timeout_seconds: float) -> Answer:
    """Return the answer after a look at its headers; what cannot be trusted is asked for again, from byte 0."""
    told = response.headers
    if told.get("Content-Encoding", "identity") != "identity" or response.status not in (200, 206):
        response.close()
        raise DataError(f"{shown}: the server sends the file packed or in a way not asked for ({response.status})")
    if response.status == 200:
        return Answer(response, 0, response.length, shown)
    found = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})", told.get("Content-Range", ""))
    if found is not None and int(found[1]) == start:
        return Answer(response, start, int(found[2]), shown)
    response.close()
    if not start:
        raise DataError(f"{shown}: the server sends a part of the file that was not asked for")
    return _open_address(address, shown, 0, timeout_seconds)


def _refuse(shown: str, status: int) -> NoReturn:
    if status in _ABSENT:
        raise NotThere(f"{shown} answers {status}")
    if status in _PASSING or status >= 500:
        raise Unreachable(f"{shown} answers {status}")
    if 300 <= status < 400:
        raise DataError(f"{shown} redirects too often, or to what is not http:// or https://")
    raise DataError(f"{shown} answers {status}")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a few redirects, and only to web addresses: never to a file of this machine."""

    max_redirections = 5

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if urlsplit(newurl).scheme not in ("http", "https"):
            raise urllib.error.HTTPError(req.full_url, code, msg, headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener for web addresses alone (urllib's own knows file, data and ftp); proxies are honoured."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        _Redirects(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _reason(err: Exception) -> str:
    if isinstance(err, TimeoutError):
        return "no answer in time"
    if isinstance(err, OSError) and err.strerror:
        return err.strerror
    return str(err) or type(err).__name__
