"""Download files over HTTP: resumed at any byte, checked against a checksum, named only when complete.

An incomplete file is NAME.DIGITS.partial, where DIGITS begin the checksum that it must have. A name such as
resnet34-333f7ec4.pth states how the file's SHA-256 begins, as torchvision's do.
"""

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
from typing import IO, Any, NamedTuple
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

from trainstone.data.parallel import WorkProgress
from trainstone.errors import ConfigError, DataError
from trainstone.units import format_bytes

CHUNK_BYTES = 1 << 18
TIMEOUT_SECONDS = 30.0
"""For a connection, and for each next byte."""
WAITS_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Between tries that bring nothing new; after the last one the download fails."""
IN_NAME = re.compile(r"-([0-9a-f]{8}|[0-9a-f]{64})\.[A-Za-z]+")
_ABSENT = (403, 404, 410)  # object stores answer 403 for a missing file
_TEMPORARY = (408, 425, 429)  # and all from 500
_BROKEN = (urllib.error.URLError, ConnectionError, TimeoutError, http.client.HTTPException, ssl.SSLError)


class DownloadSpec(NamedTuple):
    name: str
    addresses: tuple[str, ...]
    """Tried in order until one exists."""
    kind: str
    """Of the checksum: md5 or sha256."""
    digits: str
    """The checksum, or how it begins."""
    size_bytes: int | None = None
    """As published."""


class WrongFileError(DataError):
    """The server has another file; what was downloaded of it is removed."""


# As images.cocodataset.org serves them. COCO publishes no checksums itself; many projects' scripts have these.
_COCO_FILES = (
    ("annotations/annotations_trainval2017.zip", "f4bbac642086de4f52a3fdda2de5fa2c", 252_907_541),
    ("zips/val2017.zip", "442b8da7639aecaf257c1dceb8ba8c80", 815_585_330),
    ("zips/train2017.zip", "cced6f7f71b7629ddf16f17bbcfab6b2", 19_336_861_798),
)


def is_address(text: str) -> bool:
    return re.match("[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


def list_coco_files(mirror: str) -> list[DownloadSpec]:
    """Return COCO's zip files on a mirror, which has COCO's folders or none; its query (a token) goes to each."""
    parts = _parse_address(mirror)
    files = []
    for path, md5, size in _COCO_FILES:
        name = path.rpartition("/")[2]
        below = [f"{parts.path.rstrip('/')}/{quote(place)}" for place in (path, name)]
        addresses = tuple(urlunsplit(parts._replace(path=place)) for place in below)
        files.append(DownloadSpec(name, addresses, "md5", md5, size))
    return files


def find_file(address: str, sha256: str | None) -> DownloadSpec:
    """Return the file at an address; its checksum is given or stated by its name."""
    parts = _parse_address(address)
    name = unquote(parts.path.rpartition("/")[2])
    if name.strip(". ") == "" or "/" in name or "\\" in name or not name.isprintable() or len(name.encode()) > 200:
        raise ConfigError(f"{address!r} does not end in the name of a file")
    if sha256 is not None and not re.fullmatch("[0-9a-fA-F]{64}", sha256):
        raise ConfigError(f"--sha256 {sha256}: expected 64 digits from 0 to f", hint="sha256sum FILE prints them")
    stated = IN_NAME.search(name)
    if sha256 is None and stated is None:
        raise DataError(f"the checksum of {name} is not known", hint="give its --sha256 DIGITS")
    digits = sha256.lower() if sha256 is not None else stated[1] if stated else ""
    return DownloadSpec(name, (urlunsplit(parts),), "sha256", digits)


def _parse_address(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and parts.username is None
    except ValueError:
        usable = False
    if not usable or not text.isascii() or not text.isprintable() or " " in text:
        allowed = "http:// and https:// addresses are allowed, without a user name; files on this machine are paths"
        raise ConfigError(f"{text!r} is not a valid address", hint=allowed)
    return parts._replace(fragment="")


def fetch(
    files: Sequence[DownloadSpec],
    target: Path,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[WorkProgress]:
    """Download files to a folder; those that are there are only checked."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        for wanted in files:
            final = target / wanted.name
            if final.exists():
                digest = hashlib.new(wanted.kind, usedforsecurity=False)
                with final.open("rb") as present:
                    yield from _hash(present, digest, wanted.name)
                other = DataError(f"{final} is another file", hint="remove it to download it again")
                _check_digest(digest, wanted, other)
                continue
            part = final.with_name(f"{wanted.name}.{wanted.digits[:8]}.partial")
            with _open_part(part, final) as file:
                try:
                    yield from _Download(wanted, file, timeout_seconds, sleep).run()
                except WrongFileError:
                    part.unlink()
                    raise
                file.flush()
                os.fsync(file.fileno())
                part.replace(final)
    except OSError as err:
        hint = "make room if the disk is full, and run it again: it resumes"
        raise DataError(f"cannot download to {err.filename or target}: {err.strerror or err}", hint=hint) from err


def _check_digest(digest: "hashlib._Hash", wanted: DownloadSpec, error: DataError) -> None:
    found = digest.hexdigest()
    if not found.startswith(wanted.digits):
        message = f"{error.message}: its {wanted.kind} is {found}, expected {wanted.digits}"
        raise type(error)(message, hint=error.hint)


def _hash(file: IO[bytes], digest: "hashlib._Hash", name: str) -> Iterator[WorkProgress]:
    total = os.fstat(file.fileno()).st_size
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
        yield WorkProgress(f"check {name}", file.tell(), total, "bytes")


def _open_part(part: Path, final: Path) -> IO[bytes]:
    """Open what an earlier run left, or a new file, locked against a second process."""
    file = os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if final.exists():  # the other process ended between our opening and our locking
            raise BlockingIOError
    except BlockingIOError as err:
        file.close()
        raise DataError(f"{part} is being downloaded by another process", hint="let it end") from err
    return file


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to HTTP addresses only: urllib also follows those to FTP."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(newurl).scheme not in ("http", "https"):
            raise urllib.error.HTTPError(req.full_url, code, msg, headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


OPENER = urllib.request.build_opener(_Redirects)


class _Download:
    """Completes one partial file and checks it."""

    def __init__(self, wanted: DownloadSpec, file: IO[bytes], timeout: float, sleep: Callable[[float], None]) -> None:
        self._wanted = wanted
        self._file = file
        self._timeout_seconds = timeout
        self._sleep = sleep
        self._total = wanted.size_bytes
        self._digest = hashlib.new(wanted.kind, usedforsecurity=False)

    def run(self) -> Iterator[WorkProgress]:
        """Download what is missing, again and again as long as it brings something new, and check the whole."""
        wanted = self._wanted
        yield from _hash(self._file, self._digest, wanted.name)
        furthest, failures = self._file.tell(), 0
        while self._file.tell() != self._total:
            try:
                with self._request(self._file.tell()) as response:
                    yield from self._receive(response)
            except _BROKEN as err:
                failures = 0 if self._file.tell() > furthest else failures + 1
                furthest = max(furthest, self._file.tell())
                if failures >= len(WAITS_SECONDS):
                    reason = err.reason if isinstance(err, urllib.error.URLError) else err
                    cause = reason if isinstance(reason, Exception) else err
                    text = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
                    message = f"cannot download {_hide_query(wanted.addresses[0])}: {text}"
                    raise DataError(message, hint="run it again later: it resumes") from err
                self._sleep(WAITS_SECONDS[failures])
        hint = "run it again; if that does not help, the file on the server is damaged or another one"
        _check_digest(self._digest, wanted, WrongFileError(f"{wanted.name} as downloaded is another file", hint=hint))

    def _request(self, start: int) -> http.client.HTTPResponse:
        """Open the first address that exists, at a byte; DataError where trying again does not help."""
        # identity: compressed on the way, the bytes could not be counted or resumed
        headers = {"User-Agent": "trainstone", "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        answers = []
        for address in self._wanted.addresses:
            request, shown = urllib.request.Request(address, headers=headers), _hide_query(address)
            try:
                response: http.client.HTTPResponse = OPENER.open(request, timeout=self._timeout_seconds)
                return response
            except ValueError as err:
                raise DataError(f"{shown} redirects to an invalid address: {err}") from err
            except urllib.error.HTTPError as err:
                err.close()
                if err.code == 416 and start:  # the file has become shorter
                    return self._request(0)
                if err.code in _TEMPORARY or err.code >= 500:
                    raise
                answers.append(f"{shown} answers {err.code}")
                if err.code not in _ABSENT:
                    break
            except urllib.error.URLError as err:
                if isinstance(err.reason, ssl.SSLCertVerificationError):
                    raise DataError(f"{shown}: invalid certificate: {err.reason.verify_message}") from err
                raise
        raise DataError(f"cannot download {self._wanted.name}: {'; '.join(answers)}")

    def _receive(self, response: http.client.HTTPResponse) -> Iterator[WorkProgress]:
        """Append the bytes of an answer; it may begin at another byte than requested."""
        wanted, file = self._wanted, self._file
        start, total = 0, response.length
        if response.status == 206:
            span = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})", response.headers.get("Content-Range", ""))
            start, total = (int(span[1]), int(span[2])) if span else (-1, None)
        if start != file.tell():
            file.seek(0)
            file.truncate()
            self._digest = hashlib.new(wanted.kind, usedforsecurity=False)
            if start:
                raise ConnectionError("the server sends another part of the file than requested")
        total = self._total if total is None else total
        if total is None:
            raise WrongFileError(f"the server does not state the length of {wanted.name}")
        if self._total not in (None, total):
            raise WrongFileError(f"the server's {wanted.name} has length {total}, expected {self._total}")
        self._total = total
        free = shutil.disk_usage(file.fileno()).free
        if free < total - file.tell():
            missing = format_bytes(total - file.tell())
            raise DataError(f"{wanted.name} needs {missing} more, the disk has {format_bytes(free)} free")
        while chunk := response.read(CHUNK_BYTES):
            if file.tell() + len(chunk) > total:
                raise WrongFileError(f"the server sends more than the {total:,} bytes of {wanted.name}")
            file.write(chunk)
            self._digest.update(chunk)
            yield WorkProgress(f"download {wanted.name}", file.tell(), total, "bytes")
        if file.tell() < total:
            raise ConnectionError(f"the connection ends at byte {file.tell()} of {total}")


def _hide_query(address: str) -> str:
    """Return an address without its query, which may be a token."""
    return address.partition("?")[0]
