"""From uint8 pixels to what a network sees: the originals' normalisations, on the device."""

from typing import NamedTuple

import torch
from torch import Tensor


class Normalisation(NamedTuple):
    """(pixel / scale - mean) / deviation, per channel of RGB."""

    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]
    scale: float = 1.0


MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MEAN_255, DEVIATION_255 = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
TENSORFLOW_MEAN = (123.68, 116.78, 103.94)
NORMALISATIONS = {
    "standard": Normalisation(MEAN_255, DEVIATION_255),  # MLPerf's ResNet-50 in MXNet, also DALI's usual
    "standard_unit": Normalisation(MEAN, DEVIATION, 255.0),  # torchvision: ToTensor, then Normalize
    "mean": Normalisation(TENSORFLOW_MEAN, (1.0, 1.0, 1.0)),  # TensorFlow's official models: no division
    "mean_255": Normalisation(TENSORFLOW_MEAN, (255.0, 255.0, 255.0)),  # WMLCE's tf.data path
    "wmlce_dali": Normalisation((121.0, 115.0, 100.0), (70.0, 68.0, 71.0)),  # WMLCE's DALI path
}


class Normaliser:
    """A normalisation whose numbers lie on the device."""

    def __init__(self, name: str, device: torch.device, *, channels_last: bool = True) -> None:
        chosen = NORMALISATIONS[name]
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        self._scale = chosen.scale
        self._mean = torch.tensor(chosen.mean, device=device)
        self._deviation = torch.tensor(chosen.deviation, device=device) if set(chosen.deviation) != {1.0} else None

    def __call__(self, images: Tensor) -> Tensor:
        """uint8 (batch, height, width, 3) to float32 (batch, 3, height, width), in the memory format asked for."""
        pixels = images.float()
        if self._scale != 1.0:
            pixels.div_(self._scale)
        pixels.sub_(self._mean)
        if self._deviation is not None:
            pixels.div_(self._deviation)
        return pixels.permute(0, 3, 1, 2).contiguous(memory_format=self._format)
