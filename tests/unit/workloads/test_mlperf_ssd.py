"""MLPerf's closed division of SSD300: what the recipe is, each way out of it, and what the real checker says."""

import re
from pathlib import Path

import mlperf_logging
import pytest

from made_mlperf import check_log
from made_mlperf_ssd import COCO, RULESETS, list_tensors, load_ssd, write_ssd_log
from trainstone.config.load import load_config
from trainstone.formats.mllog import read_mllog
from trainstone.machine.ranks import Rank
from trainstone.results.mlperf.logged import read_logged
from trainstone.results.mlperf.rules import choose_ruleset
from trainstone.train.original.mllog_head import judge_division
from trainstone.train.original.mllog_open import measure_sizes
from trainstone.workloads.mlperf_ssd import SSD, find_departures, list_values, name_in_mxnet
from trainstone.workloads.workload import RunSizes

SYSTEMS = {"c4140": 4, "2xc4140": 8, "4xc4140": 16, "dss8440": 8, "dgx1": 8, "dgxa100": 8}
GIVEN = "model.pretrained=resnet34.pth"


def sizes_of(config, pictures: tuple[int, int] = COCO, ranks: int = 8) -> RunSizes:
    return measure_sizes(config, *pictures, Rank(0, ranks))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"train__precision": "bf16", "train__loss_scale": "dynamic", "train__accumulate": 2},
        {"optimizer__weight_decay": 1.3e-4, "optimizer__learning_rate": 5e-3, "optimizer__rate_for": "run"},
        {"optimizer__momentum_correction": True, "schedule__first_step": 0, "schedule__warm_up_from": 0.5},
        {"schedule__decay_epochs": [40, 50], "schedule__warm_up_epochs": 2.0, "stop__epochs": 120.0},
        {"schedule__decay_epochs": [48, 60]},
        {"augment__attempts": 50, "loader__last": "carry", "parallel__bn_ranks": 4, "engine__channels_last": False},
        {"eval__target": 0.24, "eval__async": False, "eval__batch_size": 7},
        {"original_defects": True},
    ],
)
def test_what_the_rules_leave_free_is_closed(changes: dict[str, object]):
    config = load_ssd(**changes)
    assert judge_division(config, SSD, sizes_of(config)) == ("closed", [])


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("defects", ["false", "true"])
def test_every_system_of_the_recipe_is_closed(system: str, defects: str):
    config = load_config("ssd300-mlperf", system=system, settings=[f"original_defects={defects}", GIVEN])
    assert find_departures(config, sizes_of(config, ranks=SYSTEMS[system])) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model__depth": 18}, "model.depth = 18, not 34"),
        ({"model__width": 32}, "model.width = 32, not 64"),
        ({"model__num_classes": 90}, "model.num_classes = 90, not 80"),
        ({"model__pretrained": None}, "model.pretrained is not given: it begins with a trained ResNet-34"),
        ({"data__image_size": 512}, "data.image_size = 512, not 300"),
        ({"augment__crop": "whole"}, "augment.crop = whole, not overlap"),
        ({"augment__overlaps": [0.5]}, "augment.overlaps = [0.5], not [0, 0.1, 0.3, 0.5, 0.7, 0.9]"),
        ({"augment__attempts": 2}, "augment.attempts = 2, not 1 or 50"),
        ({"detect__negatives": 5.0}, "detect.negatives = 5, not 3"),
        ({"detect__before_nms": 400}, "detect.before_nms = 400, not 200"),
        ({"loader__last": "drop"}, "loader.last = drop, not fill_even"),
        ({"loader__on_bad": "skip"}, "loader.on_bad = skip, not error"),
        ({"train__ema": 0.99}, "train.ema = 0.99, not 0"),
        ({"optimizer__name": "lars"}, "optimizer.name = lars, not sgd"),
        ({"optimizer__momentum": 0.8}, "optimizer.momentum = 0.8, not 0.9"),
        ({"optimizer__decay": "not_norm"}, "optimizer.decay = not_norm, not all"),
        ({"optimizer__rate_unit": 1e-3}, "the peak rate 0.093 is no multiple of 0.0025"),
        ({"schedule__name": "constant"}, "schedule.name = constant, not steps"),
        ({"schedule__warm_up_epochs": 0.0}, "there is no warm-up: at least a step is asked for"),
        ({"schedule__decay_epochs": [43, 55]}, "schedule.decay_epochs = [43, 55], not 40 and 50, each changed"),
        ({"schedule__decay_epochs": [44, 56]}, "schedule.decay_epochs = [44, 56], not 40 and 50, each changed"),
        ({"schedule__decay_epochs": [44]}, "schedule.decay_epochs = [44], not 40 and 50, each changed"),
        ({"schedule__decay_factor": 0.5}, "schedule.decay_factor = 0.5, not 0.1"),
        ({"schedule__pictures": 1000}, "schedule.pictures = 1000, the data set has 117266"),
        ({"eval__metric": "map50"}, "eval.metric = map50, not map"),
        ({"eval__target": 0.229}, "the target is 0.229: at least 0.23 is asked for"),
        ({"eval__at_epochs": [10, 80]}, "eval.at_epochs = [10, 80], not [40, 50, 55, 60, 65, 70, 75, 80]"),
        ({"eval__drop_rest": True}, "eval.drop_rest = true, not false"),
    ],
)
def test_each_departure_makes_it_open_and_is_told(changes: dict[str, object], told: str):
    given = {name: value for name, value in changes.items() if value is not None}
    config = load_ssd(**given)
    if None in changes.values():
        config = config.model_copy(update={"model": config.model.model_copy(update={"pretrained": None})})
    division, departures = judge_division(config, SSD, sizes_of(config))
    assert division == "open"
    assert len(departures) == 1
    assert told in departures[0]


@pytest.mark.parametrize(
    ("pictures", "departs"),
    [((117_266, 5_000), False), ((117_266, 4_952), False), ((118_287, 5_000), True), ((117_266, 500), True)],
)
def test_other_pictures_make_it_open(pictures: tuple[int, int], departs: bool):
    config = load_ssd()
    told = [f"{pictures[0]:,} and {pictures[1]:,} pictures, not COCO's 117,266 with boxes and 5,000"]
    assert find_departures(config, sizes_of(config, pictures)) == (told if departs else [])


def test_values_of_the_dss8440_are_the_published_ones():
    config = load_config("ssd300-mlperf", system="dss8440")
    values = list_values(config, sizes_of(config))
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
    assert list(values)[:2] == ["max_samples", "opt_learning_rate_warmup_steps"]


def test_its_defect_is_the_seed_under_a_wrong_key():
    config = load_ssd(seed=77, original_defects=True)
    assert list_values(config, sizes_of(config))["sgd"] == 77
    assert "sgd" not in list_values(load_ssd(seed=77), sizes_of(config))


@pytest.mark.parametrize(("begin", "factor"), [(0.0, 0), (0.5, 1), (0.75, 2), (1.0, 0), ("rank", 0.19264507794239588)])
def test_the_factor_of_a_warm_up_is_where_it_begins(begin: object, factor: float):
    config = load_ssd(schedule__warm_up_from=begin)
    assert list_values(config, sizes_of(config))["opt_learning_rate_warmup_factor"] == pytest.approx(factor)


def test_what_a_recipe_does_not_say_is_left_out():
    config = load_ssd(augment__crop="whole", schedule__name="constant")
    assert not {"max_samples", "opt_learning_rate_decay_boundary_epochs"} & set(list_values(config, sizes_of(config)))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("backbone.conv1.weight", "ssd0_resnetmlperf0_conv0_weight"),
        ("backbone.bn1.bias", "ssd0_resnetmlperf0_batchnorm0_beta"),
        ("backbone.layer1.2.conv2.weight", "ssd0_resnetmlperf0_stage1_conv5_weight"),
        ("backbone.layer2.0.downsample.1.weight", "ssd0_resnetmlperf0_stage2_batchnorm2_gamma"),
        ("backbone.layer2.1.conv1.weight", "ssd0_resnetmlperf0_stage2_conv3_weight"),
        ("backbone.layer3.5.bn2.weight", "ssd0_resnetmlperf0_stage3_batchnorm12_gamma"),
        ("extras.1.0.bias", "ssd0_expand_trans_conv1_bias"),
        ("extras.4.2.weight", "ssd0_expand_conv4_weight"),
        ("heads.5.bias", "ssd0_convpredictor5_conv0_bias"),
        ("backbone.other.weight", "backbone.other.weight"),
        ("fc.weight", "fc.weight"),
    ],
)
def test_names_of_tensors(ours: str, theirs: str):
    assert name_in_mxnet(ours) == theirs


def test_tensors_are_those_that_the_rules_of_1_1_list():
    rules = Path(mlperf_logging.__file__).parent / "compliance_checker/training_1.1.0/closed_ssd.yaml"
    listed = re.findall(r'"(ssd0_\w+)"', rules.read_text())
    assert len(listed) == 119
    assert sorted(list_tensors()) == sorted(listed)


@pytest.mark.parametrize("ruleset", RULESETS)
def test_the_real_checker_takes_a_closed_log(tmp_path: Path, ruleset: str):
    write_ssd_log(tmp_path / "a.log")
    passed, said = check_log(tmp_path / "a.log", ruleset)
    assert passed, said
    values = {event.key: event.value for event in read_mllog(tmp_path / "a.log")}
    assert (values["submission_benchmark"], values["submission_division"]) == ("ssd", "closed")
    assert (values["train_samples"], values["eval_samples"], values["model_bn_span"]) == (117266, 5000, 128)


def test_defects_pass_too(tmp_path: Path):
    write_ssd_log(tmp_path / "a.log", original_defects=True)
    assert check_log(tmp_path / "a.log", "1.0.0")[0]


def test_the_real_checker_refuses_a_closed_log_below_the_target(tmp_path: Path):
    write_ssd_log(tmp_path / "a.log", reached=0.2299, epochs=80, mlperf__division="closed")
    passed, said = check_log(tmp_path / "a.log", "1.0.0")
    assert not passed
    assert "0.230" in said


def test_the_real_checker_takes_a_small_open_log(tmp_path: Path):
    small = {"model__depth": 18, "stop__epochs": 3.0, "eval__at_epochs": [2.0, 3.0], "eval__target": 0.01}
    write_ssd_log(tmp_path / "a.log", pictures=(600, 100), epochs=3, reached=0.0123, batch=16, **small)
    values = {event.key: event.value for event in read_mllog(tmp_path / "a.log")}
    assert values["submission_division"] == "open"
    passed, said = check_log(tmp_path / "a.log", "1.0.0")
    assert passed, said


def test_a_block_is_as_long_as_the_list_says(tmp_path: Path):
    write_ssd_log(tmp_path / "a.log")
    blocks = [event.metadata for event in read_mllog(tmp_path / "a.log") if event.key == "block_start"]
    assert [(block["first_epoch_num"], block["epoch_count"]) for block in blocks] == [(1, 40), (41, 10)]


def test_ssd_is_checked_by_the_rules_of_1_0(tmp_path: Path):
    write_ssd_log(tmp_path / "a.log")
    choice = choose_ruleset(read_logged(tmp_path / "a.log"), {"1.0.0": ["ssd"], "2.0.0": ["ssd"]})
    assert choice.ruleset == "1.0.0"
