import torch

from trainstone.config.load import load_config
from trainstone.workloads.classify import CLASSIFY, PIXEL_MEAN, PIXEL_STD, normalise
from trainstone.workloads.registry import WORKLOADS

CPU = torch.device("cpu")


def test_normalised_pictures_are_channels_last_without_a_copy():
    images = torch.randint(256, (2, 8, 8, 3), dtype=torch.uint8)
    out = normalise(images, torch.tensor(PIXEL_MEAN), torch.tensor(PIXEL_STD))
    assert out.shape == (2, 3, 8, 8)
    assert out.is_contiguous(memory_format=torch.channels_last)
    expected = (float(images[1, 2, 3, 0]) - PIXEL_MEAN[0]) / PIXEL_STD[0]
    assert abs(float(out[1, 0, 2, 3]) - expected) < 1e-5


def test_the_loss_of_a_guess_is_log_of_the_classes():
    config = load_config("resnet50", settings=["model.num_classes=10"])

    class Guess(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(images), 10)

    batch = CLASSIFY.synthetic_batches(
        load_config("resnet50", settings=["model.num_classes=10", "data.image_size=32"]), 4
    )[0]
    assert abs(float(CLASSIFY.build_loss(config, CPU)(Guess(), batch)) - 2.302585) < 1e-5


def test_the_names_of_the_registry_are_the_workloads():
    assert all(name == workload.name for name, workload in WORKLOADS.items())
