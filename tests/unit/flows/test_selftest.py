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
from trainstone.measure.telemetry import Reader
from trainstone.results.telemetry import Reading
from trainstone.trace import breakdown

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
NARROW = ("model.width=16", "data.image_size=32", "train.batch_size=16")
LOSSES = [6.83, 6.7, 6.47, 6.18, 5.88, 5.59, 5.3, 5.01, 4.71, 4.4]
LATE = [LOSSES[0], *LOSSES[:-1]]  # as if one update were missing
NAN = float("nan")


@pytest.fixture(autouse=True)
def narrow_network(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(selftest, "SMALL", (*selftest.SMALL, *NARROW))


def run(check: Any, *arguments: Any) -> selftest.SelfCheck:
    return selftest.run_check("name", lambda: check(*arguments), "hint")


def test_check_timing_accepts_host_timer():
    check = run(selftest.check_timing, CPU)
    assert check.status == "ok", check.message
    assert len(check.values["step_seconds"]) == 20


CLOCKS = {
    "10 % slow": lambda: 0.9 * time.perf_counter(),
    "10 % fast": lambda: 1.1 * time.perf_counter(),
    "backwards": lambda: -time.perf_counter(),
    "stopped": lambda: 1.0,
}


@pytest.mark.parametrize("clock", CLOCKS)
def test_check_timing_finds_wrong_timer(clock: str):
    check = run(selftest.check_timing, CPU, HostTimer(now=CLOCKS[clock]))
    assert check.status == "wrong"
    assert "expected: " in check.message
    assert check.hint == "hint"


def test_check_timing_finds_data_wait_longer_than_step():
    class LateTimer(HostTimer):
        """Marks are numbered: begin, batch ready, end of a step."""

        def seconds(self, earlier: float, later: float) -> float:
            return later - earlier + (1.0 if round(later * 1e9) % 3 == 1 else 0.0)

    numbers = count()
    timer = LateTimer(now=lambda: next(numbers) / 1e9)
    assert "data wait" in run(selftest.check_timing, CPU, timer).message


def fake_losses(monkeypatch: pytest.MonkeyPatch, special: list[float], when: str) -> None:
    """Let train_losses return LOSSES, and `special` with the setting `when`."""

    def train(_device: torch.device, *settings: str) -> list[float]:
        return special if when in settings else LOSSES

    monkeypatch.setattr(selftest, "train_losses", train)


SHIFTED = [*LOSSES[3:], 4.08, 3.75, 3.4]


@pytest.mark.parametrize(
    ("graphed", "status"),
    [(SHIFTED, "ok"), (LOSSES, "wrong"), ([*SHIFTED[:4], NAN, *SHIFTED[5:]], "wrong"), ([LOSSES[3]] * 10, "wrong")],
    ids=["three updates ahead", "no update before the capture", "NaN", "replay without update"],
)
def test_check_graphs_compares_losses_after_equal_updates(
    monkeypatch: pytest.MonkeyPatch, graphed: list[float], status: str
):
    fake_losses(monkeypatch, graphed, "engine.cuda_graphs=true")
    assert run(selftest.check_graphs, CUDA).status == status
    assert run(selftest.check_graphs, CPU).status == "skipped"


def fake_precision(monkeypatch: pytest.MonkeyPatch, precision: str, **wrong: Any) -> None:
    """Let an A100 compute at a precision as it should, except for the values in `wrong`."""
    error = {"fp32": 3e-7, "tf32": 4e-4, "bf16": 3e-3, "fp16": 4e-4}[precision]
    values = {"losses": LOSSES, "mm": error, "conv2d": error, "peak": 3e13, "capability": (8, 0)} | wrong
    fake_losses(monkeypatch, values["losses"], f"train.precision={precision}")
    monkeypatch.setattr(
        selftest,
        "measure_peaks",
        lambda _device, one, _seconds: SimpleNamespace(flops=values["peak"] if one == precision else 2e13),
    )
    monkeypatch.setattr(selftest, "measure_error", lambda operator, *_: values[operator.__name__])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: values["capability"])
    monkeypatch.setattr(torch.cuda, "is_tf32_supported", lambda: values["capability"] >= (8, 0))


@pytest.mark.parametrize("precision", selftest.ERRORS)
def test_check_precision_accepts_right_values(monkeypatch: pytest.MonkeyPatch, precision: str):
    fake_precision(monkeypatch, precision)
    check = run(selftest.check_precision, CUDA, precision)
    assert check.status == "ok", check.message


@pytest.mark.parametrize(
    ("precision", "wrong"),
    [
        ("fp32", {"mm": 4e-4}),  # TF32 is on
        ("fp32", {"conv2d": 4e-4}),  # cuDNN's default
        ("tf32", {"mm": 3e-7}),  # TF32 is off
        ("bf16", {"mm": 3e-7}),  # autocast has no effect
        ("bf16", {"mm": 0.1}),
        ("fp16", {"mm": NAN}),
        ("bf16", {"losses": LATE}),
        ("fp16", {"losses": [*LOSSES[:5], *[NAN] * 5]}),
        ("fp16", {"losses": [*LOSSES[:9], float("inf")]}),
        ("tf32", {"peak": 1e13}),
        ("fp16", {"peak": NAN}),
        ("fp16", {"peak": 1e13, "capability": (7, 0)}),
    ],
)
def test_check_precision_finds_wrong_values(monkeypatch: pytest.MonkeyPatch, precision: str, wrong: dict[str, Any]):
    fake_precision(monkeypatch, precision, **wrong)
    assert run(selftest.check_precision, CUDA, precision).status == "wrong"


def test_check_precision_of_older_gpu(monkeypatch: pytest.MonkeyPatch):
    fake_precision(monkeypatch, "bf16", peak=1e12, capability=(7, 0))
    assert run(selftest.check_precision, CUDA, "bf16").status == "ok"  # emulated, so slow
    fake_precision(monkeypatch, "tf32", capability=(7, 0))
    assert run(selftest.check_precision, CUDA, "tf32").message == "this device has no tf32"
    assert run(selftest.check_precision, CPU, "tf32").status == "skipped"


@pytest.mark.parametrize("precision", selftest.ERRORS)
def test_check_precision_measures_in_mode_of_precision(monkeypatch: pytest.MonkeyPatch, precision: str):
    fake_precision(monkeypatch, precision)
    modes, measured = ["none"], []
    monkeypatch.setattr(devices, "switch_tf32", modes.append)

    def peaks(_device: torch.device, one: str, _seconds: float) -> SimpleNamespace:
        measured.append((one, modes[-1]))
        return SimpleNamespace(flops=1e13)

    monkeypatch.setattr(selftest, "measure_peaks", peaks)
    monkeypatch.setattr(selftest, "measure_error", lambda *_: measured.append((precision, modes[-1])) or 1e-3)
    run(selftest.check_precision, CUDA, precision)
    assert all(one == mode for one, mode in measured)
    assert {one for one, _ in measured} == {"fp32", precision}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_measure_error_is_in_range_of_precision(precision: str):
    error = selftest.measure_error(torch.mm, CPU, precision, (128, 128), (128, 128))
    low, high = selftest.ERRORS[precision]
    assert low < error < high


def test_check_precision_of_cpu_trains(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(selftest, "measure_peaks", lambda *_: SimpleNamespace(flops=1e11))
    check = run(selftest.check_precision, CPU, "fp32")
    assert check.status == "ok", check.message
    losses = check.values["losses"]
    assert losses[-1] < 0.9 * losses[0]  # else the comparison of losses could not find a wrong update


class FakeReader(Reader):
    """Reads a GPU at 300 W, with an energy counter, except for the values in `wrong`."""

    def __init__(self, *unsupported: str, meter: str | None = "NVML", **wrong: Any) -> None:
        super().__init__(*unsupported)
        self.meter = meter
        self._wrong = wrong
        self._scale = wrong.pop("scale", 1.0)

    def read(self) -> Reading:
        right = {"clock_mhz": 1410.0, "power_watts": 300.0, "temp_celsius": 60.0, "mem_used_bytes": 5 * 2**30}
        return Reading(**right | {"energy_joules": 300 * time.perf_counter() * self._scale} | self._wrong)


@pytest.mark.parametrize(
    ("reader", "status", "words"),
    [
        (FakeReader(), "ok", "300 W by the energy counter"),
        (FakeReader(power_watts=None), "wrong", "readings of power_watts"),
        (FakeReader("power: Not Supported", power_watts=None, meter=None), "ok", "power: Not Supported"),
        (FakeReader(energy_joules=1e6), "wrong", "energy that grows"),
        (FakeReader(scale=1000.0), "wrong", "energy that grows"),
        (FakeReader(power_watts=None, scale=1.0), "wrong", "energy that grows"),
        (FakeReader(mem_used_bytes=2**20), "wrong", "at least the 4 GiB that torch uses"),
        (FakeReader("all values: NVML cannot read device GPU-1", meter=None), "wrong", "UUID"),
        (Reader("telemetry of xpu:0: not supported"), "skipped", "not supported"),
    ],
)
def test_check_telemetry(monkeypatch: pytest.MonkeyPatch, reader: Reader, status: str, words: str):
    monkeypatch.setattr(devices, "choose_reader", lambda _device: reader)
    monkeypatch.setattr(devices, "peak_bytes", lambda _device: (4 * 2**30, 2**30))
    monkeypatch.setattr(selftest, "measure_peaks", lambda *_: time.sleep(0.01))
    check = run(selftest.check_telemetry, CUDA)
    assert check.status == status, check.message
    assert words in check.message


def test_check_memory_accepts_cpu():
    check = run(selftest.check_memory, CPU)
    assert check.status == "ok", check.message
    assert "can't allocate memory" in check.values["failure"]


@pytest.mark.parametrize("peak", [0, 2**20, 2**50])
def test_check_memory_finds_impossible_peak(monkeypatch: pytest.MonkeyPatch, peak: int):
    monkeypatch.setattr(devices, "peak_bytes", lambda _device: (peak, 2**30))
    assert run(selftest.check_memory, CPU).status == "wrong"


def test_check_memory_finds_unrecognised_failure(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(devices, "is_out_of_memory", lambda _error: False)
    check = run(selftest.check_memory, CPU)
    assert check.status == "wrong"
    assert "expected: out of memory for 1 PiB (error: [enforce fail" in check.message


class LaggingTimer(HostTimer):
    """Steps are read two steps late, as on CUDA."""

    lag = 2


def test_check_timing_accepts_timer_that_reads_late():
    check = run(selftest.check_timing, CPU, LaggingTimer())
    assert check.status == "ok", check.message


@pytest.mark.parametrize("timer", [HostTimer(), LaggingTimer()])
def test_check_profile_accepts_cpu(monkeypatch: pytest.MonkeyPatch, timer: HostTimer):
    monkeypatch.setattr(selftest, "choose_timer", lambda _device: timer)
    check = run(selftest.check_profile, CPU)
    assert check.status == "ok", check.message
    assert [step["step"] for step in check.values["steps"]] == [5, 6, 7, 8, 9]


def double(name: str):
    return lambda step: step.model_copy(update={name: 2 * getattr(step, name)})


@pytest.mark.parametrize(
    "change", [double("seconds"), double("kernel_seconds"), double("compute_seconds"), lambda _step: None]
)
def test_check_profile_finds_wrong_times(monkeypatch: pytest.MonkeyPatch, change: Any):
    def analyse(path: Path) -> Any:
        timeline = breakdown.analyse_trace(path).timeline
        steps = [changed for step in timeline.steps if (changed := change(step)) is not None]
        return SimpleNamespace(timeline=SimpleNamespace(steps=steps))

    monkeypatch.setattr(selftest, "analyse_trace", analyse)
    assert run(selftest.check_profile, CPU).status == "wrong"


@pytest.mark.parametrize(
    ("losses", "status"), [(LOSSES, "ok"), (LATE, "wrong"), ([NAN] * 10, "wrong")], ids=["equal", "late", "NaN"]
)
def test_check_all_reduce_compares_losses_with_single_rank(
    monkeypatch: pytest.MonkeyPatch, losses: list[float], status: str
):
    monkeypatch.setattr(selftest, "train_losses", lambda _device: LOSSES)
    monkeypatch.setattr(selftest, "train_two_ranks", lambda _type: (losses, 2e9))
    assert run(selftest.check_all_reduce, CPU).status == status
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert run(selftest.check_all_reduce, CUDA).status == "skipped"


def fake_checks(monkeypatch: pytest.MonkeyPatch, path: Path) -> list[str]:
    """Replace the checks; return the list that gets the last message in the file while each check runs."""
    seen = []

    def read_file(answer: Any) -> Any:
        seen.append(json.loads(path.read_text())["checks"][-1]["message"])
        return answer

    def crash(_device: torch.device) -> Any:
        read_file(None)
        raise AttributeError("the driver has no such function")

    checks = {
        "crashes": (crash, "one"),
        "is wrong": (lambda _: read_file(("loss nan", {"a finite loss": False}, {"loss": NAN})), "two"),
        "is right": (lambda _: read_file(("loss 1", {"a finite loss": True}, {"loss": 1.0})), "three"),
        "is skipped": (lambda _: read_file("needs CUDA"), "four"),
    }
    monkeypatch.setattr(selftest, "CHECKS", checks)
    monkeypatch.setenv("NCCL_SECRET", "hunter2")
    return seen


def test_run_selftest_continues_after_exception_and_writes_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    path = tmp_path / "new" / "selftest.json"
    seen = fake_checks(monkeypatch, path)
    checks = list(selftest.run_selftest("cpu", path))
    assert [check.status for check in checks] == ["wrong", "wrong", "ok", "skipped"]
    assert checks[0].message == "AttributeError: the driver has no such function"
    assert checks[1].message == "loss nan; expected: a finite loss"
    assert [check.hint for check in checks] == ["one", "two", None, None]
    assert seen == ["did not end: crashed or interrupted"] * 4  # what remains if the process dies
    document = json.loads(path.read_text())
    assert [check["values"] for check in document["checks"]] == [{}, {"loss": "NaN"}, {"loss": 1.0}, {}]
    assert "in crash" in document["checks"][0]["traceback"]
    assert document["software"]["torch"]
    assert "hunter2" not in path.read_text()


@pytest.mark.parametrize("as_json", [False, True])
def test_print_selftest_raises_for_wrong_checks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: bool
):
    monkeypatch.setattr("trainstone.cli.doctor.get_host_name", lambda: "../node 7")
    path = tmp_path / "selftest-.._node_7.json"
    fake_checks(monkeypatch, path)
    with pytest.raises(MachineError, match="wrong checks: crashes, is wrong") as caught:
        print_selftest("cpu", tmp_path, as_json=as_json)
    assert caught.value.exit_code == 4
    assert str(path) in str(caught.value.hint)
    out = capsys.readouterr().out
    if as_json:
        assert json.loads(out) == json.loads(path.read_text())
    else:
        lines = [line.split()[0] for line in out.splitlines() if line[:1].strip()]
        assert lines == ["wrong", "wrong", "ok", "skipped", "values"]


def test_run_selftest_refuses_folder_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ResultError, match="cannot write"):
        next(selftest.run_selftest("cpu", tmp_path / "file" / "selftest.json"))
