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
    """Requests that ranks share after each step: NaN loss, stop signal, time over, checkpoint due.

    Requests are known on all ranks one step later, so that no rank waits between steps; every rank must call update()
    for the same steps. On a single rank they are known at once (unless `late`) and nothing is sent.
    """

    def __init__(self, world: World, signals: StopSignals, *, has_loss: bool = True, late: bool = False) -> None:
        """`has_loss`: steps have a loss, which must be finite."""
        self.world = world
        self.agreed = StopDecision()
        """All requests since this object was created."""
        self._signals, self._has_loss = signals, has_loss
        self._at_once = world.is_single_rank and not late
        self._end_requested = False
        self._posted: tuple[Any, Any] | None = None

    def update(self, record: StepRecord | None = None, *, end: bool = False, checkpoint: bool = False) -> None:
        """After a step: receive the requests of the step before, and send this rank's requests."""
        bad = record if record and self._has_loss and not math.isfinite(record.loss) else None
        if bad and self._at_once:
            check_loss(bad)
        requests = (
            bad.step + 1 if bad else 0,
            self._signals.received is not None,
            end or self._end_requested,
            checkpoint,
        )
        self.finish()
        if self.world.is_single_rank:
            self._posted = None, requests
        else:
            tensor = torch.tensor(requests, dtype=torch.int64)
            work = dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self.world.control, async_op=True)
            self._posted = work, tensor
        if self._at_once:
            self.finish()

    def finish(self) -> None:
        """Receive the requests of the last step."""
        if self._posted is None:
            return
        (work, values), self._posted = self._posted, None
        if work is not None:
            work.wait()
            values = values.tolist()
        if any(values):
            self.agreed = StopDecision(*map(int, map(max, self.agreed, values)))

    def request_end(self, end: bool) -> bool:
        """Let rank 0 request the end with the next step; return whether all ranks have received such a request."""
        self._end_requested = self._end_requested or (end and self.world.rank.number == 0)
        return bool(self.agreed.time_over) or (self.world.is_single_rank and self._end_requested)

    def wait_pending(self) -> None:
        """Wait for pending messages: torch's profiler can crash on one that is pending when it starts or ends."""
        if self._posted is not None and self._posted[0] is not None:
            self._posted[0].wait()
        barrier(self.world)

    def raise_if_bad_loss(self) -> None:
        """Raise RunError on all ranks if the loss of one is NaN or infinite."""
        if self.agreed.nan_step:
            raise build_loss_error(self.agreed.nan_step - 1, "NaN or infinite on one of the ranks")

    def raise_if_stopped(self) -> None:
        """Raise KeyboardInterrupt on all ranks if one has received a stop signal."""
        if self.agreed.stop:
            raise KeyboardInterrupt(self._signals.received or OTHER_RANK)


def check_loss(record: StepRecord) -> None:
    """Raise RunError if the loss is not finite: times would be wrong, as some processors are slower with NaN."""
    if not math.isfinite(record.loss):
        raise build_loss_error(record.step, f"{record.loss} (learning rate {record.lr:g})")


def build_loss_error(step: int, message: str) -> RunError:
    return RunError(
        f"the loss of step {step} is {message}", hint="lower optimizer.learning_rate, or --set train.precision=fp32"
    )


class StopDecision(NamedTuple):
    """Requests of all ranks, the maximum over ranks; 0: not requested."""

    nan_step: int = 0
    """1 + the step whose loss is NaN or infinite."""
    stop: int = 0
    """A rank has received a stop signal."""
    time_over: int = 0
    """The time limit or the stop rule has been reached."""
    checkpoint: int = 0
    """checkpoint.every_seconds have passed."""
