"""Classification as a workload; normalised pixels are the numbers of the originals, worked out by hand."""

import pytest
import torch

from trainstone.config.load import load_config
from trainstone.workloads.classify import CLASSIFY
from trainstone.workloads.workload import NORMALISATIONS, Normaliser

CPU = torch.device("cpu")
PIXEL = (0, 128, 255)
# Red 0, green 128, blue 255.
EXPECTED = {
    "standard": (-2.1179039, 0.2051821, 2.6400001),
    "standard_unit": (-2.1179039, 0.2051821, 2.6400001),
    "mean": (-123.68, 11.22, 151.06),
    "mean_255": (-0.4850196, 0.0440000, 0.5923922),
    "wmlce_dali": (-1.7285714, 0.1911765, 2.1830986),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_numbers_are_those_of_the_originals_and_agree_with_exact_arithmetic(name: str):
    images = torch.tensor(PIXEL, dtype=torch.uint8).expand(1, 2, 2, 3)
    out = Normaliser(name, CPU)(images)
    assert out.dtype == torch.float32
    assert out[0, :, 1, 1].tolist() == pytest.approx(EXPECTED[name], rel=1e-6, abs=1e-6)
    mean, deviation, scale = NORMALISATIONS[name]
    pixels = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16, 1).expand(1, 16, 16, 3)
    exact = pixels.double() / scale
    exact = (exact - torch.tensor(mean, dtype=torch.float64)) / torch.tensor(deviation, dtype=torch.float64)
    out = Normaliser(name, CPU)(pixels).double().permute(0, 2, 3, 1)
    assert (out - exact).abs().max() < (1e-5 if name == "mean" else 1e-6)


@pytest.mark.parametrize("name", EXPECTED)
def test_pixels_stay_where_they_were_and_the_batch_unchanged(name: str):
    images = torch.randint(256, (2, 8, 6, 3), dtype=torch.uint8)
    before = images.clone()
    out = Normaliser(name, CPU)(images)
    assert out.shape == (2, 3, 8, 6)
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, before)
    alone = Normaliser(name, CPU)(images[1:, 2:3, 3:4])
    assert torch.equal(out[1, :, 2, 3], alone[0, :, 0, 0])


class Seeing(torch.nn.Module):
    """Keeps what it was shown, and guesses nothing."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.images = images
        return torch.zeros(len(images), 10)


def test_a_network_sees_pictures_normalised_as_the_recipe_asks():
    images = torch.randint(256, (2, 8, 8, 3), dtype=torch.uint8)
    for name, (mean, deviation, scale) in NORMALISATIONS.items():
        for layout, memory_format in (("true", torch.channels_last), ("false", torch.contiguous_format)):
            settings = ["model.num_classes=10", f"augment.normalise={name}", f"engine.channels_last={layout}"]
            model = Seeing()
            CLASSIFY.build_loss(load_config("resnet50", settings=settings), CPU)(model, (images, torch.zeros(2).long()))
            assert model.images.shape == (2, 3, 8, 8)
            assert model.images.is_contiguous(memory_format=memory_format)
            expected = (float(images[1, 2, 3, 0]) / scale - mean[0]) / deviation[0]
            assert abs(float(model.images[1, 0, 2, 3]) - expected) < 1e-5


def test_the_loss_of_a_guess_is_log_of_the_classes():
    config = load_config("resnet50", settings=["model.num_classes=10", "data.image_size=32"])
    batch = CLASSIFY.synthetic_batches(config, 4)[0]
    assert abs(float(CLASSIFY.build_loss(config, CPU)(Seeing(), batch)) - 2.302585) < 1e-5
