"""Make long series short: evenly chosen places, or buckets of equally many neighbours."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def choose_evenly(count: int, most: int, keep: Iterable[int] = ()) -> list[int]:
    """Return at most so many places out of `count`, evenly spread; the first, the last and `keep` are among them."""
    if count <= most:
        return list(range(count))
    wanted = {0, count - 1, *keep}
    room = most - len(wanted)
    return sorted(wanted | {round(place * (count - 1) / (room + 1)) for place in range(1, room + 1)})


def bucket_starts(num_rows: int, num_buckets: int) -> NDArray[np.int64]:
    """Return the first row of each bucket, for ufunc.reduceat: at most 2 x num_buckets, of equally many rows."""
    width = 1
    while num_rows > 2 * num_buckets * width:
        width *= 2
    return np.arange(0, num_rows, width)


class Buckets:
    """Rows of numbers merged to at most twice `num_buckets` buckets of equally many neighbouring rows.

    Of each column a bucket has what its name is listed under: its first value, its lowest, its highest or its sum.
    """

    def __init__(
        self,
        num_buckets: int,
        *,
        first: Sequence[str] = (),
        low: Sequence[str] = (),
        high: Sequence[str] = (),
        total: Sequence[str] = (),
    ) -> None:
        self._num_buckets = num_buckets
        self._kinds = ((first, None), (low, np.minimum), (high, np.maximum), (total, np.add))
        self._names = [name for names, _ in self._kinds for name in names]
        self._rows = np.empty((0, 1 + len(self._names)))
        self.width = 1
        """How many rows a bucket stands for."""
        self.num_rows = 0

    def add(self, block: Mapping[str, Array]) -> None:
        """Take in some more rows, of equally long columns."""
        columns = [block[name] for name in self._names]
        numbers = np.arange(self.num_rows, self.num_rows + len(columns[0]), dtype=np.float64)
        self.num_rows += len(numbers)
        self._merge(np.concatenate((self._rows, np.column_stack((numbers, *columns)))))
        while len(self._rows) > 2 * self._num_buckets:
            self.width *= 2
            self._merge(self._rows)

    def _merge(self, rows: Array) -> None:
        """Merge neighbours that belong to the same `width` rows."""
        edges = np.flatnonzero(np.diff(rows[:, 0] // self.width, prepend=-1))
        merged, column = [rows[edges, :1]], 1
        for names, combine in self._kinds:
            part = rows[:, column : column + len(names)]
            merged.append(part[edges] if combine is None else combine.reduceat(part, edges, axis=0))
            column += len(names)
        self._rows = np.hstack(merged)

    def columns(self) -> dict[str, Array]:
        """Return the buckets' columns by name."""
        return {name: self._rows[:, place] for place, name in enumerate(self._names, start=1)}
