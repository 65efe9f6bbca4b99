"""The training task: model, loss, optimiser, learning rate and batches, built from a fitted configuration."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainstone.config.schema import Config, OptimizerConfig
from trainstone.data.loader import Loader
from trainstone.data.splits import OpenSplit
from trainstone.engine.batches import prefetch_to_device, synthetic_batches
from trainstone.engine.distributed.collectives import World
from trainstone.engine.distributed.data_parallel import wrap_model
from trainstone.engine.ema import WeightAverage
from trainstone.engine.lr_schedule import Rate, build_rate, peak_rate
from trainstone.engine.network import compile_model, seed_network
from trainstone.engine.optim import LossScale, build_optimizer, decay_term, split_parameters
from trainstone.engine.training_data import IMAGENET_IMAGES, order_images
from trainstone.machine.ranks import SINGLE_RANK, Rank
from trainstone.measure.devices import autocast
from trainstone.workloads.registry import WORKLOADS
from trainstone.workloads.workload import Batch, Loss


@dataclass(frozen=True)
class Task:
    device: torch.device
    model: nn.Module
    """The module that is called: the network, compiled or wrapped in DistributedDataParallel if configured."""
    plain: nn.Module
    """The network itself, with the original parameter names."""
    loss: Loss
    optimizer: torch.optim.Optimizer
    rate: Rate
    scale: LossScale
    autocast: Callable[[], AbstractContextManager[None]]
    batches: Iterator[Batch]
    loader: Loader | None
    """None: synthetic batches."""
    images_per_step: int
    """Images per step of this rank."""
    split_phases: bool = False
    mark: Callable[[str], AbstractContextManager[Any]] = nullcontext
    """Marks a phase of a step for a profiler."""
    cuda_graphs: bool = False
    accumulate: int = 1
    """Batches per step."""
    average: WeightAverage | None = None

    def epoch_of(self, step: int) -> int:
        """Return the epoch that a step begins in; 0 for synthetic batches."""
        return self.loader.order.epoch_of(step * self.accumulate) if self.loader else 0

    def without_gradient_sync(self) -> AbstractContextManager[None]:
        """Return a context in which backward does not all-reduce gradients."""
        return self.model.no_sync() if isinstance(self.model, DistributedDataParallel) else nullcontext()

    def close(self) -> None:
        if self.loader:
            self.loader.close()


def build_task(
    config: Config,
    device: torch.device,
    opened: OpenSplit | None = None,
    *,
    world: World | None = None,
    first_step: int = 0,
    network: nn.Module | None = None,
) -> Task:
    """Seed torch and build all parts; the same seed gives the same losses.

    `opened`: images to train on; None: synthetic batches. `world`: the ranks that train together, from the same
    weights. `first_step`: the step of the first batch. `network`: a network that seed_network has already built.
    """
    engine, train, rank = config.engine, config.train, world.rank if world else SINGLE_RANK
    workload = WORKLOADS[config.workload]
    model = seed_network(config, device, world) if network is None else network
    loader = workload.open_training(config, opened, device, rank, first_step * train.accumulate) if opened else None
    rate = plan_rate(config, len(opened.source) if opened else IMAGENET_IMAGES, rank)
    called = compile_model(model) if engine.compile is True else model
    loss = workload.build_loss(config, device)
    if config.optimizer.decay_in == "loss" and config.optimizer.weight_decay:
        loss = DecayedLoss(loss, model, config.optimizer)
    batches = loader or synthetic_batches(config, device)
    return Task(
        device=device,
        model=wrap_model(called, world, config.parallel) if world else called,
        plain=model,
        loss=loss,
        optimizer=build_optimizer(model, config.optimizer, device, rate=rate(first_step)),
        rate=rate,
        scale=LossScale(device, train.precision, train.batch_size if train.loss_scale == "batch" else train.loss_scale),
        autocast=lambda: autocast(device, train.precision),
        batches=prefetch_to_device(workload.mix(config, batches, rank, first_step * train.accumulate), device),
        loader=loader,
        images_per_step=train.batch_size * train.accumulate,
        split_phases=engine.split_phases,
        mark=torch.cuda.nvtx.range if engine.nvtx else nullcontext,
        cuda_graphs=engine.cuda_graphs,
        accumulate=train.accumulate,
        average=WeightAverage(model, train.ema) if train.ema else None,
    )


def plan_rate(config: Config, images: int, rank: Rank) -> Rate:
    order = order_images(config, config.schedule.images or images, rank)
    global_batch = order.global_batch * config.train.accumulate
    return build_rate(
        config.schedule,
        peak_rate(config.optimizer, global_batch=global_batch, ranks=rank.world * config.train.accumulate),
        steps_per_epoch=order.epoch_images / global_batch,
        epochs=config.stop.epochs,
        ranks=rank.world,
        unfilled_steps=order.count / global_batch,
    )


class DecayedLoss:
    """A loss plus the L2 term of weight decay (optimizer.decay_in = "loss")."""

    def __init__(self, loss: Loss, model: nn.Module, config: OptimizerConfig) -> None:
        self._loss = loss
        self._decayed = [parameter for _, parameter in split_parameters(model, config.decay)[0]]
        self._factor = config.weight_decay
        self.term: Tensor | None = None
        """The L2 term of the last call, on the device."""

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        term = decay_term(self._decayed, self._factor)
        self.term = term.detach()
        return self._loss(model, batch) + term
