"""The description of a system that an MLPerf package must hold, from what a run has seen of its machine.

What nobody has told or measured is "unknown", what the machine has not is "N/A".
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trainstone.config.load import did_you_mean
from trainstone.errors import ConfigError
from trainstone.results.mlperf.logged import LoggedRun
from trainstone.results.mlperf.rules import STATUSES
from trainstone.results.schema import Result
from trainstone.text import printable
from trainstone.units import format_bytes

UNKNOWN, NONE = "unknown", "N/A"
FROM_LOG = ("submitter", "division", "status", "system_name")
"""Fields that must say what the logs say."""
FIELDS = (
    *FROM_LOG,
    *("number_of_nodes", "host_processors_per_node", "host_processor_model_name", "host_processor_core_count"),
    *("host_processor_vcpu_count", "host_processor_frequency", "host_processor_caches", "host_processor_interconnect"),
    *("host_memory_capacity", "host_storage_type", "host_storage_capacity", "host_networking"),
    *("host_networking_topology", "host_memory_configuration", "accelerators_per_node", "accelerator_model_name"),
    *("accelerator_host_interconnect", "accelerator_frequency", "accelerator_on-chip_memories"),
    *("accelerator_memory_configuration", "accelerator_memory_capacity", "accelerator_interconnect"),
    *("accelerator_interconnect_topology", "cooling", "hw_notes", "framework", "other_software_stack"),
    *("operating_system", "sw_notes"),
)
"""All that MLPerf's checker wants, in its order."""
NUMBERS = ("number_of_nodes", "host_processors_per_node", "accelerators_per_node")
"""Fields that MLPerf's result summarizer reads as numbers, though they are texts."""


def describe_system(run: LoggedRun, result: Result, told: Mapping[str, str]) -> dict[str, str]:
    """Return all fields; `told` are those that the user fills in."""
    nodes = max(1, result.world.nodes)
    fields = {
        **dict.fromkeys(FIELDS, UNKNOWN),
        "submitter": run.org or UNKNOWN,
        "division": run.division or UNKNOWN,
        "status": STATUSES.get(run.status or "", UNKNOWN),
        "system_name": run.platform or UNKNOWN,
        "number_of_nodes": str(nodes),
        **_describe_host(result.machine),
        **_describe_accelerators(result, nodes),
        **_describe_software(result.machine, result.software),
        "hw_notes": _note_hardware(result.machine),
        **told,
    }
    if nodes == 1 and "host_networking" not in told:
        fields |= {"host_networking": NONE, "host_networking_topology": NONE}
    return {name: printable(fields[name]) for name in FIELDS}


def parse_fields(settings: Sequence[str]) -> dict[str, str]:
    """Read NAME=TEXT settings; refuse names that are none and those that the logs decide."""
    told = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not text.strip():
            raise ConfigError(f"--field {setting}: write it as NAME=TEXT", hint="for example --field cooling=air")
        if name in FROM_LOG:
            raise ConfigError(
                f"--field {name}: the logs say it", hint="mlperf.org, mlperf.platform ... of the recipe do"
            )
        if name not in FIELDS:
            near = did_you_mean(name, FIELDS)
            raise ConfigError(f"--field {name} is no field of a system{near}", hint=", ".join(FIELDS[4:]))
        if name in NUMBERS and not re.fullmatch("[0-9]{1,6}", text.strip()):
            raise ConfigError(f"--field {name}={text}: MLPerf reads a whole number here")
        told[name] = text.strip()
    return told


def list_unknown(fields: Mapping[str, str]) -> list[str]:
    """Return the fields that nobody has told."""
    return [name for name, value in fields.items() if value == UNKNOWN]


def _describe_host(machine: Mapping[str, Any]) -> dict[str, str]:
    cpu, memory = _table(machine, "cpu"), _table(machine, "memory")
    sockets = _whole(cpu.get("sockets"))
    physical, logical = (_whole(cpu.get(name)) for name in ("physical_cores", "logical_cores"))
    mhz, size = cpu.get("max_mhz"), _whole(memory.get("total_bytes"))
    return {
        # A number must stand here; where it was not seen, hw_notes says so.
        "host_processors_per_node": str(sockets or 1),
        "host_processor_model_name": str(cpu.get("model") or UNKNOWN),
        "host_processor_core_count": str(physical // (sockets or 1)) if physical else UNKNOWN,
        "host_processor_vcpu_count": str(logical // (sockets or 1)) if logical else UNKNOWN,
        "host_processor_frequency": f"{mhz:.0f} MHz at most" if isinstance(mhz, int | float) else UNKNOWN,
        "host_memory_capacity": format_bytes(size) if size else UNKNOWN,
    }


def _describe_accelerators(result: Result, nodes: int) -> dict[str, str]:
    """Those that took part; a CPU is none."""
    used = [device for device in result.devices if not device.label.startswith("cpu")]
    if not used:
        absent = [name for name in FIELDS if name.startswith("accelerator_")]
        return {**dict.fromkeys(absent, NONE), "accelerators_per_node": "0"}
    count = max(result.world.ranks, len(used)) // nodes
    facts = next((device for device in _devices(result.machine) if device.get("name") == used[0].name), {})
    clock, size, width = facts.get("max_sm_clock_mhz"), _whole(facts.get("memory_bytes")), facts.get("pcie_max_width")
    told = {
        "accelerators_per_node": str(max(1, count)),
        "accelerator_model_name": used[0].name,
        "accelerator_frequency": f"{clock} MHz at most" if clock else UNKNOWN,
        "accelerator_memory_capacity": format_bytes(size) if size else UNKNOWN,
        "accelerator_host_interconnect": f"PCIe {facts.get('pcie_generation', '')} x{width}" if width else UNKNOWN,
    }
    return told | ({"accelerator_interconnect": NONE, "accelerator_interconnect_topology": NONE} if count == 1 else {})


def _describe_software(machine: Mapping[str, Any], software: Mapping[str, Any]) -> dict[str, str]:
    names = [name for name in software if name not in ("trainstone", "torch", "environment")]
    stack = [f"{name} {software[name]}" for name in names]
    drivers = {str(device["driver"]) for device in _devices(machine) if "driver" in device}
    system = [str(machine[name]) for name in ("os", "kernel") if machine.get(name)]
    return {
        "framework": f"PyTorch {software.get('torch', UNKNOWN)}",
        "other_software_stack": ", ".join([*stack, *(f"NVIDIA driver {driver}" for driver in sorted(drivers))])
        or UNKNOWN,
        "operating_system": ", Linux ".join(system) or UNKNOWN,
        "sw_notes": f"trainstone {software.get('trainstone', UNKNOWN)}",
    }


def _note_hardware(machine: Mapping[str, Any]) -> str:
    """Return what changes a number and has no field: a hypervisor, a container, a power limit, a governor."""
    virtual, container, cpu = (_table(machine, name) for name in ("virtualisation", "container", "cpu"))
    limits = {str(device["power_limit_watts"]) for device in _devices(machine) if "power_limit_watts" in device}
    notes = [
        "" if _whole(cpu.get("sockets")) else "number of processors not seen, at least 1",
        "virtual machine" if virtual.get("hypervisor") else "",
        f"in a container ({container['kind']})" if "kind" in container else "",
        f"CPU governor {cpu['governor']}" if "governor" in cpu else "",
        *(f"power limit {watts} W a device" for watts in sorted(limits)),
    ]
    return "; ".join(note for note in notes if note) or "none"


def _table(machine: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = machine.get(name)
    return found if isinstance(found, dict) else {}


def _devices(machine: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = machine.get("devices")
    return [device for device in found if isinstance(device, dict)] if isinstance(found, list) else []


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
