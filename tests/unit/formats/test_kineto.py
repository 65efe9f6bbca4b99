"""Tests of reading traces: all layouts give the same columns, damaged files give one error."""

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.builders.damage import real_data
from support.builders.traces import document, host, kernel, small_trace, write_trace
from trainstone.errors import DataError
from trainstone.formats import kineto
from trainstone.formats.kineto import Kind, Lane, Trace, read_trace

TRICKY = 'a"},{"b\\": },\n{ "traceEvents": [ ] } ✓ 😀 \u202e'
EVENTS = [*small_trace(), host(TRICKY, 1, 2)]
COLUMNS = ("start_ns", "duration_ns", "kind", "lane", "name", "correlation", "external", "dims")


def rows(trace: Trace) -> list[tuple[Any, ...]]:
    """Return rows with names, lanes and shapes instead of indexes."""
    columns = {name: getattr(trace, name).tolist() for name in COLUMNS}
    for column, table in (("lane", trace.lanes), ("name", trace.names), ("dims", trace.shapes)):
        columns[column] = [table[number] for number in columns[column]]
    return list(zip(*columns.values(), strict=True))


def read_text(folder: Path, text: str | bytes, piece_bytes: int = 1 << 22) -> Trace:
    path = folder / "trace.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_trace(path, piece_bytes=piece_bytes)


def read_error(folder: Path, text: str | bytes, piece_bytes: int = 1 << 22) -> str:
    with pytest.raises(DataError, match=r"trace\.json.*byte") as caught:
        read_text(folder, text, piece_bytes)
    return caught.value.message


def test_read_trace_returns_columns_of_known_kinds(tmp_path: Path):
    events = [
        host("aten::mm", 0.25, 10.125, External_id=7, Input_Dims=[[2, 3], [3, 4], []]),
        kernel(5, 2, 42, name="gemm", stream=20, device=1),
        {"ph": "X", "cat": "python_function", "name": "skipped", "pid": 1, "tid": 1, "ts": 1, "dur": 1},
    ]
    trace = read_trace(write_trace(tmp_path / "t.json", events))
    assert rows(trace) == [
        (250, 10_125, Kind.OPERATOR, Lane("100", "100", None), "aten::mm", -1, 7, ((2, 3), (3, 4), ())),
        (5000, 2000, Kind.KERNEL, Lane("1", "20", "1"), "gemm", 42, 0, ()),
    ]
    assert (trace.rank, trace.num_events) == (3, 3)


PLAIN = json.dumps(document(EVENTS)).encode()
SPACED = json.dumps(document(EVENTS), indent=1).replace("\n", " \r\n\t ").encode()
AROUND = {"a": [{}, {"b": TRICKY}, {}] * 50, "distributedInfo": {"rank": 3}, "traceName": TRICKY}
LAYOUTS = {
    "indented": json.dumps(document(EVENTS), indent=4).encode(),
    "compact": json.dumps(document(EVENTS), separators=(",", ":")).encode(),
    "sorted, UTF-8": json.dumps(document(EVENTS), sort_keys=True, ensure_ascii=False).encode(),
    "byte order mark and white space": b"\xef\xbb\xbf\n" + SPACED + b"\n\n",
    "gzip": gzip.compress(PLAIN),
    "gzip in members, padded": gzip.compress(SPACED[:500]) + gzip.compress(SPACED[500:]) + b"\0" * 100,
    "keys after the list": b'{"traceEvents": ' + json.dumps(EVENTS).encode() + b"," + json.dumps(AROUND).encode()[1:],
    **{f"bare list, end {end!r}": (json.dumps(EVENTS)[:-1] + end).encode() for end in ("]", "]\n", "", ",", " ,\n")},
}


@pytest.mark.parametrize("piece_bytes", [64, 1000, 1 << 22])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_read_trace_returns_same_rows_for_all_layouts_and_piece_sizes(tmp_path: Path, layout: str, piece_bytes: int):
    plain = rows(read_text(tmp_path, PLAIN))
    assert len(plain) == 41
    trace = read_text(tmp_path, LAYOUTS[layout], piece_bytes)
    assert rows(trace) == plain
    assert trace.rank == (None if layout.startswith("bare") else 3)


def test_read_trace_ignores_nested_event_lists(tmp_path: Path):
    inner = {"traceEvents": [host("wrong", 0, 1)]}
    around = {"one": inner, 'x"traceEvents': [1], "text": '"traceEvents": [', "list": [inner, inner]}
    trace = read_text(tmp_path, json.dumps({**around, "traceEvents": [host("right", 0, 1)]}))
    assert trace.names == ["right"]
    assert 'the list "traceEvents" is missing' in read_error(tmp_path, json.dumps(around))


def test_read_trace_ignores_borders_in_strings_and_nested_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """34 of 100,000 possible borders are real; text is not decoded repeatedly."""
    decoded = []
    monkeypatch.setattr(
        kineto._TraceReader,
        "_take",
        lambda *given, take=kineto._TraceReader._take, **more: decoded.append(len(given[1])) or take(*given, **more),
    )
    events = [host("},{" * 5000 + str(number), number, 1) for number in range(30)]
    events += [host(f"op {number}", number, 1, list=[{"a": {}}, {"b": "]}"}] * 10_000) for number in range(4)]
    text = json.dumps(document(events))
    trace = read_text(tmp_path, text, 50_000)
    assert trace.names == [event["name"] for event in events]
    assert sum(decoded) < 10 * len(text)


def test_read_trace_keeps_nanoseconds_of_large_times(tmp_path: Path):
    """A float64 has a resolution of 0.25 microseconds at 1695835542513910.123."""
    event = '{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":{},"dur":{}}}'
    for base, dur in (("1695835542513910", "1.001"), ("3981250860138", "754599.057")):
        events = [event.format(f"{base}.{part:03d}", dur) for part in range(0, 1000, 37)]
        trace = read_text(tmp_path, f"[{','.join(events)}]")
        assert trace.start_ns.tolist() == list(range(0, 1000, 37))
        assert set(trace.duration_ns.tolist()) == {round(float(dur) * 1000)}
    whole = [event.format(1695835542513910 + number, 2) for number in range(9)]
    assert read_text(tmp_path, f"[{','.join(whole)}]").start_ns.tolist() == list(range(0, 9000, 1000))


def test_read_trace_repairs_non_finite_numbers_and_invalid_utf8(tmp_path: Path):
    """Some versions of Kineto write inf, nan and invalid UTF-8."""
    text = json.dumps(document([host("one", 0, 1, bandwidth="@"), host("two", 1, 1, list=["@", "@"]), host("é", 2, 1)]))
    broken = text.replace('"@"', "-inf", 1).replace('"@"', "nan").encode().replace(rb"\u00e9", b"\xe9")
    trace = read_text(tmp_path, broken)
    assert trace.names == ["one", "two", "?"]
    assert rows(read_text(tmp_path, broken, 64)) == rows(trace)


def test_read_trace_accepts_unusual_field_types(tmp_path: Path):
    odd = {"correlation": "7a", "External id": [1], "external id": 2**70, "device": {}, "name": 4, "Input Dims": "x"}
    device = {"ph": "X", "cat": "kernel", "name": "k", "ts": 5, "dur": -3}
    events = [
        *({**device, "pid": 0, "tid": tid, "args": odd} for tid in ("stream 7", 7, 7.0, "7")),
        {"ph": "X", "cat": "cpu_op", "name": "o", "pid": 1.0, "tid": None, "ts": 6, "args": None},
        {"ph": "X", "cat": "cpu_op", "name": "p", "ts": 7, "dur": None, "args": {"Input Dims": [[[1], [2]], [3], 4]}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 5, "args": {"name": {}}},
        {"cat": None},
        {},
    ]
    trace = read_text(tmp_path, json.dumps(events))
    assert trace.duration_ns.tolist() == [0] * 6
    assert trace.correlation.tolist() == trace.external.tolist() == [-1] * 6
    assert trace.lanes == [Lane("0", "7", "0"), Lane("1", "None", None), Lane("None", "None", None)]
    assert trace.shapes[trace.dims[5]] == ((), (3,), ())
    assert trace.num_events == 9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        (" \n ", "empty"),
        ("42", "not a trace: starts with '42'; expected { or ["),
        ("\x1b[31mhello", "'\\x1b[31mhe"),
        ("{", "the trace is truncated"),
        ("{}", 'the list "traceEvents" is missing'),
        ('{"traceEvents": 5}', 'the list "traceEvents" is missing'),
        ('{"traceEvents": ["x"]}', "byte 17: event 0: Expected object, got str"),
        ('{"traceEvents": [{}, {"ts": "5"}]}', "event 1: ts: Expected int | float | null, got str"),
        ('{"a" "b", "traceEvents": []}', "invalid JSON"),
        ('[{"ph": "X"}, {"ph" "X"}, {}]', "invalid JSON"),
        ('[{"ph": "X"}, {]', "invalid JSON"),
        ("[1, 2", "event 0: Expected object, got int"),
        ('[{"ph":"X","cat":"kernel","name":"k"}]', "event 0: the time (ts) is missing"),
        ('[{"ph":"X","cat":"kernel","ts":1e300}]', "event 0: ts: Expected float <= 4503599627370496.0"),
        ('[{}, {"ph":"X","cat":"kernel","ts":0,"dur":1e300}]', "event 1: dur: Expected float <= "),
        ('[{"ph":"X","cat":"kernel","ts":1' + "0" * 400 + "}]", "event 0: ts: "),
        ('[{"ts":1e999}]', "Number out of range"),
        ("[{}] x", "invalid JSON"),
        ('{"traceEvents": [{}]} x', "invalid JSON"),
        ('{"traceEvents": [{}]', "truncated after 1 complete events"),
        ('{"traceEvents": [{}, {"name": "a', "truncated after 1 complete events"),
        ('{"traceEvents": [{}], "x": [', "truncated"),
        ('[{}, {}, {"name": "a', "truncated after 2 complete events"),
        ('[{"x": ' + "[" * 5000 + "]" * 5000 + "}]", "nested too deeply"),
        ('{"x": ' + "[" * 5000, "invalid JSON"),
        (gzip.compress(PLAIN)[:-400], "the gzip file is truncated"),
        (gzip.compress(PLAIN)[:-4], "the gzip file is truncated"),
        (gzip.compress(PLAIN)[:-6] + b"x" * 6, "damaged gzip"),
        (b"\x1f\x8b" + b"x" * 50, "damaged gzip"),
    ],
)
@pytest.mark.parametrize("piece_bytes", [7, 1 << 22])
def test_read_trace_rejects_damaged_file(tmp_path: Path, text: str | bytes, message: str, piece_bytes: int):
    assert message in read_error(tmp_path, text, piece_bytes)


def test_read_trace_rejects_bombs_and_huge_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kineto, "FREE_BYTES", 1 << 20)
    assert "more than 500 times its size" in read_error(tmp_path, gzip.compress(b"[" + b"{}," * 3_000_000))
    monkeypatch.setattr(kineto, "MAX_BYTES", 1 << 20)
    for before, what in (('[{"a": "', "event"), ('{"a": "', "head"), ("[]", "event"), (" ", "white space")):
        assert f"no {what} ends within 1 MiB" in read_error(tmp_path, before + " " * 2_000_000, 1 << 18)


@pytest.mark.parametrize("name", ["alexnet_a100_trace.json.gz", "resnet50_v100_num_workers_0.pt.trace.json.gz"])
def test_read_trace_matches_json_on_real_traces(name: str):
    path = real_data(f"profilers/kineto/{name}")
    events = json.loads(zlib.decompress(path.read_bytes(), 31))["traceEvents"]
    kernels = [event for event in events if event.get("cat") in ("kernel", "Kernel")]
    trace = read_trace(path, piece_bytes=100_000)
    assert trace.num_events == len(events)
    found = trace.kind == Kind.KERNEL
    assert np.count_nonzero(found) == len(kernels)
    assert trace.duration_ns[found].sum() == sum(event["dur"] for event in kernels) * 1000
    assert trace.correlation[found].tolist() == [event["args"]["correlation"] for event in kernels]
    first = kernels[0]["ts"] - int(trace.start_ns[found][0]) // 1000
    assert (trace.start_ns[found] // 1000 + first).tolist() == [event["ts"] for event in kernels]
