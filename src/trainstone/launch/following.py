"""A file that another process writes, read as it grows."""

import os
from pathlib import Path


class Tail:
    """Reads what was added since the last time; the file may come late or be replaced."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self._path = path
        self._file: int | None = None
        """Inode of the file that was read last."""
        self._place = 0
        if from_end and path.exists():
            found = path.stat()
            self._file, self._place = found.st_ino, found.st_size

    def read(self) -> list[str]:
        """Return the new whole lines; what has no end yet comes with its end."""
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self._file or found.st_size < self._place:
                    self._file, self._place = found.st_ino, 0
                file.seek(self._place)
                added = file.read()
        except OSError:  # not there yet, or a network's file system that has a moment
            return []
        whole = added[: added.rfind(b"\n") + 1]
        self._place += len(whole)
        return whole.decode("utf-8", "replace").splitlines()
