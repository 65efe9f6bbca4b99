"""Coverage of the 95 % interval within a run for few steps: simulated series, and windows of recorded runs.

    python benchmarks/coverage.py [--series 2000] [RUN ...]

A cell is the coverage among the series with an interval, and the share of them; from 50 steps on the method is another.
What counts as the truth:

- Simulated: the mean of the process. "warm-up" rows have 15 more steps, which find_steady has to cut as in a run.
- Recorded: the mean of five windows' length around the window. The interval is for the speed at this time: on a shared
  machine a stretch holds several speeds, which only other runs show. So "steady" rows count only the stretches that
  find_steady calls steady. "no stalls": without the steps of more than three times the median, at which the machine
  stood still; a stall beside the window changes the truth, and the window cannot show it. Windows overlap by four
  fifths; a cell's last number is how many there are.
"""

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from interleave import palindromes  # noqa: F401  (puts src/ on the path)
from numpy.typing import NDArray

from trainstone.results.steps import read_columns
from trainstone.stats.steady_state import find_steady
from trainstone.stats.throughput import estimate_half_width

Array = NDArray[np.float64]
LENGTHS = (20, 25, 30, 40, 49, 50)
NOISE = 0.05  # standard deviation of a step; the rows of outliers depend on it
LEAST_COVERAGE = 0.93
NOT_CLAIMED = "AR(1) 0.9"  # so few steps do not show such a correlation; most are "not established"
WARM_UP = 15
STRETCH = 5
STALL = 3.0


def draw_ar1(rng: np.random.Generator, num: int, n: int, phi: float) -> Array:
    kicks = rng.standard_normal((num, n + 100))
    for step in range(1, n + 100):
        kicks[:, step] += phi * kicks[:, step - 1]
    return kicks[:, 100:] * math.sqrt(1 - phi**2)


def draw_lognormal(rng: np.random.Generator, num: int, n: int) -> Array:
    x = np.exp(0.5 * rng.standard_normal((num, n)))
    return (x - math.exp(0.125)) / math.sqrt(math.exp(0.25) * (math.exp(0.25) - 1))


def draw_slow(rng: np.random.Generator, num: int, n: int) -> Array:
    return rng.standard_normal((num, n)) + 0.5 * draw_ar1(rng, num, n, 0.95)


def decay(n: int) -> Array:
    return 1 + 2 * np.exp(-np.arange(n) / 4)


def list_processes(rng: np.random.Generator, num: int) -> dict[str, tuple[Callable[[int], Array], float]]:
    """Return how to draw series of n steps, and their true mean."""

    def white(n: int) -> Array:
        return rng.standard_normal((num, n))

    def outliers(n: int, share: float) -> Array:
        return np.where(rng.random((num, n)) < share, 2.0, 1.0) + NOISE * white(n)

    def correlated(phi: float) -> Callable[[int], Array]:
        return lambda n: 1 + NOISE * draw_ar1(rng, num, n, phi)

    return {
        "independent, normal": (lambda n: 1 + NOISE * white(n), 1),
        "independent, lognormal": (lambda n: 1 + NOISE * draw_lognormal(rng, num, n), 1),
        "independent, t(3)": (lambda n: 1 + NOISE / math.sqrt(3) * np.clip(rng.standard_t(3, (num, n)), -30, 30), 1),
        **{f"AR(1) {phi}": (correlated(phi), 1) for phi in (0.3, 0.5, 0.7, 0.9)},
        "independent + AR(1) 0.95 of half its size": (lambda n: 1 + NOISE * draw_slow(rng, num, n), 1),
        "two speeds (t or 1.3 t)": (lambda n: np.where(rng.random((num, n)) < 0.5, 1.0, 1.3), 1.15),
        "1 % of the steps take 2 t": (lambda n: outliers(n, 0.01), 1.01),
        "5 % of the steps take 2 t": (lambda n: outliers(n, 0.05), 1.05),
        "independent, drift of 2 %": (lambda n: 1 + NOISE * white(n) + np.linspace(-0.01, 0.01, n), 1),
        "warm-up, independent": (lambda n: (1 + NOISE * white(n + WARM_UP)) * decay(n + WARM_UP), 1),
        "warm-up, AR(1) 0.5": (lambda n: correlated(0.5)(n + WARM_UP) * decay(n + WARM_UP), 1),
    }


class Counts:
    """Counts windows, those with an interval, and those whose interval covers the truth."""

    def __init__(self) -> None:
        self.windows, self.established, self.covered = 0, 0, 0
        self.half_widths: list[float] = []

    def add(self, window: Array, truth: float) -> None:
        self.windows += 1
        half_width = estimate_half_width(window)
        if half_width is not None:
            self.established += 1
            # The interval is rate * exp(-half_width) to rate * exp(half_width), up to the bootstrap's skew.
            self.covered += abs(math.log(window.mean() / truth)) <= half_width
            self.half_widths.append(half_width)

    @property
    def coverage(self) -> float:
        return self.covered / self.established if self.established else math.nan

    def __str__(self) -> str:
        if not self.established:
            return "-"
        return f"{100 * self.coverage:.1f} % ({100 * self.established / self.windows:.0f} %)"


def simulate(num: int) -> bool:
    """Print the table; return whether each claimed coverage below 50 steps is at least LEAST_COVERAGE."""
    rng = np.random.default_rng(20261119)
    print(f"| simulated, {num} series each |", " | ".join(f"{n} steps" for n in LENGTHS), "| width 49 / 50 |")
    print("|---" * (len(LENGTHS) + 2) + "|")
    holds = True
    for name, (draw, truth) in list_processes(rng, num).items():
        row = {n: Counts() for n in LENGTHS}
        for n, counts in row.items():
            for series in draw(n):
                window = series[find_steady(series).from_step :] if name.startswith("warm-up") else series
                if n >= 50 or window.size < 50:  # the cut varies
                    counts.add(window, truth)
            holds &= n >= 50 or name == NOT_CLAIMED or counts.coverage >= LEAST_COVERAGE
        ratio = float(np.mean(row[49].half_widths) / np.mean(row[50].half_widths))
        print(f"| {name} |", " | ".join(map(str, row.values())), f"| {ratio:.1f} |", flush=True)
    return holds


def slide(counts: Counts, seconds: Array, n: int, *, only_steady: bool) -> None:
    before = STRETCH // 2 * n
    for begin in range(0, seconds.size - STRETCH * n + 1, n // 5):
        stretch = seconds[begin : begin + STRETCH * n]
        steady = find_steady(stretch)
        if not only_steady or (steady.steady and steady.from_step <= before):
            counts.add(stretch[before : before + n], float(stretch.mean()))


def read_recorded(runs: list[Path]) -> None:
    print("\n| recorded |", " | ".join(f"{n} steps" for n in LENGTHS), "|")
    print("|---" * (len(LENGTHS) + 1) + "|")
    steps = [read_columns(run / "steps-rank0000.csv")["step_seconds"][10:] for run in runs]
    groups = [(run.name, [seconds]) for run, seconds in zip(runs, steps, strict=True)]
    for name, recordings in [*groups, ("all recordings", steps)]:
        quick = [seconds[seconds <= STALL * np.median(seconds)] for seconds in recordings]
        num_stalls = sum(map(len, recordings)) - sum(map(len, quick))
        for label, parts, only_steady in (
            (f"{sum(map(len, recordings))} steps, {num_stalls} stalls", recordings, False),
            ("no stalls", quick, False),
            ("no stalls, steady", quick, True),
        ):
            row = {n: Counts() for n in LENGTHS}
            for n, counts in row.items():
                for seconds in parts:
                    slide(counts, seconds, n, only_steady=only_steady)
            print(f"| {name}: {label} |", " | ".join(f"{one}, {one.windows}" for one in row.values()), "|", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", metavar="RUN", nargs="*", type=Path, help="run folders with long step files")
    parser.add_argument("--series", type=int, default=2000, help="simulated series per cell")
    options = parser.parse_args()
    holds = simulate(options.series)
    if options.runs:
        read_recorded(options.runs)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
