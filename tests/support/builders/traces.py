"""Generated torch.profiler traces with known results."""

import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]
HOST = 100
BASE_US = 1_000_000


def event(name: str, cat: str, pid: int, tid: int, start: float, dur: float, args: dict[str, Any]) -> Event:
    """Return an event; times are microseconds since the start of the trace."""
    known = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid}
    return known | {"ts": BASE_US + start, "dur": dur, "args": args}


def host(name: str, start: float, dur: float, *, cat: str = "cpu_op", tid: int = HOST, **args: Any) -> Event:
    """Return an operator of a thread, or with another `cat` a mark or call."""
    named = {key.replace("_", " "): value for key, value in args.items()}
    return event(name, cat, HOST, tid, start, dur, named)


def mark(name: str, start: float, dur: float, *, tid: int = HOST) -> Event:
    return host(name, start, dur, cat="user_annotation", tid=tid)


def step(number: int, start: float, dur: float) -> Event:
    return mark(f"ProfilerStep#{number}", start, dur)


def call(start: float, dur: float, correlation: int, *, name: str = "cudaLaunchKernel", tid: int = HOST) -> Event:
    return host(name, start, dur, cat="cuda_runtime", tid=tid, correlation=correlation)


def kernel(
    start: float, dur: float, correlation: int = 0, *, name="gemm", cat="kernel", stream: int = 7, device: int = 0
) -> Event:
    """Return a kernel, or with another `cat` a copy."""
    args = {"device": device, "stream": stream, "correlation": correlation, "External id": 0}
    return event(name, cat, device, stream, start, dur, args)


def thread_name(tid: int, name: str) -> Event:
    return {"ph": "M", "name": "thread_name", "pid": HOST, "tid": tid, "ts": BASE_US, "args": {"name": name}}


def document(events: list[Event]) -> Event:
    head = {"schemaVersion": 1, "deviceProperties": [{"id": 0}, {"id": 1}], "distributedInfo": {"rank": 3}}
    return {**head, "traceEvents": events, "traceName": "made.json"}


def write_trace(path: Path, events: list[Event]) -> Path:
    path.write_text(json.dumps(document(events)))
    return path


def small_trace() -> list[Event]:
    """Return two steps on a device with every kind of event: marks, nesting, launches, copies, waits, communication."""
    events: list[Event] = [thread_name(HOST, "thread 100 (python)")]
    for number in range(2):
        at = 1000.0 * number
        shapes = [[8, 3, 32, 32], [16, 3, 3, 3], []]
        events += [
            step(number + 5, at, 990),
            mark("data", at + 10, 90),
            mark("forward", at + 100, 300),
            mark("backward", at + 400, 300),
            mark("optimizer", at + 700, 200),
            mark("Optimizer.step#SGD.step", at + 710, 180),
            host("aten::conv2d", at + 110, 200, External_id=number * 9 + 1, Input_Dims=shapes),
            host("aten::convolution", at + 120, 180, External_id=number * 9 + 2, Input_Dims=shapes),
            call(at + 130, 20, number * 9 + 1),
            host("aten::item", at + 320, 60, External_id=number * 9 + 3),
            call(at + 330, 40, 0, name="cudaStreamSynchronize"),
            host("aten::convolution_backward", at + 410, 100, tid=101, External_id=number * 9 + 4),
            call(at + 420, 20, number * 9 + 2, tid=101),
            host("aten::_foreach_add_", at + 720, 50, External_id=number * 9 + 5),
            call(at + 730, 10, number * 9 + 3),
            kernel(at + 160, 150, number * 9 + 1, name="void conv_fprop<float>({lambda()#1}, char*)"),
            kernel(at + 450, 200, number * 9 + 2, name="wgrad"),
            kernel(at + 600, 100, name="ncclDevKernel_AllReduce_Sum", stream=20),
            kernel(at + 750, 60, number * 9 + 3, name="multi_tensor_apply"),
            kernel(at + 20, 30, name="Memcpy HtoD", cat="gpu_memcpy"),
            {"ph": "s", "id": 1, "pid": HOST, "tid": HOST, "ts": at, "cat": "ac2g", "name": "ac2g"},
            {"ph": "i", "s": "g", "name": "[memory]", "pid": "", "tid": "", "ts": at},
        ]
    return events
