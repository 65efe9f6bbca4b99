import gzip
import json
from pathlib import Path

import pytest
import torch

from trainstone.machine.ranks import Rank
from trainstone.measure.profiler import Capture, Window, choose_activities

CPU = torch.device("cpu")


def capture_steps(target: Path, window: Window, *, fail_at: int | None = None) -> None:
    values = torch.ones(8, 8)
    with Capture(target, CPU, Rank(3, 8, 1), window) as capture:
        for number in range(window.begin, window.end):
            with torch.profiler.record_function("forward"):
                values = values @ values
            if number == fail_at:
                raise RuntimeError("in the middle")
            capture.step(number)


def read_trace(path: Path) -> dict:
    return json.loads(gzip.decompress(path.read_bytes()))


@pytest.mark.parametrize("window", [Window(7, 8, 10), Window(0, 0, 2), Window(41, 44, 45)])
def test_the_trace_holds_the_steps_of_the_window_by_their_own_numbers(tmp_path: Path, window: Window):
    target = tmp_path / "trace" / "rank0003.json.gz"
    capture_steps(target, window)
    events = [event for event in read_trace(target)["traceEvents"] if event["ph"] == "X"]
    steps = [event["name"] for event in events if event["name"].startswith("ProfilerStep#")]
    assert steps == [f"ProfilerStep#{number}" for number in range(window.first, window.end)]
    assert sum(event["name"] == "aten::mm" for event in events) == window.end - window.first
    assert sum(event["name"] == "forward" for event in events) == window.end - window.first


def test_the_trace_names_its_rank_and_the_shapes(tmp_path: Path):
    capture_steps(tmp_path / "t.json.gz", Window(1, 2, 3))
    trace = read_trace(tmp_path / "t.json.gz")
    assert trace["distributedInfo"] == {"rank": 3, "world_size": 8}
    (product,) = (event for event in trace["traceEvents"] if event["name"] == "aten::mm")
    assert product["args"]["Input Dims"] == [[8, 8], [8, 8]]


def test_nothing_but_the_trace_is_left(tmp_path: Path):
    capture_steps(tmp_path / "t.json.gz", Window(1, 2, 3))
    assert [path.name for path in tmp_path.iterdir()] == ["t.json.gz"]


def test_a_failure_leaves_no_trace_and_profiling_works_again(tmp_path: Path):
    with pytest.raises(RuntimeError, match="in the middle"):
        capture_steps(tmp_path / "t.json.gz", Window(1, 2, 5), fail_at=3)
    assert not list(tmp_path.iterdir())
    capture_steps(tmp_path / "t.json.gz", Window(1, 2, 3))
    assert (tmp_path / "t.json.gz").is_file()


def test_it_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    capture_steps(tmp_path / "t.json.gz", Window(1, 2, 3))
    assert capfd.readouterr() == ("", "")


def test_only_known_devices_have_activities_of_their_own():
    assert [activity.name for activity in choose_activities(CPU)] == ["CPU"]
    assert [activity.name for activity in choose_activities(torch.device("cuda"))] == ["CPU", "CUDA"]
    assert [activity.name for activity in choose_activities(torch.device("mps"))] == ["CPU"]
