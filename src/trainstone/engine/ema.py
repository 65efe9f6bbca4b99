"""The moving average of a network's weights (EMA)."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


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
