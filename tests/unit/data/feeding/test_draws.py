"""Random numbers: those of the published generator, even, and the same for ever."""

import numpy as np
import pytest
from scipy import stats

from trainstone.data.feeding.draws import MASK, STEP, Draws, make_key, mix, shuffle

# The first numbers of SplitMix64 for the seeds 1234567 and 0, as the reference program in C prints them.
PUBLISHED = {
    1234567: [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431],
    0: [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F],
}


@pytest.mark.parametrize("seed", PUBLISHED)
def test_the_numbers_are_those_of_splitmix64(seed: int):
    draws = Draws(seed)
    for step, number in enumerate(PUBLISHED[seed], 1):
        assert mix(seed + step * STEP & MASK) == number
        assert draws.uniform() == (number >> 11) / 2**53


def test_whole_numbers_and_ranges_keep_their_limits():
    draws = Draws(5)
    counts = np.bincount([draws.below(7) for _ in range(7_000)])
    assert len(counts) == 7
    assert stats.chisquare(counts).pvalue > 0.01
    values = [draws.between(0.75, 4 / 3) for _ in range(1_000)]
    assert 0.75 <= min(values) < 0.76
    assert 1.32 < max(values) < 4 / 3


def test_keys_depend_on_every_number_and_their_order():
    keys = {make_key(*numbers) for numbers in [(), (0,), (0, 0), (1, 0), (0, 1), (1, 2, 3), (3, 2, 1), (2**63 - 1,)]}
    assert len(keys) == 8
    assert all(0 <= key <= MASK for key in keys)


def test_shuffled_orders_never_change():
    """Runs of older versions must be repeatable: these numbers stay."""
    assert shuffle(10, make_key(0, 0)).tolist() == [0, 7, 8, 2, 5, 9, 4, 6, 3, 1]
    assert make_key(1, 2, 3) == 0xD0734750FDE362B3
