"""Which offsets can be those of a file's records."""

import numpy as np
import pytest

from trainstone.data.storage.offsets import check_offsets


@pytest.mark.parametrize(
    ("offsets", "file_bytes", "fits"),
    [
        ([0, 10, 20], 30, True),
        ([0], 1, True),
        ([], 0, True),
        ([], 1, False),
        ([4, 10], 30, False),
        ([0, 10, 10], 30, False),
        ([0, 20, 10], 30, False),
        ([0, 30], 30, False),
        ([0, 31], 30, False),
        ([-4, 0], 30, False),
    ],
)
def test_offsets_grow_from_the_first_byte_and_stay_inside(offsets: list[int], file_bytes: int, fits: bool):
    assert check_offsets(np.array(offsets, dtype=np.int64), file_bytes) is fits
