"""Sample one device during a run into telemetry-<host>-<device>.csv (format: results/telemetry.py).

The file grows by one complete line per sample and also serves as the run's heartbeat. A failing sampler never ends the
run. CPUs are read through /proc and /sys, NVIDIA GPUs through NVML. Values that cannot be read are None.
"""

import contextlib
import importlib
import logging
import os
import platform
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from trainstone.machine import cpus
from trainstone.results.telemetry import HEADER, NAMES, Reading, TelemetrySample, format_sample

log = logging.getLogger(__name__)

JOIN_SECONDS = 5.0  # a driver that hangs must not keep the run from ending
# Maximum number of cores, evenly spread, whose clocks and throttle counters are read: a read may disturb a core.
MAX_CORES_READ = 16
# A package that seems to use more had a counter reset; the largest ones of 2026 use about 500 W.
MAX_PACKAGE_WATTS = 2000.0
MIN_POWER_SECONDS = 0.02  # RAPL updates about every millisecond: power over shorter times would be inaccurate
CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
CPU_ZONES = ("x86_pkg_temp", "cpu-thermal", "cpu_thermal")
# By bit, the lowest first: https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
NVML_REASONS = (
    *("gpu_idle", "application_clocks", "sw_power_cap", "hw_slowdown", "sync_boost"),
    *("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake", "display_clocks"),
)


class Reader:
    """Telemetry reader of a device; this base class reads nothing."""

    meter: str | None = None
    """Name of the energy counter."""
    uuid: str | None = None
    """UUID of the device; None: it has none, or it is unknown."""

    def __init__(self, *unsupported: str) -> None:
        self.unsupported = list(unsupported)
        """Values that cannot be read, with the reason."""

    def read(self) -> Reading:
        """Read all values once; unreadable ones are None."""
        return Reading()

    def close(self) -> None:
        """Close open files."""


class Telemetry:
    """Context manager that owns sampler thread, file and reader; the last sample is taken on exit."""

    def __init__(
        self,
        folder: Path,
        device_label: str,
        reader: Reader,
        current_step: Callable[[], int],
        interval_seconds: float = 0.5,
        now: Callable[[], float] = time.perf_counter,
        started: float | None = None,
    ) -> None:
        host, device = (re.sub(r"[^\w.-]", "_", part) for part in (platform.node() or "host", device_label))
        self.path = folder / f"telemetry-{host}-{device}.csv"
        self.reader = reader
        self._current_step = current_step
        self._interval_seconds = interval_seconds
        self._now = now
        self._started = now() if started is None else started
        self._complaints: set[str] = set()
        self._file: BinaryIO | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"telemetry-{device}", daemon=True)

    def __enter__(self) -> "Telemetry":
        with self._complain_once(f"cannot write {self.path}"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: one write per line; a kill loses nothing, a fork duplicates nothing.
            old = self.path.read_bytes() if self.path.exists() else b""
            file = self.path.open("ab", buffering=0)
            file.truncate(old.rfind(b"\n") + 1)  # a resumed run appends after the last complete line
            if b"\n" not in old:
                file.write(f"{HEADER}\n".encode())
            self._file = file
        with self._complain_once("cannot start the sampler"):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(JOIN_SECONDS)
        if self._thread.is_alive():
            log.warning("telemetry thread of %s hangs in its driver; it is abandoned", self.path.stem)
            return
        self.sample()
        with self._complain_once("cannot close the reader"):
            self.reader.close()
        if self._file:
            self._file.close()

    def sample(self) -> None:
        """Take and write one sample; a failed reading still writes time and step."""
        reading, step = Reading(), None
        with self._complain_once("cannot read the device"):
            step = self._current_step()
            reading = self.reader.read()
        values = {name: getattr(reading, name) for name in NAMES}
        sample = TelemetrySample(time_seconds=self._now() - self._started, step=step, **values)
        with self._complain_once(f"cannot write {self.path}"):
            if self._file:
                self._file.write(format_sample(sample).encode())

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            self.sample()
            due = max(due + self._interval_seconds, time.monotonic())  # never catch up after a pause
            self._stop.wait(due - time.monotonic())

    @contextlib.contextmanager
    def _complain_once(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001  a driver may raise anything; the run must continue
            if what not in self._complaints:
                self._complaints.add(what)
                log.warning("telemetry: %s: %s: %s", what, type(error).__name__, error)


class _Rapl:
    """Energy counters of the CPU packages, corrected for counter overflow."""

    def __init__(self, root: Path, unsupported: list[str]) -> None:
        self.names: list[str] = []
        self.files: list[cpus.OpenFile] = []
        self._ranges: list[int] = []
        self._unsupported = unsupported
        self._raw: list[int] = []
        self._joules = self._seconds = 0.0
        for folder in sorted(root.glob("sys/class/powercap/intel-rapl:*")):
            name = cpus.read_text(folder / "name") or ""
            # intel-rapl:0:1 is a part of package 0; psys is the whole board and includes the packages.
            if folder.name.count(":") != 1 or not name.startswith("package"):
                continue
            path = folder / "energy_uj"
            try:
                self.files.append(cpus.OpenFile(path))
            except OSError as error:
                why = "needs root" if isinstance(error, PermissionError) else f"cannot be read: {error.strerror}"
                unsupported.append(f"energy: {path} {why}")
                continue
            self.names.append(name)
            self._ranges.append(cpus.read_int(folder / "max_energy_range_uj") or 0)
        if not self.names:
            unsupported.append("power: no readable RAPL counter" if unsupported else "power: no RAPL interface")

    def read(self, now_seconds: float) -> tuple[float | None, float | None]:
        """Return (joules counted so far, mean watts since the last reading)."""
        raw = [count for file in self.files if (count := file.read_int()) is not None]
        if not raw or len(raw) < len(self.files):
            return None, None
        if not self._raw:
            self._raw, self._joules, self._seconds = raw, sum(raw) / 1e6, now_seconds
            return self._joules, None
        pairs = zip(self._raw, raw, self._ranges, strict=True)
        grown = [new - old + (wrap if new < old else 0) for old, new, wrap in pairs]
        elapsed_seconds = now_seconds - self._seconds
        joules = sum(grown) / 1e6
        if min(grown) < 0 or joules > MAX_PACKAGE_WATTS * len(raw) * max(elapsed_seconds, MIN_POWER_SECONDS):
            self._unsupported.append("energy: the RAPL counter jumped; not measured after that")
            _close_all(self.files)
            return None, None
        self._raw, self._joules, self._seconds = raw, self._joules + joules, now_seconds
        known = joules > 0 and elapsed_seconds >= MIN_POWER_SECONDS  # some virtual machines show a dead counter
        return self._joules, joules / elapsed_seconds if known else None


class CpuReader(Reader):
    """Reads the CPUs that this process may use (clock, temperature, load, throttling, energy) and its memory."""

    def __init__(
        self,
        root: Path = Path("/"),
        *,
        available: Collection[int] | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__()
        self._now = now
        self._cpus = sorted(cpus.read_affinity() if available is None else available)
        self._rapl = _Rapl(root, self.unsupported)
        self.meter = f"RAPL {'+'.join(self._rapl.names)}" if self._rapl.names else None
        # At most MAX_CORES_READ CPUs, one per core, evenly spread.
        by_core = {cpus.read_siblings(cpu, root) or frozenset({cpu}): cpu for cpu in self._cpus}
        stride = -(-len(by_core) // MAX_CORES_READ) or 1
        cores = [root / cpus.CPU_FOLDER / f"cpu{number}" for number in sorted(by_core.values())[::stride]]
        self._clocks = self._open([core / "cpufreq/scaling_cur_freq" for core in cores], "clock: no cpufreq")
        counters = [core / f"thermal_throttle/{kind}_throttle_count" for core in cores for kind in ("core", "package")]
        self._throttles = self._open(counters, "throttle: no thermal_throttle counters")
        self._sensors = self._open(_find_sensors(root), "temp: no CPU sensor under hwmon or thermal")
        stat_bytes = 256 * (max(self._cpus, default=0) + 2)  # the CPUs come first; a line is shorter than this
        self._stat = self._open([root / "proc/stat"], "util: no /proc/stat", stat_bytes)
        self._memory = self._open([root / "proc/self/statm"], "mem_used: no /proc/self/statm")
        self._throttle_counts = [file.read_int() for file in self._throttles]
        self._ticks = self._read_ticks()

    def read(self) -> Reading:
        joules, watts = self._rapl.read(self._now())
        clocks = [khz / 1000 for file in self._clocks if (khz := file.read_int())]
        millidegrees = [value for file in self._sensors if (value := file.read_int()) is not None]
        pages = [cpus.parse_int(number) for file in self._memory for number in file.read().split()[1:2]]
        return Reading(
            clock_mhz=sum(clocks) / len(clocks) if clocks else None,
            power_watts=watts,
            energy_joules=joules,
            temp_celsius=max(millidegrees) / 1000 if millidegrees else None,
            util_percent=self._read_util(),
            mem_used_bytes=pages[0] * os.sysconf("SC_PAGE_SIZE") if pages and pages[0] else None,
            throttle=self._read_throttle(),
        )

    def close(self) -> None:
        for files in (self._rapl.files, self._clocks, self._throttles, self._sensors, self._stat, self._memory):
            _close_all(files)

    def _open(self, paths: list[Path], if_none: str, size_bytes: int = 4096) -> list[cpus.OpenFile]:
        files = []
        for path in paths:
            with contextlib.suppress(OSError):
                files.append(cpus.OpenFile(path, size_bytes))
        if not files:
            self.unsupported.append(if_none)
        return files

    def _read_ticks(self) -> cpus.CpuTicks | None:
        # The text may end within a line: the last number may be truncated.
        texts = [file.read().rpartition("\n")[0] for file in self._stat]
        return cpus.parse_cpu_ticks(texts[0], self._cpus) if texts else None

    def _read_util(self) -> float | None:
        old, new = self._ticks, self._read_ticks()
        self._ticks = new or old
        if old is None or new is None or new.total <= old.total or new.num_cpus != old.num_cpus:
            return None
        busy = new.process + new.interrupt - old.process - old.interrupt
        return min(100.0, max(0.0, 100 * busy / (new.total - old.total)))

    def _read_throttle(self) -> str | None:
        old, new = self._throttle_counts, [file.read_int() for file in self._throttles]
        self._throttle_counts = new
        grown = [b > a for a, b in zip(old, new, strict=False) if a is not None and b is not None]
        return ("thermal" if any(grown) else "none") if grown else None


def _close_all(files: list[cpus.OpenFile]) -> None:
    while files:
        files.pop().close()


def _find_sensors(root: Path) -> list[Path]:
    """Return the files with the CPU packages' temperature."""
    found = []
    for name_file in sorted(root.glob("sys/class/hwmon/hwmon*/name")):
        if cpus.read_text(name_file) in CPU_SENSORS:
            labels = {path: cpus.read_text(path) or "" for path in sorted(name_file.parent.glob("temp*_label"))}
            whole = [path for path, label in labels.items() if label.startswith(("Package", "Tdie", "Tctl"))]
            found += [path.with_name(path.name.replace("_label", "_input")) for path in whole]
            found += [] if whole else [name_file.with_name("temp1_input")]
    zones = sorted(root.glob("sys/class/thermal/thermal_zone*/type"))
    return found or [zone.with_name("temp") for zone in zones if cpus.read_text(zone) in CPU_ZONES]


class NvmlReader(Reader):
    """Reads one NVIDIA GPU or MIG slice, by its UUID (torch's index depends on CUDA_VISIBLE_DEVICES)."""

    def __init__(self, uuid: str) -> None:
        """`uuid`: as CUDA reports it, without a prefix; in MIG mode CUDA reports that of the slice."""
        super().__init__()
        self._queries: dict[str, Callable[[], Any]] = {}
        self._errors: tuple[type[Exception], ...] = (AttributeError, TypeError, ValueError, OSError)
        try:
            self._nvml = importlib.import_module("pynvml")
            self._errors += (self._nvml.NVMLError,)
            self._nvml.nvmlInit()
            try:
                handle, self.uuid = self._nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"), f"GPU-{uuid}"
            except self._nvml.NVMLError:
                handle, self.uuid = self._nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}"), f"MIG-{uuid}"
        except (ImportError, *self._errors) as error:
            self.unsupported.append(f"all values: NVML cannot read device {uuid}: {error}")
            return
        for name, choices in _list_queries(self._nvml, handle).items():
            self._probe(name, choices)
        if "energy_joules" in self._queries:
            self.meter = "NVML total energy counter"

    def _probe(self, name: str, choices: list[Callable[[], Any]]) -> None:
        """Keep the first query that this device supports; a MIG slice or an old GPU supports only some."""
        why = ""
        for query in choices:
            try:
                query()
            except self._errors as error:
                why = str(error)
            else:
                self._queries[name] = query
                return
        self.unsupported.append(f"{name.rpartition('_')[0] or name}: {why}")

    def read(self) -> Reading:
        """Read all values once; a value that fails is None in this reading."""
        values: dict[str, Any] = {}
        for name, query in self._queries.items():
            with contextlib.suppress(*self._errors):
                values[name] = query()
        return Reading(**values)

    def close(self) -> None:
        self._queries = {}
        with contextlib.suppress(*self._errors):
            self._nvml.nvmlShutdown()


def _list_queries(nvml: Any, handle: Any) -> dict[str, list[Callable[[], Any]]]:
    """Return the queries for each value: the current one first, then that of older drivers."""
    return {
        "clock_mhz": [lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))],
        "mem_clock_mhz": [lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))],
        "power_watts": [lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000],
        "energy_joules": [lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000],
        "temp_celsius": [
            lambda: float(nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU)),
            lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        ],
        "util_percent": [lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)],
        "mem_used_bytes": [lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used)],
        "throttle": [
            lambda: name_reasons(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)),
            lambda: name_reasons(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        ],
    }


def name_reasons(bits: int) -> str:
    """Return the names of NVML's throttle reasons; unknown bits stay a hexadecimal number."""
    names = [name for place, name in enumerate(NVML_REASONS) if bits >> place & 1]
    unknown = bits >> len(NVML_REASONS) << len(NVML_REASONS)
    return "|".join([*names, hex(unknown)] if unknown else names) or "none"
