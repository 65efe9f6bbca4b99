"""Our parameters under MXNet's names: those that MLPerf's checker of 2022 lists."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from trainstone.models.mxnet_names import name_in_mxnet
from trainstone.models.resnet import build_resnet


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


def test_names_of_other_depths_are_all_different():
    names = [name_in_mxnet(name) for name, _ in build_resnet(18, width=16, num_classes=10).named_parameters()]
    assert len(set(names)) == len(names) == 62
