import pytest
import torch

from trainstone.errors import ConfigError, MachineError
from trainstone.measure.devices import candidate_precisions, choose_device, list_devices, name_device, peak_host_bytes


def test_devices_are_chosen_by_name():
    assert str(choose_device("auto")) == list_devices()[0]
    assert list_devices()[-1] == "cpu"
    assert name_device(torch.device("cpu"))
    assert peak_host_bytes() > 50 * 2**20


@pytest.mark.parametrize(
    ("name", "error", "match"),
    [
        ("cuda:99", MachineError, r"'cuda:99' is not here.*finds"),
        *((name, ConfigError, "not a device name") for name in ("gpu", "", "cuda:x")),
    ],
)
def test_devices_that_cannot_be_chosen(name: str, error: type[Exception], match: str):
    with pytest.raises(error, match=match):
        choose_device(name)


def test_a_cpu_without_sixteen_bit_units_tries_fp32_alone(monkeypatch: pytest.MonkeyPatch):
    assert candidate_precisions(torch.device("cpu"))[0] == "fp32"
    for check in ("_is_avx512_bf16_supported", "_is_amx_tile_supported", "_is_amx_fp16_supported"):
        monkeypatch.setattr(torch.cpu, check, lambda: False)
    assert candidate_precisions(torch.device("cpu")) == ["fp32"]
