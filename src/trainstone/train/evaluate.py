"""Judges the validation pictures: every one exactly once on any number of ranks; what fills up a batch counts not."""

from collections.abc import Generator
from contextlib import closing, nullcontext
from typing import NamedTuple

import torch

from trainstone.config.schema import Config
from trainstone.data.splits import OpenSplit
from trainstone.results.progress import Progress
from trainstone.train.distributed import World, sum_over
from trainstone.train.precision import autocast
from trainstone.train.task import Task, feed_device
from trainstone.workloads.registry import WORKLOADS


class Judged(NamedTuple):
    """What an evaluation found."""

    metrics: dict[str, float]
    images: int


def evaluate(task: Task, config: Config, opened: OpenSplit, world: World) -> Generator[Progress, None, Judged]:
    """Evaluate the network, or its average where one is kept; it is left as it was, ready to train."""
    with task.average.swapped() if task.average else nullcontext():
        return (yield from judge_network(task.plain, config, task.device, opened, world))


def judge_network(
    model: torch.nn.Module, config: Config, device: torch.device, opened: OpenSplit, world: World
) -> Generator[Progress, None, Judged]:
    """Evaluate a network on all ranks' shares of the pictures."""
    workload = WORKLOADS[config.workload]
    judge, sums, total = workload.build_judge(config, device), None, len(opened.source)
    trained = model.training
    model.eval()
    try:
        with closing(workload.open_validation(config, opened, device, world.rank)) as loader:
            seen = 0
            for batch in feed_device(loader, device):
                with torch.inference_mode(), autocast(device, config.train.precision):
                    one = judge(model, batch)
                sums = one if sums is None else sums + one
                seen = min(total, seen + len(batch[0]) * world.rank.world)
                yield Progress("evaluating", images=seen, total_images=total)
    finally:
        model.train(trained)
    assert sums is not None  # a split without pictures is refused when it is opened
    metrics, images = workload.finish_eval(sum_over(world, sums.clone()))
    return Judged(metrics, images)
