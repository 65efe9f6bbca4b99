"""MLPerf's closed division: what the recipe is, each way out of it, and the values a log tells."""

import pytest

from made_mlperf import IMAGENET, load_mlperf
from trainstone.config.load import load_config
from trainstone.machine.ranks import Rank
from trainstone.train.original.mllog_head import judge_division
from trainstone.train.original.mllog_open import measure_sizes
from trainstone.workloads.mlperf_resnet import RESNET, find_departures, list_values
from trainstone.workloads.workload import RunSizes

SGD = {"optimizer__name": "sgd", "optimizer__learning_rate": 0.8, "optimizer__rate_for": "run"}


def sizes_of(config, pictures: tuple[int, int] = IMAGENET, ranks: int = 8) -> RunSizes:
    return measure_sizes(config, *pictures, Rank(0, ranks))


SYSTEMS = {
    "dgxa100": 8, "a30-1x2": 2, "dgxa100-4gpu": 4, "dgxa100-8x8": 64, "dgxa100-128x8": 1024, "dgxa100-527x8": 4216,
    "backendai-1x2": 2,
}  # fmt: skip
ALLOWED = [
    {},
    SGD,
    {**SGD, "optimizer__lars_eta": 0.01, "optimizer__lars_epsilon": 1e-9, "optimizer__momentum_correction": False},
    {"model__num_classes": 1001},
    {"eval__target": 0.77},
    {"eval__offset": 0, "eval__batch_size": 7, "seed": 8, "parallel__bn_ranks": 2},
    {"train__precision": "bf16", "train__loss_scale": "dynamic", "train__accumulate": 2},
    {"optimizer__rate_for": "run", "optimizer__weight_decay": 2e-4},
    {"schedule__warm_up_epochs": 3.5, "stop__epochs": 40.0, "engine__channels_last": False, "loader__cache": "files"},
    {"augment__val_shorter": "auto"},
    {"loader__last": "carry"},
    {"loader__last": "fill"},
]


@pytest.mark.parametrize("changes", ALLOWED)
def test_what_the_rules_leave_free_is_closed(changes: dict[str, object]):
    config = load_mlperf(**changes)
    assert find_departures(config, sizes_of(config)) == []
    assert judge_division(config, RESNET, sizes_of(config)) == ("closed", [])


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("defects", [False, True])
def test_every_system_of_the_recipe_is_closed(system: str, defects: bool):
    """On ImageNet the original's count of pictures is right."""
    config = load_config("resnet50-mlperf", system=system, settings=[f"original_defects={str(defects).lower()}"])
    assert find_departures(config, sizes_of(config, ranks=SYSTEMS[system])) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model__depth": 101}, "model.depth = 101, not 50"),
        ({"model__width": 32}, "model.width = 32, not 64"),
        ({"model__norm": "group"}, "model.norm = group, not batch"),
        ({"model__zero_gamma": True}, "model.zero_gamma = true, not false"),
        ({"model__conv_init": "normal_fan_out"}, "model.conv_init = normal_fan_out, not normal_fan_in"),
        ({"model__num_classes": 200}, "model.num_classes = 200, not 1000"),
        ({"data__image_size": 160}, "data.image_size = 160, not 224"),
        ({"augment__crop": "whole"}, "augment.crop = whole, not area"),
        ({"augment__area": [1.0, 1.0]}, "augment.area = [1, 1], not [0.05, 1]"),
        ({"augment__flip": 0.0}, "augment.flip = 0, not 0.5"),
        ({"augment__normalise": "mean"}, "augment.normalise = mean, not standard"),
        ({"augment__val_shorter": 224}, "augment.val_shorter = 224, not 256"),
        ({"loader__last": "drop"}, "loader.last = drop, not fill_even"),
        ({"loader__on_bad": "skip"}, "loader.on_bad = skip, not error"),
        ({"train__label_smoothing": 0.2}, "train.label_smoothing = 0.2, not 0.1"),
        ({"train__smoothing_over": "all"}, "train.smoothing_over = all, not others"),
        ({"train__mixup": 0.2}, "train.mixup = 0.2, not 0"),
        ({"train__ema": 0.99}, "train.ema = 0.99, not 0"),
        ({"eval__target": 0.758}, "the target is 0.758: at least 0.759 is asked for"),
        ({"eval__metric": "top5"}, "eval.metric = top5, not top1"),
        ({"eval__every_epochs": 1, "eval__offset": 0}, "eval.every_epochs = 1, not 4"),
        ({"eval__at_end": True}, "eval.at_end = true, not false"),
        ({"eval__drop_rest": True}, "eval.drop_rest = true, not false"),
        ({"schedule__name": "cosine"}, "schedule.name = cosine, not polynomial"),
        ({"schedule__by": "epoch"}, "schedule.by = epoch, not step"),
        ({"schedule__pictures": 1000}, "schedule.pictures = 1000, the data set has 1281167"),
        ({"schedule__warm_up_from": 0.5}, "schedule.warm_up_from = 0.5, not 0"),
        ({"schedule__warm_up_offset": False}, "schedule.warm_up_offset = false, not true"),
        ({"schedule__power": 1.0}, "schedule.power = 1, not 2"),
        ({"schedule__end_rate": 0.0}, "schedule.end_rate = 0, not 0.0001"),
        ({"optimizer__weight_decay": 3.0517578125e-05}, "weight decay 3.05176e-05 is not 0.0001 times a power of two"),
        ({"optimizer__weight_decay": 0.0}, "weight decay 0 is not 0.0001 times a power of two"),
        ({"optimizer__decay": "all"}, "optimizer.decay = all, not not_norm"),
        ({"optimizer__lars_eta": 0.01}, "optimizer.lars_eta = 0.01, not 0.001"),
        ({"optimizer__lars_epsilon": 1e-9}, "optimizer.lars_epsilon = 1e-09, not 0"),
        ({"optimizer__momentum_correction": False}, "optimizer.momentum_correction = false, not true"),
        ({"optimizer__momentum": 0.94}, "momentum 0.94, not 0.9 (LARS, fewer than 32768 images)"),
        ({**SGD, "optimizer__momentum": 0.94}, "momentum 0.94, not 0.9 (SGD)"),
        ({**SGD, "optimizer__learning_rate": 0.8005}, "the peak rate 0.8005 is no multiple of 0.001"),
        ({**SGD, "schedule__warm_up_epochs": 2.5}, "2.5 epochs of warm-up are no whole number (SGD)"),
    ],
)
def test_each_departure_makes_it_open_and_is_told(changes: dict[str, object], told: str):
    config = load_mlperf(**changes)
    division, departures = judge_division(config, RESNET, sizes_of(config))
    assert division == "open"
    assert len(departures) == 1
    assert told in departures[0]


def test_other_pictures_make_it_open():
    config = load_mlperf()
    told = "100,000 and 10,000 pictures, not ImageNet's 1,281,167 and 50,000"
    assert find_departures(config, sizes_of(config, (100_000, 10_000))) == [told]


def test_from_32768_images_on_the_momentum_is_free():
    config = load_mlperf(batch=35840, ranks=1024, optimizer__momentum=0.94)
    assert find_departures(config, sizes_of(config, ranks=1024)) == []


def test_what_is_asked_for_is_taken_as_it_is():
    config = load_mlperf(mlperf__division="open")
    assert judge_division(config, RESNET, sizes_of(config)) == ("open", [])
    forced = load_mlperf(mlperf__division="closed", eval__target=0.5)
    division, departures = judge_division(forced, RESNET, sizes_of(forced))
    assert (division, len(departures)) == ("closed", 1)


def test_values_of_lars_are_the_published_ones():
    """config_DGXA100: 8 x 408, 393 steps an epoch, 37 epochs of which 2 warm up."""
    config = load_mlperf()
    assert list_values(config, sizes_of(config)) == {
        "lars_opt_learning_rate_decay_poly_power": 2,
        "lars_opt_end_learning_rate": 0.0001,
        "d_batch_size": 408,
        "global_batch_size": 3264,
        "gradient_accumulation_steps": 1,
        "opt_name": "lars",
        "lars_epsilon": 0.0,
        "lars_opt_weight_decay": 5e-05,
        "lars_opt_momentum": 0.9,
        "lars_opt_base_learning_rate": 10.5,
        "lars_opt_learning_rate_warmup_epochs": 2,
        "lars_opt_learning_rate_decay_steps": 35 * 393,
    }


def test_the_defect_is_epochs_for_steps():
    config = load_mlperf(original_defects=True)
    assert list_values(config, sizes_of(config))["lars_opt_learning_rate_decay_steps"] == 37


def test_sgd_has_its_own_keys():
    config = load_mlperf(**SGD, train__accumulate=2)
    values = list_values(config, sizes_of(config))
    assert set(values) == {
        *("sgd_opt_learning_rate_decay_poly_power", "sgd_opt_end_learning_rate", "sgd_opt_weight_decay"),
        *("sgd_opt_momentum", "sgd_opt_base_learning_rate", "sgd_opt_learning_rate_decay_steps"),
        *("d_batch_size", "global_batch_size", "gradient_accumulation_steps", "opt_name"),
        "opt_learning_rate_warmup_epochs",
    }
    assert (values["global_batch_size"], values["gradient_accumulation_steps"]) == (6528, 2)
    assert values["sgd_opt_base_learning_rate"] == 0.8


def test_a_rate_that_falls_in_steps_has_neither_power_nor_end():
    config = load_config("resnet50-tbd", settings=["train.batch_size=32"])
    values = list_values(config, sizes_of(config, ranks=1))
    assert not [key for key in values if "poly" in key or "end_learning" in key or "decay_steps" in key]
