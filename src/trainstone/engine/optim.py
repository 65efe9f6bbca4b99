"""How weights move: SGD, LARS, what decays, and the loss scale of fp16. Many tensors at a time."""

import re
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from trainstone.config.schema import OptimizerConfig

Named = list[tuple[str, nn.Parameter]]
Decay = Literal["all", "not_norm", "weights"]

NORM_CLASS = re.compile(r"Norm(\dd)?$")  # BatchNorm2d, SyncBatchNorm, GroupNorm, LayerNorm, a network's own
FUSED_DEVICES = ("cpu", "cuda", "mps", "xpu")


class Lars(torch.optim.Optimizer):
    """SGD whose momentum holds the rate, m = momentum x m + rate x local x (g + d w); w -= m, as MXNet and Keras do.

    In groups with `trust`, local = eta |w| / (|g| + d |w| + epsilon), and 1 where a norm is 0 (LARS, arXiv 1708.03888);
    in others it is 1. With `correction`, momentum is times rate / previous rate while the rate changes.
    """

    def __init__(self, groups: list[dict[str, Any]], config: OptimizerConfig, *, lr: float) -> None:
        options = {"momentum": config.momentum, "correction": config.momentum_correction}
        options |= {"eta": config.lars_eta, "epsilon": config.lars_epsilon}
        # previous_lr: 0 before the first update. In the group, so that it is saved with the state.
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0, "trust": False, **options, "previous_lr": 0.0})
        start_momentum(self)

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
        # Decay is added by itself: no copy of all gradients.
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


def is_torchs(config: OptimizerConfig) -> bool:
    return config.name == "sgd" and config.momentum_correction


def build_optimizer(
    model: nn.Module, config: OptimizerConfig, device: torch.device, *, rate: float
) -> torch.optim.Optimizer:
    """Return the recipe's optimiser at a rate; plain SGD is torch's, in one fused kernel where torch has one."""
    groups = group_parameters(model, config)
    if not is_torchs(config):
        return Lars(groups, config, lr=rate)
    fused = device.type in FUSED_DEVICES or None
    optimizer = torch.optim.SGD(groups, lr=rate, momentum=config.momentum, fused=fused)
    if config.momentum:
        start_momentum(optimizer)
    return optimizer


def group_parameters(model: nn.Module, config: OptimizerConfig) -> list[dict[str, Any]]:
    """Sort parameters into the fewest groups that are treated alike."""
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
    """Return the parameters that decay and those that do not; what normalises is told by its class, not its name."""
    norms = {id(p) for module in model.modules() if normalises(module) for p in module.parameters(recurse=False)}
    decayed: Named = []
    spared: Named = []
    for name, parameter in model.named_parameters():
        spare = (decay != "all" and id(parameter) in norms) or (decay == "weights" and parameter.ndim <= 1)
        (spared if spare else decayed).append((name, parameter))
    return decayed, spared


def normalises(module: nn.Module) -> bool:
    """Tell whether a module is a normalisation: its class, or one it descends from, is called so."""
    return any(NORM_CLASS.search(kind.__name__) for kind in type(module).__mro__)


def start_momentum(optimizer: torch.optim.Optimizer) -> None:
    # torch would make them without content in the first step; if a loss scale skips that step, what lay in memory
    # stays as momentum. From zeros the first update is the same.
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
    """Return factor / 2 x sum of squares, a term for the loss; its gradient is factor x w."""
    return torch.stack(torch._foreach_norm(list(parameters))).square().sum() * (factor / 2)


class LossScale:
    """Backward and optimiser step with no scale (anything but fp16), a fixed one, or one adapted to overflows."""

    def __init__(self, device: torch.device, precision: str, scale: float | Literal["dynamic"]) -> None:
        self._fixed = float(scale) if precision == "fp16" and scale != "dynamic" else None
        self._dynamic = torch.amp.GradScaler(device.type, enabled=precision == "fp16" and scale == "dynamic")

    def backward(self, loss: Tensor) -> None:
        if self._fixed is not None:
            (loss * self._fixed).backward()
        else:
            self._dynamic.scale(loss).backward()

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Unscale the gradients and update the weights; a dynamic scale skips an update that overflowed."""
        if self._fixed is not None:
            gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            torch._foreach_mul_(gradients, 1 / self._fixed)
        self._dynamic.step(optimizer)
        self._dynamic.update()

    @property
    def value(self) -> float | None:
        """The factor now; None where there is none. Waits for the device."""
        if self._fixed is not None:
            return self._fixed
        return float(self._dynamic.get_scale()) if self._dynamic.is_enabled() else None

    def state(self) -> dict[str, Any]:
        """What an adapted scale has learned, in plain numbers; nothing for others."""
        return dict(self._dynamic.state_dict())

    def load(self, state: dict[str, Any]) -> None:
        if self._dynamic.is_enabled() and state:
            self._dynamic.load_state_dict(state)
