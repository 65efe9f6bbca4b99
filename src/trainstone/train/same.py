"""The A/A test: the same thing twice, interleaved, to learn what difference this machine can tell from noise."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import log

from trainstone.config.schema import Config
from trainstone.errors import RunError
from trainstone.machine.interrupt import Interrupt
from trainstone.measure.clock import choose_timer
from trainstone.results import stats
from trainstone.results.progress import Progress
from trainstone.train.fit import fit_to_machine
from trainstone.train.loop import train_steps
from trainstone.train.task import build_task

WARM_UP_STEPS = 5
MIN_PAIRS = 6
MAX_PAIRS = 100
# A B B A: what drifts evenly hits both alike.
ORDER = "ABBA"


@dataclass
class SameTwice:
    """What an A/A test gave; filled while it runs."""

    config: Config | None = None
    steps_per_block: int = 0
    block_seconds: dict[str, list[float]] = field(default_factory=lambda: {"A": [], "B": []})
    floor: stats.NoiseFloor | None = None
    interrupted: str | None = None


def run_same_twice(config: Config, outcome: SameTwice) -> Iterator[Progress]:
    """Train two equal models in turn, block by block, for the recipe's seconds; fills `outcome`."""
    yield Progress("fitting the recipe to this machine")
    fitted = fit_to_machine(config, strict=False)
    outcome.config = fitted.config
    timer = choose_timer(fitted.device)
    arms = {name: train_steps(build_task(fitted.config, fitted.device), timer) for name in "AB"}
    budget = fitted.config.measure.seconds
    with Interrupt() as interrupt:
        yield Progress("warming up")
        warm = [next(arm).step_seconds for _ in range(WARM_UP_STEPS) for arm in arms.values()]
        step_seconds = min(warm)
        # Short blocks and many pairs: what drifts more slowly than a pair cancels out.
        outcome.steps_per_block = max(1, int(budget / (2 * MAX_PAIRS) / step_seconds))
        begin, block = time.perf_counter(), 0
        while len(outcome.block_seconds["B"]) < MAX_PAIRS or block % 2:
            elapsed = time.perf_counter() - begin
            if (elapsed > budget and block % 2 == 0) or interrupt.asked:
                break
            name = ORDER[block % len(ORDER)]
            seconds = 0.0
            for _ in range(outcome.steps_per_block):
                seconds += next(arms[name]).step_seconds
                yield Progress("same thing twice", step=block + 1, seconds_left=budget - elapsed)
            outcome.block_seconds[name].append(seconds)
            block += 1
        outcome.interrupted = interrupt.asked
    judge(outcome)


def judge(outcome: SameTwice) -> None:
    """Turn the blocks into a noise floor."""
    pairs = list(zip(outcome.block_seconds["A"], outcome.block_seconds["B"], strict=False))
    if len(pairs) < MIN_PAIRS:
        if outcome.interrupted:
            raise KeyboardInterrupt
        raise RunError(
            f"only {len(pairs)} pairs of blocks in the time; {MIN_PAIRS} are needed for a noise floor",
            hint="give more time: --seconds 120",
        )
    outcome.floor = stats.minimum_detectable([log(b / a) for a, b in pairs])
