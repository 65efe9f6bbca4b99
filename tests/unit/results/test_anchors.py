import pytest

from made_results import make_result
from trainstone.config.load import load_config
from trainstone.errors import ResultError
from trainstone.results.anchors import (
    anchors_for,
    choose_anchors,
    is_anchor,
    load_anchors,
    matching_device,
    refuse_name,
)
from trainstone.results.schema import Device

ANCHORS = {anchor.id: anchor for anchor in load_anchors()}


def on(name: str, **features):
    return make_result("x", devices=[Device(host="h", name=name, label="cuda:0")], **features)


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


@pytest.mark.parametrize(
    ("name", "per_device"),
    [
        ("a100-80-mxnet-amp", 3410),
        ("a100-80-mxnet-amp-8", 26674 / 8),
        ("h100-mlperf-v4.0-8", 7037.5),
        ("xeon-sapphire-rapids-mlperf-v3.1-16", 527),
        ("ssd300-a100-mlperf-v1.1-8", 1531),
        ("ssd300-v100-4xc4140-mlperf-v0.7-16", 503.75),
    ],
)
def test_per_device(name, per_device):
    assert ANCHORS[name].per_device == pytest.approx(per_device)


def test_titles():
    assert ANCHORS["a100-80-mxnet-amp-8"].title == "8 × A100-80, AMP, MXNet, container 22.10"
    assert ANCHORS["h200-mlperf-v4.0-8"].kind == "8 × H200"


@pytest.mark.parametrize(
    ("device", "kinds"),
    [
        ("NVIDIA A100-SXM4-80GB", {"A100-80", "A100-80 SXM", "A100"}),
        ("NVIDIA A100-SXM4-40GB", {"A100"}),
        ("NVIDIA A100 80GB PCIe", {"A100-80 PCIe"}),
        ("NVIDIA H100 80GB HBM3", {"H100 SXM5", "H100"}),
        ("NVIDIA H100 PCIe", set()),
        ("Tesla V100-SXM2-16GB", {"V100-16", "V100"}),
        ("NVIDIA GeForce RTX 3090", {"RTX 3090"}),
        ("NVIDIA GeForce RTX 3090 Ti", set()),
        ("NVIDIA A10", {"A10"}),
        ("NVIDIA RTX A6000", {"RTX A6000"}),
        ("NVIDIA RTX 6000 Ada Generation", set()),
        ("NVIDIA GH200 480GB", {"GH200"}),
        ("Intel(R) Xeon(R) Platinum 8380H CPU @ 2.90GHz", {"Xeon Platinum 8380H"}),
        ("Intel(R) Xeon(R) Processor", set()),
        ("", set()),
    ],
)
def test_figures_of_the_same_device(device, kinds):
    assert {anchor.device for anchor in matching_device(on(device))} == kinds


def test_a_result_without_devices_matches_none():
    assert matching_device(make_result("x", devices=[])) == []


@pytest.mark.parametrize("setting", ["model.depth=18", "data.image_size=128"])
def test_other_models_have_no_figures(setting):
    result = make_result("x", settings=(setting,))
    assert anchors_for(result) == []
    with pytest.raises(ResultError, match=r"no published figures for resnet\d+ at \d+ pixels"):
        choose_anchors("published", result)


@pytest.mark.parametrize(
    ("settings", "device", "kinds"),
    [
        ((), "Tesla V100-SXM2-32GB", {"V100-32", "V100"}),
        ((), "Tesla V100S-PCIE-32GB", {"V100S-PCIe-32"}),
        ((), "NVIDIA A100-SXM4-40GB", {"A100"}),
        (("model.depth=18",), "Tesla V100-SXM2-32GB", set()),
        (("model.width=32",), "Tesla V100-SXM2-32GB", set()),
        (("data.image_size=160",), "Tesla V100-SXM2-32GB", set()),
    ],
)
def test_figures_of_ssd300(settings: tuple[str, ...], device: str, kinds: set[str]):
    config = load_config("ssd300-mlperf", settings=settings).model_dump(mode="json")
    result = on(device).model_copy(update={"config": config})
    assert {anchor.device for anchor in matching_device(result)} == kinds
    assert len(anchors_for(result)) == (0 if settings else 17)


def test_results_without_a_configuration_have_none():
    assert anchors_for(make_result("x", config={})) == []
    with pytest.raises(ResultError, match="does not name"):
        choose_anchors("published", make_result("x", config={"data": {}}))


def test_choosing():
    result = make_result("x")
    assert len(choose_anchors("published", result)) == 39
    assert [anchor.id for anchor in choose_anchors("a10-lambda-amp", result)] == ["a10-lambda-amp"]
    with pytest.raises(ResultError, match="of another model"):
        choose_anchors("ssd300-a100-lambda", result)


def test_a_wrong_name_gets_the_nearest():
    assert is_anchor("published")
    assert not is_anchor("a100-80-mxnet")
    error = refuse_name("a100-80-mxnt-amp")
    assert "did you mean a100-80-mxnet-amp?" in error.message
    assert "h200-lambda-amp" in error.hint
