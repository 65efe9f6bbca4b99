import pytest
import torch

from trainstone.errors import ConfigError, MachineError
from trainstone.measure.devices import (
    UnsupportedReader,
    candidate_precisions,
    choose_device,
    list_devices,
    name_device,
    peak_host_bytes,
)


def test_auto_takes_the_first_device():
    assert str(choose_device("auto")) == list_devices()[0]
    assert list_devices()[-1] == "cpu"


def test_an_absent_device_is_a_fault_of_the_machine():
    with pytest.raises(MachineError, match=r"'cuda:99' is not here.*finds"):
        choose_device("cuda:99")


@pytest.mark.parametrize("name", ["gpu", "", "cuda:x"])
def test_no_device_name_is_a_fault_of_the_user(name: str):
    with pytest.raises(ConfigError, match="not a device name"):
        choose_device(name)


def test_the_cpu_has_a_name():
    assert name_device(torch.device("cpu"))


def test_fp32_is_always_tried_first():
    assert candidate_precisions(torch.device("cpu"))[0] == "fp32"


def test_a_cpu_without_sixteen_bit_units_is_not_even_tried(monkeypatch: pytest.MonkeyPatch):
    for check in ("_is_avx512_bf16_supported", "_is_amx_tile_supported", "_is_amx_fp16_supported"):
        monkeypatch.setattr(torch.cpu, check, lambda: False)
    assert candidate_precisions(torch.device("cpu")) == ["fp32"]


def test_memory_is_told():
    assert peak_host_bytes() > 50 * 2**20


def test_an_unknown_device_says_so_plainly():
    reader = UnsupportedReader("telemetry of x: unsupported")
    assert reader.meter is None
    assert reader.read().power_watts is None
    assert reader.unsupported == ["telemetry of x: unsupported"]
