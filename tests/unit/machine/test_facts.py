"""Facts and noise of fake machines. NVML is a fake module, because the tests run without a GPU."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from support.builders.machines import make_nvml, make_server, make_tree, refuse
from trainstone.machine import facts
from trainstone.machine.facts import read_cpu_model, read_facts, read_software
from trainstone.machine.noise import Noise, Pressure, busiest_others, grade_noise, read_pressure

NO_NVML = make_nvml(Init=refuse)


@pytest.fixture(autouse=True)
def fake_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM", "KUBERNETES"))] + ["container", "HOSTNAME"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRAINSTONE_CPUS", "0,1,2,3")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=1 << 20))
    monkeypatch.setitem(sys.modules, "pynvml", NO_NVML)


def read(root: Path) -> dict[str, Any]:
    found = read_facts(root)
    assert json.loads(json.dumps(found)) == found
    return found


def read_devices(root: Path, monkeypatch: pytest.MonkeyPatch, nvml: Any) -> tuple[list[dict[str, Any]], str | None]:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = read(root)
    return found["devices"], found.get("nvml")


def test_read_facts_of_a_server(tmp_path):
    found = read(make_server(tmp_path))
    cpu = found["cpu"]
    assert (cpu["model"], cpu["vendor"], cpu["isa"]) == ("Xeon 8380", "GenuineIntel", ["amx_tile", "avx2", "fma"])
    assert (cpu["sockets"], cpu["physical_cores"], cpu["logical_cores"], cpu["numa_nodes"]) == (2, 2, 4, 2)
    assert (cpu["max_mhz"], cpu["governor"], cpu["boost"], cpu["smt"]) == (3400.0, "performance", False, True)
    assert cpu["available"] == {"logical": 4, "physical": 2, "threads": 2}
    assert (found["host"], found["kernel"]) == ("node7", "6.1.0")
    assert found["os"] == "Debian GNU/Linux 12 (bookworm)"
    assert found["memory"] == {"total_bytes": 1024 * 1024}
    assert found["virtualisation"] == {"hypervisor": False, "sys_vendor": "Dell Inc."}
    assert found["devices"] == []
    assert not {"container", "scheduler"} & found.keys()


@pytest.mark.parametrize(
    ("cpuinfo", "model", "vendor", "isa"),
    [
        ("CPU implementer : 0x41\nCPU part : 0xd4f\nFeatures : fp sve", "implementer 0x41 part 0xd4f", "ARM", ["sve"]),
        ("processor : 0\ncpu : POWER9, altivec supported\nclock : 3.8", "POWER9, altivec supported", None, None),
        ("vendor_id : AuthenticAMD\nmodel name :\nflags : avx hypervisor\n", None, "AuthenticAMD", ["avx"]),
    ],
)
def test_read_facts_of_other_processors(tmp_path, cpuinfo, model, vendor, isa):
    root = make_tree(tmp_path, {"proc/cpuinfo": cpuinfo})
    cpu = read(root)["cpu"]
    assert (cpu.get("model"), cpu.get("vendor"), cpu.get("isa")) == (model, vendor, isa)
    assert read_cpu_model(root) == model
    assert read(root).get("virtualisation") == ({"hypervisor": True} if "hypervisor" in cpuinfo else None)


KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "pod-1"}
SLURM = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "gpu[1-2]", "SLURM_JOB_USER": "me"}


@pytest.mark.parametrize(
    ("files", "environ", "kind", "signs", "scheduler"),
    [
        ({".dockerenv": ""}, {}, "docker", ["/.dockerenv (docker)"], None),
        ({"run/systemd/container": "lxc\n"}, {}, "lxc", ["/run/systemd/container (lxc)"], None),
        ({}, {"APPTAINER_CONTAINER": "/x.sif"}, "apptainer", ["variable APPTAINER_CONTAINER (apptainer)"], None),
        ({}, {"container": "podman"}, "podman", ["variable container (podman)"], None),
        (
            *({".dockerenv": ""}, KUBERNETES, "kubernetes"),
            ["variable KUBERNETES_SERVICE_HOST (kubernetes)", "/.dockerenv (docker)"],
            {"kind": "kubernetes", "pod": "pod-1"},
        ),
        ({}, SLURM, None, [], {"kind": "slurm", "job_id": "42", "nodelist": "gpu[1-2]"}),
        ({}, {"PBS_JOBID": "9.pbs", "PBS_QUEUE": "gpu"}, None, [], {"kind": "pbs", "job_id": "9.pbs", "queue": "gpu"}),
        ({}, {"SLURM_JOB_ID": ""}, None, [], None),
    ],
)
def test_read_facts_detects_container_and_scheduler(tmp_path, monkeypatch, files, environ, kind, signs, scheduler):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = read(make_tree(tmp_path, files))
    assert found.get("container") == (kind and {"kind": kind, "seen_by": signs})
    assert found.get("scheduler") == scheduler


def test_read_facts_of_nvidia_devices_skips_unsupported_values(tmp_path, monkeypatch):
    devices, message = read_devices(tmp_path, monkeypatch, make_nvml())
    values = ["cuda", 0, "NVIDIA A100-SXM4-80GB", "GPU-aaaa", 85899345920, "570.86.10", 300.0, 400.0, 1410, 4, 8, 16]
    keys = "kind index name uuid memory_bytes driver power_limit_watts default_power_limit_watts max_sm_clock_mhz"
    keys += " pcie_generation pcie_width pcie_max_width ecc mig persistence"
    assert devices == [dict(zip(keys.split(), [*values, True, False, True], strict=True))]
    assert message is None
    unsupported = dict.fromkeys(
        ("DeviceGetEnforcedPowerLimit", "DeviceGetCurrentEccMode", "DeviceGetMemoryInfo"), refuse
    )
    nvml = make_nvml(**unsupported)
    del nvml.nvmlDeviceGetMigMode  # a library older than MIG
    (device,), _ = read_devices(tmp_path, monkeypatch, nvml)
    assert not {"power_limit_watts", "ecc", "memory_bytes", "mig"} & device.keys()
    assert device["default_power_limit_watts"] == 400.0


LOST = {"kind": "cuda", "index": 0, "error": "NVML has no handle for this device"}


@pytest.mark.parametrize(
    ("nvml", "devices", "message"),
    [
        (make_nvml(DeviceGetHandleByIndex=refuse), [LOST], None),
        (make_nvml(DeviceGetCount=lambda: 0), [], "the NVIDIA driver lists no devices"),
        (NO_NVML, [], "the NVIDIA driver does not answer: Not Supported"),
        (None, [], "cannot import NVML for Python: import of pynvml halted; None in sys.modules"),
    ],
)
def test_read_facts_reports_unreadable_nvidia_devices(tmp_path, monkeypatch, nvml, devices, message):
    assert read_devices(tmp_path, monkeypatch, nvml) == (devices, message)


def make_card(root: Path, card: str, address: str, files: dict[str, str]) -> None:
    make_tree(root / "sys/devices/pci0000:00" / address, files)
    folder = root / "sys/class/drm" / card
    folder.mkdir(parents=True)
    (folder / "device").symlink_to(root / "sys/devices/pci0000:00" / address)


def test_read_facts_marks_telemetry_of_other_gpus_as_unsupported(tmp_path):
    make_card(tmp_path, "card0", "0000:00:02.0", {"vendor": "0x8086", "device": "0x9a49"})  # integrated
    make_card(tmp_path, "card1", "0000:03:00.0", {"vendor": "0x8086\n", "device": "0x56a0\n"})
    amd = {"vendor": "0x1002\n", "product_name": "AMD Instinct MI210\n", "mem_info_vram_total": "68702699520\n"}
    make_card(tmp_path, "card2", "0000:c1:00.0", amd)
    make_card(tmp_path, "card3", "0000:d1:00.0", {"vendor": "0x10de"})  # NVIDIA devices come from NVML
    make_card(tmp_path, "card2-DP-1", "0000:c1:00.1", amd)  # a connector of card2
    unsupported = {"telemetry": "unsupported"}
    assert read(tmp_path)["devices"] == [
        {"kind": "intel", "index": 1, "name": "Intel GPU 0x56a0", **unsupported},
        {"kind": "amd", "index": 2, "name": "AMD Instinct MI210", "memory_bytes": 68702699520, **unsupported},
    ]


def test_read_software_records_only_variables_that_change_speed(monkeypatch):
    names = (
        "OMP_NUM_THREADS MKL_VERBOSE KMP_AFFINITY GOMP_CPU_AFFINITY ONEDNN_VERBOSE TORCHINDUCTOR_CACHE_DIR TORCH_NUM"
    )
    names += " CUDA_VISIBLE_DEVICES NCCL_DEBUG LD_PRELOAD GLIBC_TUNABLES MALLOC_ARENA_MAX ATEN_CPU_CAPABILITY"
    kept = {name: f"value of {name}" for name in names.split()}
    private = {"HOME": "/home/me", "LD_PRELOAD_TOKEN": "s", "MY_OMP_KEY": "s", "TORCHED": "s", "ATEN_CPU": "s"}
    monkeypatch.setattr(facts, "PACKAGES", ("numpy", "no-such-package-here"))
    monkeypatch.setattr(os, "environ", {**kept, **private})
    software = read_software()
    assert software["environment"] == dict(sorted(kept.items()))
    assert software["python"] == ".".join(map(str, sys.version_info[:3]))
    assert software["trainstone"]
    assert json.loads(json.dumps(software)) == software
    assert software["numpy"][0].isdigit()
    assert "no-such-package-here" not in software


def make_process(pid: int, parent: int, ticks: int, name: str = "python", state: str = "S", ended: int = 0) -> str:
    """Return /proc/PID/stat with its CPU time as user time; `ended`: CPU time of ended children."""
    return f"{pid} ({name}) {state} {parent} 1 1 0 -1 0 1 2 3 4 {ticks} 0 {ended} 0 20 0 1 0 {pid * 10} 99 1\n"


def make_machine(root: Path, *, user: int, steal: int, processes: list[str], stall: int = 0) -> Path:
    stat = f"cpu  {user} 0 0 9000 0 5 5 {steal} 0 0\ncpu0 {user} 0 0 9000 0 5 5 {steal} 0 0\n"
    files = {
        "proc/stat": stat,
        "proc/loadavg": "0.75 0.50 0.25 1/84 123\n",
        **{f"proc/pressure/{kind}": f"some avg10=0.00 total={stall}\n" for kind in ("cpu", "memory", "io")},
        **{f"proc/{text.split()[0]}/stat": text for text in processes},
    }
    return make_tree(root, files)


def test_read_pressure_separates_own_from_other_processes(tmp_path):
    processes = [
        make_process(1, 0, 500, "init"),
        make_process(100, 1, 200, state="R", ended=50),  # this run
        make_process(101, 100, 30),  # its loader
        make_process(102, 101, 20),  # child of the loader
        make_process(200, 1, 70, "backup", state="R"),
    ]
    root = make_machine(tmp_path, user=1000, steal=20, processes=processes, stall=2_000_000)
    pressure = read_pressure(root, pids={100}, cpus={0}, now=lambda: 5.0)
    assert pressure.monotonic_seconds == 5.0
    assert pressure.counters == pytest.approx(
        {"own": 3.0, "process": 10.0, "steal": 0.2, "total": 100.3, "cpu": 2.0, "memory": 2.0, "io": 2.0}
    )  # own: 200 + 50 + 30 + 20 ticks
    assert (pressure.loadavg_1min, pressure.num_cpus) == (0.75, 1)
    assert pressure.others == {(1, 10): ("init", 5.0), (200, 2000): ("backup", 0.7)}
    # All ranks of a node can be passed.
    assert read_pressure(root, pids={100, 200}, cpus={0}).counters["own"] == pytest.approx(3.7)


def run_between(
    tmp_path: Path, *, own: int, others: int, steal: int, seconds: float = 10.0, name: str = "indexer"
) -> Noise:
    """Grade a run of `seconds` on one CPU, given the ticks of the run, other processes and the hypervisor."""
    common = {"cpus": {0}, "pids": {100}}
    processes = [make_process(100, 1, 0), make_process(200, 1, 0, name)]
    before = read_pressure(make_machine(tmp_path, user=1000, steal=7, processes=processes), now=lambda: 0.0, **common)
    processes = [make_process(100, 1, own), make_process(200, 1, others, name)]
    root = make_machine(tmp_path, user=1000 + own + others, steal=7 + steal, processes=processes)
    return grade_noise(before, read_pressure(root, now=lambda: seconds, **common), step_variation_percent=0.5)


@pytest.mark.parametrize(
    ("run", "grade", "reasons", "others", "stolen"),
    [
        ({"own": 960, "others": 1, "steal": 0}, "A", (), 0.1, 0.0),
        ({"own": 900, "others": 41, "steal": 0}, "B", ("other processes used 4 %", "(indexer)"), 4.1, 0.0),
        ({"own": 949, "others": 0, "steal": 51}, "C", ("5.1 % of CPU time was stolen",), 0.0, 5.1),
        # A hostile process name is escaped.
        ({"own": 0, "others": 500, "steal": 0, "name": "a) R 1 (b\n\x1b[31m"}, "C", ("50 % of one core",), 50.0, 0.0),
        # Too short to measure.
        ({"own": 9, "others": 0, "steal": 1, "seconds": 0.1}, "B", ("not measured", "load", "0.75"), None, None),
    ],
)
def test_grade_noise_counts_other_processes_and_the_hypervisor(tmp_path, run, grade, reasons, others, stolen):
    noise = run_between(tmp_path, **run)
    assert (noise.grade, len(noise.reasons)) == (grade, bool(reasons))
    assert all(part in noise.reasons[0] for part in reasons)
    assert all(reason.isprintable() for reason in noise.reasons)
    assert noise.others_percent == pytest.approx(others)
    assert noise.steal_percent == pytest.approx(stolen)
    assert noise.throttle_events is None  # without counters: not measured, not zero


NONE = dict.fromkeys(("total", "process", "steal", "own", "cpu", "memory", "quota"), 0.0)
QUIET = Pressure(monotonic_seconds=0.0, num_cpus=4, counters={**NONE, "throttles": 3}, governor="powersave")
BUSY = {**QUIET.counters, "total": 400.0, "process": 390.0, "own": 390.0}
LATER = replace(QUIET, monotonic_seconds=100.0, counters=BUSY)


@pytest.mark.parametrize(
    "row",
    [
        ({}, "A"),
        *(({"steal": count}, grade) for count, grade in ((1.9, "A"), (2.0, "B"), (20.0, "C"))),
        # 11 % of one core is 2.75 % of four.
        *(({"process": count}, grade) for count, grade in ((401.0, "A"), (402.1, "B"), (451.0, "C"))),
        *(({"memory": count}, grade) for count, grade in ((1.0, "B"), (10.0, "C"))),
        *(({"quota": count}, grade) for count, grade in ((1.0, "B"), (30.0, "C"))),
        ({"cpu": 90.0}, "A"),  # the run's own loader threads cause it as well
        ({"throttles": 5}, "B"),
        ({"throttles": 2}, "A"),  # a CPU went offline: not measured
        ({"process": 380.0}, "A"),  # rounding: own time above the total
        ({"process": -5.0}, "B"),  # a counter that became smaller: not measured, so not A
        # Measurements of the run.
        ({"step_variation_percent": 2.5}, "B", "varies by 2.5 %", "governor is powersave"),
        ({"step_variation_percent": 12.0}, "C", "varies by 12.0 %"),
        ({"drifting": True}, "C", "still drifting"),
        ({"throttled": True}, "B", "a device was throttled"),
    ],
)
def test_grade_noise_applies_the_limits(row):
    change, grade, *words = row
    flags = {"step_variation_percent": 1.9} | {name: change[name] for name in change.keys() - BUSY.keys()}
    counters = BUSY | {name: change[name] for name in change.keys() & BUSY.keys()}
    noise = grade_noise(QUIET, replace(LATER, counters=counters), **flags)
    assert noise.grade == grade
    assert bool(noise.reasons) == (grade != "A")
    assert noise.others_percent is None or noise.others_percent >= 0
    for word in words:
        assert any(word in reason for reason in noise.reasons), noise.reasons


def test_busiest_others_adds_up_processes_of_one_name():
    before = replace(QUIET, others={(1, 1): ("idle", 100.0), (2, 2): ("cc", 1.0), (4, 4): ("old", 50.0)})
    others = {(1, 1): ("idle", 100.5), (2, 2): ("cc", 11.0), (3, 3): ("cc", 5.0)}
    others[4, 9] = ("new", 20.0)  # same pid, another process
    assert busiest_others(before, replace(LATER, others=others)) == ("new", "cc")


@pytest.mark.parametrize(
    ("line", "text"),
    [("0::/job", "nr_periods 5\nthrottled_usec 3000000"), ("1:cpu:/job", "throttled_time 3000000000")],
)
def test_read_pressure_reads_quota_stops(tmp_path, line, text):
    folder = "sys/fs/cgroup/job" if line.startswith("0") else "sys/fs/cgroup/cpu/job"
    root = make_tree(tmp_path, {"proc/self/cgroup": line, f"{folder}/cpu.stat": text})
    assert read_pressure(root, pids={1}, cpus={0}).counters == {"quota": 3.0}


def test_read_pressure_sums_throttle_counters_and_lists_governors(tmp_path):
    folder = "sys/devices/system/cpu/cpu{}/{}"
    files = {
        folder.format(cpu, "thermal_throttle/core_throttle_count"): text for cpu, text in enumerate(("2", "3", "-1"))
    }
    names = ("powersave", "performance", "powersave", "")
    files |= {folder.format(cpu, "cpufreq/scaling_governor"): f"{name}\n" for cpu, name in enumerate(names)}
    pressure = read_pressure(make_tree(tmp_path, files), pids={100}, cpus={0})
    assert (pressure.counters, pressure.governor) == ({"throttles": 5}, "performance,powersave")
