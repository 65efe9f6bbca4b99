"""The A/A test: the same thing twice, interleaved, to learn what difference this machine can tell from noise."""

from collections.abc import Generator
from dataclasses import dataclass, field
from functools import partial
from math import log

from trainstone.config.schema import Config
from trainstone.errors import RunError
from trainstone.measure.clock import choose_timer
from trainstone.results import stats
from trainstone.results.progress import Progress
from trainstone.results.schema import Status
from trainstone.train.fit import fit_to_machine
from trainstone.train.interleave import Arm, Interleaved, interleave, sum_blocks
from trainstone.train.lifecycle import Lifecycle
from trainstone.train.loop import train_steps
from trainstone.train.network import apply_process_settings
from trainstone.train.task import build_task, settle_classes

MIN_PAIRS = 6


@dataclass
class SameTwice:
    """What an A/A test gave; filled while it runs."""

    config: Config | None = None
    steps_per_block: int = 0
    block_seconds: dict[str, list[float]] = field(default_factory=lambda: {"A": [], "B": []})
    floor: stats.NoiseFloor | None = None
    interrupted: str | None = None


def run_same_twice(life: Lifecycle, outcome: SameTwice) -> Generator[Progress, None, Status]:
    """Train two equal models in turn, block by block, for the recipe's seconds; fills `outcome`."""
    config = life.config
    yield Progress("fitting the recipe to this machine")
    fitted = fit_to_machine(settle_classes(config, None), strict=False)
    outcome.config = fitted.config
    timer = choose_timer(fitted.device)
    arms = {}
    for name in "AB":
        steps = train_steps(build_task(fitted.config, fitted.device), timer, num_steps=config.measure.iterations)
        enter = partial(apply_process_settings, fitted.config)
        arms[name] = Arm(name, fitted.config, steps, lag=timer.lag, enter=enter)
    done = Interleaved()
    yield Progress("warming up")
    for turn in interleave(arms, fitted.config.measure, done, stopped=lambda: life.signals.received):
        if turn.round:
            yield Progress("same thing twice", step=len(done.blocks) + 1, seconds_left=turn.seconds_left)
    outcome.interrupted = life.signals.received
    outcome.steps_per_block = done.steps_per_block.get("A", 0)
    for block, seconds in zip(done.blocks, sum_blocks(arms, done.blocks)[1], strict=True):
        outcome.block_seconds[block.arm].append(seconds)
    judge(outcome)
    return "interrupted" if outcome.interrupted else "ok"


def judge(outcome: SameTwice) -> None:
    """Turn the blocks into a noise floor."""
    pairs = list(zip(outcome.block_seconds["A"], outcome.block_seconds["B"], strict=False))
    if len(pairs) < MIN_PAIRS:
        if outcome.interrupted:
            raise KeyboardInterrupt(outcome.interrupted)
        raise RunError(
            f"only {len(pairs)} pairs of blocks in the time; {MIN_PAIRS} are needed for a noise floor",
            hint="give more time: --seconds 120",
        )
    outcome.floor = stats.minimum_detectable([log(b / a) for a, b in pairs])
