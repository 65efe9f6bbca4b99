"""One file to fetch by its own address, as `trainstone weights convert` does: where it is and what it must be.

A name such as resnet34-333f7ec4.pth says how the file's SHA-256 begins, as torchvision's do.
"""

import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from trainstone.data.raw.mirrors import Sum, Wanted
from trainstone.errors import ConfigError

IN_NAME = re.compile(r"-([0-9a-f]{8}|[0-9a-f]{64})\.[A-Za-z]+")


class OneFile(NamedTuple):
    """A file, and the mirror that it is on."""

    mirror: str
    wanted: Wanted


def is_address(text: str) -> bool:
    """Say whether a text is an address and no path."""
    return re.match("[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


def find_file(address: str, sha256: str | None) -> OneFile:
    """Return where a file is and what it must be; ConfigError for an address without a file's name, or odd digits."""
    try:
        parts = urlsplit(address)
    except ValueError as err:
        raise ConfigError(f"{address!r} is no address of a file: {err}") from err
    folder, _, last = parts.path.rpartition("/")
    name = unquote(last)
    if name.strip(". ") == "" or "/" in name or "\\" in name or not name.isprintable() or len(name.encode()) > 200:
        raise ConfigError(f"{address!r} does not end in the name of a file")
    mirror = urlunsplit((parts.scheme, parts.netloc, folder or "/", parts.query, ""))
    return OneFile(mirror, Wanted(name, None, "", _find_sum(name, sha256)))


def _find_sum(name: str, sha256: str | None) -> Sum | None:
    """Return the sum that was asked for, else the first digits of it in the name."""
    if sha256 is not None:
        if not re.fullmatch("[0-9a-fA-F]{64}", sha256):
            raise ConfigError(f"--sha256 {sha256}: 64 digits from 0 to f", hint="sha256sum FILE prints them")
        return Sum("sha256", sha256.lower(), "--sha256")
    found = IN_NAME.search(name)
    return Sum("sha256", found[1], "the first digits, by its name") if found else None
