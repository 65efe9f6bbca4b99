"""Shared by the benchmarks: palindromic block order and the ratio of two variants with its 95 % interval."""

import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from trainstone.stats.throughput import estimate_noise_floor


def palindromes(variants: Sequence[str], rounds: int) -> Iterator[str]:
    """Yield A B C C B A ..., so that linear drift affects all variants equally."""
    for number in range(rounds):
        yield from variants if number % 2 == 0 else reversed(variants)


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean of paired ratios with its 95 % interval (Student t on logarithms)."""
    floor = estimate_noise_floor([math.log(a / b) for a, b in zip(numerator, denominator, strict=True)])
    assert floor.ci95 is not None
    return math.exp(floor.mean_difference), math.exp(floor.ci95[0]), math.exp(floor.ci95[1])
