"""Two loops in turn in one process, A B B A, block by block, so that what drifts evenly hits both alike.

The engine of `doctor --aa` (run_same_twice) and `bench --against` (train/against.py). It runs and counts; it judges
nothing.
"""

import math
import statistics
import time
from array import array
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import log
from typing import NamedTuple

from trainstone.config.schema import Config, MeasureConfig
from trainstone.errors import RunError, TrainstoneError
from trainstone.measure.clock import choose_timer
from trainstone.results import stats
from trainstone.results.paired import ORDER
from trainstone.results.progress import Progress
from trainstone.results.schema import Status
from trainstone.results.steps import StepRecord
from trainstone.train.distributed import explain_torch_error
from trainstone.train.fit import fit_to_machine
from trainstone.train.lifecycle import Lifecycle
from trainstone.train.loop import train_steps
from trainstone.train.stopping import check_loss
from trainstone.train.task import apply_process_settings, build_task, settle_classes

# Short blocks and many rounds: what drifts more slowly than a round cancels out.
MAX_ROUNDS = 50
# Steps of each arm, and share of the time, before the first block; first steps, which may compile, are beside the time.
WARM_UP_STEPS = 5
WARM_UP_SHARE = 0.1
MIN_PAIRS = 6


@dataclass
class Arm:
    """One of the two: its loop, and what each of its steps took so far."""

    name: str
    config: Config
    steps: Iterator[StepRecord]
    lag: int = 0
    """Steps that the loop has begun beyond the one it yields (measure/clock.py)."""
    enter: Callable[[], None] = lambda: None
    """Called before each turn: sets what the process has only once."""
    keep: Callable[[StepRecord], None] = lambda _record: None
    """Takes every record."""
    seconds: "array[float]" = field(default_factory=lambda: array("d"))
    images: "array[float]" = field(default_factory=lambda: array("d"))

    def advance(self) -> StepRecord | None:
        """Run one step more and return the one that ended; None: the loop is over."""
        with naming(self.name):
            record = next(self.steps, None)
            if record is not None:
                self.keep(record)
                self.seconds.append(record.step_seconds)
                self.images.append(record.images)
                check_loss(record)
        return record


class Block(NamedTuple):
    """Steps of one arm without a change between them, by their index in the arm."""

    arm: str
    first_step: int
    num_steps: int


class Turn(NamedTuple):
    """A step that ended, for whoever shows progress. Round 0 is the warm-up."""

    arm: str
    round: int
    record: StepRecord
    seconds_left: float | None


class Plan(NamedTuple):
    """How the steps are laid out."""

    num_rounds: int
    """At most."""
    steps_per_block: dict[str, int]
    seconds: float
    """Time after which no round is begun."""
    num_warm_up_steps: int
    """Where steps are counted, those before the first round."""


@dataclass
class Interleaved:
    """The blocks that were run to their end; filled on the way."""

    steps_per_block: dict[str, int] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)

    def whole_rounds(self) -> list[Block]:
        """Blocks of complete rounds only."""
        return self.blocks[: len(self.blocks) // len(ORDER) * len(ORDER)]


def interleave(
    arms: Mapping[str, Arm],
    measure: MeasureConfig,
    done: Interleaved,
    *,
    stopped: Callable[[], object],
    now: Callable[[], float] = time.perf_counter,
) -> Iterator[Turn]:
    """Warm both up, then run rounds for the time or the steps of `measure`; ends between steps if `stopped` says so."""
    if not stopped():
        yield from warm_up(arms, measure, stopped, now)
    if not stopped():
        plan = plan_blocks(arms, measure)
        done.steps_per_block = plan.steps_per_block
        yield from run_rounds(arms, plan, done, stopped, now)
    for arm in arms.values():
        if arm.lag and arm.seconds:  # a lagging clock has not read the last steps yet, nor has the last block its end
            arm.enter()
            for _ in range(arm.lag):
                arm.advance()


def warm_up(
    arms: Mapping[str, Arm], measure: MeasureConfig, stopped: Callable[[], object], now: Callable[[], float]
) -> Iterator[Turn]:
    """Run each arm's first steps, in turn: steps and time enough, or what the rounds leave of a number of steps."""
    begin = math.inf
    while True:
        for name in "BA":  # ends with the arm that a round begins with
            arm = arms[name]
            arm.enter()
            record = arm.advance()
            assert record is not None  # a warm-up is part of the steps there are
            yield Turn(arm.name, 0, record, None)
            if stopped():  # compiling the other one may take minutes
                return
        begin = min(begin, now())
        taken, lag = len(arm.seconds), arm.lag
        if measure.iterations is not None:
            over = taken + lag >= plan_iterations(measure.iterations).num_warm_up_steps
        else:
            over = taken >= WARM_UP_STEPS and now() - begin >= WARM_UP_SHARE * measure.seconds
        if over:
            return


def run_rounds(
    arms: Mapping[str, Arm],
    plan: Plan,
    done: Interleaved,
    stopped: Callable[[], object],
    now: Callable[[], float],
) -> Iterator[Turn]:
    """Run A B B A until the rounds or the time are over; a round that was begun is finished.

    The step after a change of arm belongs to no block: it finds the other one's data in the caches and heaps.
    """
    begin, running = now(), "A"
    for number in range(1, plan.num_rounds + 1):
        if now() - begin >= plan.seconds:
            return
        for name in ORDER:
            arm, num_steps, num_settling = arms[name], plan.steps_per_block[name], int(name != running)
            running = name
            arm.enter()
            first_step = len(arm.seconds) + arm.lag + num_settling  # lag: steps that were begun in turns before
            for _ in range(num_settling + num_steps):
                record = arm.advance()
                assert record is not None  # the plan asks for no more steps than the loop has
                left = plan.seconds - (now() - begin)
                yield Turn(name, number, record, left if math.isfinite(left) else None)
                if stopped():
                    return
            done.blocks.append(Block(name, first_step, num_steps))


def plan_blocks(arms: Mapping[str, Arm], measure: MeasureConfig) -> Plan:
    """Choose the steps of a block from the warm-up, so that the blocks of both arms take the same time.

    A block takes its share of the budget, but at least the slower arm's step. Arms of the same configuration get the
    same number of steps, whatever their warm-up was like.
    """
    if measure.iterations is not None:
        return plan_iterations(measure.iterations)
    step_seconds = {arm.name: statistics.median(arm.seconds[1:] or arm.seconds) for arm in arms.values()}
    if arms["A"].config == arms["B"].config:
        step_seconds = dict.fromkeys(step_seconds, min(step_seconds.values()))
    block_seconds = max(measure.seconds / (len(ORDER) * MAX_ROUNDS), *step_seconds.values())
    steps = {name: max(1, round(block_seconds / seconds)) for name, seconds in step_seconds.items()}
    return Plan(MAX_ROUNDS, steps, measure.seconds, 0)


def plan_iterations(iterations: int) -> Plan:
    """Lay out a number of steps an arm: as many whole rounds as they give after the warm-up, which takes the rest.

    A round has two blocks of each arm, and one step of each that follows a change.
    """
    spare = max(0, iterations - WARM_UP_STEPS)
    num_steps = max(1, math.ceil((spare / MAX_ROUNDS - 1) / 2))
    num_rounds = spare // (2 * num_steps + 1)
    num_warm_up_steps = iterations - (2 * num_steps + 1) * num_rounds
    return Plan(num_rounds, dict.fromkeys("AB", num_steps), math.inf, num_warm_up_steps)


def sum_blocks(arms: Mapping[str, Arm], blocks: Sequence[Block]) -> tuple[list[float], list[float]]:
    """Return images and seconds of each block."""
    spans = [(arms[block.arm], slice(block.first_step, block.first_step + block.num_steps)) for block in blocks]
    return [sum(arm.images[span]) for arm, span in spans], [sum(arm.seconds[span]) for arm, span in spans]


@contextmanager
def naming(arm: str) -> Iterator[None]:
    """Say in an error which of the two it is about."""
    try:
        yield
    except (TrainstoneError, RuntimeError) as err:
        known = err if isinstance(err, TrainstoneError) else explain_torch_error(err)
        if known is None:
            raise
        raise type(known)(f"{arm}: {known.message}", hint=known.hint) from err


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
