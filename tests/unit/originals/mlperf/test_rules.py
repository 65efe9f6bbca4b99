"""Tests of MLPerf's rules: closed division, log values, and the real compliance checker."""

import re
from pathlib import Path
from types import SimpleNamespace

import mlperf_logging
import pytest

from support.builders.mlperf_logs import (
    COCO,
    IMAGENET,
    SSD_RULESETS,
    build_empty,
    check_log,
    load_mlperf,
    load_ssd,
    write_ssd_log,
)
from trainstone.config.load import list_shipped, load_config, load_system
from trainstone.config.schema import change_section
from trainstone.formats.mllog import read_mllog
from trainstone.machine.ranks import Rank
from trainstone.originals.mlperf import rules as mlperf
from trainstone.originals.mlperf.rules import RunSizes
from trainstone.originals.mlperf.training_log import choose_division, compute_sizes

RESNET = SimpleNamespace(
    rules=mlperf.BENCHMARKS["classify"], load=load_mlperf, images=IMAGENET, recipe="resnet50-mlperf"
)
SSD = SimpleNamespace(rules=mlperf.BENCHMARKS["detect"], load=load_ssd, images=COCO, recipe="ssd300-mlperf")
SGD = {"optimizer__name": "sgd", "optimizer__learning_rate": 0.8, "optimizer__rate_for": "run"}


def sizes_of(config, images: tuple[int, int] = IMAGENET, ranks: int = 8) -> RunSizes:
    return compute_sizes(config, *images, Rank(0, ranks))


def choose(what: SimpleNamespace, config, **changes) -> tuple[str, list[str]]:
    return choose_division(config, sizes_of(config, **{"images": what.images, **changes}))


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        (RESNET, {}),
        (RESNET, SGD),
        (RESNET, {**SGD, "optimizer__lars_eta": 0.01, "optimizer__momentum_correction": False}),
        (RESNET, {"model__num_classes": 1001, "eval__target": 0.77, "augment__val_shorter": "auto"}),
        (RESNET, {"eval__offset": 0, "eval__batch_size": 7, "seed": 8, "parallel__bn_ranks": 2}),
        (RESNET, {"schedule__warm_up_epochs": 3.5, "stop__epochs": 40.0, "loader__last": "fill"}),
        (RESNET, {"batch": 35840, "ranks": 1024, "optimizer__momentum": 0.94}),  # free from 32768 images on
        (SSD, {}),
        (SSD, {"optimizer__weight_decay": 1.3e-4, "optimizer__learning_rate": 5e-3, "optimizer__rate_for": "run"}),
        (SSD, {"optimizer__momentum_correction": True, "schedule__first_step": 0, "schedule__warm_up_from": 0.5}),
        (SSD, {"schedule__decay_epochs": [40, 50], "schedule__warm_up_epochs": 2.0, "stop__epochs": 120.0}),
        (SSD, {"augment__attempts": 50, "loader__last": "carry", "parallel__bn_ranks": 4}),
    ],
)
def test_choose_division_free_keys_stay_closed(what: SimpleNamespace, changes: dict[str, object]):
    assert choose(what, what.load(**changes), ranks=changes.get("ranks", 8)) == ("closed", [])


@pytest.mark.parametrize("what", [RESNET, SSD])
@pytest.mark.parametrize("defects", ["false", "true"])
def test_find_violations_shipped_systems_have_none(what: SimpleNamespace, defects: str):
    settings = [f"original_defects={defects}"] + ["model.pretrained=resnet34.pth"] * (what is SSD)
    systems = [name for name in list_shipped("systems") if what.recipe in load_system(name).recipe]
    assert len(systems) >= 6
    for system in systems:
        config = load_config(what.recipe, system=system, settings=settings)
        ranks = config.nodes * config.devices_per_node
        assert what.rules.find_violations(config, sizes_of(config, what.images, ranks)) == [], system


@pytest.mark.parametrize(
    ("what", "changes", "seen"),
    [
        (RESNET, {"model__depth": 101}, "model.depth = 101, must be 50"),
        (RESNET, {"data__image_size": 160}, "data.image_size = 160, must be 224"),
        (RESNET, {"augment__area": [1.0, 1.0]}, "augment.area = [1.0, 1.0], must be [0.05, 1.0]"),
        (RESNET, {"augment__val_shorter": 224}, "augment.val_shorter"),
        (RESNET, {"loader__last": "drop"}, "loader.last = drop, must be fill_even"),
        (RESNET, {"train__label_smoothing": 0.2}, "train.label_smoothing"),
        (RESNET, {"eval__target": 0.758}, "eval.target = 0.758"),
        (RESNET, {"eval__every_epochs": 1, "eval__offset": 0}, "eval.every_epochs"),
        (RESNET, {"schedule__images": 1000}, "schedule.images = 1000"),
        (RESNET, {"schedule__warm_up_offset": False}, "schedule.warm_up_offset = false, must be true"),
        (RESNET, {"optimizer__weight_decay": 3.0517578125e-05}, "weight decay 3.05176e-05"),
        (RESNET, {"optimizer__weight_decay": 0.0}, "weight decay 0"),
        (RESNET, {"optimizer__lars_eta": 0.01}, "optimizer.lars_eta"),
        (RESNET, {"optimizer__momentum": 0.94}, "momentum 0.94"),
        (RESNET, {**SGD, "optimizer__momentum": 0.94}, "momentum 0.94"),
        (RESNET, {**SGD, "optimizer__learning_rate": 0.8005}, "peak rate 0.8005"),
        (RESNET, {**SGD, "schedule__warm_up_epochs": 2.5}, "2.5 epochs of warm-up"),
        (SSD, {"model__pretrained": None}, "model.pretrained"),
        (SSD, {"augment__overlaps": [0.5]}, "augment.overlaps"),
        (SSD, {"augment__attempts": 2}, "augment.attempts = 2"),
        (SSD, {"detect__negatives": 5.0}, "detect.negatives"),
        (SSD, {"optimizer__rate_unit": 1e-3}, "peak rate 0.093"),
        (SSD, {"schedule__warm_up_epochs": 0.0}, "no warm-up"),
        *((SSD, {"schedule__decay_epochs": e}, "schedule.decay_epochs") for e in ([43, 55], [44, 56], [44])),
        (SSD, {"eval__target": 0.229}, "eval.target = 0.229"),
        (SSD, {"eval__at_epochs": [10, 80]}, "eval.at_epochs"),
    ],
)
def test_choose_division_violation_makes_division_open(what: SimpleNamespace, changes: dict[str, object], seen: str):
    config = what.load(**{name: value for name, value in changes.items() if value is not None})
    if None in changes.values():
        config = change_section(config, "model", pretrained=None)
    division, violations = choose(what, config)
    assert (division, len(violations)) == ("open", 1)
    assert seen in violations[0]


@pytest.mark.parametrize(
    ("what", "images", "division"),
    [
        (RESNET, (100_000, 10_000), "open"),
        (SSD, (117_266, 4_952), "closed"),
        (SSD, (118_287, 5_000), "open"),
        (SSD, (117_266, 500), "open"),
    ],
)
def test_choose_division_other_number_of_images_is_open(what: SimpleNamespace, images: tuple[int, int], division: str):
    found, violations = choose(what, what.load(), images=images)
    assert (found, len(violations)) == (division, int(division == "open"))
    assert all(f"{images[0]:,} and {images[1]:,} images" in one for one in violations)


def test_list_resnet_values_lars_matches_published_log():
    """config_DGXA100: 8 x 408, 393 steps an epoch, 37 epochs of which 2 warm up."""
    config = load_mlperf()
    assert mlperf.list_resnet_values(config, sizes_of(config)) == {
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
    wrong = load_mlperf(original_defects=True)  # epochs for steps
    assert mlperf.list_resnet_values(wrong, sizes_of(wrong))["lars_opt_learning_rate_decay_steps"] == 37


def test_list_resnet_values_sgd_and_step_schedule_have_own_keys():
    config = load_mlperf(**SGD, train__accumulate=2)
    values = mlperf.list_resnet_values(config, sizes_of(config))
    assert (values["global_batch_size"], values["gradient_accumulation_steps"]) == (6528, 2)
    assert values["sgd_opt_base_learning_rate"] == 0.8
    assert not [key for key in values if "lars" in key]
    config = load_config("resnet50-tbd", settings=["train.batch_size=32"])
    values = mlperf.list_resnet_values(config, sizes_of(config, ranks=1))
    assert not [key for key in values if "poly" in key or "end_learning" in key or "decay_steps" in key]


def test_list_ssd_values_dss8440_matches_published_log():
    config = load_config("ssd300-mlperf", system="dss8440")
    values = mlperf.list_ssd_values(config, sizes_of(config, COCO))
    assert values.pop("opt_base_learning_rate") == pytest.approx(0.1875)
    assert values == {
        "max_samples": 1,
        "opt_learning_rate_warmup_steps": 572,
        "opt_learning_rate_warmup_factor": 0,
        "opt_learning_rate_decay_boundary_epochs": [44, 55],
        "opt_weight_decay": 1.6e-4,
        "global_batch_size": 1024,
        "gradient_accumulation_steps": 1,
    }
    wrong = load_ssd(seed=77, original_defects=True)  # the seed under a wrong key
    assert mlperf.list_ssd_values(wrong, sizes_of(wrong, COCO))["sgd"] == 77
    other = load_ssd(augment__crop="whole", schedule__name="constant")
    skipped = {"max_samples", "opt_learning_rate_decay_boundary_epochs", "sgd"}
    assert not skipped & set(mlperf.list_ssd_values(other, sizes_of(other, COCO)))


@pytest.mark.parametrize(("begin", "factor"), [(0.0, 0), (0.5, 1), (0.75, 2), (1.0, 0), ("rank", 0.19264507794239588)])
def test_list_ssd_values_warm_up_factor_gives_start(begin: object, factor: float):
    config = load_ssd(schedule__warm_up_from=begin)
    values = mlperf.list_ssd_values(config, sizes_of(config, COCO))
    assert values["opt_learning_rate_warmup_factor"] == pytest.approx(factor)


def test_name_ssd_tensor_gives_names_of_rules_1_1():
    rules = Path(mlperf_logging.__file__).parent / "compliance_checker/training_1.1.0/closed_ssd.yaml"
    listed = re.findall(r'"(ssd0_\w+)"', rules.read_text())
    assert len(listed) == 119
    assert sorted(SSD.rules.name_tensor(name) for name, _ in build_empty().named_parameters()) == sorted(listed)
    assert mlperf.name_ssd_tensor("backbone.layer2.1.conv1.weight") == "ssd0_resnetmlperf0_stage2_conv3_weight"
    assert mlperf.name_ssd_tensor("backbone.other.weight") == "backbone.other.weight"


@pytest.mark.parametrize(("ruleset", "defects"), [*((ruleset, False) for ruleset in SSD_RULESETS), ("1.0.0", True)])
def test_checker_accepts_closed_ssd_log(tmp_path: Path, ruleset: str, defects: bool):
    write_ssd_log(tmp_path / "a.log", original_defects=defects)
    passed, output = check_log(tmp_path / "a.log", ruleset)
    assert passed, output
    events = read_mllog(tmp_path / "a.log")
    values = {event.key: event.value for event in events}
    assert (values["submission_benchmark"], values["submission_division"]) == ("ssd", "closed")
    assert (values["train_samples"], values["eval_samples"], values["model_bn_span"]) == (117266, 5000, 128)
    blocks = [event.metadata for event in events if event.key == "block_start"]
    assert [(block["first_epoch_num"], block["epoch_count"]) for block in blocks] == [(1, 40), (41, 10)]


def test_checker_rejects_closed_ssd_log_below_target(tmp_path: Path):
    write_ssd_log(tmp_path / "a.log", reached=0.2299, epochs=80, mlperf__division="closed")
    passed, output = check_log(tmp_path / "a.log", "1.0.0")
    assert not passed
    assert "0.230" in output
    small = {"model__depth": 18, "stop__epochs": 3.0, "eval__at_epochs": [2.0, 3.0], "eval__target": 0.01}
    write_ssd_log(tmp_path / "b.log", images=(600, 100), epochs=3, reached=0.0123, batch=16, **small)
    assert "open" in [event.value for event in read_mllog(tmp_path / "b.log") if event.key == "submission_division"]
    passed, output = check_log(tmp_path / "b.log", "1.0.0")
    assert passed, output
