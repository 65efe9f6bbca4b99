"""What the exchange of gradients costs a step: some steps with it and some without in turn, after the measured ones.

Without exchange ranks would part from each other, so the rate is 0 meanwhile: all is computed, nothing is learned.
"""

import statistics
from collections.abc import Generator
from contextlib import nullcontext
from dataclasses import replace

import numpy as np

from trainstone.config.learning import ParallelConfig
from trainstone.measure.clock import choose_timer
from trainstone.measure.recorder import StepRecorder
from trainstone.results.exchange import judge_exchange
from trainstone.results.paired import ORDER
from trainstone.results.progress import Progress
from trainstone.results.schema import Communication
from trainstone.train.distributed import COMPRESSED, World, broadcast_dict, gather
from trainstone.train.lifecycle import Lifecycle
from trainstone.train.loop import train_steps
from trainstone.train.task import Task

# Steps of a block; the first does not count: it waits for ranks that came later out of a block without exchange.
BLOCK_STEPS = 3
# Of the time of the measured steps, spent here. Fewer rounds of four blocks than two say nothing: where these take
# longer than that and than MOST_SECONDS, it is not measured.
SHARE = 1 / 4
MIN_ROUNDS, MAX_ROUNDS = 2, 12
MOST_SECONDS = 60.0


def measure_exchange(
    task: Task, parallel: ParallelConfig, recorder: StepRecorder, life: Lifecycle
) -> Generator[Progress, None, Communication | None]:
    """Time steps with and without exchange, A B B A; None alone and on other ranks than the first.

    Interrupted, it says only what is exchanged.
    """
    world = life.world
    if world.alone:
        return None
    sizes = Communication(gradient_bytes=count_gradient_bytes(task, parallel), bucket_bytes=parallel.bucket_bytes)
    rounds: list[list[float]] = []
    planned = plan_rounds(recorder, world)
    for number in range(planned):
        seconds = []
        for arm in ORDER:
            if life.find_stop():
                return sizes if world.rank.number == 0 else None
            yield Progress("measuring the exchange of gradients", 1 + 4 * number + len(seconds))
            seconds.append(time_block(task, len(recorder), exchanged=arm == "A"))
        rounds.append(seconds)
    timed = gather(world, {"rounds": rounds})
    if timed is not None and not planned:
        return sizes
    return None if timed is None else judge_exchange(sizes, [one["rounds"] for one in timed])


def count_gradient_bytes(task: Task, parallel: ParallelConfig) -> int:
    """Return what a rank gives into each exchange."""
    sent = COMPRESSED[parallel.compression].itemsize if parallel.compression != "none" else None
    learning = [parameter for parameter in task.plain.parameters() if parameter.requires_grad]
    return sum(parameter.numel() * (sent or parameter.element_size()) for parameter in learning)


def plan_rounds(recorder: StepRecorder, world: World) -> int:
    """Return how many rounds fit into the time for it, the same on all ranks; 0: not even the fewest."""
    seconds = recorder.column("step_seconds")
    seconds = seconds[1:] if len(seconds) > 1 else seconds  # the first may compile for minutes
    a_round = float(np.median(seconds)) * len(ORDER) * BLOCK_STEPS
    fitting = int(SHARE * float(seconds.sum()) / a_round)
    if fitting < MIN_ROUNDS:
        fitting = MIN_ROUNDS if MIN_ROUNDS * a_round <= MOST_SECONDS else 0
    told = broadcast_dict(world, {"rounds": min(MAX_ROUNDS, fitting)})
    return int(told["rounds"])


def time_block(task: Task, first_step: int, *, exchanged: bool) -> float:
    """Return the median of a block's steps that count."""
    still = replace(task, rate=lambda _step: 0.0)
    timer = choose_timer(task.device)
    with nullcontext() if exchanged else task.without_exchange():
        steps = list(train_steps(still, timer, num_steps=BLOCK_STEPS, first_step=first_step))
    return statistics.median(record.step_seconds for record in steps[1:])
