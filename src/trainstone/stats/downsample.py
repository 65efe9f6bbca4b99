"""Sample long series down to some thousand points."""

from collections.abc import Iterable, Mapping

import numpy as np

from trainstone.stats.series import Array


def choose_evenly(count: int, most: int, keep: Iterable[int] = ()) -> list[int]:
    """Return at most so many places out of `count`, evenly spread; the first, the last and `keep` are among them."""
    if count <= most:
        return list(range(count))
    wanted = {0, count - 1, *keep}
    room = most - len(wanted)
    return sorted(wanted | {round(place * (count - 1) / (room + 1)) for place in range(1, room + 1)})


def downsample(
    blocks: Iterable[Mapping[str, Array]], num_buckets: int, combine: Mapping[str, np.ufunc]
) -> tuple[int, dict[str, Array]]:
    """Merge equally many neighbouring rows until at most 2 x num_buckets are left, so that memory stays bounded.

    `combine` says how the values of a column are merged; of others a bucket keeps its first. Returns how many rows
    there were, and the columns of the buckets, with "row" (the first of each) and "count".
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
