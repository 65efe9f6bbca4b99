"""Sources without classes: picture files as they lie, and a choice out of another source."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from trainstone.data.sample import Sample, Source, fingerprint_files
from trainstone.errors import DataError


class PictureSource:
    """Picture files without labels."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> Sample:
        path = self.paths[index]
        try:
            image = path.read_bytes()
        except OSError as err:
            raise DataError(f"cannot read {path}: {err.strerror}") from err
        if not image:
            raise DataError(f"{path} is empty")
        return Sample(path.name, image)

    def name(self, index: int) -> str:
        return self.paths[index].name

    def where(self, index: int) -> str:
        return str(self.paths[index])

    def fingerprint(self) -> str:
        return fingerprint_files(self.paths)


class Selection:
    """Some samples of a source, by their numbers."""

    def __init__(self, source: Source, numbers: Sequence[int]) -> None:
        self._source = source
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def read(self, index: int) -> Sample:
        return self._source.read(self._numbers[index])

    def name(self, index: int) -> str:
        return self._source.name(self._numbers[index])

    def where(self, index: int) -> str:
        return self._source.where(self._numbers[index])

    def fingerprint(self) -> str:
        chosen = hashlib.sha256(str(list(self._numbers)).encode()).hexdigest()
        return f"{chosen} of {self._source.fingerprint()}"
