"""MLPerf's SSD: what the recipe does on each of its systems, against the table of the original's published runs."""

from bisect import bisect

import pytest

from trainstone.config.load import list_shipped, load_config, load_system
from trainstone.config.schema import Config
from trainstone.machine.ranks import Rank
from trainstone.train.decision import Cadence
from trainstone.train.original.mllog import measure_sizes
from trainstone.train.task import order_pictures, plan_rate

RECIPE = "ssd300-mlperf"
COCO = (117_266, 5_000)
JUDGED = [40, 50, 55, 60, 65, 70, 75, 80]
# system: nodes, devices each, batch a device, --lr, warm-up epochs, decay; images a step, rate, warm-up steps, steps
TABLE = {
    "dss8440": (1, 8, 128, 5.84e-3, 5.0, 1.6e-4, 1024, 0.1875, 572, 115),
    "c4140": (1, 4, 128, 2.92e-3, 5.25, 1.6e-4, 512, 0.0475, 1202, 230),
    "2xc4140": (2, 4, 128, 5.84e-3, 5.25, 1.6e-4, 1024, 0.1875, 601, 115),
    "4xc4140": (4, 4, 56, 3.2e-3, 5.0, 1.3e-4, 896, 0.09, 654, 131),
    "dgx1": (1, 8, 56, 2.92e-3, 5.25, 1.6e-4, 448, 0.04, 1374, 262),
    "dgxa100": (1, 8, 114, 3.2e-3, 5.0, 1.3e-4, 912, 0.09, 642, 129),
}


def load(system: str | None = None, *settings: str) -> tuple[Config, Rank]:
    config = load_config(RECIPE, system=system, settings=settings)
    return config, Rank(0, config.nodes * config.devices_per_node)


def original_rate(it: int, system: str) -> float:
    """The original's formulas; updates and epochs are counted from 1."""
    *_, asked, warm_up_epochs, _, images, _, _, steps = TABLE[system]
    peak = 2.5e-3 * max(1, round(asked / 2.5e-3 * images / 32))
    rate = peak * 0.1 ** bisect([44, 55], (it - 1) // steps)
    warm_up = int(warm_up_epochs * COCO[0] / images)
    return rate - (warm_up - it) * rate / (warm_up * 2**0) if it < warm_up else rate


def test_every_system_of_the_table_is_shipped_and_no_other():
    assert sorted(name for name in list_shipped("systems") if RECIPE in load_system(name).recipe) == sorted(TABLE)


@pytest.mark.parametrize("system", TABLE)
def test_a_system_trains_as_published(system: str):
    nodes, each, batch, asked, warm_up, decay, images, peak, warm_up_steps, steps = TABLE[system]
    config, rank = load(system)
    assert (config.nodes, config.devices_per_node, config.train.batch_size) == (nodes, each, batch)
    assert (config.optimizer.learning_rate, config.optimizer.weight_decay) == (asked, decay)
    assert config.schedule.warm_up_epochs == warm_up
    sizes = measure_sizes(config, *COCO, rank)
    assert (sizes.global_batch, sizes.warm_up_steps) == (images, warm_up_steps)
    assert sizes.peak_rate == pytest.approx(peak, rel=1e-12)
    order = order_pictures(config, COCO[0], rank)
    assert order.epoch_pictures == steps * images
    rate = plan_rate(config, COCO[0], rank)
    around = [border + by for border in (warm_up_steps, 44 * steps, 55 * steps, 80 * steps) for by in (-2, -1, 0, 1)]
    for step in (*range(steps), *(step for step in around if step < 80 * steps)):
        assert rate(step) == pytest.approx(original_rate(step + 1, system), rel=1e-9), step
    assert rate(44 * steps - 1) == pytest.approx(peak)
    assert rate(44 * steps) == pytest.approx(peak / 10)  # the first of epoch 45


@pytest.mark.parametrize("system", TABLE)
def test_it_is_judged_after_the_listed_epochs_alone(system: str):
    config, rank = load(system)
    order = order_pictures(config, COCO[0], rank)
    cadence = Cadence(order.epoch_pictures, order.global_batch, config.eval, config.stop, config.checkpoint)
    steps = TABLE[system][-1]
    assert cadence.last_step == 80 * steps
    assert [done for done in range(1, 80 * steps + 1) if cadence.evaluates_after(done)] == [e * steps for e in JUDGED]


@pytest.mark.parametrize("defects", [False, True])
def test_its_defect_is_a_pixel_more(defects: bool):
    config, _ = load("c4140", f"original_defects={str(defects).lower()}")
    assert config.detect.inclusive_edges is defects


@pytest.mark.parametrize(
    ("batch", "ranks", "peak"), [(1, 1, 0.0025), (32, 1, 0.0025), (64, 1, 0.005), (8, 8, 0.005), (114, 1, 0.01)]
)
def test_other_batches_have_the_rate_of_the_rule(batch: int, ranks: int, peak: float):
    config, _ = load(None, f"train.batch_size={batch}")
    assert measure_sizes(config, *COCO, Rank(0, ranks)).peak_rate == pytest.approx(peak)


KNOWN = {
    "workload": "detect",
    "model": {"name": "ssd", "depth": 34, "width": 64, "num_classes": 80, "norm": "batch"},
    "data": {"image_size": 300, "skip_empty": True},
    "augment": {
        **{"crop": "overlap", "sides": (0.3, 1.0), "overlaps": (0.0, 0.1, 0.3, 0.5, 0.7, 0.9), "aspect": (0.5, 2.0)},
        **{"attempts": 1, "flip": 0.5, "saturation": (0.5, 1.5), "hue_degrees": (-0.5, 0.5), "contrast": (0.5, 1.5)},
        **{"brightness": (0.875, 1.125), "val_crop": "whole", "resize": "antialias", "val_resize": "antialias"},
        **{"normalise": "standard"},
    },
    "detect": {
        **{"match_overlap": 0.5, "negatives": 3.0, "min_score": 0.0, "before_nms": 200, "nms_overlap": 0.5},
        **{"max_found": 200, "inclusive_edges": False},
    },
    "train": {"precision": "fp16", "loss_scale": 128.0, "adapt": ("batch_size", "precision"), "accumulate": 1},
    "optimizer": {"name": "sgd", "momentum": 0.9, "momentum_correction": False, "decay": "all", "rate_unit": 2.5e-3},
    "schedule": {"decay_factor": 0.1, "warm_up_from": 0.0},
    "stop": {"epochs": 80.0},
    "eval": {"metric": "map", "target": 0.23, "async": True},
    "original": {"name": "mlperf_ssd"},
}


def test_every_other_key_that_is_known():
    config = load()[0].model_dump()
    for section, keys in KNOWN.items():
        if isinstance(keys, dict):
            assert {key: config[section][key] for key in keys} == keys
        else:
            assert config[section] == keys
