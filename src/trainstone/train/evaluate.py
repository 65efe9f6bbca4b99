"""Judges the validation pictures: every one exactly once on any number of ranks; what fills up a batch counts not."""

from collections.abc import Generator
from contextlib import closing, nullcontext
from typing import NamedTuple

import torch

from trainstone.config.schema import Config
from trainstone.data.splits import OpenSplit
from trainstone.machine.interrupt import Interrupt
from trainstone.results.progress import Progress
from trainstone.train.distributed import Agreement, World, sum_over
from trainstone.train.precision import autocast
from trainstone.train.task import Task, feed_device
from trainstone.workloads.registry import WORKLOADS


class Judged(NamedTuple):
    """What an evaluation found."""

    metrics: dict[str, float]
    images: int


def evaluate(
    task: Task, config: Config, opened: OpenSplit, world: World, interrupt: Interrupt
) -> Generator[Progress, None, Judged | None]:
    """Evaluate the network, or its average where one is kept; it is left as it was, ready to train.

    None, on all ranks: somebody asked for the end before all pictures were judged.
    """
    with task.average.swapped() if task.average else nullcontext():
        return (yield from judge_network(task.plain, config, task.device, opened, world, interrupt))


def judge_network(
    model: torch.nn.Module,
    config: Config,
    device: torch.device,
    opened: OpenSplit,
    world: World,
    interrupt: Interrupt,
) -> Generator[Progress, None, Judged | None]:
    """Evaluate a network on all ranks' shares of the pictures; None where it was broken off."""
    workload = WORKLOADS[config.workload]
    judge, total = workload.build_judge(config, device), len(opened.source)
    sums: list[torch.Tensor] = []
    stop = StopQuestion(world, interrupt)
    trained = model.training
    model.eval()
    try:
        with closing(workload.open_validation(config, opened, device, world.rank)) as loader:
            seen = 0
            for batch in feed_device(loader, device):
                if stop.is_asked():
                    break
                with torch.inference_mode(), autocast(device, config.train.precision):
                    sums.append(judge(model, batch))
                seen = min(total, seen + len(batch[0]) * world.rank.world)
                yield Progress("evaluating", images=seen, total_images=total)
    finally:
        model.train(trained)
    if stop.answer:
        return None
    stop.settle()
    # Fetched at the end, so that no batch makes the host wait. Counts of a batch are exact in float32, their sum over
    # many would not be, and not every device has float64.
    metrics, images = workload.finish_eval(sum_over(world, torch.stack(sums).cpu().double().sum(0)))
    return Judged(metrics, images)


class StopQuestion:
    """Whether any rank was asked to end, put before every batch; ranks hear of others a batch later."""

    def __init__(self, world: World, interrupt: Interrupt) -> None:
        self._world = world
        self._interrupt = interrupt
        self._agreement = Agreement(world, 1)
        self.answer = False

    def is_asked(self) -> bool:
        """Ask before a batch; all ranks have equally many, so that all get the same answer."""
        asked = self._interrupt.asked is not None
        if self._world.alone:
            self.answer = asked
            return asked
        self.answer = any(self._agreement.take())
        if not self.answer:
            self._agreement.post([int(asked)])
        return self.answer

    def settle(self) -> None:
        """After the last batch: what was asked since the one before is too late, and asked again elsewhere."""
        self._agreement.take()
