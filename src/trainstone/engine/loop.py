"""The training step loop: a generator of step records that bench, train and profile consume.

It only trains and times steps: no evaluation, no output, no stop rule except a number of steps.
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
    """Timer marks of a step in progress; marks of phases only with engine.split_phases."""

    started: float
    begin: Any
    batch_ready: Any = None
    forward: Any = None
    backward: Any = None
    end: Any = None
    waits: list[tuple[Any, Any]] = field(default_factory=list)
    """Begin and end of waiting for each batch; with train.accumulate a step has several."""


Update = Callable[[Task, Batch, Timer, StepMarks], Tensor]


def train_steps(
    task: Task,
    timer: Timer,
    *,
    num_steps: int | None = None,
    origin: float | None = None,
    first_step: int = 0,
    keep_going: Callable[[], bool] = lambda: True,
) -> Iterator[StepRecord]:
    """Train, yielding each step when the device has finished it: `timer.lag` steps late.

    `origin` is the host time that start_seconds counts from. `keep_going` is called before each step but the first;
    when it returns False, the steps in progress are finished and yielded, and the loop ends. A consumer that stops
    iterating loses them (at most `timer.lag`). One that does other work between two steps calls `timer.pause()`.
    """
    timer.pause()
    # A small ring buffer, pinned for CUDA: losses are copied asynchronously and read when the step has finished.
    ring = torch.zeros(timer.lag + 1, 2, pin_memory=task.device.type == "cuda")
    pending: deque[tuple[int, StepMarks, Sequence[Tensor | None]]] = deque()
    update: Update = update_weights
    origin = timer.now() if origin is None else origin
    for step in itertools.count(first_step) if num_steps is None else range(first_step, first_step + num_steps):
        if step > first_step and not keep_going():
            break
        begin = timer.begin_step()
        marks = StepMarks(started=begin.seconds - origin, begin=begin.mark)
        with task.mark("data"):
            batch = next(task.batches)
        marks.batch_ready = timer.mark()
        marks.waits.append((begin.waits_from, marks.batch_ready))
        set_rate(task.optimizer, task.rate(step))
        if task.cuda_graphs and update is update_weights:
            update = capture_update(task, batch, timer)  # part of the first step
        loss = update(task, batch, timer, marks)
        # The weight decay term of the loss, if it has one.
        decay = task.loss.term if isinstance(task.loss, DecayedLoss) else None
        losses: Sequence[Tensor | None] = (loss, decay)
        if timer.lag:
            losses = [
                part if part is None else slot.copy_(part, non_blocking=True)
                for slot, part in zip(ring[step % len(ring)], losses, strict=True)
            ]
        if task.average:
            task.average.update(step)
        marks.end = timer.end_step()
        pending.append((step, marks, losses))
        if len(pending) > timer.lag:
            yield build_record(task, timer, *pending.popleft())
    while pending:
        yield build_record(task, timer, *pending.popleft())


def update_weights(task: Task, batch: Batch, timer: Timer, marks: StepMarks) -> Tensor:
    """Run forward and backward of all batches of a step, then the optimiser; return the loss, still on the device."""
    loss = None
    for part in range(task.accumulate):
        if part:
            begin = timer.mark()
            with task.mark("data"):
                batch = next(task.batches)
            marks.waits.append((begin, timer.mark()))
        # The gradient all-reduce runs once, with the last batch.
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
        one = one.detach()  # frees the autograd graph before the optimiser runs
        loss = one if loss is None else loss + one
    assert loss is not None  # accumulate is at least 1
    with task.mark("optimizer"):
        task.scale.step(task.optimizer)
        task.optimizer.zero_grad(set_to_none=True)
    return loss


def build_record(task: Task, timer: Timer, step: int, marks: StepMarks, losses: Sequence[Tensor | None]) -> StepRecord:
    timer.wait(marks.end)
    loss, decay = (None if part is None else part.item() for part in losses)
    split = marks.forward is not None
    return StepRecord(
        step=step,
        epoch=task.epoch_of(step),
        start_seconds=marks.started,
        data_seconds=sum(timer.seconds(begin, end) for begin, end in marks.waits),
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
    """Capture one update as a CUDA graph after three ordinary ones; later updates copy the batch in and replay it."""
    for group in task.optimizer.param_groups:  # a replay reads the current value of a tensor; a number is fixed
        group["lr"] = torch.tensor(float(group["lr"]), device=task.device)
    static_batch = tuple(tensor.clone() for tensor in batch)
    side = torch.cuda.Stream(task.device)
    side.wait_stream(torch.cuda.current_stream(task.device))
    unsplit = StepMarks(started=0.0, begin=None)
    with torch.cuda.stream(side):  # torch requires a few updates on a side stream before capture
        for _ in range(3):
            update_weights(task, static_batch, timer, unsplit)
    torch.cuda.current_stream(task.device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # Other threads call CUDA meanwhile: the loader pins memory. The default mode ends the capture when they do.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        static_loss = update_weights(task, static_batch, timer, unsplit)

    def replay(_task: Task, batch: Batch, _timer: Timer, _marks: StepMarks) -> Tensor:
        for static, tensor in zip(static_batch, batch, strict=True):
            static.copy_(tensor, non_blocking=True)
        graph.replay()
        return static_loss

    return replay
