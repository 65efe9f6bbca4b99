"""When the measured steps end: the stop rule of bench, and how several ranks agree to end after the same step.

What only one rank knows (a signal, the time, a loss that is no number) is known to all one step later.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from trainstone.config.schema import MeasureConfig
from trainstone.engine.distributed.collectives import World, barrier
from trainstone.errors import RunError
from trainstone.flows.lifecycle import OTHER_RANK
from trainstone.flows.train.events import Agreed
from trainstone.machine.signals import StopSignals
from trainstone.measure.clock import Timer
from trainstone.measure.recorder import Sink, StepRecorder
from trainstone.results.progress import Progress
from trainstone.results.steps import StepRecord
from trainstone.stats import throughput

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
    _next_check: int = throughput.MIN_STEADY_STEPS

    def is_enough(self) -> bool:
        """After a step."""
        if self.measure.iterations is not None:
            return False
        now = self.timer.now()
        self._begin = min(self._begin, now)
        self.seconds_left = self.measure.seconds - (now - self._begin)
        if self.seconds_left <= 0:
            return True
        number = len(self.recorder)
        if number < self._next_check:
            return False
        self._next_check = int(number * CHECK_GROWTH) + 1
        seconds = self.recorder.column("step_seconds")
        steady = throughput.find_steady(seconds)
        inside = seconds[steady.from_step :]
        self.half_width = throughput.half_width_quick(inside)
        ripe = self.measure.seconds - self.seconds_left >= min(MIN_SECONDS, self.measure.seconds / 2)
        return ripe and steady.steady and throughput.precise_enough(inside, self.measure.half_width)


class Pact:
    """What ranks agree upon at each step: a loss that is no number, a signal, that it is enough, a checkpoint.

    Known one step later, so that no rank waits between steps; every rank must look at the same steps. Alone it is known
    at once unless `late`, and nothing is sent.
    """

    def __init__(self, world: World, signals: StopSignals, *, learns: bool = True, late: bool = False) -> None:
        """`learns`: a step has a loss, which must be a number."""
        self.world = world
        self.agreed = Agreed()
        """Since this was made."""
        self._signals, self._learns = signals, learns
        self._at_once = world.alone and not late
        self._wished = False
        self._posted: tuple[Any, Any] | None = None

    def look(self, record: StepRecord | None = None, *, enough: bool = False, checkpoint: bool = False) -> None:
        """After a step: take what was agreed upon at the one before, and say what this rank wants."""
        bad = record if record and self._learns and not math.isfinite(record.loss) else None
        if bad and self._at_once:
            check_loss(bad)
        wishes = bad.step + 1 if bad else 0, self._signals.received is not None, enough or self._wished, checkpoint
        self.finish()
        if self.world.alone:
            self._posted = None, wishes
        else:
            tensor = torch.tensor(wishes, dtype=torch.int64)
            work = dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self.world.control, async_op=True)
            self._posted = work, tensor
        if self._at_once:
            self.finish()

    def finish(self) -> None:
        """Take what was agreed upon at the last step."""
        if self._posted is None:
            return
        (work, values), self._posted = self._posted, None
        if work is not None:
            work.wait()
            values = values.tolist()
        if any(values):
            self.agreed = Agreed(*map(int, map(max, self.agreed, values)))

    def wish_end(self, enough: bool) -> bool:
        """Let the first rank say that it is enough, with the next step; return whether all know that it is."""
        self._wished = self._wished or (enough and self.world.rank.number == 0)
        return bool(self.agreed.time_over) or (self.world.alone and self._wished)

    def settle(self) -> None:
        """Wait until no thread of this rank has a message under way: torch's profiler can crash on one that ends after
        the profiler has begun or ended."""
        if self._posted is not None and self._posted[0] is not None:
            self._posted[0].wait()
        barrier(self.world)

    def refuse_bad_loss(self) -> None:
        """End all ranks where the loss of one is no number."""
        if self.agreed.nan_step:
            raise bad_loss(self.agreed.nan_step - 1, "no number on one of the ranks")

    def end_if_stopped(self) -> None:
        """End all ranks where somebody asked one of them to."""
        if self.agreed.stop:
            raise KeyboardInterrupt(self._signals.received or OTHER_RANK)


def record_steps(
    steps: Iterator[StepRecord],
    timer: Timer,
    measure: MeasureConfig,
    recorder: StepRecorder,
    pact: Pact,
    sinks: Sequence[Sink] = (),
) -> Iterator[Progress]:
    """Take steps until the rule says enough, there are no more or somebody asks; of many ranks all end after the same.

    The rule is asked on the first rank alone: the others wait for it in their next step, if it takes long.
    """
    rule, rank = StopRule(measure, timer, recorder), pact.world.rank
    for record in steps:
        for sink in (*sinks, recorder):
            sink.step(record)
        pact.look(record, enough=rank.number == 0 and rule.is_enough())
        rate = record.images * rank.world / record.step_seconds
        yield Progress("measuring", record.step + 1, rate, rule.half_width, rule.seconds_left)
        if pact.world.alone and any(pact.agreed):  # steps of many ranks end by themselves
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
