"""Measure the cost of the gradient all-reduce: time steps with and without it, after the measured steps.

Without all-reduce the weights of the ranks would diverge, so the learning rate is 0: all work is done, but the weights
stay the same.
"""

import statistics
from collections.abc import Generator
from contextlib import nullcontext
from dataclasses import replace

import numpy as np

from trainstone.config.schema import ParallelConfig
from trainstone.engine.distributed.collectives import World, broadcast_dict, gather
from trainstone.engine.distributed.data_parallel import COMPRESSED
from trainstone.engine.loop import train_steps
from trainstone.engine.task import Task
from trainstone.flows.lifecycle import Lifecycle
from trainstone.measure.clock import choose_timer
from trainstone.measure.recorder import StepRecorder
from trainstone.results.interleaved import assess_gradient_sync
from trainstone.results.progress import Progress
from trainstone.results.schema.run import Communication
from trainstone.stats.ratio import ORDER

# Steps per block; the first does not count: it waits for ranks that finish a block without all-reduce later.
BLOCK_STEPS = 3
# Time limit, as a share of the time of the measured steps. Two rounds of four blocks are the minimum; if they exceed
# both this share and MOST_SECONDS, the cost is not measured.
SHARE = 1 / 4
MIN_ROUNDS, MAX_ROUNDS = 2, 12
MOST_SECONDS = 60.0


def measure_gradient_sync(
    task: Task, parallel: ParallelConfig, recorder: StepRecorder, life: Lifecycle
) -> Generator[Progress, None, Communication | None]:
    """Time blocks of steps with and without all-reduce in the order A B B A; rank 0 of several returns the result.

    After an interruption the result has only the number of bytes.
    """
    world = life.world
    if world.is_single_rank:
        return None
    sent = COMPRESSED[parallel.compression].itemsize if parallel.compression != "none" else None
    trained = [parameter for parameter in task.plain.parameters() if parameter.requires_grad]
    gradient_bytes = sum(parameter.numel() * (sent or parameter.element_size()) for parameter in trained)
    sizes = Communication(gradient_bytes=gradient_bytes, bucket_bytes=parallel.bucket_bytes)
    rounds: list[list[float]] = []
    frozen, timer = replace(task, rate=lambda _step: 0.0), choose_timer(task.device)
    planned = plan_rounds(recorder, world)
    for number in range(planned):
        seconds = []
        for arm in ORDER:
            if life.find_stop():
                return sizes if world.rank.number == 0 else None
            yield Progress("measuring the gradient all-reduce", 1 + 4 * number + len(seconds))
            with nullcontext() if arm == "A" else task.without_gradient_sync():
                steps = list(train_steps(frozen, timer, num_steps=BLOCK_STEPS, first_step=len(recorder)))
            seconds.append(statistics.median(record.step_seconds for record in steps[1:]))
        rounds.append(seconds)
    timed = gather(world, {"rounds": rounds})
    if timed is not None and not planned:
        return sizes
    return None if timed is None else assess_gradient_sync(sizes, [one["rounds"] for one in timed])


def plan_rounds(recorder: StepRecorder, world: World) -> int:
    """Return how many rounds fit into the time limit, the same on all ranks; 0: fewer than the minimum."""
    seconds = recorder.column("step_seconds")
    seconds = seconds[1:] if len(seconds) > 1 else seconds  # the first may compile for minutes
    round_seconds = float(np.median(seconds)) * len(ORDER) * BLOCK_STEPS
    fitting = int(SHARE * float(seconds.sum()) / round_seconds)
    if fitting < MIN_ROUNDS:
        fitting = MIN_ROUNDS if MIN_ROUNDS * round_seconds <= MOST_SECONDS else 0
    shared = broadcast_dict(world, {"rounds": min(MAX_ROUNDS, fitting)})
    return int(shared["rounds"])
