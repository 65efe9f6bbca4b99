"""Names of archive members: which may become a path inside a folder, and which would collide there."""

import re

from trainstone.errors import DataError
from trainstone.formats.names import find_escape
from trainstone.text import printable

MAX_NAME_BYTES = 4096
MAX_PART_BYTES = 255


def refuse(archive: str, name: str, problem: str) -> DataError:
    """Return the error for a member that must not be used."""
    shown = printable(name if len(name) <= 200 else name[:200] + "...")
    return DataError(
        f"{archive}: member '{shown}' {problem}; the archive is refused",
        hint="get the archive from its publisher again, or unpack it by hand and give the folder",
    )


def find_odd_character(name: str) -> str | None:
    """Return what no name may hold: control characters, and bytes that are not UTF-8."""
    for char in name:
        if ord(char) < 32 or 127 <= ord(char) < 160:
            return f"has the control character 0x{ord(char):02x} in its name"
        if 0xD800 <= ord(char) < 0xE000:
            return "has a name that is not UTF-8"
    return None


def clean_name(name: str, archive: str) -> str:
    """Return a relative name without "." and doubled slashes; DataError where it would lead out of a folder."""
    problem = None if name.isascii() and name.isprintable() else find_odd_character(name)
    problem = problem or find_escape(name)
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if problem is not None:
        pass
    elif "\\" in name or re.match("[A-Za-z]:", name):
        problem = "has a name with a drive or a backslash, which is a path on Windows"
    elif len(name) * 4 > MAX_PART_BYTES and _is_long(name, parts):
        problem = f"has a name longer than {MAX_NAME_BYTES} bytes, or {MAX_PART_BYTES} between slashes"
    if problem is not None:
        raise refuse(archive, name, problem)
    return "/".join(parts)


def _is_long(name: str, parts: list[str]) -> bool:
    return len(name.encode()) > MAX_NAME_BYTES or any(len(part.encode()) > MAX_PART_BYTES for part in parts)


class NameBook:
    """The clean names of one archive so far."""

    def __init__(self, archive: str) -> None:
        self._archive = archive
        self._files: set[str] = set()
        self._folders: set[str] = {""}

    def add_file(self, name: str) -> None:
        """Take a file's name; DataError where a file or a folder has it already, or a file is its parent."""
        if not name:
            raise refuse(self._archive, name, "is a file without a name")
        if name in self._files or name in self._folders:
            raise refuse(self._archive, name, "is there twice")
        self._files.add(name)
        self.add_folder(name.rpartition("/")[0])

    def add_folder(self, name: str) -> None:
        """Take a folder's name and its parents'; DataError where a file has one of them."""
        while name not in self._folders:
            if name in self._files:
                raise refuse(self._archive, name, "is both a file and a folder")
            self._folders.add(name)
            name = name.rpartition("/")[0]
