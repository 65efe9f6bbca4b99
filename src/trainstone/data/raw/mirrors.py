"""Mirrors: a web address or a folder that holds data sets to fetch. Opens files there at any byte; keeps nothing.

A mirror that holds SHA256SUMS or MD5SUMS (as coreutils write them) is believed in place of the published sums.
"""

import http.client
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, NoReturn, Protocol
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from trainstone.errors import ConfigError, DataError


class Sum(NamedTuple):
    """What a file's bytes must add up to."""

    kind: str
    """md5 or sha256."""
    digits: str
    """All of them, or the first ones."""
    origin: str
    """Who says so, for messages."""


class Wanted(NamedTuple):
    """A file to fetch and what it is published to be."""

    path: str
    """Below the mirror; the name alone will do there, too."""
    size_bytes: int | None
    md5: str
    """Empty if nobody has published it."""
    believed: Sum | None = None
    """A sum that goes before the mirror's own and the published one."""

    @property
    def name(self) -> str:
        """The file's name without folders."""
        return self.path.rpartition("/")[2]


# As images.cocodataset.org serves them. COCO publishes no sums itself; these stand in many projects' scripts.
COCO_FILES = (
    Wanted("annotations/annotations_trainval2017.zip", 252_907_541, "f4bbac642086de4f52a3fdda2de5fa2c"),
    Wanted("zips/val2017.zip", 815_585_330, "442b8da7639aecaf257c1dceb8ba8c80"),
    Wanted("zips/train2017.zip", 19_336_861_798, "cced6f7f71b7629ddf16f17bbcfab6b2"),
)
SUM_FILES = {"SHA256SUMS": "sha256", "MD5SUMS": "md5"}
_DIGITS = {"sha256": 64, "md5": 32}
_ABSENT = (403, 404, 410)  # object stores say 403 for what is not there
_PASSING = (408, 425, 429)  # and all from 500


class Mirror(NamedTuple):
    """A folder, or an address without its query (a token, say), which is added to each file's address."""

    folder: Path | None
    address: str = ""
    query: str = ""


class NotThere(Exception):
    """The mirror has no such file; the message says where it was looked for."""


class Unreachable(Exception):
    """It did not work this time and may work the next."""


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...

    def close(self) -> None: ...


class Answer(NamedTuple):
    """An open file of a mirror."""

    stream: _Readable
    start: int
    """The byte it begins with: the one asked for, or 0 where the mirror cannot or the file has changed."""
    total_bytes: int | None
    """Length of the whole file, if told."""
    validator: str
    """ETag or date, to know the same file by; may be empty."""
    where: str


def parse_mirror(text: str) -> Mirror:
    """Understand http://, https:// and file:// addresses and plain folders."""
    if "://" not in text:
        return Mirror(_existing(Path(text).expanduser()))
    allowed = "http://, https:// and file:// addresses and folders are allowed"
    try:
        parts = urlsplit(text)
        if not text.isascii() or not text.isprintable() or " " in text or parts.username is not None:
            raise ValueError("spaces, special characters or a user name in it")
        if parts.scheme == "file" and parts.netloc in ("", "localhost"):
            return Mirror(_existing(Path(unquote(parts.path))))
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return Mirror(None, urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", "")), parts.query)
    except ValueError as err:
        raise ConfigError(f"{text!r} is no address of a mirror: {err}", hint=allowed) from err
    raise ConfigError(f"{text!r} is no address of a mirror", hint=allowed)


def open_wanted(mirror: Mirror, wanted: Wanted, start: int, validator: str, timeout_seconds: float) -> Answer:
    """Open a file at a byte, by its path or else by its name alone; DataError if neither is there."""
    missed = []
    for path in dict.fromkeys((wanted.path, wanted.name)):
        try:
            return open_path(mirror, path, start, validator, timeout_seconds)
        except NotThere as err:
            missed.append(str(err))
    raise DataError(
        f"the mirror has no {wanted.name}: {'; '.join(missed)}",
        hint=f"a mirror holds {wanted.path}, or {wanted.name} without the folder" if "/" in wanted.path else None,
    )


def open_path(mirror: Mirror, path: str, start: int, validator: str, timeout_seconds: float) -> Answer:
    """Open a mirror's file at a byte; it begins with byte 0 if it is not the one that the validator is of."""
    if mirror.folder is not None:
        return _open_file(mirror.folder / path, start, validator)
    shown = f"{mirror.address}/{quote(path)}"
    address = f"{shown}?{mirror.query}" if mirror.query else shown
    return _open_address(address, shown, start, validator, timeout_seconds)


def read_sums(mirror: Mirror, timeout_seconds: float) -> dict[str, Sum]:
    """Return the sums that a mirror itself states, by file name; none is fine."""
    sums: dict[str, Sum] = {}
    for name, kind in SUM_FILES.items():
        try:
            answer = open_path(mirror, name, 0, "", timeout_seconds)
        except NotThere:
            continue
        with reading(answer):
            data = answer.stream.read(1 << 20)
        for path, digits in parse_sums(data.decode(errors="replace"), kind, answer.where).items():
            sums.setdefault(path.rpartition("/")[2], Sum(kind, digits, answer.where))
    return sums


def parse_sums(text: str, kind: str, where: str) -> dict[str, str]:
    """Return name -> digits of a file in the form of sha256sum and md5sum."""
    line_form = re.compile(rf"([0-9a-fA-F]{{{_DIGITS[kind]}}}) [ *](.+)")
    sums = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        found = line_form.fullmatch(line)
        if found is None:
            raise DataError(
                f"{where}, line {number}: not {_DIGITS[kind]} digits, two spaces and a name",
                hint=f"write it with {kind}sum, or remove it from the mirror",
            )
        sums[found[2].removeprefix("./")] = found[1].lower()
    return sums


@contextmanager
def reading(answer: Answer) -> Iterator[None]:
    """Turn what goes wrong while reading into Unreachable, and close the connection or file at the end."""
    try:
        yield
    except (OSError, http.client.HTTPException) as err:
        raise Unreachable(f"{answer.where}: {_reason(err)}") from err
    finally:
        answer.stream.close()


def _existing(folder: Path) -> Path:
    if not folder.is_dir():
        raise DataError(f"the mirror {folder} is no folder")
    return folder


def _open_file(path: Path, start: int, validator: str) -> Answer:
    if not path.is_file():
        raise NotThere(f"{path} is no file")
    try:
        stream = path.open("rb")
        state = path.stat()
    except OSError as err:
        raise DataError(f"cannot read {path}: {err.strerror}") from err
    same = f"{state.st_mtime_ns}-{state.st_size}"
    start = start if validator in ("", same) and start <= state.st_size else 0
    stream.seek(start)
    return Answer(stream, start, state.st_size, same, str(path))


def _open_address(address: str, shown: str, start: int, validator: str, timeout_seconds: float) -> Answer:
    # identity: packed on the way, the bytes could not be counted or resumed
    headers = {"User-Agent": "trainstone", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if validator:
            headers["If-Range"] = validator
    try:
        response = _opener().open(urllib.request.Request(address, headers=headers), timeout=timeout_seconds)
    except urllib.error.HTTPError as err:
        err.close()
        if err.code == 416 and start:  # the file has become shorter
            return _open_address(address, shown, 0, "", timeout_seconds)
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
    tag, date = told.get("ETag", ""), told.get("Last-Modified", "")
    validator = tag if tag.startswith('"') else date  # a weak tag, W/"...", must not be used with If-Range
    if response.status == 200:
        return Answer(response, 0, response.length, validator, shown)
    found = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})", told.get("Content-Range", ""))
    if found is not None and int(found[1]) == start:
        return Answer(response, start, int(found[2]), validator, shown)
    response.close()
    if not start:
        raise DataError(f"{shown}: the server sends a part of the file that was not asked for")
    return _open_address(address, shown, 0, "", timeout_seconds)


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
