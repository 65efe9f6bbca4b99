"""Each check of `doctor --gpu-selftest` finds wrong values: slow timers, wrong losses, TF32 in fp32, dead counters.

CUDA's branches get fake measurements: no GPU is needed.
"""

import json
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainstone.cli.doctor import print_selftest
from trainstone.errors import MachineError, ResultError
from trainstone.flows import selftest
from trainstone.measure import devices
from trainstone.measure.clock import HostTimer
from trainstone.measure.telemetry import NvmlReader, Reader
from trainstone.results.telemetry import Reading
from trainstone.trace import breakdown

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
NARROW = ("model.width=16", "data.image_size=32", "train.batch_size=8")
LOSSES = [6.83, 6.7, 6.47, 6.18, 5.88, 5.59, 5.3, 5.01, 4.71, 4.4]
LATE = [LOSSES[0], *LOSSES[:-1]]  # as if one update were missing
NAN = float("nan")


@pytest.fixture(autouse=True)
def narrow_network(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(selftest, "SMALL", (*selftest.SMALL, *NARROW))


def list_wrong(answer: selftest.Answer) -> list[str]:
    return [text for text, holds in answer.items() if holds is False]


class LaggingTimer(HostTimer):
    """Steps are read two steps late, as on CUDA."""

    lag = 2


class WaitingTimer(HostTimer):
    """Data waits are a second longer than their steps. Marks are numbered: begin, batch ready, end of a step."""

    def __init__(self) -> None:
        numbers = count()
        super().__init__(now=lambda: next(numbers) / 1e9)

    def seconds(self, earlier: float, later: float) -> float:
        return later - earlier + (1.0 if round(later * 1e9) % 3 == 1 else 0.0)


@pytest.mark.parametrize("timer", [HostTimer(), LaggingTimer()])
def test_check_timing_and_profile_accept_right_timer(monkeypatch: pytest.MonkeyPatch, timer: HostTimer):
    monkeypatch.setattr(selftest, "choose_timer", lambda _device: timer)
    for check in (selftest.check_timing, selftest.check_profile):
        answer = check(CPU)
        assert all(answer.values()), answer


@pytest.mark.parametrize(
    ("timer", "words"),
    [
        (HostTimer(now=lambda: 0.9 * time.perf_counter()), "20 steps take"),
        (HostTimer(now=lambda: 1.1 * time.perf_counter()), "20 steps take"),
        (HostTimer(now=lambda: -time.perf_counter()), "20 steps take"),
        (HostTimer(now=lambda: 1.0), "20 steps take"),
        (WaitingTimer(), "data waits"),
    ],
    ids=["10 % slow", "10 % fast", "backwards", "stopped", "long data waits"],
)
def test_check_timing_finds_wrong_timer(monkeypatch: pytest.MonkeyPatch, timer: HostTimer, words: str):
    monkeypatch.setattr(selftest, "choose_timer", lambda _device: timer)
    assert words in " ".join(list_wrong(selftest.check_timing(CPU)))


def fake_losses(monkeypatch: pytest.MonkeyPatch, special: list[float], when: str) -> None:
    """Let train_losses return LOSSES, and `special` with the setting `when`."""

    def train(_device: torch.device, *settings: str) -> list[float]:
        return special if when in settings else LOSSES

    monkeypatch.setattr(selftest, "train_losses", train)


SHIFTED = [*LOSSES[3:], 4.08, 3.75, 3.4]


@pytest.mark.parametrize(
    ("graphed", "right"),
    [(SHIFTED, True), (LOSSES, False), ([*SHIFTED[:4], NAN, *SHIFTED[5:]], False), ([LOSSES[3]] * 10, False)],
    ids=["three updates ahead", "no update before the capture", "NaN", "replay without update"],
)
def test_check_graphs_compares_losses_after_equal_updates(
    monkeypatch: pytest.MonkeyPatch, graphed: list[float], right: bool
):
    fake_losses(monkeypatch, graphed, "engine.cuda_graphs=true")
    assert list(selftest.check_graphs(CUDA).values()) == [right]
    assert selftest.check_graphs(CPU) == {"needs CUDA": None}


def fake_precision(monkeypatch: pytest.MonkeyPatch, precision: str, losses: list[float], error: float) -> None:
    """Let a GPU that has TF32 compute at a precision."""
    fake_losses(monkeypatch, losses, f"train.precision={precision}")
    monkeypatch.setattr(selftest, "measure_error", lambda *_: error)
    monkeypatch.setattr(torch.cuda, "is_tf32_supported", lambda: True)


@pytest.mark.parametrize(
    ("precision", "losses", "error", "words"),
    [
        ("fp32", LOSSES, 3e-7, ""),
        ("tf32", LOSSES, 4e-4, ""),
        ("bf16", LOSSES, 3e-3, ""),
        ("fp16", LOSSES, 4e-4, ""),
        ("fp32", LOSSES, 4e-4, "error"),  # TF32 is on
        ("tf32", LOSSES, 3e-7, "error"),  # TF32 is off
        ("bf16", LOSSES, 3e-7, "error"),  # autocast has no effect
        ("bf16", LOSSES, 0.1, "error"),
        ("fp16", LOSSES, NAN, "error"),
        ("bf16", LATE, 3e-3, "losses"),
        ("fp16", [*LOSSES[:5], *[NAN] * 5], 4e-4, "losses"),
        ("fp16", [*LOSSES[:9], float("inf")], 4e-4, "losses"),
    ],
)
def test_check_precision_finds_wrong_values(
    monkeypatch: pytest.MonkeyPatch, precision: str, losses: list[float], error: float, words: str
):
    fake_precision(monkeypatch, precision, losses, error)
    wrong = list_wrong(selftest.check_precision(CUDA, precision))
    assert [text.split()[0] for text in wrong] == ([words] if words else [])


def test_check_precision_skips_what_device_lacks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_tf32_supported", lambda: False)
    for device in (CPU, CUDA):
        assert selftest.check_precision(device, "tf32") == {"this device has no tf32": None}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_measure_error_is_in_range_of_precision(precision: str):
    low, high = selftest.ERRORS[precision]
    assert low < selftest.measure_error(CPU, precision) < high


@pytest.mark.parametrize("rounded", [("conv2d",), ("matmul",), ("conv2d", "matmul")])
def test_measure_error_finds_tf32_in_convolution_and_product(monkeypatch: pytest.MonkeyPatch, rounded: tuple[str, ...]):
    """TF32 is emulated: inputs are rounded to 10 bits after the leading one."""

    def emulate(operator: Any):
        def run(*inputs: torch.Tensor) -> torch.Tensor:
            exact = inputs[0].dtype == torch.float64
            return operator(
                *(x if exact else ((x.view(torch.int32) + 2**12) >> 13 << 13).view(x.dtype) for x in inputs)
            )

        return run

    for name in rounded:
        place, attribute = (torch.Tensor, "__matmul__") if name == "matmul" else (torch, name)
        monkeypatch.setattr(place, attribute, emulate(getattr(place, attribute)))
    low, high = selftest.ERRORS["tf32"]
    assert selftest.ERRORS["fp32"][1] <= low < selftest.measure_error(CPU, "fp32") < high


def test_check_precision_of_cpu_trains():
    answer = selftest.check_precision(CPU, "fp32")
    assert all(answer.values()), answer
    losses = selftest.train_losses(CPU)
    assert losses[-1] < 0.9 * losses[0]  # else the comparison of losses could not find a wrong update


class FakeReader(NvmlReader):
    """Reads a GPU at 300 W, with an energy counter, except for the values in `wrong`."""

    def __init__(self, *unsupported: str, meter: str | None = "NVML", scale: float = 1.0, **wrong: Any) -> None:
        Reader.__init__(self, *unsupported)
        self.meter, self._scale, self._wrong = meter, scale, wrong

    def read(self) -> Reading:
        right = {"clock_mhz": 1410.0, "power_watts": 300.0, "mem_used_bytes": 5 * 2**30}
        return Reading(**right | {"energy_joules": 300 * time.perf_counter() * self._scale} | self._wrong)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("reader", "wrong"),
    [
        (FakeReader(), ""),
        (FakeReader("power: Not Supported", power_watts=None), ""),
        (FakeReader("energy: Not Supported", energy_joules=None, meter=None), ""),
        (FakeReader(energy_joules=1e6), "0 W by the energy counter"),
        (FakeReader(scale=1000.0), "W by the energy counter"),
        (FakeReader(mem_used_bytes=2**20), "torch uses 4 GiB"),
        (FakeReader("all values: NVML cannot read GPU-1", meter=None, mem_used_bytes=None), "cannot read GPU-1"),
    ],
)
def test_check_telemetry_finds_wrong_readings(monkeypatch: pytest.MonkeyPatch, reader: Reader, wrong: str):
    monkeypatch.setattr(devices, "choose_reader", lambda _device: reader)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _device: 4 * 2**30)
    monkeypatch.setattr(selftest, "measure_peaks", lambda *_: time.sleep(0.01))
    found = list_wrong(selftest.check_telemetry(CUDA))
    assert bool(found) == bool(wrong)
    assert wrong in " ".join(found)


def test_check_telemetry_skips_devices_without_nvml():
    assert selftest.check_telemetry(CPU) == {"needs an NVIDIA GPU": None}


def test_check_profile_finds_missing_step_and_parts_and_kernels(monkeypatch: pytest.MonkeyPatch):
    def analyse(path: Path) -> Any:
        timeline = breakdown.analyse_trace(path).timeline
        wrong = {"steps": timeline.steps[1:], "accounted_share": 0.9, "compute_utilisation": 0.0}
        return SimpleNamespace(timeline=timeline.model_copy(update=wrong))

    monkeypatch.setattr(selftest, "analyse_trace", analyse)
    steps, parts, kernels = list_wrong(selftest.check_profile(CPU))
    assert steps.startswith("5 steps take")
    assert "parts add up to 90.0 %" in parts
    assert "kernels run 0.0 %" in kernels


@pytest.mark.parametrize(
    ("losses", "right"), [(LOSSES, True), (LATE, False), ([NAN] * 10, False)], ids=["equal", "late", "NaN"]
)
def test_check_all_reduce_compares_losses_with_single_rank(
    monkeypatch: pytest.MonkeyPatch, losses: list[float], right: bool
):
    monkeypatch.setattr(selftest, "train_losses", lambda _device: LOSSES)
    monkeypatch.setattr(selftest, "elastic_launch", lambda *_: lambda _type: {0: losses, 1: LATE})
    assert list(selftest.check_all_reduce(CPU).values()) == [right]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert selftest.check_all_reduce(CUDA) == {"needs two CUDA devices": None}


def crash(_device: torch.device) -> Any:
    raise AttributeError("the driver has no such function")


@pytest.fixture
def fake_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = {
        "crashes": crash,
        "is wrong": lambda _: {"time 4 s": True, "loss nan": False},
        "is right": lambda _: {"loss 1": True},
        "is skipped": lambda _: {"needs CUDA": None},
    }
    monkeypatch.setattr(selftest, "CHECKS", checks)


@pytest.mark.usefixtures("fake_checks")
def test_run_selftest_continues_after_exception_and_writes_file_after_each_check(tmp_path: Path):
    path = tmp_path / "new" / "selftest.json"
    checks = []
    for check in selftest.run_selftest("cpu", path):
        checks.append(check)
        assert len(json.loads(path.read_text())["checks"]) == len(checks)
    assert [(check.status, check.message) for check in checks] == [
        ("wrong", "wrong: AttributeError: the driver has no such function"),
        ("wrong", "time 4 s; wrong: loss nan"),
        ("ok", "loss 1"),
        ("skipped", "needs CUDA"),
    ]
    document = json.loads(path.read_text())
    assert [check["status"] for check in document["checks"]] == ["wrong", "wrong", "ok", "skipped"]
    assert "in crash" in document["tracebacks"]["crashes"]
    assert document["software"]["torch"]
    assert "PyTorch built with" in document["build"]


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.usefixtures("fake_checks")
def test_print_selftest_raises_for_wrong_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: bool):
    with pytest.raises(MachineError, match="wrong checks: crashes, is wrong") as caught:
        print_selftest("cpu", tmp_path, as_json=as_json)
    assert caught.value.exit_code == 4
    (path,) = tmp_path.glob("*-selftest-*.json")
    assert str(path) in str(caught.value.hint)
    out = capsys.readouterr().out
    if as_json:
        document = json.loads(out)
        assert document == {"file": str(path), "checks": json.loads(path.read_text())["checks"]}
    else:
        assert [line.split()[0] for line in out.splitlines() if line] == ["wrong", "wrong", "ok", "skipped", "file"]


def test_run_selftest_refuses_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(selftest, "CHECKS", {"is right": lambda _: {"loss 1": True}})
    (tmp_path / "file").touch()
    with pytest.raises(ResultError, match="cannot write"):
        next(selftest.run_selftest("cpu", tmp_path / "file" / "selftest.json"))
