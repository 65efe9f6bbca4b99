import torch

from trainstone.config.load import load_config
from trainstone.workloads.classify import CLASSIFY
from trainstone.workloads.workload import NORMALISATIONS

CPU = torch.device("cpu")


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
