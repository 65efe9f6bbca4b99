"""What the loop trains: model, loss, optimiser, batches, built from a fitted configuration (no "auto" left in it)."""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from trainstone.config.schema import Config, OptimizerConfig
from trainstone.data.feeding.transform import make_transform
from trainstone.data.loader import KEEP, Loader
from trainstone.data.splits import OpenSplit, open_split
from trainstone.errors import MachineError
from trainstone.train.precision import LossScale, autocast, switch_tf32
from trainstone.workloads.registry import WORKLOADS
from trainstone.workloads.workload import Batch, Loss


@dataclass(frozen=True)
class Task:
    """One thing to train on one device."""

    device: torch.device
    model: nn.Module
    loss: Loss
    optimizer: torch.optim.Optimizer
    scale: LossScale
    autocast: Callable[[], AbstractContextManager[None]]
    batches: Iterator[Batch]
    loader: Loader | None
    """Where batches are real."""
    images_per_step: int
    split_phases: bool
    nvtx: bool
    cuda_graphs: bool

    def epoch_of(self, step: int) -> int:
        """Return the epoch that a step belongs to; synthetic batches have none."""
        return self.loader.order.epoch_of(step) if self.loader else 0

    def close(self) -> None:
        """End the loader's threads."""
        if self.loader:
            self.loader.close()


def open_data(config: Config) -> OpenSplit | None:
    """Open the training pictures where they are real; those of another kind than the workload's are refused."""
    if config.data.source != "files":
        return None
    assert config.data.root is not None  # config/schema.py saw to it
    make_transform(config.augment, config.loader, config.data.image_size, train=True)  # wishes that exclude each other
    opened = open_split(Path(config.data.root), "train")
    WORKLOADS[config.workload].check_classes(config, opened.dataset)
    return opened


def build_task(config: Config, device: torch.device, opened: OpenSplit | None = None) -> Task:
    """Seed everything and build the parts; the same seed gives the same losses. `opened`: real pictures to train on."""
    assert isinstance(config.train.batch_size, int)  # train/fit.py resolved it
    engine, precision = config.engine, config.train.precision
    torch.manual_seed(config.seed)
    apply_process_settings(config)
    workload = WORKLOADS[config.workload]
    model = workload.build_model(config).to(device).train()
    if engine.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    loader = workload.open_training(config, opened, device, 0) if opened else None
    return Task(
        device=device,
        model=compile_model(model) if engine.compile else model,
        loss=workload.build_loss(config, device),
        optimizer=build_optimizer(model, config.optimizer, device),
        scale=LossScale(device, precision, config.train.loss_scale),
        autocast=lambda: autocast(device, precision),
        batches=feed_device(loader, device) if loader else feed_synthetic(config, device),
        loader=loader,
        images_per_step=config.train.batch_size,
        split_phases=engine.split_phases,
        nvtx=engine.nvtx,
        cuda_graphs=engine.cuda_graphs,
    )


def apply_process_settings(config: Config) -> None:
    """Set what torch keeps once for the whole process. Two tasks in one process need it at each turn."""
    engine = config.engine
    if engine.threads != "auto":
        torch.set_num_threads(engine.threads)
    torch.backends.cudnn.benchmark = engine.cudnn_benchmark and not engine.deterministic
    torch.use_deterministic_algorithms(engine.deterministic)
    switch_tf32(config.train.precision)


def build_optimizer(model: nn.Module, config: OptimizerConfig, device: torch.device) -> torch.optim.Optimizer:
    """SGD with momentum, all parameters in one fused kernel where torch has one."""
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=config.learning_rate,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        fused=device.type in ("cpu", "cuda", "mps", "xpu") or None,
    )
    if config.momentum:
        # torch would make them without content in the first step; if a loss scale skips that step, what lay in memory
        # stays as momentum. From zeros the first update is the same.
        for parameter in model.parameters():
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def compile_model(model: nn.Module) -> nn.Module:
    """Wrap the model in torch.compile; compiling happens in the first step."""
    try:
        return torch.compile(model)  # type: ignore[return-value]
    except RuntimeError as err:
        raise MachineError(f"torch.compile does not work here: {err}", hint="--set engine.compile=false") from err


def feed_synthetic(config: Config, device: torch.device) -> Iterator[Batch]:
    """Yield the same few random batches for ever."""
    assert isinstance(config.train.batch_size, int)  # train/fit.py resolved it
    batches = WORKLOADS[config.workload].synthetic_batches(config, config.train.batch_size)
    return feed_device(itertools.cycle(pin(batches, device)), device)


def pin(batches: list[Batch], device: torch.device) -> list[Batch]:
    """Page-lock host batches that a CUDA device will fetch by itself."""
    if device.type != "cuda":
        return batches
    return [tuple(tensor.pin_memory() for tensor in batch) for batch in batches]


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
