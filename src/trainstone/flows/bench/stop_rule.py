"""When the measured steps end: the stop rule of bench, and how several ranks agree to end after the same step.

What only one rank knows (a signal, the time, a loss that is no number) is known to all one step later.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainstone.config.schema import MeasureConfig
from trainstone.engine.distributed.stop_agreement import StopAgreement
from trainstone.measure.clock import Timer
from trainstone.measure.recorder import Sink, StepRecorder
from trainstone.results.progress import Progress
from trainstone.results.steps import StepRecord
from trainstone.stats import steady_state, throughput

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
        steady = steady_state.find_steady(seconds)
        inside = seconds[steady.from_step :]
        self.half_width = throughput.half_width_quick(inside)
        ripe = self.measure.seconds - self.seconds_left >= min(MIN_SECONDS, self.measure.seconds / 2)
        return ripe and steady.steady and throughput.precise_enough(inside, self.measure.half_width)


def record_steps(
    steps: Iterator[StepRecord],
    timer: Timer,
    measure: MeasureConfig,
    recorder: StepRecorder,
    agreement: StopAgreement,
    sinks: Sequence[Sink] = (),
) -> Iterator[Progress]:
    """Take steps until the rule says enough, there are no more or somebody asks; of many ranks all end after the same.

    The rule is asked on the first rank alone: the others wait for it in their next step, if it takes long.
    """
    rule, rank = StopRule(measure, timer, recorder), agreement.world.rank
    for record in steps:
        for sink in (*sinks, recorder):
            sink.step(record)
        agreement.look(record, enough=rank.number == 0 and rule.is_enough())
        rate = record.images * rank.world / record.step_seconds
        yield Progress("measuring", record.step + 1, rate, rule.half_width, rule.seconds_left)
        if agreement.world.alone and any(agreement.agreed):  # steps of many ranks end by themselves
            break
    agreement.finish()
    agreement.raise_if_bad_loss()
