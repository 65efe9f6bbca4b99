"""Normalised pixels are the numbers of the originals, worked out by hand."""

import pytest
import torch

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


def all_pixels() -> torch.Tensor:
    """Every value in every channel."""
    return torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16, 1).expand(1, 16, 16, 3)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_numbers_are_those_of_the_originals(name: str):
    images = torch.tensor(PIXEL, dtype=torch.uint8).expand(1, 2, 2, 3)
    out = Normaliser(name, CPU)(images)
    assert out.dtype == torch.float32
    assert out[0, :, 1, 1].tolist() == pytest.approx(EXPECTED[name], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", EXPECTED)
def test_all_values_agree_with_exact_arithmetic(name: str):
    mean, deviation, scale = NORMALISATIONS[name]
    exact = all_pixels().double() / scale
    exact = (exact - torch.tensor(mean, dtype=torch.float64)) / torch.tensor(deviation, dtype=torch.float64)
    out = Normaliser(name, CPU)(all_pixels()).double().permute(0, 2, 3, 1)
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
