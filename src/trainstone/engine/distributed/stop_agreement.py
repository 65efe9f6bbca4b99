"""Agree across ranks, one step late, whether to stop: NaN loss, signal, stop rule, checkpoint."""

import math
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from trainstone.engine.distributed.collectives import World, barrier
from trainstone.errors import RunError
from trainstone.machine.signals import OTHER_RANK, StopSignals
from trainstone.results.steps import StepRecord


class StopAgreement:
    """What ranks agree upon at each step: a loss that is no number, a signal, that it is enough, a checkpoint.

    Known one step later, so that no rank waits between steps; every rank must look at the same steps. Alone it is known
    at once unless `late`, and nothing is sent.
    """

    def __init__(self, world: World, signals: StopSignals, *, learns: bool = True, late: bool = False) -> None:
        """`learns`: a step has a loss, which must be a number."""
        self.world = world
        self.agreed = StopDecision()
        """Since this was made."""
        self._signals, self._learns = signals, learns
        self._at_once = world.alone and not late
        self._end_requested = False
        self._posted: tuple[Any, Any] | None = None

    def look(self, record: StepRecord | None = None, *, enough: bool = False, checkpoint: bool = False) -> None:
        """After a step: take what was agreed upon at the one before, and say what this rank wants."""
        bad = record if record and self._learns and not math.isfinite(record.loss) else None
        if bad and self._at_once:
            check_loss(bad)
        requests = (
            bad.step + 1 if bad else 0,
            self._signals.received is not None,
            enough or self._end_requested,
            checkpoint,
        )
        self.finish()
        if self.world.alone:
            self._posted = None, requests
        else:
            tensor = torch.tensor(requests, dtype=torch.int64)
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
            self.agreed = StopDecision(*map(int, map(max, self.agreed, values)))

    def request_end(self, enough: bool) -> bool:
        """Let the first rank say that it is enough, with the next step; return whether all know that it is."""
        self._end_requested = self._end_requested or (enough and self.world.rank.number == 0)
        return bool(self.agreed.time_over) or (self.world.alone and self._end_requested)

    def settle(self) -> None:
        """Wait until no thread of this rank has a message under way: torch's profiler can crash on one that ends after
        the profiler has begun or ended."""
        if self._posted is not None and self._posted[0] is not None:
            self._posted[0].wait()
        barrier(self.world)

    def raise_if_bad_loss(self) -> None:
        """End all ranks where the loss of one is no number."""
        if self.agreed.nan_step:
            raise bad_loss(self.agreed.nan_step - 1, "no number on one of the ranks")

    def raise_if_stopped(self) -> None:
        """End all ranks where somebody asked one of them to."""
        if self.agreed.stop:
            raise KeyboardInterrupt(self._signals.received or OTHER_RANK)


def check_loss(record: StepRecord) -> None:
    """Stop at a loss that is no number: what follows would be timed on NaN, which some processors do slower."""
    if not math.isfinite(record.loss):
        raise bad_loss(record.step, f"{record.loss} (learning rate {record.lr:g})")


def bad_loss(step: int, message: str) -> RunError:
    return RunError(
        f"the loss of step {step} is {message}", hint="lower optimizer.learning_rate, or take train.precision=fp32"
    )


class StopDecision(NamedTuple):
    """What the ranks have agreed on since the last steps began; 0 is no."""

    nan_step: int = 0
    """1 + the step whose loss is NaN or infinite."""
    stop: int = 0
    """A signal requests the end."""
    time_over: int = 0
    """stop.seconds have passed."""
    checkpoint: int = 0
    """checkpoint.every_seconds have passed."""
