"""All that a training run is between two steps, as tensors and plain values: what a checkpoint holds.

The file is train/checkpoint.py's. Batches and mixing follow from seed and step, so their state is the step.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainstone.errors import ResultError
from trainstone.train.task import Task

MODEL, AVERAGE, OPTIMIZER, RANDOM = "model.", "ema.", "optimizer.", "random."


def take_tensors(task: Task) -> dict[str, Tensor]:
    """Weights, their average, the optimiser's memory, random states; nothing is copied."""
    names = {parameter: name for name, parameter in task.plain.named_parameters()}
    tensors = {MODEL + name: tensor for name, tensor in task.plain.state_dict().items()}
    if task.average:
        tensors |= {AVERAGE + name: tensor for name, tensor in task.average.state().items()}
    for parameter, state in task.optimizer.state.items():
        tensors |= {f"{OPTIMIZER}{names[parameter]}.{key}": t for key, t in state.items() if isinstance(t, Tensor)}
    tensors[f"{RANDOM}cpu"] = torch.get_rng_state()
    if task.device.type == "cuda":
        tensors[f"{RANDOM}cuda"] = torch.cuda.get_rng_state(task.device)
    return tensors


def take_values(task: Task) -> dict[str, Any]:
    """What is no tensor: the loss scale, and what the optimiser remembers of past rates."""
    groups = [
        {key: value for key, value in group.items() if key == "previous_lr" and value is not None}
        for group in task.optimizer.param_groups
    ]
    kind = type(task.optimizer).__name__
    return {"loss_scale": task.scale.state(), "optimizer": kind, "optimizer_groups": groups}


def restore(task: Task, tensors: Mapping[str, Tensor], values: Mapping[str, Any], where: str) -> None:
    """Put a task into the state that was taken of one built alike."""
    kind, before = type(task.optimizer).__name__, values.get("optimizer")
    if kind != before:
        raise ResultError(
            f"{where} was written with the optimiser {before}; now it is {kind}, whose momentum means something else",
            hint="keep optimizer.name and optimizer.momentum_correction as they were",
        )
    expected = take_tensors(task)
    missing = [name for name in expected if name not in tensors and not name.startswith(RANDOM)]
    unlike = [name for name in expected if name in tensors and tensors[name].shape != expected[name].shape]
    if missing or unlike:
        raise ResultError(
            f"{where} is of another network or optimiser: {len(missing)} tensors missing, {len(unlike)} of other shape"
            f" (first: {(missing + unlike)[0]})",
            hint="resume with the configuration that wrote it",
        )
    with torch.no_grad():
        for name, tensor in expected.items():
            if not name.startswith((RANDOM, AVERAGE)):
                tensor.copy_(tensors[name])
    if task.average:
        task.average.load(_below(tensors, AVERAGE))
    random = _below(tensors, RANDOM)
    if "cpu" in random:
        torch.set_rng_state(random["cpu"].cpu())
    if "cuda" in random and task.device.type == "cuda":
        torch.cuda.set_rng_state(random["cuda"].cpu(), task.device)
    task.scale.load(dict(values.get("loss_scale", {})))
    for group, remembered in zip(task.optimizer.param_groups, values.get("optimizer_groups", []), strict=False):
        group.update(remembered)


def is_finite(model: nn.Module) -> bool:
    """Say whether every weight is a number, and every running statistic."""
    tensors = [tensor.detach() for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point()]
    norms = torch._foreach_norm(tensors, float("inf"))
    return bool(torch.stack([norm.float() for norm in norms]).isfinite().all())


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
