"""Files of /proc and /sys that are damaged, gone or no files: what they would say is not measured, nothing raises."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from made_up import make_nvml, make_server, make_tree, refuse
from trainstone.machine.cpus import available_cores, count_kills, memory_available_bytes, memory_limit_bytes
from trainstone.machine.facts import read_facts
from trainstone.machine.health import Pressure, read_pressure
from trainstone.measure.telemetry import CpuReader
from trainstone.results.samples import Reading

MEASURED = {"max_mhz", "boost", "smt", "isa", "sockets", "vendor"}


@pytest.fixture(autouse=True)
def made_up_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=9, available=8))
    monkeypatch.setitem(sys.modules, "pynvml", make_nvml(Init=refuse))
    monkeypatch.setenv("TRAINSTONE_CPUS", "0,1,2,3")


def assert_nothing_measured(root: Path) -> None:
    cores = available_cores(root)
    assert (cores.quota_cores, cores.threads, cores.logical) == (None, cores.physical or 4, 4)
    assert (memory_available_bytes(root), memory_limit_bytes(root), count_kills(root)) == (8, None, {})
    pressure = read_pressure(root, pids={100}, cpus={0}, now=lambda: 1.0)
    assert replace(pressure, governor=None) == Pressure(1.0)
    assert not MEASURED & read_facts(root)["cpu"].keys()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\n",
        "garbage",
        "-5",
        "-5 -5",
        "max",
        "1e9",
        "0 0",
        "\0\xff",
        ":::",
        "some avg10=x total=-5",
        "cpu0 x 2",
        "5 (x",
    ],
)
def test_broken_files_mean_not_measured(tmp_path: Path, content: str):
    root = make_server(tmp_path)
    reader = CpuReader(root)
    files = [path for path in root.rglob("*") if path.is_file()]
    for path in files:
        path.write_text(content)
    assert reader.read() == Reading()
    assert_nothing_measured(root)
    make_tree(root, {"proc/self/cgroup": "0::/\n"})
    assert_nothing_measured(root)
    for path in files:
        path.unlink()
    assert reader.read() == Reading()
    assert_nothing_measured(root)
    for path in files:
        path.mkdir()
    assert_nothing_measured(root)
    reader.close()
