"""Two loops in turn in one process, A B B A, block by block, so that what drifts evenly hits both alike."""

import math
import statistics
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from trainstone.config.schema import Config, MeasureConfig
from trainstone.engine.distributed.stop_agreement import check_loss
from trainstone.engine.torch_errors import explain_torch_error
from trainstone.errors import TrainstoneError
from trainstone.results.progress import Progress
from trainstone.results.steps import StepRecord
from trainstone.stats.ratio import ORDER

# Short blocks and many rounds: what drifts more slowly than a round cancels out.
MAX_ROUNDS = 50
# Steps of each arm, and share of the time, before the first block; first steps, which may compile, are beside the time.
WARM_UP_STEPS = 5
WARM_UP_SHARE = 0.1


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

    def advance(self) -> StepRecord:
        """Run one more step and return the one that ended; StopIteration: the loop is over."""
        with naming(self.name):
            record = next(self.steps)
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


@dataclass
class Interleaving:
    """Two arms, A and B, that run in turn; `blocks` are those that were run to their end."""

    arms: Mapping[str, Arm]
    measure: MeasureConfig
    stopped: Callable[[], object]
    """Asked between steps; if it says so, the run ends there."""
    now: Callable[[], float] = time.perf_counter
    steps_per_block: dict[str, int] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)

    def whole_rounds(self) -> list[Block]:
        return self.blocks[: len(self.blocks) // len(ORDER) * len(ORDER)]

    def sum_blocks(self, blocks: Sequence[Block]) -> tuple[list[float], list[float]]:
        parts = [
            (self.arms[block.arm], slice(block.first_step, block.first_step + block.num_steps)) for block in blocks
        ]
        return [sum(arm.images[part]) for arm, part in parts], [sum(arm.seconds[part]) for arm, part in parts]

    def run(self) -> Iterator[Progress]:
        """Warm both up, then run rounds for the time or the steps of `measure`."""
        if not self.stopped():
            yield from self._warm_up()
        if not self.stopped():
            yield from self._run_rounds()
        for arm in self.arms.values():
            if arm.lag and arm.seconds:  # a clock that reads late has not read the last steps yet
                arm.enter()
                with suppress(StopIteration):
                    for _ in range(arm.lag):
                        arm.advance()

    def _warm_up(self) -> Iterator[Progress]:
        """Run each arm's first steps, in turn: steps and time enough, or what the rounds leave of a number of steps."""
        begin = math.inf
        while True:
            for name in "BA":  # ends with the arm that a round begins with
                arm = self.arms[name]
                arm.enter()
                yield Progress("warming up", step=arm.advance().step + 1)
                if self.stopped():  # compiling the other one may take minutes
                    return
            begin = min(begin, self.now())
            if self.measure.iterations is not None:
                over = len(arm.seconds) + arm.lag >= split_iterations(self.measure.iterations)[2]
            else:
                passed = self.now() - begin
                over = len(arm.seconds) >= WARM_UP_STEPS and passed >= WARM_UP_SHARE * self.measure.seconds
            if over:
                return

    def _run_rounds(self) -> Iterator[Progress]:
        """Run A B B A until the rounds or the time are over; a round that was begun is finished.

        The step after a change of arm belongs to no block: it finds the other one's data in the caches and heaps.
        """
        limit = math.inf if self.measure.iterations is not None else self.measure.seconds
        num_rounds, self.steps_per_block = self.plan_blocks()
        begin, running = self.now(), "A"
        for _ in range(num_rounds):
            if self.now() - begin >= limit:
                return
            for name in ORDER:
                arm, num_steps, num_settling = self.arms[name], self.steps_per_block[name], int(name != running)
                running = name
                arm.enter()
                first_step = len(arm.seconds) + arm.lag + num_settling  # lag: steps that were begun in turns before
                for _ in range(num_settling + num_steps):
                    record = arm.advance()
                    left = limit - (self.now() - begin)
                    yield Progress(
                        f"comparing: {name}, pair {len(self.blocks) // 2 + 1}",
                        images_per_second=record.images / record.step_seconds,
                        seconds_left=left if math.isfinite(left) else None,
                    )
                    if self.stopped():
                        return
                self.blocks.append(Block(name, first_step, num_steps))

    def plan_blocks(self) -> tuple[int, dict[str, int]]:
        """Return the rounds, at most, and the steps of each arm's blocks, so that blocks of both take the same time.

        A block takes its share of the budget, but at least the slower arm's step. Arms of the same configuration get
        the same number of steps, whatever their warm-up was like.
        """
        if self.measure.iterations is not None:
            num_rounds, num_steps, _ = split_iterations(self.measure.iterations)
            return num_rounds, dict.fromkeys("AB", num_steps)
        step_seconds = {arm.name: statistics.median(arm.seconds[1:] or arm.seconds) for arm in self.arms.values()}
        if self.arms["A"].config == self.arms["B"].config:
            step_seconds = dict.fromkeys(step_seconds, min(step_seconds.values()))
        block_seconds = max(self.measure.seconds / (len(ORDER) * MAX_ROUNDS), *step_seconds.values())
        return MAX_ROUNDS, {name: max(1, round(block_seconds / seconds)) for name, seconds in step_seconds.items()}


def split_iterations(iterations: int) -> tuple[int, int, int]:
    """Return rounds, steps per block and steps of warm-up of so many steps per arm: whole rounds, the rest warms up.

    A round has two blocks of each arm, and one step of each that follows a change.
    """
    spare = max(0, iterations - WARM_UP_STEPS)
    num_steps = max(1, math.ceil((spare / MAX_ROUNDS - 1) / 2))
    num_rounds = spare // (2 * num_steps + 1)
    return num_rounds, num_steps, iterations - (2 * num_steps + 1) * num_rounds


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
