"""Download files over HTTP with resume and checksum; a file gets its final name only when it is complete.

An incomplete file is NAME.DIGITS.partial, where DIGITS are the first digits of the expected checksum. A name such as
resnet34-333f7ec4.pth contains the first digits of the file's SHA-256, as in torchvision.
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
"""Timeout of a connection, and of each read."""
WAITS_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Pauses between attempts that download nothing; after the last one the download fails."""
CHECKSUM_IN_NAME = re.compile(r"-([0-9a-f]{8}|[0-9a-f]{64})\.[A-Za-z]+")
_ABSENT = (403, 404, 410)  # object stores return 403 for a missing file
_TEMPORARY = (408, 425, 429)  # and all status codes from 500
_BROKEN = (urllib.error.URLError, ConnectionError, TimeoutError, http.client.HTTPException, ssl.SSLError)


class DownloadSpec(NamedTuple):
    """A file to download, with its checksum."""

    name: str
    urls: tuple[str, ...]
    """Tried in order until one exists."""
    kind: str
    """Kind of checksum: md5 or sha256."""
    digits: str
    """The checksum, or its first digits."""
    size_bytes: int | None = None
    """The published size."""


class WrongFileError(DataError):
    """The server has a different file; the partial download is removed."""


# Files of images.cocodataset.org. COCO does not publish checksums; these are in the scripts of many projects.
_COCO_FILES = (
    ("annotations/annotations_trainval2017.zip", "f4bbac642086de4f52a3fdda2de5fa2c", 252_907_541),
    ("zips/val2017.zip", "442b8da7639aecaf257c1dceb8ba8c80", 815_585_330),
    ("zips/train2017.zip", "cced6f7f71b7629ddf16f17bbcfab6b2", 19_336_861_798),
)


def is_url(text: str) -> bool:
    return re.match("[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


def list_coco_files(mirror: str) -> list[DownloadSpec]:
    """Return COCO's zip files on a mirror, with or without COCO's folders; the URL's query is used for each file."""
    parts = _parse_url(mirror)
    files = []
    for path, md5, size in _COCO_FILES:
        name = path.rpartition("/")[2]
        below = [f"{parts.path.rstrip('/')}/{quote(place)}" for place in (path, name)]
        urls = tuple(urlunsplit(parts._replace(path=place)) for place in below)
        files.append(DownloadSpec(name, urls, "md5", md5, size))
    return files


def build_download_spec(url: str, sha256: str | None) -> DownloadSpec:
    """Return the file at a URL; its checksum is given or part of its name."""
    parts = _parse_url(url)
    name = unquote(parts.path.rpartition("/")[2])
    if name.strip(". ") == "" or "/" in name or "\\" in name or not name.isprintable() or len(name.encode()) > 200:
        raise ConfigError(f"invalid URL {url!r}: it must end with a file name")
    if sha256 is not None and not re.fullmatch("[0-9a-fA-F]{64}", sha256):
        raise ConfigError(f"invalid --sha256 {sha256}: 64 hexadecimal digits are required", hint="sha256sum FILE")
    stated = CHECKSUM_IN_NAME.search(name)
    if sha256 is None and stated is None:
        raise DataError(f"unknown checksum of {name}", hint="give it with --sha256 DIGITS")
    digits = sha256.lower() if sha256 is not None else stated[1] if stated else ""
    return DownloadSpec(name, (urlunsplit(parts),), "sha256", digits)


def _parse_url(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and parts.username is None
    except ValueError:
        usable = False
    if not usable or not text.isascii() or not text.isprintable() or " " in text:
        allowed = "http:// and https:// without a user name are allowed"
        raise ConfigError(f"invalid URL {text!r}; {allowed}", hint="give a local file as a path")
    return parts._replace(fragment="")


def download_files(
    files: Sequence[DownloadSpec],
    target: Path,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[WorkProgress]:
    """Download files to a folder; existing files are only checked."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        for spec in files:
            final = target / spec.name
            if final.exists():
                digest = hashlib.new(spec.kind, usedforsecurity=False)
                with final.open("rb") as present:
                    yield from _hash(present, digest, spec.name)
                other = DataError(f"{final} is a different file", hint="remove it to download it again")
                _check_digest(digest, spec, other)
                continue
            part = final.with_name(f"{spec.name}.{spec.digits[:8]}.partial")
            with _open_part(part, final) as file:
                try:
                    yield from _Download(spec, file, timeout_seconds, sleep).run()
                except WrongFileError:
                    part.unlink()
                    raise
                file.flush()
                os.fsync(file.fileno())
                part.replace(final)
    except OSError as err:
        hint = "free some space if the disk is full, then run the command again: it resumes"
        raise DataError(f"cannot download to {err.filename or target}: {err.strerror or err}", hint=hint) from err


def _check_digest(digest: "hashlib._Hash", spec: DownloadSpec, error: DataError) -> None:
    found = digest.hexdigest()
    if not found.startswith(spec.digits):
        message = f"{error.message}: {spec.kind} {found}; expected {spec.digits}"
        raise type(error)(message, hint=error.hint)


def _hash(file: IO[bytes], digest: "hashlib._Hash", name: str) -> Iterator[WorkProgress]:
    total = os.fstat(file.fileno()).st_size
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
        yield WorkProgress(f"check {name}", file.tell(), total, "bytes")


def _open_part(part: Path, final: Path) -> IO[bytes]:
    """Open a new or an earlier partial file, locked against a second process."""
    file = os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if final.exists():  # the other process finished between our open and our lock
            raise BlockingIOError
    except BlockingIOError as err:
        file.close()
        raise DataError(f"{part} is being downloaded by another process", hint="wait until it has finished") from err
    return file


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects only to http and https: urllib would also follow FTP."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(newurl).scheme not in ("http", "https"):
            raise urllib.error.HTTPError(req.full_url, code, msg, headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


OPENER = urllib.request.build_opener(_Redirects)


class _Download:
    """Completes one partial file and checks it."""

    def __init__(self, spec: DownloadSpec, file: IO[bytes], timeout: float, sleep: Callable[[float], None]) -> None:
        self._spec = spec
        self._file = file
        self._timeout_seconds = timeout
        self._sleep = sleep
        self._total = spec.size_bytes
        self._digest = hashlib.new(spec.kind, usedforsecurity=False)

    def run(self) -> Iterator[WorkProgress]:
        """Download the missing bytes, retrying while there is progress, then check the checksum."""
        spec = self._spec
        yield from _hash(self._file, self._digest, spec.name)
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
                    message = f"cannot download {_hide_query(spec.urls[0])}: {text}"
                    raise DataError(message, hint="run the command again later: it resumes") from err
                self._sleep(WAITS_SECONDS[failures])
        hint = "run the command again; if it fails again, the server's file is damaged or a different one"
        _check_digest(self._digest, spec, WrongFileError(f"the downloaded {spec.name} is a different file", hint=hint))

    def _request(self, start: int) -> http.client.HTTPResponse:
        """Open the first URL that exists, at a byte offset; raise DataError if a retry would not help."""
        # identity: byte offsets of a compressed transfer could not be resumed
        headers = {"User-Agent": "trainstone", "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        responses = []
        for url in self._spec.urls:
            request, shown = urllib.request.Request(url, headers=headers), _hide_query(url)
            try:
                response: http.client.HTTPResponse = OPENER.open(request, timeout=self._timeout_seconds)
                return response
            except ValueError as err:
                raise DataError(f"{shown} redirects to an invalid URL: {err}") from err
            except urllib.error.HTTPError as err:
                err.close()
                if err.code == 416 and start:  # the file has become shorter
                    return self._request(0)
                if err.code in _TEMPORARY or err.code >= 500:
                    raise
                responses.append(f"{shown} returned {err.code}")
                if err.code not in _ABSENT:
                    break
            except urllib.error.URLError as err:
                if isinstance(err.reason, ssl.SSLCertVerificationError):
                    raise DataError(f"{shown}: invalid certificate: {err.reason.verify_message}") from err
                raise
        raise DataError(f"cannot download {self._spec.name}: {'; '.join(responses)}")

    def _receive(self, response: http.client.HTTPResponse) -> Iterator[WorkProgress]:
        """Append the bytes of a response, which may start at another byte than requested."""
        spec, file = self._spec, self._file
        start, total = 0, response.length
        if response.status == 206:
            span = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})", response.headers.get("Content-Range", ""))
            start, total = (int(span[1]), int(span[2])) if span else (-1, None)
        if start != file.tell():
            file.seek(0)
            file.truncate()
            self._digest = hashlib.new(spec.kind, usedforsecurity=False)
            if start:
                raise ConnectionError("the server sent another byte range than requested")
        total = self._total if total is None else total
        if total is None:
            raise WrongFileError(f"the server did not send the length of {spec.name}")
        if self._total not in (None, total):
            raise WrongFileError(f"wrong length of {spec.name} on the server: {total} bytes; expected {self._total}")
        self._total = total
        free = shutil.disk_usage(file.fileno()).free
        if free < total - file.tell():
            missing = format_bytes(total - file.tell())
            raise DataError(f"not enough disk space for {spec.name}: {missing} needed, {format_bytes(free)} free")
        while chunk := response.read(CHUNK_BYTES):
            if file.tell() + len(chunk) > total:
                raise WrongFileError(f"the server sent more than the {total:,} bytes of {spec.name}")
            file.write(chunk)
            self._digest.update(chunk)
            yield WorkProgress(f"download {spec.name}", file.tell(), total, "bytes")
        if file.tell() < total:
            raise ConnectionError(f"the connection ended at byte {file.tell()} of {total}")


def _hide_query(url: str) -> str:
    """Return a URL without its query, which may contain a token."""
    return url.partition("?")[0]
