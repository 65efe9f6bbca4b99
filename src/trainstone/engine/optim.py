"""Optimisers: SGD, LARS, weight decay groups, and the loss scale of fp16; all use torch's multi-tensor kernels."""

import re
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from trainstone.config.schema import OptimizerConfig

Named = list[tuple[str, nn.Parameter]]
Decay = Literal["all", "not_norm", "weights"]

NORM_CLASS = re.compile(r"Norm(\dd)?$")  # BatchNorm2d, SyncBatchNorm, GroupNorm, LayerNorm, a network's own
FUSED_DEVICES = ("cpu", "cuda", "mps", "xpu")
SGD_OPTIONS = ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize")


class Lars(torch.optim.Optimizer):
    """SGD with the rate inside the momentum, m = momentum x m + rate x local x (g + d w); w -= m (MXNet, Keras).

    In groups with `trust`, local = eta |w| / (|g| + d |w| + epsilon), and 1 if a norm is 0 (LARS, arXiv 1708.03888);
    in other groups it is 1. With `correction`, momentum is multiplied by rate / previous rate while the rate changes.
    """

    def __init__(self, groups: list[dict[str, Any]], config: OptimizerConfig, *, lr: float) -> None:
        options = {"momentum": config.momentum, "correction": config.momentum_correction}
        options |= {"eta": config.lars_eta, "epsilon": config.lars_epsilon}
        # previous_lr: 0 before the first update; stored in the group, so that it is saved with the state.
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0, "trust": False, **options, "previous_lr": 0.0})
        init_momentum(self)

    def step(self, closure: Callable[[], float] | None = None) -> None:
        assert closure is None  # the loop computes gradients
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            if weights:
                with torch.no_grad():
                    self._update(group, weights)
                group["previous_lr"] = group["lr"]

    def _update(self, group: dict[str, Any], weights: list[nn.Parameter]) -> None:
        gradients = [p.grad for p in weights]
        moments = [self.state[p]["momentum_buffer"] for p in weights]
        rate, decay = group["lr"], group["weight_decay"]
        change = rate / group["previous_lr"] if group["correction"] and group["previous_lr"] else 1.0
        torch._foreach_mul_(moments, group["momentum"] * change)
        # Decay is added separately: no copy of all gradients is needed.
        if group["trust"]:
            norms, slopes = (torch.stack(torch._foreach_norm(tensors)) for tensors in (weights, gradients))
            ratio = group["eta"] * norms / (slopes + decay * norms + group["epsilon"])
            local = torch.where((norms > 0) & (slopes > 0), ratio, 1.0).unbind()
            torch._foreach_addcmul_(moments, gradients, local, rate)
            if decay:
                torch._foreach_addcmul_(moments, weights, local, rate * decay)
        else:
            torch._foreach_add_(moments, gradients, alpha=rate)
            if decay:
                torch._foreach_add_(moments, weights, alpha=rate * decay)
        torch._foreach_sub_(weights, moments)


class CpuSgd(torch.optim.SGD):
    """torch's fused SGD; channels-last weights are updated in memory order.

    torch's CPU kernel needs contiguous tensors, and copies each channels-last weight twice per step (ResNet-50, two
    cores: half of the optimiser's time). Permuted views are contiguous; the arithmetic is per element.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        assert closure is None  # the loop computes gradients
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            moments = [self.state[p].get("momentum_buffer") for p in weights]
            tensors = [(p, p.grad, moment) for p, moment in zip(weights, moments, strict=True)]
            ordered = [[None if t is None else order_memory(t, of=row[0]) for t in row] for row in tensors]
            params, gradients, buffers = map(list, zip(*ordered, strict=True)) if ordered else ([], [], [])
            sgd(
                params,
                gradients,
                buffers,
                fused=True,
                grad_scale=getattr(self, "grad_scale", None),  # set by torch's GradScaler
                found_inf=getattr(self, "found_inf", None),
                **{name: group[name] for name in SGD_OPTIONS},
            )


def order_memory(tensor: Tensor, *, of: Tensor) -> Tensor:
    """Return a view whose dimensions are in the memory order of the tensor `of`, if that is channels-last."""
    last = of.ndim == 4 and of.is_contiguous(memory_format=torch.channels_last)
    return tensor.permute(0, 2, 3, 1) if last else tensor


def uses_torch_sgd(config: OptimizerConfig) -> bool:
    return config.name == "sgd" and config.momentum_correction


def build_optimizer(
    model: nn.Module, config: OptimizerConfig, device: torch.device, *, rate: float
) -> torch.optim.Optimizer:
    """Build the recipe's optimiser; plain SGD is torch's, in one fused kernel if torch has one for the device."""
    groups = group_parameters(model, config)
    if not uses_torch_sgd(config):
        return Lars(groups, config, lr=rate)
    fused = device.type in FUSED_DEVICES or None
    build = CpuSgd if device.type == "cpu" else torch.optim.SGD
    optimizer = build(groups, lr=rate, momentum=config.momentum, fused=fused)
    if config.momentum:
        init_momentum(optimizer)
    return optimizer


def group_parameters(model: nn.Module, config: OptimizerConfig) -> list[dict[str, Any]]:
    """Group parameters by weight decay and LARS trust."""
    decayed = {name for name, _ in split_parameters(model, config.decay)[0]}
    weights = {name for name, _ in split_parameters(model, "weights")[0]}
    groups: dict[tuple[bool, bool], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        decays = name in decayed and config.decay_in == "optimizer"
        group: dict[str, Any] = {"params": [], "weight_decay": config.weight_decay if decays else 0.0}
        trusted = config.name == "lars" and name in weights
        if trusted:
            group["trust"] = True
        groups.setdefault((decays, trusted), group)["params"].append(parameter)
    return list(groups.values())


def split_parameters(model: nn.Module, decay: Decay) -> tuple[Named, Named]:
    """Return the parameters that decay and those that do not; norm layers are recognised by class, not by name."""
    norms = {id(p) for module in model.modules() if is_norm_layer(module) for p in module.parameters(recurse=False)}
    decayed: Named = []
    not_decayed: Named = []
    for name, parameter in model.named_parameters():
        exempt = (decay != "all" and id(parameter) in norms) or (decay == "weights" and parameter.ndim <= 1)
        (not_decayed if exempt else decayed).append((name, parameter))
    return decayed, not_decayed


def is_norm_layer(module: nn.Module) -> bool:
    """Return whether a module is a norm layer, by the name of its class or of a base class."""
    return any(NORM_CLASS.search(kind.__name__) for kind in type(module).__mro__)


def init_momentum(optimizer: torch.optim.Optimizer) -> None:
    # torch would create them uninitialised in the first step; if the loss scale skips that step, momentum would keep
    # garbage. Starting from zeros gives the same first update.
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def decay_term(parameters: Iterable[Tensor], factor: float) -> Tensor:
    """Return the L2 term for the loss, factor / 2 x sum of squares; its gradient is factor x w."""
    return torch.stack(torch._foreach_norm(list(parameters))).square().sum() * (factor / 2)


class LossScale:
    """Backward and optimiser step without a loss scale (all precisions but fp16), with a fixed one or a dynamic one."""

    def __init__(self, device: torch.device, precision: str, scale: float | Literal["dynamic"]) -> None:
        self._fixed = float(scale) if precision == "fp16" and scale != "dynamic" else None
        self._dynamic = torch.amp.GradScaler(device.type, enabled=precision == "fp16" and scale == "dynamic")

    def backward(self, loss: Tensor) -> None:
        if self._fixed is not None:
            (loss * self._fixed).backward()
        else:
            self._dynamic.scale(loss).backward()

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Unscale the gradients and update the weights; a dynamic scale skips updates that overflow."""
        if self._fixed is not None:
            gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            torch._foreach_mul_(gradients, 1 / self._fixed)
        self._dynamic.step(optimizer)
        self._dynamic.update()

    @property
    def value(self) -> float | None:
        """The current factor; None without a scale. Waits for the device."""
        if self._fixed is not None:
            return self._fixed
        return float(self._dynamic.get_scale()) if self._dynamic.is_enabled() else None

    def state(self) -> dict[str, Any]:
        """Return the state of a dynamic scale as plain numbers; empty for others."""
        return dict(self._dynamic.state_dict())

    def load(self, state: dict[str, Any]) -> None:
        if self._dynamic.is_enabled() and state:
            self._dynamic.load_state_dict(state)
