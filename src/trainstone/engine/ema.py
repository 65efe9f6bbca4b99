"""Exponential moving average (EMA) of a network's weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


class WeightAverage:
    """Averages of a model's parameters and batch norm statistics, on the device of the model."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._model, self._decay = model, decay
        self.tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        """The averages, under the names of the model's state dict."""

    def update(self, step: int) -> None:
        """Update the averages after a step: average = d * average + (1 - d) * weights; d grows up to `decay`."""
        decay = min(self._decay, (1 + step) / (10 + step))
        trained = self._model.state_dict()  # read each time: a change of device or memory format replaces tensors
        moving = [name for name, tensor in trained.items() if tensor.is_floating_point()]
        counters = [name for name, tensor in trained.items() if not tensor.is_floating_point()]  # copied, not averaged
        with torch.no_grad():
            torch._foreach_lerp_([self.tensors[name] for name in moving], [trained[name] for name in moving], 1 - decay)
            if counters:  # torch refuses empty lists
                torch._foreach_copy_([self.tensors[name] for name in counters], [trained[name] for name in counters])

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Load the averages into the model for the `with` body; then restore the trained weights bit for bit."""
        saved = {name: tensor.clone() for name, tensor in self._model.state_dict().items()}
        try:
            self._model.load_state_dict(self.tensors)
            yield
        finally:
            self._model.load_state_dict(saved)
