"""Where the records of a shard begin: an array, 8 bytes a record."""

import numpy as np
from numpy.typing import NDArray

Offsets = NDArray[np.int64]


def check_offsets(offsets: Offsets, file_bytes: int) -> bool:
    """Say whether these can be the records of a file: from its first byte, growing, inside it."""
    if not len(offsets):
        return file_bytes == 0
    return bool(offsets[0] == 0 and (np.diff(offsets) > 0).all() and offsets[-1] < file_bytes)
