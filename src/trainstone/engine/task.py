"""What the loop trains: model, loss, optimiser, batches, built from a fitted configuration (no "auto" left in it).

Also the average of its weights (EMA), and what torch keeps once for the whole process.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainstone.config.schema import Config, OptimizerConfig, change_section
from trainstone.data.loader import KEEP, Loader
from trainstone.data.pipeline.order import TrainOrder
from trainstone.data.pipeline.transform import Transform
from trainstone.data.splits import OpenSplit, open_split
from trainstone.data.synthetic.dataset import find_stored, provide_stored
from trainstone.engine.distributed.collectives import World, span_batch_norm, wrap_model
from trainstone.engine.lr_schedule import Rate, build_rate, peak_rate
from trainstone.engine.optim import LossScale, build_optimizer, decay_term, split_parameters
from trainstone.errors import ConfigError, MachineError
from trainstone.machine.cpus import read_affinity
from trainstone.machine.ranks import ALONE, Rank
from trainstone.measure.devices import autocast, switch_tf32
from trainstone.models.weights import load_pretrained
from trainstone.results.progress import Progress
from trainstone.workloads.registry import WORKLOADS
from trainstone.workloads.workload import Batch, Loss

# Synthetic batches have no epochs; a schedule that counts in epochs takes them for ImageNet's.
IMAGENET_PICTURES = 1_281_167
IMAGENET_CLASSES = 1000


class WeightAverage:
    """Averages of a plain model's parameters and of what its batch norm has seen; they lie where the model lies."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._model, self._decay = model, decay
        self.tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        """The averages, under the names of the model's state."""

    def update(self, step: int) -> None:
        """Take in the weights after a step: d of the average stays, d = decay but less in the first steps."""
        stays = min(self._decay, (1 + step) / (10 + step))
        trained = self._model.state_dict()  # again each time: a change of device or format replaces tensors
        moving = [name for name, tensor in trained.items() if tensor.is_floating_point()]
        counters = [name for name, tensor in trained.items() if not tensor.is_floating_point()]  # they have no average
        with torch.no_grad():
            torch._foreach_lerp_([self.tensors[name] for name in moving], [trained[name] for name in moving], 1 - stays)
            if counters:  # torch refuses empty lists
                torch._foreach_copy_([self.tensors[name] for name in counters], [trained[name] for name in counters])

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Let the model have the averages for a while; what was trained comes back bit for bit, errors or not."""
        kept = {name: tensor.clone() for name, tensor in self._model.state_dict().items()}
        try:
            self._model.load_state_dict(self.tensors)
            yield
        finally:
            self._model.load_state_dict(kept)


@dataclass(frozen=True)
class Task:
    device: torch.device
    model: nn.Module
    """What is called: the network, compiled or shared among ranks where asked for."""
    plain: nn.Module
    """The network itself: its weights have their own names."""
    loss: Loss
    optimizer: torch.optim.Optimizer
    rate: Rate
    scale: LossScale
    autocast: Callable[[], AbstractContextManager[None]]
    batches: Iterator[Batch]
    loader: Loader | None
    """Where batches are real."""
    images_per_step: int
    """Of this rank."""
    split_phases: bool = False
    mark: Callable[[str], AbstractContextManager[Any]] = nullcontext
    """Names a phase of a step for whoever records it."""
    cuda_graphs: bool = False
    accumulate: int = 1
    """Batches a step."""
    average: WeightAverage | None = None

    def epoch_of(self, step: int) -> int:
        """Return the epoch that a step begins in; synthetic batches have none."""
        return self.loader.order.epoch_of(step * self.accumulate) if self.loader else 0

    def without_exchange(self) -> AbstractContextManager[None]:
        """While in force, gradients are added up on this rank alone."""
        return self.model.no_sync() if isinstance(self.model, DistributedDataParallel) else nullcontext()

    def close(self) -> None:
        if self.loader:
            self.loader.close()


def open_data(config: Config, split: str = "train") -> OpenSplit | None:
    """Open pictures where they are real; those of another kind than the workload's are refused."""
    if config.data.source == "synthetic":
        return None
    # Wishes that exclude each other are told before anything is opened.
    Transform(config, train=split == "train")
    opened = open_split(find_data(config), split, skip_empty=config.data.skip_empty and split == "train")
    WORKLOADS[config.workload].check_classes(config, opened.dataset)
    return opened


def provide_data(config: Config) -> Iterator[Progress]:
    if config.data.source == "generated":
        for made in provide_stored(config, len(read_affinity()) or 1):
            phase = "drawing pictures" if made.total else made.phase  # without a total it waits for another process
            yield Progress(phase, images=made.done, total_images=made.total)


def settle_classes(config: Config, opened: OpenSplit | None) -> Config:
    """Resolve model.num_classes = auto: as many as the data set has, ImageNet's where pictures are synthetic."""
    if config.model.num_classes != "auto":
        return config
    number = len(opened.dataset.classes) if opened else IMAGENET_CLASSES
    if number < WORKLOADS[config.workload].min_classes:
        raise ConfigError(f"{find_data(config)} does not say how many classes it has", hint="--set model.num_classes=N")
    return change_section(config, "model", num_classes=number)


def find_data(config: Config) -> Path:
    if config.data.source == "generated":
        return find_stored(config).target
    if config.data.root is None:
        raise ConfigError(f"recipe {config.name} needs pictures", hint="give --data DIR")
    return Path(config.data.root)


def build_task(
    config: Config,
    device: torch.device,
    opened: OpenSplit | None = None,
    *,
    world: World | None = None,
    first_step: int = 0,
    network: nn.Module | None = None,
) -> Task:
    """Seed everything and build the parts; the same seed gives the same losses. `opened`: real pictures to train on.

    `world`: the ranks that train together; they start from the same weights. `first_step`: where batches begin.
    `network`: from seed_network, where it was to be built before.
    """
    engine, train, rank = config.engine, config.train, world.rank if world else ALONE
    workload = WORKLOADS[config.workload]
    model = seed_network(config, device, world) if network is None else network
    loader = workload.open_training(config, opened, device, rank, first_step * train.accumulate) if opened else None
    rate = plan_rate(config, len(opened.source) if opened else IMAGENET_PICTURES, rank)
    called = compile_model(model) if engine.compile else model
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
        batches=feed_device(workload.mix(config, batches, rank, first_step * train.accumulate), device),
        loader=loader,
        images_per_step=train.batch_size * train.accumulate,
        split_phases=engine.split_phases,
        mark=torch.cuda.nvtx.range if engine.nvtx else nullcontext,
        cuda_graphs=engine.cuda_graphs,
        accumulate=train.accumulate,
        average=WeightAverage(model, train.ema) if train.ema else None,
    )


def order_pictures(config: Config, count: int, rank: Rank) -> TrainOrder:
    train = config.train
    return TrainOrder(count, train.batch_size, config.seed, rank, last=config.loader.last, parts=train.accumulate)


def plan_rate(config: Config, pictures: int, rank: Rank) -> Rate:
    order = order_pictures(config, config.schedule.pictures or pictures, rank)
    global_batch = order.global_batch * config.train.accumulate
    return build_rate(
        config.schedule,
        peak_rate(config.optimizer, global_batch=global_batch, ranks=rank.world * config.train.accumulate),
        steps_per_epoch=order.epoch_pictures / global_batch,
        epochs=config.stop.epochs,
        ranks=rank.world,
        unfilled_steps=order.count / global_batch,
    )


class DecayedLoss:
    def __init__(self, loss: Loss, model: nn.Module, config: OptimizerConfig) -> None:
        self._loss = loss
        self._decayed = [parameter for _, parameter in split_parameters(model, config.decay)[0]]
        self._factor = config.weight_decay
        self.term: Tensor | None = None
        """The decay of the last call, on the device."""

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        term = decay_term(self._decayed, self._factor)
        self.term = term.detach()
        return self._loss(model, batch) + term


def synthetic_batches(config: Config, device: torch.device) -> Iterator[Batch]:
    """Yield the same few random batches for ever, in host memory."""
    batches = WORKLOADS[config.workload].synthetic_batches(config, config.train.batch_size)
    if device.type == "cuda":  # page-locked, so that the device fetches them by itself
        batches = [tuple(tensor.pin_memory() for tensor in batch) for batch in batches]
    return itertools.cycle(batches)


def feed_device(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield batches on the device. On CUDA the next batch is copied on a stream of its own during the step."""
    if device.type == "cpu":
        yield from batches
    elif device.type == "cuda":
        yield from _feed_cuda(batches, device)
    else:
        for batch in batches:
            yield tuple(tensor.to(device, non_blocking=True) for tensor in batch)


def _feed_cuda(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Copy one batch ahead. A batch is asked for only when the copy of the last but one has ended: a loader may use
    its memory again from then on (data/loader.py keeps two)."""
    copies = torch.cuda.Stream(device)
    copied: deque[torch.cuda.Event] = deque()
    upcoming: Batch | None = None
    for batch in batches:
        current = upcoming
        if current is not None:
            torch.cuda.current_stream(device).wait_stream(copies)
            for tensor in current:
                tensor.record_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(copies):
            upcoming = tuple(tensor.to(device, non_blocking=True) for tensor in batch)
            copied.append(copies.record_event())
        if current is not None:
            yield current
        if len(copied) >= KEEP:
            copied.popleft().synchronize()
    if upcoming is not None:
        torch.cuda.current_stream(device).wait_stream(copies)
        yield upcoming


def seed_network(config: Config, device: torch.device, world: World | None = None, *, begins: bool = True) -> nn.Module:
    """Seed everything, then build the network; where a run begins, give it the weights to begin with, if it has any."""
    torch.manual_seed(config.seed)
    apply_process_settings(config)
    model = build_network(config, device, world)
    if begins and config.model.pretrained:
        load_pretrained(WORKLOADS[config.workload].find_trunk(model), Path(config.model.pretrained))
    return model


def build_network(config: Config, device: torch.device, world: World | None = None) -> nn.Module:
    model = WORKLOADS[config.workload].build_model(config).to(device).train()
    if config.engine.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if world and config.parallel.bn_ranks > 1:
        model = span_batch_norm(model, world, config.parallel.bn_ranks)
    return model


def apply_process_settings(config: Config) -> None:
    """Set what torch keeps once for the whole process. Two tasks in one process need it at each turn."""
    engine = config.engine
    if engine.threads != "auto":
        torch.set_num_threads(engine.threads)
    torch.backends.cudnn.benchmark = engine.cudnn_benchmark and not engine.deterministic
    if engine.deterministic != torch.are_deterministic_algorithms_enabled():  # saying so imports the compiler: seconds
        torch.use_deterministic_algorithms(engine.deterministic)
    switch_tf32(config.train.precision)


def compile_model(model: nn.Module) -> nn.Module:
    """Wrap the model in torch.compile; compiling happens in the first step."""
    try:
        return torch.compile(model)  # type: ignore[return-value]
    except RuntimeError as err:
        raise MachineError(f"torch.compile does not work here: {err}", hint="--set engine.compile=false") from err


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
