"""Make long series short: evenly chosen places, or buckets of equally many neighbours."""

from collections.abc import Iterable

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
