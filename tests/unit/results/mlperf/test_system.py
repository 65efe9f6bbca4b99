"""The system's description: every field that MLPerf's checker wants, from the run, from the user, or "unknown"."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from hostile import EVIL, hidden
from made_results import make_result
from trainstone.errors import ConfigError
from trainstone.results.mlperf.logged import LoggedRun
from trainstone.results.mlperf.system import FIELDS, NUMBERS, describe_system, list_unknown, parse_fields
from trainstone.results.schema import Device, World

CPU = {"model": "Xeon 9", "sockets": 2, "physical_cores": 64, "logical_cores": 128, "max_mhz": 3900.0}
GPU = {
    "kind": "cuda", "name": "A100", "memory_bytes": 80 * 2**30, "driver": "550.1", "power_limit_watts": 400.0,
    "max_sm_clock_mhz": 1410, "pcie_generation": 4, "pcie_width": 16, "pcie_max_width": 16,
}  # fmt: skip


def make_run(**changes: Any) -> LoggedRun:
    given = {"path": Path("log"), "form": "0.7", "benchmark": "resnet", "division": "closed", "org": "somebody"}
    more = {"platform": "8xA100", "status": "cloud", "global_batch": 3264, "train_samples": None, "optimizer": "lars"}
    rest = {"seeds": (1,), "ended": "success", "start_ms": 0, "stop_ms": 1, "accuracies": (0.76,), "epochs": 35}
    return LoggedRun(**(given | more | rest | changes))


def make_machine(**changes: Any) -> dict[str, Any]:
    machine = {"os": "Debian 12", "kernel": "6.1", "cpu": CPU, "memory": {"total_bytes": 2**40}, "devices": [GPU] * 8}
    return machine | changes


def test_the_fields_are_those_of_the_real_checker():
    spec = importlib.util.find_spec("mlperf_logging")
    if spec is None:
        pytest.skip("needs mlperf-logging")
    source = Path(spec.submodule_search_locations[0], "system_desc_checker/system_desc_checker.py").read_text()
    wanted = re.findall(r'"([a-z_-]+)"', source[source.index("required_fields = [") : source.index("# Check if all")])
    assert list(FIELDS) == wanted
    assert len(FIELDS) == 33


def test_a_machine_with_accelerators():
    result = make_result("x", machine=make_machine(), world=World(ranks=16, nodes=2), software={"torch": "2.13.0"})
    devices = [Device(host="n1", name="A100", label=f"cuda:{at}") for at in range(8)]
    fields = describe_system(make_run(), result.model_copy(update={"devices": devices}), {"cooling": "liquid"})
    expected = {
        "submitter": "somebody", "division": "closed", "status": "Available cloud", "system_name": "8xA100",
        "number_of_nodes": "2", "host_processors_per_node": "2", "host_processor_core_count": "32",
        "host_processor_vcpu_count": "64", "host_processor_frequency": "3900 MHz at most",
        "host_memory_capacity": "1 TiB", "accelerators_per_node": "8", "accelerator_model_name": "A100",
        "accelerator_memory_capacity": "80 GiB", "accelerator_host_interconnect": "PCIe 4 x16", "cooling": "liquid",
        "hw_notes": "power limit 400.0 W a device", "operating_system": "Debian 12, Linux 6.1",
        "framework": "PyTorch 2.13.0", "host_networking": "unknown",
    }  # fmt: skip
    assert {name: fields[name] for name in expected} == expected
    assert "NVIDIA driver 550.1" in fields["other_software_stack"]
    assert "host_storage_type" in list_unknown(fields)
    assert "cooling" not in list_unknown(fields)


def test_a_cpu_is_no_accelerator():
    fields = describe_system(make_run(), make_result("x"), {})
    assert (fields["accelerators_per_node"], fields["accelerator_model_name"]) == ("0", "N/A")
    assert fields["host_networking"] == "N/A"  # one node
    assert fields["hw_notes"] == "number of processors not seen, at least 1"


def test_every_field_is_a_text_and_numbers_are_numbers():
    for machine in ({}, {"cpu": 5, "devices": "none", "memory": None}, make_machine()):
        fields = describe_system(make_run(org=None, status="odd"), make_result("x", machine=machine), {})
        assert tuple(fields) == FIELDS
        assert all(isinstance(value, str) and value for value in fields.values())
        assert all(fields[name].isdecimal() for name in NUMBERS)


def test_hostile_names_are_written_out():
    machine = make_machine(cpu={"model": EVIL}, os=EVIL)
    fields = describe_system(make_run(platform=EVIL), make_result("x", machine=machine), {"cooling": EVIL})
    assert not any(hidden(value) or "\n" in value for value in fields.values())


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("cooling", "write it as NAME=TEXT"),
        ("cooling= ", "write it as NAME=TEXT"),
        ("coolin=air", "did you mean cooling"),
        ("submitter=me", "the logs say it"),
        ("number_of_nodes=two", "a whole number"),
    ],
)
def test_wrong_fields_are_refused(setting, told):
    with pytest.raises(ConfigError, match=told):
        parse_fields([setting])


def test_fields_are_read():
    assert parse_fields(["cooling=air = cold", "number_of_nodes=4"]) == {
        "cooling": "air = cold",
        "number_of_nodes": "4",
    }
