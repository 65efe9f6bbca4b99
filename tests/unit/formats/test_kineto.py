"""Reading traces: every layout gives the same columns, damage gives one clear error."""

import gzip
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from damage import damaged, quick, read_damaged, real_data
from made_traces import document, host, kernel, mark, small_trace, write_trace
from trainstone.errors import DataError
from trainstone.formats import eventlist, inflate
from trainstone.formats.borders import find_last_border, likely_borders
from trainstone.formats.eventcolumns import Kind, Lane, tell
from trainstone.formats.kineto import Trace, read_trace

TRICKY = 'a"},{"b\\": },\n{ "traceEvents": [ ] } ✓ \ud83d\ude00 \u202e'


def rows(trace: Trace) -> list[tuple[Any, ...]]:
    """What was read, with the tables looked up."""
    return [
        (
            int(start),
            int(duration),
            int(kind),
            trace.lanes[lane],
            trace.names[name],
            int(correlation),
            int(external),
            trace.shapes[dims],
        )
        for start, duration, kind, lane, name, correlation, external, dims in zip(
            trace.start_ns,
            trace.duration_ns,
            trace.kind,
            trace.lane,
            trace.name,
            trace.correlation,
            trace.external,
            trace.dims,
            strict=True,
        )
    ]


def read_text(tmp_path: Path, text: str | bytes, piece_bytes: int = 1 << 22) -> Trace:
    path = tmp_path / "trace.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_trace(path, piece_bytes=piece_bytes)


def refuse(tmp_path: Path, text: str | bytes, piece_bytes: int = 1 << 22) -> str:
    with pytest.raises(DataError) as caught:
        read_text(tmp_path, text, piece_bytes)
    assert "trace.json" in caught.value.message
    return caught.value.message


def test_the_columns_hold_what_the_file_says(tmp_path: Path):
    events = [
        host("aten::mm", 0.25, 10.125, External_id=7, Input_Dims=[[2, 3], [3, 4], []]),
        kernel(5, 2, 42, name="gemm", stream=20, device=1),
        {"ph": "X", "cat": "python_function", "name": "left out", "pid": 1, "tid": 1, "ts": 1, "dur": 1},
    ]
    trace = read_trace(write_trace(tmp_path / "t.json", events))
    assert rows(trace) == [
        (250, 10_125, Kind.OPERATOR, Lane("100", "100", None), "aten::mm", -1, 7, ((2, 3), (3, 4), ())),
        (5000, 2000, Kind.KERNEL, Lane("1", "20", "1"), "gemm", 42, 0, ()),
    ]
    assert (trace.rank, trace.num_events, trace.num_unpaired) == (3, 3, 0)


@pytest.mark.parametrize("piece_bytes", [64, 1000, 1 << 22])
@pytest.mark.parametrize(
    "layout",
    [{}, {"indent": 4}, {"indent": "\t"}, {"separators": (",", ":")}, {"sort_keys": True}, {"ensure_ascii": False}],
    ids=str,
)
def test_layout_and_pieces_do_not_matter(tmp_path: Path, layout: dict[str, Any], piece_bytes: int):
    events = [*small_trace(), host(TRICKY.encode("utf-16", "surrogatepass").decode("utf-16"), 1, 2)]
    plain = rows(read_trace(write_trace(tmp_path / "plain.json", events)))
    assert len(plain) == 41
    for packed in (False, True):
        path = write_trace(tmp_path / "other", events, packed=packed, **layout)
        assert rows(read_trace(path, piece_bytes=piece_bytes)) == plain


def test_other_white_space_a_mark_of_utf8_and_many_gzip_members(tmp_path: Path):
    events = small_trace()
    plain = rows(read_trace(write_trace(tmp_path / "plain.json", events)))
    text = json.dumps(document(events), indent=1).replace("\n", " \r\n\t ").encode()
    path = tmp_path / "x"
    path.write_bytes(b"\xef\xbb\xbf\n" + text + b"\n\n")
    assert rows(read_trace(path, piece_bytes=100)) == plain
    path.write_bytes(gzip.compress(text[:500]) + gzip.compress(text[500:]) + b"\0" * 100)
    assert rows(read_trace(path, piece_bytes=100)) == plain


@pytest.mark.parametrize("end", ["]", "]\n", "", ",", " ,\n"])
def test_a_bare_list_may_be_left_open(tmp_path: Path, end: str):
    events = small_trace()
    plain = rows(read_trace(write_trace(tmp_path / "plain.json", events)))
    for piece_bytes in (64, 1 << 22):
        trace = read_text(tmp_path, json.dumps(events)[:-1] + end, piece_bytes)
        assert rows(trace) == plain
        assert trace.rank is None


def test_keys_may_stand_behind_the_list_and_hold_anything(tmp_path: Path):
    events = small_trace()
    around = {"a": [{}, {"b": TRICKY}, {}] * 50, "distributedInfo": {"rank": 2}, "traceName": TRICKY}
    text = '{"traceEvents": ' + json.dumps(events) + "," + json.dumps(around)[1:]
    for piece_bytes in (64, 1 << 22):
        trace = read_text(tmp_path, text, piece_bytes)
        assert trace.rank == 2
        assert len(trace.kind) == 40


def test_the_list_is_found_only_at_the_top(tmp_path: Path):
    inner = {"traceEvents": [host("wrong", 0, 1)]}
    around = {"one": inner, 'x"traceEvents': [1], "text": '"traceEvents": [', "list": [inner, inner]}
    trace = read_text(tmp_path, json.dumps({**around, "traceEvents": [host("right", 0, 1)]}))
    assert trace.names == ["right"]
    assert 'no list "traceEvents"' in refuse(tmp_path, json.dumps(around))
    assert 'no list "traceEvents"' in refuse(tmp_path, json.dumps({"x": [inner] * 200}))
    assert "second list" in refuse(tmp_path, '{"traceEvents": [], "traceEvents": [{}]}')


def test_strings_full_of_borders_are_left_behind_quickly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    events = [host("},{" * 5000 + str(number), number, 1) for number in range(30)]
    events += [host("nested", 99, 1, list=[{"a": {}}, {"b": []}] * 2000)]
    decoded = []
    monkeypatch.setattr(
        eventlist, "likely_borders", lambda text: (decoded.append(1) or each for each in likely_borders(text))
    )
    trace = read_text(tmp_path, json.dumps(document(events)), 50_000)
    assert len(trace.kind) == 31
    assert len(decoded) < 300


def test_events_full_of_objects_are_told_apart_by_their_brackets(tmp_path: Path):
    """Nearly all that looks like a border is none: of 60,000 places only three are."""
    events = [host(f"op {number}", number, 1, list=[{"a": {}}, {"b": "]}"}] * 10_000) for number in range(4)]
    trace = read_text(tmp_path, json.dumps(document(events)), 100_000)
    assert trace.names == ["op 0", "op 1", "op 2", "op 3"]


def test_brackets_are_counted_outside_of_strings():
    text = rb'{"a": "}, {\"", "b": [{}, {}]} , {"c": {}},{"d": "},{'
    border = find_last_border(text)
    assert border is not None
    assert text[border.end() :] == b'{"d": "},{'
    assert find_last_border(b'{"a": 1}], {"b": {}},{') is None
    assert find_last_border(b"") is None


def test_times_keep_their_nanoseconds_however_large(tmp_path: Path):
    """A float64 holds 1695835542513910.123 only to a quarter of a microsecond."""
    event = '{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":{},"dur":{}}}'
    absolute = [event.format(f"1695835542513910.{part:03d}", "1.001") for part in range(0, 1000, 37)]
    trace = read_text(tmp_path, f"[{','.join(absolute)}]")
    assert trace.start_ns.tolist() == list(range(0, 1000, 37))
    relative = [event.format(f"3981250860138.{part:03d}", "754599.057") for part in range(0, 1000, 37)]
    trace = read_text(tmp_path, f"[{','.join(relative)}]")
    assert trace.start_ns.tolist() == list(range(0, 1000, 37))
    assert set(trace.duration_ns.tolist()) == {754_599_057}
    whole = [event.format(1695835542513910 + number, 2) for number in range(9)]
    assert read_text(tmp_path, f"[{','.join(whole)}]").start_ns.tolist() == list(range(0, 9000, 1000))


def test_begins_and_ends_are_paired_thread_by_thread(tmp_path: Path):
    def half(ph: str, ts: float, tid: int = 1, name: str = "") -> dict[str, Any]:
        return {"ph": ph, "ts": ts, "pid": 1, "tid": tid, **({"name": name, "cat": "cpu_op"} if name else {})}

    events = [
        half("B", 0, name="outer"),
        half("B", 1, name="inner"),
        half("B", 2, 2, name="other"),
        half("E", 5),
        half("E", 7, 2),
        half("E", 9),
        half("E", 10),
        half("B", 11, name="never ends"),
    ]
    trace = read_text(tmp_path, json.dumps(events))
    found = {
        trace.names[name]: (start, dur)
        for name, start, dur in zip(trace.name, trace.start_ns, trace.duration_ns, strict=True)
    }
    base = found["inner"][0]
    assert {name: (start - base, dur) for name, (start, dur) in found.items()} == {
        "outer": (-1000, 9000),
        "inner": (0, 4000),
        "other": (1000, 5000),
    }
    assert trace.num_unpaired == 2


def test_the_same_lane_has_the_same_name_in_old_and_new_traces():
    assert {tell(lane) for lane in (7, 7.0, "7", "stream 7", "stream 7 ")} == {"7"}
    assert tell(None) == "None"


def test_numbers_that_are_none_and_bytes_that_are_no_text_are_mended(tmp_path: Path):
    """Kineto has written inf, nan and broken names; the events are sound otherwise."""
    text = json.dumps(document([host("one", 0, 1, bandwidth="@"), host("two", 1, 1, list=["@", "@"]), host("é", 2, 1)]))
    broken = text.replace('"@"', "-inf", 1).replace('"@"', "nan").encode().replace(rb"\u00e9", b"\xe9")
    trace = read_text(tmp_path, broken)
    assert trace.names == ["one", "two", "?"]
    assert rows(read_text(tmp_path, broken, 64)) == rows(trace)


def test_odd_but_harmless_fields(tmp_path: Path):
    odd = {"correlation": "7a", "External id": [1], "external id": 2**70, "device": {}, "name": 4, "Input Dims": "x"}
    events = [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": "stream 7", "ts": 5, "dur": -3, "args": odd},
        {"ph": "X", "cat": "cpu_op", "name": "o", "pid": 1.0, "tid": None, "ts": 6, "args": None},
        {"ph": "X", "cat": "cpu_op", "name": "p", "ts": 7, "dur": None, "args": {"Input Dims": [[[1], [2]], [3], 4]}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 5, "args": {"name": {}}},
        {"cat": None},
        {},
    ]
    trace = read_text(tmp_path, json.dumps(events))
    assert trace.duration_ns.tolist() == [0, 0, 0]
    assert trace.correlation.tolist() == trace.external.tolist() == [-1, -1, -1]
    assert trace.lanes[trace.lane[0]] == Lane("0", "7", "0")
    assert trace.shapes[trace.dims[2]] == ((), (3,), ())
    assert trace.num_events == 6


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "byte 0: the file is empty"),
        (" \n ", "empty"),
        ("42", "begins with { or [, this file with '42'"),
        ("\x1b[31mhello", "with '\\x1b[31mhe"),
        ("{", "byte 1: the trace is cut off"),
        ("{}", 'no list "traceEvents"'),
        ('{"traceEvents": 5}', 'no list "traceEvents"'),
        ('{"traceEvents": ["x"]}', "byte 17: event 0: Expected object, got str"),
        ('{"traceEvents": [{}, {"ts": "5"}]}', "byte 21: event 1: ts: Expected int | float | null, got str"),
        ('{"a" "b", "traceEvents": []}', "byte 4: this is no JSON"),
        ('[{"ph": "X"}, {"ph" "X"}, {}]', "byte 19: this is no JSON"),
        ('[{"ph": "X"}, {]', "no JSON"),
        ("[1, 2", "event 0: Expected object, got int"),
        ('[{"ph":"X","cat":"kernel","name":"k"}]', "event 0: there is no time (ts)"),
        ('[{"ph":"B","cat":"kernel","name":"k"}]', "event 0: there is no time (ts)"),
        ('[{"ph":"X","cat":"kernel","ts":1e300}]', "event 0: more than 70 years from the others"),
        ('[{}, {"ph":"X","cat":"kernel","ts":0,"dur":1e300}]', "byte 5: event 1: more than 70 years"),
        ('[{"ph":"X","cat":"kernel","ts":1' + "0" * 400 + "}]", "beyond all numbers"),
        ('[{"ts":1e999}]', "Number out of range"),
        ("[{}] x", "byte 5: something stands behind the end"),
        ('{"traceEvents": [{}]} x', "byte 22: this is no JSON"),
        ('{"traceEvents": [{}]', "cut off in the middle; the 1 events before are whole"),
        ('{"traceEvents": [{}, {"name": "a', "cut off in the middle; the 1 events before are whole"),
        ('{"traceEvents": [{}], "x": [', "cut off in the middle"),
        ('[{}, {}, {"name": "a', "cut off in the middle; the 2 events before are whole"),
        ('[{"x": ' + "[" * 5000 + "]" * 5000 + "}]", "nested too deeply"),
        ('{"x": ' + "[" * 5000, "no JSON"),
    ],
)
def test_what_is_no_trace_gets_one_clear_message(tmp_path: Path, text: str, told: str):
    for piece_bytes in (7, 1 << 22):
        message = refuse(tmp_path, text, piece_bytes)
        assert told in message
        assert "byte" in message


def test_a_cut_trace_tells_how_much_is_whole(tmp_path: Path):
    text = json.dumps(document(small_trace()), indent=1).encode()
    assert re.search(r"cut off in the middle; the \d\d events", refuse(tmp_path, text[: len(text) * 2 // 3]))
    packed = gzip.compress(text)
    assert re.search(r"the gzip file is cut off; \d+ events before are whole", refuse(tmp_path, packed[:-400]))
    assert "the gzip file is cut off" in refuse(tmp_path, packed[:-4])
    broken = bytearray(packed)
    broken[-6] ^= 1
    assert "damaged gzip" in refuse(tmp_path, bytes(broken))
    assert "damaged gzip" in refuse(tmp_path, b"\x1f\x8b" + b"x" * 50)


def test_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(inflate, "FREE_BYTES", 1 << 20)
    bomb = gzip.compress(b"[" + b"{}," * 3_000_000)
    assert "unpack to more than 500 times as much" in refuse(tmp_path, bomb)
    monkeypatch.setattr(eventlist, "MAX_BYTES", 1 << 20)
    assert "no event ends within 1 MiB" in refuse(tmp_path, '[{"a": "' + "x" * 2_000_000, 1 << 18)
    assert "no head ends within 1 MiB" in refuse(tmp_path, '{"a": "' + "x" * 2_000_000, 1 << 18)
    assert "within 1 MiB" in refuse(tmp_path, "[]" + " " * 2_000_000, 1 << 18)
    assert "within 1 MiB" in refuse(tmp_path, " " * 2_000_000, 1 << 18)


def test_a_folder_or_nothing_is_no_trace(tmp_path: Path):
    for path in (tmp_path, tmp_path / "none.json", tmp_path / "a\0b"):
        with pytest.raises(DataError, match="cannot read"):
            read_trace(path)


SOUND = json.dumps(document([*small_trace()[:20], mark("data", 1, 2)]), indent=1).encode()


@quick
@given(damaged(SOUND), st.sampled_from([50, 1 << 22]), st.booleans())
def test_damage_gives_columns_or_an_error_with_file_and_byte(
    tmp_path: Path, content: bytes, piece_bytes: int, packed: bool
):
    if packed:
        content = gzip.compress(content)
    read_damaged(tmp_path / "trace.json", content, lambda path: read_trace(path, piece_bytes=piece_bytes))


@quick
@given(damaged(gzip.compress(SOUND)))
def test_damaged_gzip_likewise(tmp_path: Path, content: bytes):
    read_damaged(tmp_path / "trace.json", content, read_trace)


@quick
@given(st.data())
def test_bits_flipped_within_numbers_and_names_likewise(tmp_path: Path, data: st.DataObject):
    content = bytearray(SOUND)
    for _ in range(3):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.sampled_from(b'09-eE+.,:{}[]" \\nt\xff\0'))
    read_damaged(tmp_path / "trace.json", bytes(content), read_trace)


@pytest.mark.parametrize("name", ["alexnet_a100_trace.json.gz", "resnet50_v100_num_workers_0.pt.trace.json.gz"])
def test_real_traces_are_read_as_json_reads_them(name: str):
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
