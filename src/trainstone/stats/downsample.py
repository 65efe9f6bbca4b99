"""Downsample long series to about a thousand points."""

from collections.abc import Iterable, Mapping

import numpy as np

from trainstone.stats.series import Array


def choose_evenly(count: int, most: int, keep: Iterable[int] = ()) -> list[int]:
    """Return at most `most` evenly spaced indices below `count`, with the first, the last and those in `keep`."""
    if count <= most:
        return list(range(count))
    wanted = {0, count - 1, *keep}
    free = most - len(wanted)
    return sorted(wanted | {round(index * (count - 1) / (free + 1)) for index in range(1, free + 1)})


def downsample(
    blocks: Iterable[Mapping[str, Array]], num_buckets: int, combine: Mapping[str, np.ufunc]
) -> tuple[int, dict[str, Array]]:
    """Merge neighbouring rows into at most 2 x num_buckets buckets of equal size, with bounded memory.

    `combine`: column -> how its values are merged; of other columns a bucket keeps the first value. Returns the number
    of rows, and the columns of the buckets, with "row" (first row of each) and "count".
    """
    num_rows, width, kept = 0, 1, dict[str, Array]()
    for block in blocks:
        rows = np.arange(num_rows, num_rows + len(next(iter(block.values()))), dtype=np.float64)
        num_rows += len(rows)
        added = {"row": rows, "count": np.ones_like(rows), **block}
        kept = {name: np.concatenate((kept[name], added[name])) for name in added} if kept else added
        while len(kept["row"]) > 2 * num_buckets or width > 1:
            edges = np.flatnonzero(np.diff(kept["row"] // width, prepend=-1))
            ufuncs = {**combine, "count": np.add}
            kept = {
                name: ufuncs[name].reduceat(values, edges) if name in ufuncs else values[edges]
                for name, values in kept.items()
            }
            if len(edges) <= 2 * num_buckets:
                break
            width *= 2
    return num_rows, kept
