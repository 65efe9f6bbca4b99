"""The one loop: a generator of step records. bench, train and profile consume it, stop it and act between its steps.

It times and records, nothing else: no evaluation, no output, no stop rule but a number of steps.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trainstone.engine.optim import set_rate
from trainstone.engine.task import DecayedLoss, Task
from trainstone.measure.clock import Timer
from trainstone.results.steps import StepRecord
from trainstone.workloads.workload import Batch


@dataclass(slots=True)
class StepMarks:
    """Points in time of a step under way; phases only when they are split."""

    started: float
    begin: Any
    batch_ready: Any = None
    forward: Any = None
    backward: Any = None
    end: Any = None
    later_waits: list[tuple[Any, Any]] = field(default_factory=list)
    """Begin and end of waiting for further batches of the same step."""


Update = Callable[[Task, Batch, Timer, StepMarks], Tensor]


def train_steps(
    task: Task,
    timer: Timer,
    *,
    num_steps: int | None = None,
    origin: float | None = None,
    first_step: int = 0,
    go_on: Callable[[], bool] = lambda: True,
) -> Iterator[StepRecord]:
    """Train, yielding each step when the device has finished it: `timer.lag` steps late.

    `origin` is the host time that start_seconds counts from. `go_on` is asked before each step but the first; when it
    says no, the steps under way are finished, yielded, and the row ends. A consumer that stops by itself loses them, at
    most `timer.lag`.
    """
    # A small ring, pinned for CUDA: losses are copied out behind the device's work and read when the step is over.
    ring = torch.zeros(timer.lag + 1, 2, pin_memory=task.device.type == "cuda")
    pending: deque[tuple[int, StepMarks, Sequence[Tensor | None]]] = deque()
    update: Update = update_weights
    origin = timer.now() if origin is None else origin
    for step in itertools.count(first_step) if num_steps is None else range(first_step, first_step + num_steps):
        if step > first_step and not go_on():
            break
        marks = StepMarks(started=timer.now() - origin, begin=timer.mark())
        with task.mark("data"):
            batch = next(task.batches)
        marks.batch_ready = timer.mark()
        set_rate(task.optimizer, task.rate(step))
        if task.cuda_graphs and update is update_weights:
            update = capture_update(task, batch, timer)  # part of the first step, like all that is done once
        loss = update(task, batch, timer, marks)
        # Weight decay's part of it, where it is one.
        decay = task.loss.term if isinstance(task.loss, DecayedLoss) else None
        losses: Sequence[Tensor | None] = (loss, decay)
        if timer.lag:
            losses = [
                part if part is None else slot.copy_(part, non_blocking=True)
                for slot, part in zip(ring[step % len(ring)], losses, strict=True)
            ]
        if task.average:
            task.average.update(step)
        marks.end = timer.mark()
        pending.append((step, marks, losses))
        if len(pending) > timer.lag:
            yield settle(task, timer, *pending.popleft())
    while pending:
        yield settle(task, timer, *pending.popleft())


def update_weights(task: Task, batch: Batch, timer: Timer, marks: StepMarks) -> Tensor:
    """Forward and backward of one batch or several, optimiser: one update. Returns the loss, still on the device."""
    loss = None
    for part in range(task.accumulate):
        if part:
            begin = timer.mark()
            with task.mark("data"):
                batch = next(task.batches)
            marks.later_waits.append((begin, timer.mark()))
        # Ranks exchange gradients once, with the last part.
        with nullcontext() if part == task.accumulate - 1 else task.without_gradient_sync():
            with task.mark("forward"), task.autocast():
                one = task.loss(task.model, batch)
                if task.accumulate > 1:
                    one = one / task.accumulate
            if task.split_phases:
                marks.forward = timer.mark()
            with task.mark("backward"):
                task.scale.backward(one)
            if task.split_phases:
                marks.backward = timer.mark()
        one = one.detach()  # its graph goes before the optimiser's work
        loss = one if loss is None else loss + one
    assert loss is not None  # accumulate is at least 1
    with task.mark("optimizer"):
        task.scale.step(task.optimizer)
        task.optimizer.zero_grad(set_to_none=True)
    return loss


def settle(task: Task, timer: Timer, step: int, marks: StepMarks, losses: Sequence[Tensor | None]) -> StepRecord:
    timer.wait(marks.end)
    loss, decay = (None if part is None else part.item() for part in losses)
    split = marks.forward is not None
    waits = [(marks.begin, marks.batch_ready), *marks.later_waits]
    return StepRecord(
        step=step,
        epoch=task.epoch_of(step),
        start_seconds=marks.started,
        data_seconds=sum(timer.seconds(begin, end) for begin, end in waits),
        step_seconds=timer.seconds(marks.begin, marks.end),
        images=task.images_per_step,
        loss=loss,
        lr=task.rate(step),
        forward_seconds=timer.seconds(marks.batch_ready, marks.forward) if split else None,
        backward_seconds=timer.seconds(marks.forward, marks.backward) if split else None,
        optimizer_seconds=timer.seconds(marks.backward, marks.end) if split else None,
        decay_loss=decay,
    )


def capture_update(task: Task, batch: Batch, timer: Timer) -> Update:
    """CUDA: capture one update as a graph after three ordinary ones; later ones copy the batch in and replay it."""
    for group in task.optimizer.param_groups:  # a replay reads a tensor anew, where a number would stay for ever
        group["lr"] = torch.tensor(float(group["lr"]), device=task.device)
    static_batch = tuple(tensor.clone() for tensor in batch)
    side = torch.cuda.Stream(task.device)
    side.wait_stream(torch.cuda.current_stream(task.device))
    unsplit = StepMarks(started=0.0, begin=None)
    with torch.cuda.stream(side):  # torch asks for a few updates on a side stream before capture
        for _ in range(3):
            update_weights(task, static_batch, timer, unsplit)
    torch.cuda.current_stream(task.device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static_loss = update_weights(task, static_batch, timer, unsplit)

    def replay(_task: Task, batch: Batch, _timer: Timer, _marks: StepMarks) -> Tensor:
        for static, tensor in zip(static_batch, batch, strict=True):
            static.copy_(tensor, non_blocking=True)
        graph.replay()
        return static_loss

    return replay
