"""When the measured steps end: the stop rule of bench, and how several ranks agree to end after the same step.

What only one rank knows (a signal, the time, a loss that is no number) is known to all one step later.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from trainstone.config.schema import MeasureConfig
from trainstone.errors import RunError
from trainstone.machine.signals import StopSignals
from trainstone.measure.clock import Timer
from trainstone.measure.recorder import StepRecorder
from trainstone.results import stats
from trainstone.results.progress import Progress
from trainstone.results.steps import StepRecord
from trainstone.train.distributed import Agreement, World, barrier
from trainstone.train.lifecycle import OTHER_RANK

# A narrow interval after a few seconds says nothing of heat and boost clocks, nor does an energy counter.
MIN_SECONDS = 10.0
# How much longer the series is at each look whether it is precise enough: looking costs, and many looks mislead.
CHECK_GROWTH = 1.25


@dataclass
class StopRule:
    """Enough when the time is over, or the interval is narrow enough before.

    The time counts from the end of the first step, which may have to compile for minutes.
    """

    measure: MeasureConfig
    timer: Timer
    recorder: StepRecorder
    half_width: float | None = None
    """Of the interval at the last look."""
    seconds_left: float | None = None
    """None where steps are counted."""
    _begin: float = math.inf
    _next_check: int = stats.MIN_STEADY_STEPS

    def count(self) -> None:
        now = self.timer.now()
        self._begin = min(self._begin, now)
        self.seconds_left = self.measure.seconds - (now - self._begin) if self.measure.iterations is None else None

    def is_enough(self) -> bool:
        if self.seconds_left is None:
            return False
        if self.seconds_left <= 0:
            return True
        number = len(self.recorder)
        if number < self._next_check:
            return False
        self._next_check = int(number * CHECK_GROWTH) + 1
        seconds = self.recorder.column("step_seconds")
        steady = stats.find_steady(seconds)
        inside = seconds[steady.from_step :]
        self.half_width = stats.half_width_quick(inside)
        ripe = self.measure.seconds - self.seconds_left >= min(MIN_SECONDS, self.measure.seconds / 2)
        return ripe and steady.steady and stats.precise_enough(inside, self.measure.half_width)


class Pact:
    """What ranks agree upon at each step: a loss that is no number, a signal, that it is enough.

    Known one step later, so that no rank waits between steps; every rank must look at the same steps. Alone it is known
    at once, and nothing is sent.
    """

    def __init__(self, world: World, signals: StopSignals, *, learns: bool = True) -> None:
        """`learns`: a step has a loss, which must be a number."""
        self.world = world
        self._learns = learns
        self.bad_step = 0
        """1 + the step whose loss is no number; 0: none."""
        self.stopped = False
        self.enough = False
        self._wished = False
        self._signals = signals
        self._agreement = Agreement(world, 3)

    def look(self, record: StepRecord | None = None) -> None:
        """After a step: take what was agreed upon at the one before, and say what this rank wants."""
        bad = record if record and self._learns and not math.isfinite(record.loss) else None
        wishes = [bad.step + 1 if bad else 0, int(self._signals.received is not None), int(self._wished)]
        if self.world.alone:
            if bad:
                check_loss(bad)
            self._take(wishes)
        else:
            self._take(self._agreement.take())
            self._agreement.post(wishes)

    def wish_end(self, enough: bool) -> bool:
        """Let the first rank say that it is enough, with the next step; return whether all know that it is."""
        self._wished = self._wished or (enough and self.world.rank.number == 0)
        return self.enough or (self.world.alone and self._wished)

    def finish(self) -> None:
        """Take what was agreed upon at the last step."""
        if not self.world.alone:
            self._take(self._agreement.take())

    def settle(self) -> None:
        """Wait until no thread of this rank has a message under way: torch's profiler can crash on one that ends after
        the profiler has begun or ended."""
        self._agreement.settle()
        barrier(self.world)

    @property
    def pause(self) -> bool:
        return bool(self.bad_step or self.stopped or self.enough)

    def refuse_bad_loss(self) -> None:
        """End all ranks where the loss of one is no number."""
        if self.bad_step:
            raise bad_loss(self.bad_step - 1, "no number on one of the ranks")

    def end_if_stopped(self) -> None:
        """End all ranks where somebody asked one of them to."""
        if self.stopped:
            raise KeyboardInterrupt(self._signals.received or OTHER_RANK)

    def _take(self, agreed: list[int]) -> None:
        bad, stopped, enough = agreed
        self.bad_step = max(self.bad_step, bad)
        self.stopped, self.enough = self.stopped or bool(stopped), self.enough or bool(enough)


def record_steps(
    steps: Iterator[StepRecord], timer: Timer, measure: MeasureConfig, recorder: StepRecorder, pact: Pact
) -> Iterator[Progress]:
    """Take steps until the rule says enough, there are no more or somebody asks; of many ranks all end after the same.

    The rule is asked on the first rank alone: the others wait for it in their next step, if it takes long.
    """
    rule, rank = StopRule(measure, timer, recorder), pact.world.rank
    for record in steps:
        recorder.step(record)
        if rank.number == 0:
            rule.count()
            pact.wish_end(rule.is_enough())
        pact.look(record)
        rate = record.images * rank.world / record.step_seconds
        yield Progress("measuring", record.step + 1, rate, rule.half_width, rule.seconds_left)
        if pact.world.alone and pact.pause:  # steps of many ranks end by themselves
            break
    pact.finish()
    pact.refuse_bad_loss()


def check_loss(record: StepRecord) -> None:
    """Stop at a loss that is no number: what follows would be timed on NaN, which some processors do slower."""
    if not math.isfinite(record.loss):
        raise bad_loss(record.step, f"{record.loss} (learning rate {record.lr:g})")


def bad_loss(step: int, told: str) -> RunError:
    return RunError(
        f"the loss of step {step} is {told}", hint="lower optimizer.learning_rate, or take train.precision=fp32"
    )
