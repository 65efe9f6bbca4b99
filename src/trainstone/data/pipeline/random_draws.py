"""Random numbers that depend only on a key (seed, epoch, image), not on threads, ranks, resuming or versions.

SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): a mixing function applied to a counter.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

CACHED_ORDERS = 6
MASK = 2**64 - 1
STEP = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(value: int) -> int:
    """Return 64 bits, each of which depends on all bits of the value."""
    value = (value ^ value >> 30) * FIRST & MASK
    value = (value ^ value >> 27) * SECOND & MASK
    return value ^ value >> 31


def derive_key(*numbers: int) -> int:
    """Return the key of several numbers in order: (seed, epoch, image)."""
    key = 0
    for number in numbers:
        key = mix((key ^ number & MASK) + STEP & MASK)
    return key


class Draws:
    """A stream of random numbers from one key."""

    __slots__ = ("_state",)

    def __init__(self, key: int) -> None:
        self._state = key

    def uniform(self) -> float:
        self._state = self._state + STEP & MASK
        return (mix(self._state) >> 11) * 2.0**-53

    def between(self, low: float, high: float) -> float:
        """Return a number in [low, high)."""
        return low + (high - low) * self.uniform()

    def below(self, limit: int) -> int:
        """Return a whole number in [0, limit)."""
        return int(self.uniform() * limit)


@lru_cache(maxsize=CACHED_ORDERS)
def shuffle(count: int, key: int) -> NDArray[np.int64]:
    """Return the numbers below `count` in an order that depends on the key."""
    values = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(STEP) + np.uint64(key)
    values = (values ^ values >> np.uint64(30)) * np.uint64(FIRST)
    values = (values ^ values >> np.uint64(27)) * np.uint64(SECOND)
    # Mixing is a bijection: no two values are equal, so any sort gives the same order.
    return np.argsort(values ^ values >> np.uint64(31))
