"""Judges the validation pictures: every one exactly once on any number of ranks; what fills up a batch counts not."""

from collections.abc import Generator
from contextlib import closing, nullcontext

import torch
from torch import Tensor

from trainstone.config.schema import Config
from trainstone.data.splits import OpenSplit
from trainstone.machine.signals import StopSignals
from trainstone.results.progress import Progress
from trainstone.train.distributed import Agreement, World, gather_rows
from trainstone.train.precision import autocast
from trainstone.train.task import Task, feed_device
from trainstone.workloads.registry import WORKLOADS


def judge(
    task: Task, config: Config, opened: OpenSplit, world: World, signals: StopSignals
) -> Generator[Progress, None, Tensor | None]:
    """Let the network judge the pictures, or its average where one is kept; it is left as it was, ready to train."""
    with task.average.swapped() if task.average else nullcontext():
        return (yield from judge_network(task.plain, config, task.device, opened, world, signals))


def judge_network(
    model: torch.nn.Module,
    config: Config,
    device: torch.device,
    opened: OpenSplit,
    world: World,
    signals: StopSignals,
) -> Generator[Progress, None, Tensor | None]:
    """Let a network judge all ranks' shares of the pictures; return the workload's rows of all of them.

    On other ranks than the first they are empty. None, on all ranks: somebody asked for the end before.
    """
    workload = WORKLOADS[config.workload]
    look, total = workload.build_judge(config, device), len(opened.source)
    rows: list[Tensor] = []
    stop = StopQuestion(world, signals)
    trained = model.training
    model.eval()
    try:
        with closing(workload.open_validation(config, opened, device, world.rank)) as loader:
            seen = 0
            for batch in feed_device(loader, device):
                if stop.is_asked():
                    break
                with torch.inference_mode(), autocast(device, config.train.precision):
                    rows.append(look(model, batch))
                seen = min(total, seen + len(batch[0]) * world.rank.world)
                yield Progress("evaluating", images=seen, total_images=total)
    finally:
        model.train(trained)
    if stop.answer:
        return None
    stop.settle()
    # Fetched at the end, so that no batch makes the host wait.
    gathered = gather_rows(world, torch.cat(rows).cpu())
    return torch.empty(0) if gathered is None else gathered


class StopQuestion:
    """Whether any rank was asked to end, put before every batch; ranks hear of others a batch later."""

    def __init__(self, world: World, signals: StopSignals) -> None:
        self._world = world
        self._signals = signals
        self._agreement = Agreement(world, 1)
        self.answer = False

    def is_asked(self) -> bool:
        """Ask before a batch; all ranks have equally many, so that all get the same answer."""
        asked = self._signals.received is not None
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
