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


@pytest.mark.parametrize("changes", [{}, SGD, {"model__num_classes": 1001}, {"eval__target": 0.77}])
def test_the_recipe_is_closed(changes: dict[str, object]):
    config = load_mlperf(**changes)
    assert find_departures(config, sizes_of(config)) == []
    assert judge_division(config, RESNET, sizes_of(config)) == ("closed", [])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model__depth": 101}, "the network is ResNet-101, not ResNet-50"),
        ({"model__width": 32}, "not the ResNet-50 v1.5 of the reference"),
        ({"model__norm": "group"}, "not the ResNet-50 v1.5 of the reference"),
        ({"model__num_classes": 200}, "200 classes, not 1000 or 1001"),
        ({"data__image_size": 160}, "160 pixels, not 224"),
        ({"train__mixup": 0.2}, "train.mixup = 0.2"),
        ({"train__ema": 0.99}, "train.ema = 0.99"),
        ({"eval__target": 0.758}, "the target is 0.758: at least 0.759 is asked for"),
        ({"eval__metric": "top5"}, "the metric is top5, not top1"),
        ({"eval__every_epochs": 1, "eval__offset": 0}, "it is judged every 1 epoch, not every 4"),
        ({"eval__drop_rest": True}, "validation pictures are left out"),
        ({"schedule__name": "cosine"}, "the rate is cosine, not polynomial"),
        ({"schedule__power": 1.0}, "schedule.power = 1, not 2"),
        ({"schedule__end_rate": 0.0}, "schedule.end_rate = 0, not 0.0001"),
        ({"optimizer__weight_decay": 3.0517578125e-05}, "weight decay 3.05176e-05 is not 0.0001 times a power of two"),
        ({"optimizer__weight_decay": 0.0}, "weight decay 0 is not 0.0001 times a power of two"),
        ({"optimizer__lars_epsilon": 1e-9}, "optimizer.lars_epsilon = 1e-09, not 0"),
        ({"optimizer__momentum": 0.94}, "momentum 0.94, not 0.9"),
        ({**SGD, "optimizer__learning_rate": 0.8005}, "the peak rate 0.8005 is no multiple of 0.001"),
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
