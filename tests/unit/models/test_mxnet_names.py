"""Our names and MXNet's: those of MLPerf's SSD both ways, and those that MLPerf's checker of 2022 lists."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from trainstone.models.mxnet_names import PREFIX, name_in_gluon, name_in_mxnet, rename_from_gluon
from trainstone.models.resnet import build_resnet

# By hand from the rule: number = 2 block + (0, 1; 2: shortcut), and one more after the first block of stages 2 and 3.
TABLE = {
    "conv1.weight": "conv0_weight",
    "bn1.bias": "batchnorm0_beta",
    "layer1.0.conv1.weight": "stage1_conv0_weight",
    "layer1.2.bn2.running_var": "stage1_batchnorm5_running_var",
    "layer2.0.conv2.weight": "stage2_conv1_weight",
    "layer2.0.downsample.0.weight": "stage2_conv2_weight",
    "layer2.0.downsample.1.running_mean": "stage2_batchnorm2_running_mean",
    "layer2.1.conv1.weight": "stage2_conv3_weight",
    "layer2.3.bn2.weight": "stage2_batchnorm8_gamma",
    "layer3.5.conv2.weight": "stage3_conv12_weight",
}


def test_ten_names_by_hand():
    assert {ours: name_in_gluon(ours) for ours in TABLE} == TABLE
    for rename in (str, lambda name: PREFIX + name.replace("running", "moving")):
        assert rename_from_gluon({rename(theirs): ours for ours, theirs in TABLE.items()}) == {n: n for n in TABLE}


@pytest.mark.parametrize("depth", [18, 34])
def test_every_name_goes_there_and_back(depth: int):
    names = list(build_resnet(depth, width=16).state_dict())
    kept = {other: name for name in names if (other := name_in_gluon(name)) is not None}
    ends = {name for name in names if name.startswith(("layer4.", "fc.")) or name.endswith("num_batches_tracked")}
    assert set(kept.values()) == set(names) - ends
    assert rename_from_gluon(kept) == {name: name for name in kept.values()}
    assert depth == 18 or len(kept) == 145


def test_only_a_whole_file_is_renamed():
    assert rename_from_gluon({"stage1_conv0_weight": 1}) == {"stage1_conv0_weight": 1}
    others = dict.fromkeys(("conv1_weight", "conv0_gamma", "stage4_conv0_weight", "ssd0_expand_conv0_weight", ""), 3)
    mixed = {"conv0_weight": 1, "stage1_conv0_weight": 2, **others}
    assert rename_from_gluon(mixed) == {"conv1.weight": 1, "layer1.0.conv1.weight": 2, **others}


def test_two_names_for_one_tensor_are_refused():
    with pytest.raises(ValueError, match="same name"):
        rename_from_gluon({"conv0_weight": 1, "batchnorm0_running_mean": 2, "batchnorm0_moving_mean": 3})


def test_resnet50_has_the_161_names_that_the_rules_list():
    package = find_spec("mlperf_logging")
    assert package is not None
    assert package.origin is not None
    rules = Path(package.origin).parent / "compliance_checker/training_2.0.0/closed_resnet.yaml"
    listed = re.findall(r'^ +"([a-z0-9_]+)",?$', rules.read_text(), re.MULTILINE)
    ours = [name_in_mxnet(name) for name, _ in build_resnet(50).named_parameters()]
    assert len(ours) == 161
    assert sorted(ours) == sorted(listed)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("conv1.weight", "conv0_weight"),
        ("bn1.weight", "bn0_gamma"),
        ("bn1.bias", "bn0_beta"),
        ("fc.weight", "fc1_weight"),
        ("fc.bias", "fc1_bias"),
        ("layer1.0.downsample.0.weight", "stage1_unit1_conv1sc_weight"),
        ("layer1.0.downsample.1.bias", "stage1_unit1_bnsc_beta"),
        ("layer3.22.bn3.weight", "stage3_unit23_bn3_gamma"),
        ("head.weight", "head.weight"),
    ],
)
def test_a_name_of_each_kind(ours: str, theirs: str):
    assert name_in_mxnet(ours) == theirs
