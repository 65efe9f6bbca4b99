"""Run two training loops in one process in alternating blocks (A B B A), so that drift affects both alike."""

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
from trainstone.measure.clock import Timer
from trainstone.results.progress import Progress
from trainstone.results.steps import StepRecord
from trainstone.stats.ratio import ORDER

# Short blocks and many rounds: drift that is slower than a round cancels out.
MAX_ROUNDS = 50
# Warm-up of each arm before the first block: steps, and share of the time (which excludes first steps: they compile).
WARM_UP_STEPS = 5
WARM_UP_SHARE = 0.1


@dataclass
class Arm:
    """One of the two variants: its training loop, and the times of its steps so far."""

    name: str
    config: Config
    steps: Iterator[StepRecord]
    timer: Timer
    """The timer of the loop."""
    enter: Callable[[], None] = lambda: None
    """Called before each turn: applies this arm's process-wide settings."""
    keep: Callable[[StepRecord], None] = lambda _record: None
    """Called with every record."""
    seconds: "array[float]" = field(default_factory=lambda: array("d"))
    images: "array[float]" = field(default_factory=lambda: array("d"))

    def begin_turn(self) -> None:
        """Call before each block: the time since this arm's last step is the other arm's."""
        self.enter()
        self.timer.pause()

    def advance(self) -> StepRecord:
        """Run one more step and return the one that finished; StopIteration: the loop has ended."""
        with prefix_errors(self.name):
            record = next(self.steps)
            self.keep(record)
            self.seconds.append(record.step_seconds)
            self.images.append(record.images)
            check_loss(record)
        return record


class Block(NamedTuple):
    """Consecutive steps of one arm, by their index in the arm."""

    arm: str
    first_step: int
    num_steps: int


@dataclass
class Interleaving:
    """Alternating run of two arms, A and B; `blocks` has the complete blocks."""

    arms: Mapping[str, Arm]
    measure: MeasureConfig
    stopped: Callable[[], object]
    """Called between steps; a true value ends the run."""
    now: Callable[[], float] = time.perf_counter
    steps_per_block: dict[str, int] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)

    def complete_rounds(self) -> list[Block]:
        return self.blocks[: len(self.blocks) // len(ORDER) * len(ORDER)]

    def sum_blocks(self, blocks: Sequence[Block]) -> tuple[list[float], list[float]]:
        parts = [
            (self.arms[block.arm], slice(block.first_step, block.first_step + block.num_steps)) for block in blocks
        ]
        return [sum(arm.images[part]) for arm, part in parts], [sum(arm.seconds[part]) for arm, part in parts]

    def run(self) -> Iterator[Progress]:
        """Warm up both arms, then run rounds for the time or the steps of `measure`."""
        if not self.stopped():
            yield from self._warm_up()
        if not self.stopped():
            yield from self._run_rounds()
        for arm in self.arms.values():
            if arm.timer.lag and arm.seconds:  # the timer reads late: the last steps are not read yet
                arm.begin_turn()
                with suppress(StopIteration):
                    for _ in range(arm.timer.lag):
                        arm.advance()

    def _warm_up(self) -> Iterator[Progress]:
        """Run each arm's first steps in turn; with measure.iterations, those that the rounds do not use."""
        begin = math.inf
        while True:
            for name in "BA":  # ends with the arm that a round begins with
                arm = self.arms[name]
                arm.begin_turn()
                yield Progress("warming up", step=arm.advance().step + 1)
                if self.stopped():  # compiling the other one may take minutes
                    return
            begin = min(begin, self.now())
            if self.measure.iterations is not None:
                warm = len(arm.seconds) + arm.timer.lag >= split_iterations(self.measure.iterations)[2]
            else:
                passed = self.now() - begin
                warm = len(arm.seconds) >= WARM_UP_STEPS and passed >= WARM_UP_SHARE * self.measure.seconds
            if warm:
                return

    def _run_rounds(self) -> Iterator[Progress]:
        """Run rounds of A B B A until all rounds are done or the time is used up; finish a round that has started.

        The first step after a change of arm is not part of a block: caches and heaps hold the other arm's data.
        """
        limit = math.inf if self.measure.iterations is not None else self.measure.seconds
        num_rounds, self.steps_per_block = self.plan_blocks()
        begin, running = self.now(), "A"
        for _ in range(num_rounds):
            if self.now() - begin >= limit:
                return
            for name in ORDER:
                arm, num_steps, num_skipped = self.arms[name], self.steps_per_block[name], int(name != running)
                running = name
                arm.begin_turn()
                first_step = len(arm.seconds) + arm.timer.lag + num_skipped  # lag: steps started in earlier blocks
                for _ in range(num_skipped + num_steps):
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
        """Return the largest number of rounds, and the steps per block of each arm: blocks of both take the same time.

        A block takes its share of the budget, but at least the slower arm's step. Arms with the same configuration get
        the same number of steps, even if their warm-up times differ.
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
    """Split the steps per arm into complete rounds and warm-up: return rounds, steps per block, warm-up steps.

    A round has two blocks of each arm, and one step of each that follows a change of arm.
    """
    spare = max(0, iterations - WARM_UP_STEPS)
    num_steps = max(1, math.ceil((spare / MAX_ROUNDS - 1) / 2))
    num_rounds = spare // (2 * num_steps + 1)
    return num_rounds, num_steps, iterations - (2 * num_steps + 1) * num_rounds


@contextmanager
def prefix_errors(arm: str) -> Iterator[None]:
    """Prefix errors with the name of the arm."""
    try:
        yield
    except (TrainstoneError, RuntimeError) as err:
        known = err if isinstance(err, TrainstoneError) else explain_torch_error(err)
        if known is None:
            raise
        raise type(known)(f"{arm}: {known.message}", hint=known.hint) from err
