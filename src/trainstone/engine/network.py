"""Build the network, compile it, and apply torch's process-wide settings."""

from pathlib import Path

import torch
from torch import nn

from trainstone.config.schema import Config
from trainstone.engine.distributed.collectives import World
from trainstone.engine.sync_batch_norm import convert_sync_batch_norm
from trainstone.errors import MachineError
from trainstone.measure.devices import switch_tf32
from trainstone.models.weights import load_pretrained
from trainstone.workloads.registry import WORKLOADS


def seed_network(config: Config, device: torch.device, world: World | None = None, *, begins: bool = True) -> nn.Module:
    """Seed torch, then build the network; load model.pretrained if the run `begins` (it is not resumed)."""
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
        model = convert_sync_batch_norm(model, world, config.parallel.bn_ranks)
    return model


def apply_process_settings(config: Config) -> None:
    """Apply torch's process-wide settings. With two tasks in one process, call it at each change of task."""
    engine = config.engine
    if engine.threads != "auto":
        torch.set_num_threads(engine.threads)
    torch.backends.cudnn.benchmark = engine.cudnn_benchmark and not engine.deterministic
    if engine.deterministic != torch.are_deterministic_algorithms_enabled():  # the call imports the compiler: seconds
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
