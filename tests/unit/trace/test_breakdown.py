"""Tests of the step breakdown: synthetic traces with known results, and comparison with brute-force counts."""

import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.builders.damage import quick, real_data
from support.builders.traces import call, host, kernel, mark, small_trace, step, thread_name, write_trace
from trainstone.errors import DataError
from trainstone.results.schema.timeline import StepParts, Timeline
from trainstone.trace.breakdown import TraceReport, analyse_trace

Events = list[dict[str, Any]]
DEVICE_ORDER = ("compute", "optimizer", "communication", "copy", "data_wait", "synchronisation", "launch", "host")
CPU_ORDER = ("data_wait", *DEVICE_ORDER[:4], *DEVICE_ORDER[5:])
COUNTED = ["aten::conv2d", "aten::convolution", "aten::convolution_backward"]


def analyse(folder: Path, events: Events, **options: Any) -> TraceReport:
    return analyse_trace(write_trace(folder / "made.json", events), **options)


def analyse_timeline(folder: Path, events: Events) -> Timeline:
    return analyse(folder, events).timeline


def parts(one: StepParts) -> dict[str, float]:
    """Return the nonzero times of a step in microseconds."""
    times = {name.removesuffix("_seconds"): value * 1e6 for name, value in one if name not in ("step", "seconds")}
    return {name: round(value, 6) for name, value in times.items() if value}


def check_sums(timeline: Timeline) -> None:
    for one in timeline.steps:
        assert sum(getattr(one, f"{part}_seconds") for part in (*DEVICE_ORDER, "unaccounted")) == pytest.approx(
            one.seconds, rel=1e-9, abs=1e-15
        )
        assert one.busy_seconds <= one.seconds * (1 + 1e-12)
        assert one.overlap_seconds <= one.communication_total_seconds
    assert 0 <= timeline.compute_utilisation <= 1
    assert 0 <= timeline.accounted_share <= 1


def test_analyse_trace_splits_device_steps_into_parts(tmp_path: Path):
    timeline = analyse_timeline(tmp_path, small_trace())
    assert [one.step for one in timeline.steps] == [5, 6]
    for one in timeline.steps:
        assert one.seconds == pytest.approx(990e-6)
        assert parts(one) == {
            "compute": 350, "optimizer": 60, "communication": 50, "copy": 30, "data_wait": 60, "synchronisation": 60,
            "launch": 120, "host": 160, "unaccounted": 100, "busy": 490, "kernel_running": 460, "kernel": 510,
            "communication_total": 100, "overlap": 50, "copy_total": 30, "data_wait_total": 90, "optimizer_total": 200,
        }  # fmt: skip
    check_sums(timeline)
    assert (timeline.device, timeline.rank, timeline.trace, timeline.events) == ("cuda", 3, "made.json", 45)
    assert timeline.compute_utilisation == pytest.approx(460 / 990)
    assert timeline.accounted_share == pytest.approx(890 / 990)
    assert timeline.sentences[0].startswith("The device is idle for 51 % of the step: 12 % launch-bound")
    assert timeline.sentences[1].startswith("50 % of communication is hidden behind compute; the rest takes 5.1 %")


def test_analyse_trace_lists_operators_kernels_lanes_and_calls(tmp_path: Path):
    report = analyse(tmp_path, small_trace(), counted=COUNTED)
    shapes = ((8, 3, 32, 32), (16, 3, 3, 3), ())
    calls = {each.name: each for each in report.calls}
    assert calls["aten::conv2d"][1:3] == (shapes, 2)
    assert calls["aten::conv2d"][3:] == pytest.approx((400e-6, 300e-6))  # its kernel was launched by a callee
    assert calls["aten::convolution_backward"][1:3] == ((), 2)
    assert calls["aten::convolution_backward"][3:] == pytest.approx((200e-6, 400e-6))
    assert len(calls) == 2  # aten::convolution is within aten::conv2d
    timeline = report.timeline
    by_name = {each.name: each for each in timeline.operators}
    assert [each.name for each in timeline.operators][:2] == ["aten::convolution_backward", "aten::convolution"]
    conv = by_name["aten::conv2d"]
    assert (conv.calls, conv.self_seconds, conv.total_seconds) == pytest.approx((2, 40e-6, 400e-6))
    assert conv.device_seconds == conv.share == 0
    assert by_name["aten::convolution"].device_seconds == pytest.approx(300e-6)
    assert by_name["aten::convolution"].share == pytest.approx(300 / 1980)
    kernels = [(each.name[:8], each.kind, each.calls, round(each.seconds * 1e6)) for each in timeline.kernels]
    assert kernels == [
        *(("wgrad", "compute", 2, 400), ("void con", "compute", 2, 300), ("ncclDevK", "communication", 2, 200)),
        *(("multi_te", "compute", 2, 120), ("Memcpy H", "copy", 2, 60)),
    ]
    lanes = [(each.name, each.kind, each.events, round(each.busy_seconds * 1e6)) for each in timeline.lanes]
    assert lanes == [
        *(("stream 7", "stream", 8, 880), ("stream 20", "stream", 2, 200)),
        *(("thread 100 (python)", "thread", 14, 620), ("thread 101", "thread", 4, 200)),
    ]


def test_analyse_trace_splits_cpu_steps_into_parts(tmp_path: Path):
    events = [
        step(1, 0, 1000),
        mark("data", 0, 100),
        host("aten::stack", 50, 30),  # assembling the batch counts as waiting
        mark("forward", 100, 400),
        host("aten::conv2d", 110, 190),
        host("aten::copy_", 200, 50),
        host("aten::add", 310, 90),
        mark("backward", 500, 300),
        host("aten::mul", 510, 190),
        host("c10d::allreduce_", 710, 10),
        mark("gloo:all_reduce", 600, 180, tid=102),
        mark("optimizer", 800, 100),
        host("aten::_fused_sgd_", 810, 70),
        host("aten::copy_", 820, 10),
    ]
    timeline = analyse_timeline(tmp_path, events)
    assert timeline.device == "cpu"
    assert parts(timeline.steps[0]) == {
        "data_wait": 100, "compute": 420, "optimizer": 70, "communication": 80, "copy": 50, "host": 180,
        "unaccounted": 100, "busy": 650, "kernel_running": 650, "kernel": 760, "communication_total": 180,
        "overlap": 100, "copy_total": 50, "data_wait_total": 100, "optimizer_total": 100,
    }  # fmt: skip
    check_sums(timeline)
    assert timeline.kernels == []
    assert timeline.operators[0].name == "aten::mul"
    assert timeline.operators[0].device_seconds is None
    assert timeline.operators[0].share == pytest.approx(0.19)
    assert timeline.sentences[0].startswith("Operators run for 65.0 % of the step; 18 % is Python between them; 10 %")


def test_analyse_trace_accepts_marks_of_torch(tmp_path: Path):
    ours = [mark("data", 0, 50), mark("optimizer", 60, 30)]
    torchs = [mark("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, 50)]
    torchs += [mark("Optimizer.zero_grad#SGD.zero_grad", 60, 10), mark("Optimizer.step#SGD.step", 70, 20)]
    rest = [step(0, 0, 100), call(80, 5, 9), kernel(86, 10, 9)]
    one, other = analyse_timeline(tmp_path, ours + rest), analyse_timeline(tmp_path, torchs + rest)
    assert parts(one.steps[0]) == parts(other.steps[0])
    assert parts(one.steps[0])["optimizer"] == 10
    assert parts(one.steps[0])["data_wait"] == 50


def test_analyse_trace_uses_the_busiest_device(tmp_path: Path):
    events = [step(0, 0, 100), kernel(0, 30, device=1), kernel(0, 50, device=2), kernel(60, 10, device=1)]
    timeline = analyse_timeline(tmp_path, events)
    assert parts(timeline.steps[0])["compute"] == 50
    assert "The numbers are of device 2, the busiest; the trace has 1 other device." in timeline.sentences
    assert [each.name for each in timeline.lanes] == ["device 2 stream 7", "device 1 stream 7"]


def test_analyse_trace_without_step_marks_returns_one_step(tmp_path: Path):
    timeline = analyse_timeline(tmp_path, [host("aten::mm", 100, 40), call(110, 5, 1), kernel(150, 50, 1)])
    assert [one.step for one in timeline.steps] == [0]
    assert timeline.steps[0].seconds == pytest.approx(100e-6)
    assert parts(timeline.steps[0])["launch"] == 40
    assert any("no step marks" in sentence for sentence in timeline.sentences)
    assert any("no forward and backward marks" in sentence for sentence in timeline.sentences)


def test_analyse_trace_counts_only_time_within_steps(tmp_path: Path):
    events = [step(3, 100, 100), step(4, 300, 100), host("aten::mm", 50, 100), host("aten::mm", 500, 100)]
    events += [call(60, 1, 1), kernel(150, 200, 1), kernel(600, 10)]
    report = analyse(tmp_path, events, counted=["aten::mm"])
    timeline = report.timeline
    assert [parts(one)["compute"] for one in timeline.steps] == [50, 50]
    operator = timeline.operators[0]
    assert (operator.calls, operator.total_seconds) == (1, pytest.approx(50e-6))
    assert timeline.kernels[0].calls == 1
    assert timeline.kernels[0].seconds == pytest.approx(100e-6)
    assert report.calls == []  # it started before the step


def test_analyse_trace_recognises_synchronising_calls(tmp_path: Path):
    waiting = ("cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")
    for name in (*waiting, "hipStreamSynchronize", "hipMemcpyWithStream"):
        timeline = analyse_timeline(tmp_path, [step(0, 0, 100), call(10, 20, 0, name=name), kernel(90, 5)])
        assert parts(timeline.steps[0])["synchronisation"] == 20
        assert timeline.device == ("rocm" if name.startswith("hip") else "cuda")
    timeline = analyse_timeline(tmp_path, [step(0, 0, 100), call(10, 20, 0, name="cudaMemcpyAsync"), kernel(90, 5)])
    assert parts(timeline.steps[0])["launch"] == 20
    spans = ((10, 20, "Stream Sync"), (40, 9, "Stream Wait Event"))
    waits = [kernel(start, length, name=name, cat="cuda_sync") for start, length, name in spans]
    assert parts(analyse_timeline(tmp_path, [step(0, 0, 100), kernel(90, 5), *waits]).steps[0])["synchronisation"] == 20


def test_analyse_trace_assigns_graph_kernels_to_launch_and_orphans_to_operator(tmp_path: Path):
    events = [step(0, 0, 100), mark("optimizer", 0, 50), host("graph", 0, 30, External_id=5)]
    events += [call(5, 5, 77, name="cudaGraphLaunch"), kernel(20, 10, 77), kernel(35, 10, 77)]
    lost = kernel(60, 10, 4711)
    lost["args"]["External id"] = 5
    timeline = analyse_timeline(tmp_path, [*events, lost])
    assert timeline.operators[0].name == "graph"
    assert timeline.operators[0].device_seconds == pytest.approx(30e-6)
    assert parts(timeline.steps[0])["optimizer"] == 30


def test_analyse_trace_uses_the_process_with_step_marks(tmp_path: Path):
    other = [{**event, "pid": 200} for event in (host("aten::mm", 0, 90), mark("ProfilerStep#1", 0, 1000))]
    events = [step(1, 0, 100), step(2, 100, 100), host("aten::add", 10, 20), *other, thread_name(100, "main")]
    timeline = analyse_timeline(tmp_path, events)
    assert len(timeline.steps) == 2
    assert [each.name for each in timeline.operators] == ["aten::add"]
    assert [each.name for each in timeline.lanes] == ["process 200 thread 100", "process 100 main"]


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([], "no operator or kernel among 0 events"),
        (
            [{"ph": "X", "cat": "python_function", "name": "f", "ts": 1, "dur": 1}],
            "no operator or kernel among 1 events",
        ),
        ([step(0, 5, 0), host("aten::mm", 0, 10)], "the steps take no time"),
        ([host("aten::mm", 0, 0)], "the steps take no time"),
    ],
)
def test_analyse_trace_rejects_trace_without_work(tmp_path: Path, events: Events, message: str):
    with pytest.raises(DataError, match=message):
        analyse_timeline(tmp_path, events)


times = st.tuples(st.integers(0, 60), st.integers(0, 40))
names = st.sampled_from(["aten::mm", "aten::copy_", "aten::item", "c10d::send", "aten::mm2"])
phases = st.sampled_from(["data", "forward", "backward", "optimizer", "gloo:all_reduce", "else"])
kernels = st.tuples(st.sampled_from(["gemm", "ncclKernel", "relu"]), st.integers(7, 8), st.integers(0, 20))
host_events = st.one_of(
    st.builds(lambda at, name, tid: host(name, *at, tid=tid), times, names, st.integers(100, 102)),
    st.builds(lambda at, name, tid: mark(name, *at, tid=tid), times, phases, st.integers(100, 101)),
)
device_events = st.one_of(
    host_events,
    st.builds(lambda at, made: kernel(*at, made[2], name=made[0], stream=made[1]), times, kernels),
    st.builds(lambda at: kernel(*at, name="Memset", cat="gpu_memset"), times),
)


def count_moments(events: Events, window: tuple[int, int], *, on_device: bool) -> dict[str, float]:
    """Count the parts of a step microsecond by microsecond; zeros are skipped."""

    def cover(cat: str, *names: str, tid: int | None = None) -> set[int]:
        wanted = [event for event in events if event["cat"] == cat and tid in (None, event["tid"])]
        spans = [(event["ts"], event["dur"]) for event in wanted if not names or event["name"] in names]
        return {moment for start, dur in spans for moment in range(start, start + dur)}

    def marks(*names: str) -> set[int]:
        return cover("user_annotation", *names, tid=100)

    sets = {part: set[int]() for part in DEVICE_ORDER}
    sets |= {"data_wait": marks("data"), "host": marks("forward", "backward", "optimizer")}
    in_optimizer, running = marks("optimizer"), []
    if on_device:
        launches = {event["args"]["correlation"]: event["ts"] for event in events if event["cat"] == "cuda_runtime"}
        for event in events:
            if event["cat"] == "kernel":
                part = "optimizer" if launches.get(event["args"]["correlation"]) in in_optimizer else "compute"
                part = "communication" if "nccl" in event["name"] else part
                running.append(set(range(event["ts"], event["ts"] + event["dur"])))
                sets[part] |= running[-1]
        sets["copy"] = cover("gpu_memset")
        sets["synchronisation"] = cover("cpu_op", "aten::item")
        sets["launch"] = cover("cpu_op") | cover("cuda_runtime")
    else:
        for tid in (100, 101, 102):
            talks = cover("cpu_op", "c10d::send", tid=tid) | cover("user_annotation", "gloo:all_reduce", tid=tid)
            outside = cover("cpu_op", tid=tid) - talks
            of_optimizer = outside & in_optimizer if tid == 100 else set()
            moves = (outside - of_optimizer) & cover("cpu_op", "aten::copy_", tid=tid)
            sets["communication"] |= talks
            sets["optimizer"] |= of_optimizer
            sets["copy"] |= moves
            sets["compute"] |= outside - of_optimizer - moves
            running.append(outside | talks)
    step = set(range(*window))
    anything = set().union(*running)
    found = {
        "busy": anything | (sets["copy"] if on_device else set()),
        "kernel_running": anything,
        "communication_total": sets["communication"],
        "overlap": sets["communication"] & (sets["compute"] | sets["optimizer"]),
        "copy_total": sets["copy"],
        "data_wait_total": sets["data_wait"],
        "optimizer_total": in_optimizer,
    }
    left = step
    for part in DEVICE_ORDER if on_device else CPU_ORDER:
        found[part], left = left & sets[part], left - sets[part]
    counts = {name: len(moments & step) for name, moments in found.items()}
    counts |= {"unaccounted": len(left), "kernel": sum(len(each & step) for each in running)}
    return {name: count for name, count in counts.items() if count}


@settings(quick, max_examples=100)
@given(st.booleans(), st.data())
def test_analyse_trace_matches_brute_force_count_in_any_event_order(
    tmp_path: Path, on_device: bool, data: st.DataObject
):
    events = data.draw(st.lists(device_events if on_device else host_events, max_size=25))
    events += [call(3 * number, 2, number + 1) for number in range(20)] if on_device else []
    events += [host("aten::mm", 1, 1), step(1, 0, 37), step(2, 40, 50)]
    events += [kernel(0, 1)] if on_device else []
    operators = [event for event in events if event["cat"] == "cpu_op"]
    for number, event in enumerate(operators):
        event["args"]["External id"] = number + 1
    report = analyse(tmp_path, events, counted=["aten::mm", "aten::item"])
    check_sums(report.timeline)
    windows = [(1_000_000, 1_000_037), (1_000_040, 1_000_090)]
    for one, window in zip(report.timeline.steps, windows, strict=True):
        assert parts(one) == count_moments(events, window, on_device=on_device)
    own = self_time_by_stack(operators, windows)
    for each in report.timeline.operators:
        assert each.self_seconds * 1e6 == pytest.approx(own[each.name])
    data.draw(st.randoms(use_true_random=False)).shuffle(events)
    assert analyse(tmp_path, events, counted=["aten::mm", "aten::item"]) == report


def cut(event: dict[str, Any], start: int, end: int) -> int:
    return max(0, min(event["ts"] + event["dur"], end) - max(event["ts"], start))


def self_time_by_stack(operators: Events, windows: list[tuple[int, int]]) -> dict[str, float]:
    """Return the self time within the windows by operator name."""
    found: dict[str, float] = {}
    order = sorted(operators, key=lambda e: (str(e["tid"]), e["ts"], -e["dur"], e["args"]["External id"]))
    stack: Events = []
    for event in order:
        while stack and (stack[-1]["tid"] != event["tid"] or stack[-1]["ts"] + stack[-1]["dur"] <= event["ts"]):
            stack.pop()
        inside = sum(cut(event, *window) for window in windows)
        found[event["name"]] = found.get(event["name"], 0) + inside
        if stack:
            caller = stack[-1]
            size = min(event["ts"] + event["dur"], caller["ts"] + caller["dur"]) - event["ts"]
            shared = sum(cut({**event, "dur": size}, *window) for window in windows)
            found[caller["name"]] -= shared
        stack.append(event)
    return found


def test_analyse_trace_matches_brute_force_count_on_real_v100_trace():
    path = real_data("profilers/kineto/resnet50_v100_num_workers_0.pt.trace.json.gz")
    events = json.loads(zlib.decompress(path.read_bytes(), 31))["traceEvents"]
    events = [event for event in events if event.get("ph") == "X"]
    timeline = analyse_trace(path).timeline
    marks = [event for event in events if event["name"].startswith("ProfilerStep#")]
    windows = [(event["ts"], event["ts"] + event["dur"]) for event in marks]
    kernels = [event for event in events if event["cat"] == "Kernel"]
    for one, window in zip(timeline.steps, windows, strict=True):
        assert one.kernel_seconds == pytest.approx(sum(cut(event, *window) for event in kernels) / 1e6, rel=1e-6)
    check_sums(timeline)
    operators = [event for event in events if event["cat"] == "Operator" and "#" not in event["name"]]
    own = self_time_by_stack(operators, windows)
    for operator in timeline.operators:
        assert operator.self_seconds == pytest.approx(own[operator.name] / 1e6, rel=1e-6, abs=1e-12)
    assert [one.step for one in timeline.steps] == [5, 6, 7, 8, 9, 10]
    assert timeline.operators[0].name == "aten::cudnn_convolution_backward_weight"
    assert 0.54 < timeline.compute_utilisation < 0.56
