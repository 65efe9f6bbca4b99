import gzip
import itertools
import json
from pathlib import Path

import pytest
import torch

from support.processes.command import NARROW
from trainstone.config.load import load_config
from trainstone.engine.fit import finish, fit_to_machine
from trainstone.engine.loop import train_steps
from trainstone.engine.task import build_task
from trainstone.machine.ranks import Rank
from trainstone.measure.clock import HostTimer
from trainstone.measure.profiler import Capture, ProfileWindow, profiler_range

CPU = torch.device("cpu")


def capture_steps(target: Path, window: ProfileWindow, *, fail_at: int | None = None) -> None:
    values = torch.ones(8, 8)
    with Capture(target, CPU, Rank(3, 8, 1), window) as capture:
        for number in range(window.begin, window.end):
            with torch.profiler.record_function("forward"):
                values = values @ values
            if number == fail_at:
                raise RuntimeError("in the middle")
            capture.step(number)


@pytest.mark.parametrize("window", [ProfileWindow(7, 8, 10), ProfileWindow(0, 0, 2), ProfileWindow(41, 44, 45)])
def test_capture_trace_has_steps_of_window(tmp_path: Path, window: ProfileWindow, capfd: pytest.CaptureFixture[str]):
    target = tmp_path / "trace" / "rank0003.json.gz"
    capture_steps(target, window)
    assert list(target.parent.iterdir()) == [target]
    assert capfd.readouterr() == ("", "")
    trace = json.loads(gzip.decompress(target.read_bytes()))
    assert trace["distributedInfo"] == {"rank": 3, "world_size": 8}
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    steps = [event["name"] for event in events if event["name"].startswith("ProfilerStep#")]
    assert steps == [f"ProfilerStep#{number}" for number in range(window.first, window.end)]
    products = [event["args"]["Input Dims"] for event in events if event["name"] == "aten::mm"]
    assert products == [[[8, 8], [8, 8]]] * len(steps)
    assert sum(event["name"] == "forward" for event in events) == len(steps)


def test_capture_failure_writes_no_trace(tmp_path: Path):
    with pytest.raises(RuntimeError, match="in the middle"):
        capture_steps(tmp_path / "t.json.gz", ProfileWindow(1, 2, 5), fail_at=3)
    assert not list(tmp_path.iterdir())
    capture_steps(tmp_path / "t.json.gz", ProfileWindow(1, 2, 3))
    assert (tmp_path / "t.json.gz").is_file()


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((2, 1), [0, 1, "start", 2, "stop", 3]),
        ((1, 2), [0, "start", 1, 2, "stop", 3]),
        ((0, 1), ["start", 0, "stop", 1, 2, 3]),
        ((3, 1), [0, 1, 2, "start", 3, "stop"]),
        ((0, 9), ["start", 0, 1, 2, 3, "stop"]),
        ((7, 1), [0, 1, 2, 3]),
        (None, [0, 1, 2, 3]),
    ],
)
def test_profiler_range_starts_and_stops_around_range(steps: tuple[int, int] | None, expected: list[int | str]):
    seen: list[int | str] = []
    with profiler_range(steps, lambda: seen.append("start"), lambda: seen.append("stop")) as advance:
        for step in range(4):
            assert step == 0 or advance()
            seen.append(step)
    assert seen == expected


def test_profiler_range_stop_error_does_not_hide_first_error():
    stops: list[str] = []

    def fail() -> None:
        stops.append("stop")
        raise RuntimeError("CUDA error")

    with pytest.raises(ZeroDivisionError), profiler_range((0, 5), lambda: None, fail):
        _ = 1 / 0
    assert stops == ["stop"]
    with pytest.raises(RuntimeError, match="CUDA error"), profiler_range((0, 5), lambda: None, fail):
        pass


def test_train_steps_calls_profiler_range_before_each_further_step():
    """profiler_range relies on this to count steps."""
    fitted = finish(fit_to_machine(load_config("resnet50", settings=NARROW), strict=False))
    seen: list[str] = []
    task = build_task(fitted.config, fitted.device)
    with profiler_range((1, 2), lambda: seen.append("start"), lambda: seen.append("stop")) as advance:
        steps = train_steps(task, HostTimer(), num_steps=4, keep_going=advance)
        for record in itertools.islice(steps, 4):
            seen.append(str(record.step))
    assert seen == ["0", "start", "1", "2", "stop", "3"]
