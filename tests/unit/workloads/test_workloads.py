"""Tests of the workloads: normalisation against the originals' values, SSD's loss and evaluation with known boxes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.processes.flows import drain
from trainstone.config.load import load_config
from trainstone.config.schema import Config
from trainstone.data.pipeline.input_pipeline import IGNORED
from trainstone.data.splits import OpenSplit, open_split
from trainstone.data.synthetic.generated import plan_recipe_data
from trainstone.engine.training_data import provide_data
from trainstone.errors import ConfigError, DataError
from trainstone.machine.ranks import SINGLE_RANK
from trainstone.models.boxes import default_boxes, match
from trainstone.workloads.classify import CLASSIFY
from trainstone.workloads.detect import DETECT, FOUND, list_rows, split_rows
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
def test_normaliser_equals_original_values(name: str):
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
def test_normaliser_keeps_positions_and_input(name: str):
    images = torch.randint(256, (2, 8, 6, 3), dtype=torch.uint8)
    before = images.clone()
    out = Normaliser(name, CPU)(images)
    assert out.shape == (2, 3, 8, 6)
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, before)
    single = Normaliser(name, CPU)(images[1:, 2:3, 3:4])
    assert torch.equal(out[1, :, 2, 3], single[0, :, 0, 0])


class RecordingModel(torch.nn.Module):
    """Stores its input and returns uniform logits."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.images = images
        return torch.zeros(len(images), 10)


def test_build_loss_normalises_images_as_in_recipe():
    images = torch.randint(256, (2, 8, 8, 3), dtype=torch.uint8)
    for name, (mean, deviation, scale) in NORMALISATIONS.items():
        for layout, memory_format in (("true", torch.channels_last), ("false", torch.contiguous_format)):
            settings = ["model.num_classes=10", f"augment.normalise={name}", f"engine.channels_last={layout}"]
            model = RecordingModel()
            CLASSIFY.build_loss(load_config("resnet50", settings=settings), CPU)(model, (images, torch.zeros(2).long()))
            assert model.images.shape == (2, 3, 8, 8)
            assert model.images.is_contiguous(memory_format=memory_format)
            expected = (float(images[1, 2, 3, 0]) / scale - mean[0]) / deviation[0]
            assert abs(float(model.images[1, 0, 2, 3]) - expected) < 1e-5


def test_classify_loss_of_uniform_logits_is_log_of_classes():
    config = load_config("resnet50", settings=["model.num_classes=10", "data.image_size=32"])
    batch = CLASSIFY.synthetic_batches(config, 4)[0]
    assert abs(float(CLASSIFY.build_loss(config, CPU)(RecordingModel(), batch)) - 2.302585) < 1e-5


SMALL = (
    *("device=cpu", "data.generated_train=12", "data.generated_val=7", "data.image_size=64", "model.width=16"),
    *("train.batch_size=4", "loader.threads=1"),
)


def configure(*settings: str) -> Config:
    return load_config("demo-detect", settings=[*SMALL, *settings])


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSplit]:
    """Return a validation split of seven generated scenes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINSTONE_CACHE", str(tmp_path_factory.mktemp("cache")))
        config = configure()
        drain(provide_data(config))
        yield open_split(plan_recipe_data(config).target, "val")


class PerfectModel(nn.Module):
    """Perfect model: predicts its given boxes with every matching default box."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.defaults = default_boxes(config.data.image_size)
        self.outputs = int(config.model.num_classes) + 1
        self.boxes, self.labels = torch.zeros(1, 1, 4), torch.full((1, 1), IGNORED)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        targets, offsets = match(self.boxes, self.labels, self.defaults, min_overlap=0.5)
        scores = 20.0 * nn.functional.one_hot(targets, self.outputs).float()
        return scores, offsets


def evaluate(config: Config, opened: OpenSplit, model: Any) -> Tensor:
    evaluate_batch, rows = DETECT.build_evaluator(config, CPU), []
    for batch in DETECT.open_validation(config, opened, CPU, SINGLE_RANK):
        if isinstance(model, PerfectModel):
            model.boxes, model.labels = batch[1], batch[2]
        rows.append(evaluate_batch(model, batch))
    return torch.cat(rows)


def test_detect_finish_eval_perfect_model_has_map_1(scenes: OpenSplit):
    found = []
    for size in (1, 3, 16):
        config = configure(f"eval.batch_size={size}")
        scored = DETECT.finish_eval(config, scenes, evaluate(config, scenes, PerfectModel(config)))
        found.append(scored.metrics)
        assert scored.images == 7
        assert {table.name for table in scored.tables} >= {"coco", "precision-recall", "ap-by-class", "ap-by-size"}
    assert found[0] == found[1] == found[2]
    assert found[0]["map50"] == pytest.approx(1.0)
    assert found[0]["map"] > 0.99
    wide = configure("detect.inclusive_edges=true")  # makes detections wider
    assert DETECT.finish_eval(wide, scenes, evaluate(wide, scenes, PerfectModel(wide))).metrics["map"] < found[0]["map"]
    # Sample images show ground truth and detections.
    assert 0 < len(scored.samples) <= 12
    for shown, jpeg in scored.samples:
        assert jpeg.startswith(b"\xff\xd8")
        true, found = ([box for box in shown.boxes if (box.score is None) is is_true] for is_true in (True, False))
        assert true
        assert len(found) >= len(true)
        assert all(box.correct for box in [*true, *found])
        assert all(0 <= box.left <= box.right <= 1 and 0 <= box.top <= box.bottom <= 1 for box in shown.boxes)
    files = [shown.file for shown, _ in scored.samples]
    assert len(set(files)) == len(files)
    assert not any(Path(file).is_absolute() or ".." in file for file in files)


def test_split_rows_ignores_padding(scenes: OpenSplit):
    labels = torch.tensor([[0, IGNORED], [1, 2]])
    rows = list_rows(FOUND, torch.tensor([[4.0], [-1.0]]), labels, torch.rand(2, 2), torch.rand(2, 2, 4))
    evaluated = split_rows(rows.numpy())
    assert evaluated.found.image.tolist() == [4]
    assert evaluated.found.label.tolist() == [0]
    assert len(evaluated.truth.label) == len(evaluated.images) == 0
    with pytest.raises(DataError, match="no validation image could be read"):
        DETECT.finish_eval(configure(), scenes, torch.full((3, 9), -1.0))


def test_detect_loss_perfect_model_is_small():
    config = configure()
    batch = DETECT.synthetic_batches(config, 4)[0]
    loss, perfect = DETECT.build_loss(config, CPU), PerfectModel(config)
    perfect.boxes, perfect.labels = batch[1], batch[2]
    model = DETECT.build_model(config)
    untrained = loss(model, batch)
    assert float(loss(perfect, batch)) < 1e-5 < float(untrained.detach())
    untrained.backward()
    assert all(parameter.grad.any() for parameter in model.parameters())
    model.zero_grad()
    empty = loss(model, (batch[0], batch[1], torch.full_like(batch[2], IGNORED)))  # without a box
    empty.backward()
    assert float(empty.detach()) == 0
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in model.parameters())


def test_detect_build_predictor_returns_boxes_and_count_classes():
    config = configure()
    model = PerfectModel(config)
    model.boxes, model.labels = torch.tensor([[[0.25, 0.5, 0.75, 1.0]]]), torch.tensor([[2]])
    (seen,) = DETECT.build_predictor(config, CPU)(model, torch.zeros(1, 64, 64, 3, dtype=torch.uint8))
    assert (seen[0].label, seen[0].edges) == (2, pytest.approx((0.25, 0.5, 0.75, 1.0), abs=1e-5))
    assert seen == sorted(seen, key=lambda one: -one.score)
    known = DETECT.build_model(configure("model.num_classes=7")).state_dict()
    assert [DETECT.count_classes(weights) for weights in (known, {})] == [7, None]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["data.image_size=40"], "at least 64 pixels"),
        (["model.depth=50"], "invalid model.depth = 50 for model.name = ssd: expected 18 or 34"),
        (["augment.crop=area"], "invalid augment.crop = area .*: expected overlap or whole"),
        (["eval.metric=top1"], "invalid eval.metric = top1 .*: expected map or map50"),
        (["augment.val_crop=centre"], "invalid augment.val_crop = centre .*: expected whole"),
        (["train.mixup=0.2"], "workload = detect does not use train.mixup"),
    ],
)
def test_detect_rejects_unsupported_settings(settings: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        DETECT.build_model(configure(*settings))


def test_check_classes_rejects_unsuitable_data_set(scenes: OpenSplit):
    few = configure("model.num_classes=2")
    with pytest.raises(DataError, match=r"has 5; model\.num_classes = 2"):
        DETECT.check_classes(few, scenes.dataset)
    with pytest.raises(DataError, match="is for classify"):
        DETECT.check_classes(configure(), scenes.dataset.__class__("classify", "", (), ()))
    with pytest.raises(ConfigError, match="have different numbers of boxes"):
        DETECT.open_training(configure("engine.cuda_graphs=true"), scenes, CPU, SINGLE_RANK, 0)
