"""Precision of a run: autocast, TF32 switches, loss scale. Which precision to take is decided in train/fit.py."""

from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from torch import Tensor

AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: torch.device, precision: str) -> AbstractContextManager[None]:
    dtype = AUTOCAST_DTYPES.get(precision)
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


def switch_tf32(precision: str) -> None:
    """Allow TF32 for tf32 alone: cuDNN's default would pass it off as fp32."""
    mode = "tf32" if precision == "tf32" else "ieee"
    torch.backends.cuda.matmul.fp32_precision = mode
    torch.backends.cudnn.conv.fp32_precision = mode


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
