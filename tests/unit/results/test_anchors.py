import pytest

from made_results import make_result
from trainstone.config.load import load_config
from trainstone.errors import ResultError
from trainstone.results.anchors import anchors_for, choose_anchors, load_anchors, matching_device
from trainstone.results.schema import Device

ANCHORS = {anchor.id: anchor for anchor in load_anchors()}


def test_every_figure_is_there_once_and_names_its_source():
    assert len(ANCHORS) == len(load_anchors()) == 56
    assert sum(anchor.model == "resnet50" for anchor in ANCHORS.values()) == 39
    for anchor in ANCHORS.values():
        assert (anchor.workload, anchor.model) in (("classify", "resnet50"), ("detect", "ssd300"))
        assert len(anchor.source) > 10
        assert "http" not in anchor.source
        assert anchor.id.endswith(f"-{anchor.devices}") == (anchor.devices > 1)
        assert anchor.whole_run == ("MLPerf" in anchor.stack)
        assert 20 < anchor.per_device < 10_000


def test_a_figure_has_a_speed_per_device_and_a_title():
    anchor = ANCHORS["a100-80-mxnet-amp-8"]
    assert anchor.per_device == pytest.approx(26674 / 8)
    assert (anchor.kind, anchor.title) == ("8 × A100-80", "8 × A100-80, AMP, MXNet, container 22.10")


RESNET, SSD = load_config("resnet50").model_dump(mode="json"), load_config("ssd300-mlperf").model_dump(mode="json")


@pytest.mark.parametrize(
    ("config", "device", "kinds"),
    [
        (RESNET, "NVIDIA A100-SXM4-80GB", {"A100-80", "A100-80 SXM", "A100"}),
        (RESNET, "NVIDIA A100-SXM4-40GB", {"A100"}),
        (RESNET, "NVIDIA A100 80GB PCIe", {"A100-80 PCIe"}),
        (RESNET, "NVIDIA H100 80GB HBM3", {"H100 SXM5", "H100"}),
        (RESNET, "NVIDIA H100 PCIe", set()),
        (RESNET, "Tesla V100-SXM2-16GB", {"V100-16", "V100"}),
        (RESNET, "NVIDIA GeForce RTX 3090", {"RTX 3090"}),
        (RESNET, "NVIDIA GeForce RTX 3090 Ti", set()),
        (RESNET, "NVIDIA A10", {"A10"}),
        (RESNET, "NVIDIA RTX A6000", {"RTX A6000"}),
        (RESNET, "NVIDIA RTX 6000 Ada Generation", set()),
        (RESNET, "NVIDIA GH200 480GB", {"GH200"}),
        (RESNET, "Intel(R) Xeon(R) Platinum 8380H CPU @ 2.90GHz", {"Xeon Platinum 8380H"}),
        (RESNET, "Intel(R) Xeon(R) Processor", set()),
        (RESNET, "", set()),
        (SSD, "Tesla V100-SXM2-32GB", {"V100-32", "V100"}),
        (SSD, "Tesla V100S-PCIE-32GB", {"V100S-PCIe-32"}),
        (SSD, "NVIDIA A100-SXM4-40GB", {"A100"}),
    ],
)
def test_figures_of_the_same_device(config, device, kinds):
    result = make_result("x", devices=[Device(host="h", name=device, label="cuda:0")], config=config)
    assert {anchor.device for anchor in matching_device(result)} == kinds
    assert len(anchors_for(result)) == (39 if config is RESNET else 17)


@pytest.mark.parametrize(
    ("recipe", "setting"),
    [
        ("resnet50", "model.depth=18"),
        ("resnet50", "data.image_size=128"),
        ("ssd300-mlperf", "model.depth=18"),
        ("ssd300-mlperf", "model.width=32"),
        ("ssd300-mlperf", "data.image_size=160"),
    ],
)
def test_other_models_have_no_figures(recipe, setting):
    result = make_result("x", config=load_config(recipe, settings=[setting]).model_dump(mode="json"))
    assert anchors_for(result) == []
    with pytest.raises(ResultError, match="no published figures for "):
        choose_anchors("published", result)


def test_choosing():
    result = make_result("x")
    assert len(choose_anchors("published", result)) == 39
    assert [anchor.id for anchor in choose_anchors("a10-lambda-amp", result)] == ["a10-lambda-amp"]
    with pytest.raises(ResultError, match="of another model"):
        choose_anchors("ssd300-a100-lambda", result)
    with pytest.raises(ResultError):
        choose_anchors("published", make_result("x", config={"data": {}}))
    assert matching_device(make_result("x", devices=[])) == []
