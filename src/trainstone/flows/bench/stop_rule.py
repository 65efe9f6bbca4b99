"""The stop rule of bench: when enough steps are measured; all ranks stop after the same step.

Events that only one rank sees (a signal, the time limit, a NaN loss) reach the other ranks one step later.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainstone.config.schema import MeasureConfig
from trainstone.engine.distributed.stop_agreement import StopAgreement
from trainstone.engine.fit import STEPS_SHARE
from trainstone.measure.clock import Timer
from trainstone.measure.recorder import Sink, StepRecorder
from trainstone.results.progress import Progress
from trainstone.results.steps import StepRecord
from trainstone.stats import steady_state, throughput

# A few seconds are too short to show the effect of heat and boost clocks, and for an energy counter.
MIN_SECONDS = 10.0
GRACE = 0.15
"""Part of the time budget by which a run may exceed it to have enough steady steps for an interval."""
AFTER_SHARE = 0.05
"""Share of the time budget for measuring the peak again and writing the result."""
# Growth of the series between two checks of its precision: a check costs time, and repeated checks bias the stop.
CHECK_GROWTH = 1.25


@dataclass
class StopRule:
    """Stop when the time budget is used, or earlier when the confidence interval is narrow enough.

    Steps get STEPS_SHARE of the budget even if trials, peaks and a first step that compiles have used it.
    """

    measure: MeasureConfig
    timer: Timer
    recorder: StepRecorder
    end: float
    """When the last step should end, on the timer's clock."""
    half_width: float | None = None
    """Half width of the interval at the last check."""
    seconds_left: float | None = None
    """None if measure.iterations sets the number of steps."""
    _begin: float = math.inf
    _next_check: int = throughput.MIN_STEADY_STEPS

    def is_met(self) -> bool:
        """Return whether to stop; call it after each step."""
        if self.measure.iterations is not None:
            return False
        now = self.timer.now()
        self._begin = min(self._begin, now)
        self.seconds_left = max(self.end, self._begin + STEPS_SHARE * self.measure.seconds) - now
        number = len(self.recorder)
        if self.seconds_left <= 0:
            seconds = self.recorder.column("step_seconds")
            missing = throughput.MIN_STEADY_STEPS - (number - steady_state.find_steady(seconds).from_step)
            return missing <= 0 or missing * seconds[-1] > GRACE * self.measure.seconds + self.seconds_left
        if number < self._next_check:
            return False
        self._next_check = int(number * CHECK_GROWTH) + 1
        seconds = self.recorder.column("step_seconds")
        steady = steady_state.find_steady(seconds)
        inside = seconds[steady.from_step :]
        self.half_width = throughput.estimate_half_width(inside)
        long_enough = now - self._begin >= min(MIN_SECONDS, self.measure.seconds / 2)
        return long_enough and steady.steady and throughput.is_precise_enough(inside, self.measure.half_width)


def record_steps(
    steps: Iterator[StepRecord],
    timer: Timer,
    measure: MeasureConfig,
    recorder: StepRecorder,
    agreement: StopAgreement,
    end: float,
    sinks: Sequence[Sink] = (),
) -> Iterator[Progress]:
    """Record steps until the stop rule, the number of steps or a signal ends them; all ranks end after the same step.

    Only rank 0 evaluates the rule. `end`: when the time budget of the steps ends, on the timer's clock.
    """
    rule, rank = StopRule(measure, timer, recorder, end), agreement.world.rank
    for record in steps:
        for sink in (*sinks, recorder):
            sink.step(record)
        agreement.update(record, end=rank.number == 0 and rule.is_met())
        rate = record.images * rank.world / record.step_seconds
        yield Progress("measuring", record.step + 1, rate, rule.half_width, rule.seconds_left)
        if agreement.world.is_single_rank and any(agreement.agreed):  # with several ranks train_steps ends by itself
            break
    agreement.finish()
    agreement.raise_if_bad_loss()
