"""What the all-reduce of gradients costs: steps with it and without, in turn, after the measured ones.

Without it ranks would part from each other, so the learning rate is 0 meanwhile: all is computed, nothing is learned.
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
from trainstone.results.compare_blocks import assess_gradient_sync
from trainstone.results.progress import Progress
from trainstone.results.schema.run import Communication
from trainstone.stats.ratio import ORDER

# Steps of a block; the first does not count: it waits for ranks that came later out of a block without exchange.
BLOCK_STEPS = 3
# Of the time of the measured steps, spent here. Fewer rounds of four blocks than two say nothing: where these take
# longer than that and than MOST_SECONDS, it is not measured.
SHARE = 1 / 4
MIN_ROUNDS, MAX_ROUNDS = 2, 12
MOST_SECONDS = 60.0


def measure_gradient_sync(
    task: Task, parallel: ParallelConfig, recorder: StepRecorder, life: Lifecycle
) -> Generator[Progress, None, Communication | None]:
    """Time steps with and without exchange, A B B A; None alone and on other ranks than the first.

    Interrupted, it says only what is exchanged.
    """
    world = life.world
    if world.alone:
        return None
    sent = COMPRESSED[parallel.compression].itemsize if parallel.compression != "none" else None
    learning = [parameter for parameter in task.plain.parameters() if parameter.requires_grad]
    gradient_bytes = sum(parameter.numel() * (sent or parameter.element_size()) for parameter in learning)
    sizes = Communication(gradient_bytes=gradient_bytes, bucket_bytes=parallel.bucket_bytes)
    rounds: list[list[float]] = []
    still, timer = replace(task, rate=lambda _step: 0.0), choose_timer(task.device)
    planned = plan_rounds(recorder, world)
    for number in range(planned):
        seconds = []
        for arm in ORDER:
            if life.find_stop():
                return sizes if world.rank.number == 0 else None
            yield Progress("measuring the exchange of gradients", 1 + 4 * number + len(seconds))
            with nullcontext() if arm == "A" else task.without_gradient_sync():
                steps = list(train_steps(still, timer, num_steps=BLOCK_STEPS, first_step=len(recorder)))
            seconds.append(statistics.median(record.step_seconds for record in steps[1:]))
        rounds.append(seconds)
    timed = gather(world, {"rounds": rounds})
    if timed is not None and not planned:
        return sizes
    return None if timed is None else assess_gradient_sync(sizes, [one["rounds"] for one in timed])


def plan_rounds(recorder: StepRecorder, world: World) -> int:
    """Return how many rounds fit into the time for it, the same on all ranks; 0: not even the fewest."""
    seconds = recorder.column("step_seconds")
    seconds = seconds[1:] if len(seconds) > 1 else seconds  # the first may compile for minutes
    a_round = float(np.median(seconds)) * len(ORDER) * BLOCK_STEPS
    fitting = int(SHARE * float(seconds.sum()) / a_round)
    if fitting < MIN_ROUNDS:
        fitting = MIN_ROUNDS if MIN_ROUNDS * a_round <= MOST_SECONDS else 0
    message = broadcast_dict(world, {"rounds": min(MAX_ROUNDS, fitting)})
    return int(message["rounds"])
