"""Read traces of torch.profiler (Kineto) or others in Chrome's trace format as a stream, into columns.

The events, `{... "traceEvents": [ ... ] ...}` or a bare `[ ...`, are decoded in batches. A batch ends at what looks
like a border between two events (`},{`). If the batch does not parse, the border was inside a string or a nested
list, and counting brackets finds a real one. trace/breakdown.py interprets the events.
"""

import gzip
import os
import re
import zlib
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from trainstone.errors import DataError
from trainstone.text import printable

Ints = npt.NDArray[np.int64]
Shapes = tuple[tuple[int, ...], ...]

PIECE_BYTES = 1 << 22
MAX_BYTES = 1 << 26
"""Maximum of one event, and of the text before or after the list."""
MAX_INFLATION = 500
"""Maximum compression ratio: Deflate can reach 1030; traces have 10 to 60."""
FREE_BYTES = 1 << 26
"""Any gzip file may unpack to this size."""
NEAR_BYTES = 1 << 16
"""Length at the end of a piece in which a border is searched first."""
# Up to here float64 microseconds are exact to the nanosecond; larger times are parsed as decimals.
EXACT_MICROSECONDS = 2.0**43
MAX_MICROSECONDS = 2**52
"""Latest time since 1970 (year 2112), so that differences in nanoseconds fit 64 bits."""
MAX_IDENTITY = 2**62
HINT = "record or copy the trace again; a killed program or an interrupted copy leaves an incomplete file"
EVENT_HINT = "record the trace with torch.profiler; times are in microseconds"


class Kind(IntEnum):
    """Kind of an event; SYNC and above are events of a device."""

    OTHER = 0
    OPERATOR = 1
    MARK = 2
    """A named span on the host: ProfilerStep#5, record_function("data")."""
    CALL = 3
    """A call of the driver or runtime: cudaLaunchKernel."""
    SYNC = 4
    """CUPTI's record of a wait."""
    KERNEL = 5
    COPY = 6
    """Memory copy or memset."""


KINDS = {
    "cpu_op": Kind.OPERATOR,
    "operator": Kind.OPERATOR,
    "user_annotation": Kind.MARK,
    "cuda_sync": Kind.SYNC,
    "kernel": Kind.KERNEL,
    "concurrent_kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.COPY,
    "gpu_memset": Kind.COPY,
    "memcpy": Kind.COPY,
    "memset": Kind.COPY,
    "runtime": Kind.CALL,
} | {f"{maker}_{part}": Kind.CALL for maker in ("cuda", "hip", "xpu", "privateuse1") for part in ("runtime", "driver")}


class Lane(NamedTuple):
    """A thread of the host or a stream of a device."""

    process: str
    thread: str
    device: str | None
    """Device number; None for a thread."""


@dataclass(frozen=True)
class Trace:
    """A trace as columns with one row per event of a known kind, unordered, and the tables that they index."""

    start_ns: Ints
    """Relative to a time near the first event."""
    duration_ns: Ints
    kind: npt.NDArray[np.int8]
    """See Kind."""
    lane: npt.NDArray[np.int32]
    name: npt.NDArray[np.int32]
    correlation: Ints
    """Equal for a kernel and the call that launched it; -1 if unknown."""
    external: Ints
    """External id; of two operators with the same times, the outer one has the smaller id. -1 if unknown."""
    dims: npt.NDArray[np.int32]
    names: list[str]
    lanes: list[Lane]
    shapes: list[Shapes]
    """Shapes of an operator's inputs; () if they were not recorded."""
    lane_names: dict[tuple[str, str], str]
    """(process, thread) -> thread name."""
    rank: int | None
    num_events: int
    """All events in the file, of any kind."""

    @cached_property
    def end_ns(self) -> Ints:
        return self.start_ns + self.duration_ns


def read_trace(path: Path, *, piece_bytes: int = PIECE_BYTES) -> Trace:
    """Read a trace, plain or gzip; needs 45 bytes of memory per event, whatever the file's size.

    Events of kind OTHER are only counted. Raises DataError with file and byte for damage, wrong types, a truncated
    trace, or an event of more than 64 MiB.
    """
    reader = _TraceReader(path, piece_bytes)
    with closing(reader.pieces):
        reader.read()
    joined: dict[str, npt.NDArray[Any]] = {}
    for name, columns in reader.columns.items():
        joined[name] = np.concatenate(columns) if columns else np.empty(0, np.int64)
        columns.clear()  # otherwise all columns are in memory twice
    return Trace(
        **joined,
        names=list(reader.names),
        lanes=list(reader.lanes),
        shapes=list(reader.shapes),
        lane_names=reader.lane_names,
        rank=reader.rank,
        num_events=reader.num_events,
    )


_GZIP = b"\x1f\x8b"
_SPACE = b" \t\r\n"
_BORDER = re.compile(rb"\}[ \t\r\n]*+,[ \t\r\n]*+(?=\{)")
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\]"]', re.DOTALL)
_LIST_START = re.compile(rb"[ \t\r\n]*+:[ \t\r\n]*+\[")
# Some versions of Kineto write these although JSON does not allow them; a zero of the same width keeps offsets.
_NON_FINITE = re.compile(rb"(?<=[:\[,\s])-?(?:inf|nan|NaN|Infinity)(?=\s*[,}\]])")
_BYTE_OFFSET = re.compile(r"\(byte (\d+)\)")
_INDEX = re.compile(r"\$\[(\d+)\]")
_NONE = msgspec.Raw(b"")
_Limit = msgspec.Meta(ge=-(MAX_MICROSECONDS // 8), le=MAX_MICROSECONDS)
_Time = Annotated[int, _Limit] | Annotated[float, _Limit] | None


class _Args(msgspec.Struct, gc=False):
    """The fields of an event's `args` that are read; msgspec skips the others."""

    correlation: Any = -1
    external: Any = msgspec.field(default=-1, name="External id")
    old_external: Any = msgspec.field(default=-1, name="external id")
    device: Any = None
    name: Any = None
    dims: msgspec.Raw = msgspec.field(default=_NONE, name="Input Dims")


class _Event(msgspec.Struct, gc=False):
    """An event as in the file; times are in microseconds."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    ts: _Time = None
    dur: _Time = 0
    args: _Args | None = None


class _Envelope(msgspec.Struct):
    distributed: Any = msgspec.field(default=None, name="distributedInfo")


class _ExactTime(msgspec.Struct):
    ts: Decimal | None = None


_EVENTS = msgspec.json.Decoder(list[_Event])
_ENVELOPE = msgspec.json.Decoder(_Envelope)
_EXACT_TIMES = msgspec.json.Decoder(list[_ExactTime])
_NO_ARGS = _Args()


class _Memo(dict[Any, int]):
    def __init__(self, find: Callable[[Any], int]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, key: Any) -> int:
        number = self[key] = self._find(key)
        return number


class _TraceReader:
    """Read a trace once from start to end and collect the columns of a Trace."""

    def __init__(self, path: Path, piece_bytes: int) -> None:
        names = ("start_ns", "duration_ns", "kind", "lane", "name", "correlation", "external", "dims")
        self.columns: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in names}
        self.names = _Memo(lambda _: len(self.names))
        self.lanes: dict[Lane, int] = {}
        self.shapes: dict[Shapes, int] = {(): 0}
        self.lane_names: dict[tuple[str, str], str] = {}
        self.num_events = 0
        self.rank: int | None = None
        self._kinds = _Memo(lambda category: int(KINDS.get((category or "").lower(), Kind.OTHER)))
        self._lane_numbers = _Memo(self._number_lane)
        self._dims = _Memo(lambda written: self.shapes.setdefault(_parse_shapes(written), len(self.shapes)))
        self._base: int | None = None
        self._name = printable(str(path))
        self.pieces = self._read_pieces(path, piece_bytes)
        self._piece_bytes = piece_bytes
        self._text = b""  # read but not yet decoded
        self._offset = 0  # of the first byte of `_text` in the file
        self._list_end: int | None = None  # position in `_text`, once found

    def _read_pieces(self, path: Path, piece_bytes: int) -> Generator[bytes, None, None]:
        """Yield the uncompressed content in pieces; a thread reads the next piece while one is decoded."""
        if path.exists() and not path.is_file():  # opening a pipe would block forever
            raise OSError("not a file")
        with path.open("rb") as file, ThreadPoolExecutor(1) as pool:
            num_bytes, most = 0, float("inf")
            read = file.read
            if file.peek(2)[:2] == _GZIP:
                read = gzip.GzipFile(fileobj=file).read
                most = max(FREE_BYTES, MAX_INFLATION * os.fstat(file.fileno()).st_size)
            coming = pool.submit(read, piece_bytes)
            while piece := coming.result():
                coming = pool.submit(read, piece_bytes)
                num_bytes += len(piece)
                if num_bytes > most:
                    what = f"the gzip file unpacks to more than {MAX_INFLATION} times its size"
                    raise self._build_error(what, hint="if you trust the file, unpack it with gunzip")
                yield piece

    def read(self) -> None:
        bare = self._find_list()
        while self._list_end is None:
            if self._take_batch() or self._read_on("event"):
                continue
            text = b"[" + self._text
            closed = text.rstrip(_SPACE).removesuffix(b",") + b"]"  # Chrome's format allows an unclosed bare list
            if not self._take(text) and not (bare and self._take(closed)):
                raise self._build_json_error(ValueError("truncated"))
            self._list_end = len(self._text) if self._list_end is None else self._list_end
        self._drop(self._list_end)
        while self._read_on("end"):
            pass
        rank = self._read_rank(_repair(b'{"traceEvents":[]' + self._text + (b"}" if bare else b"")))
        self.rank = rank if self.rank is None else self.rank

    def _build_error(self, what: str, hint: str = HINT) -> DataError:
        """Return an error at the current byte of the uncompressed text."""
        return DataError(f"{self._name}, byte {self._offset}: {what}", hint=hint)

    def _build_json_error(self, err: Exception) -> DataError:
        if "truncated" in str(err):
            return self._build_error(f"the trace is truncated after {self.num_events:,} complete events")
        return self._build_error(f"invalid JSON ({err})")

    def _read_on(self, what: str) -> bool:
        """Read on until the text has at least doubled; return whether anything was read."""
        begin, wanted = len(self._text), max(self._piece_bytes, len(self._text))
        try:
            while len(self._text) < begin + wanted and (piece := next(self.pieces, b"")):
                self._text += piece
                if len(self._text) > MAX_BYTES:
                    raise self._build_error(f"no {what} ends within {MAX_BYTES >> 20} MiB")
        except (EOFError, zlib.error, gzip.BadGzipFile) as err:
            what = "the gzip file is truncated" if isinstance(err, EOFError) else f"damaged gzip ({err})"
            raise self._build_error(what) from err
        except (OSError, ValueError) as err:
            reason = getattr(err, "strerror", None) or str(err)
            raise DataError(f"cannot read {self._name}: {reason}", hint="check the path and its permissions") from err
        return len(self._text) > begin

    def _drop(self, size: int) -> None:
        self._text = self._text[size:]
        self._offset += size

    def _find_list(self) -> bool:
        """Read up to the first event; return whether the file is a bare list."""
        while not (start := self._text.removeprefix(b"\xef\xbb\xbf").lstrip(_SPACE)) and self._read_on("white space"):
            pass
        self._drop(len(self._text) - len(start))
        if start.startswith(b"["):
            self._drop(1)
            return True
        if not start.startswith(b"{"):
            seen = printable(start[:20].decode("utf-8", "replace"))
            raise self._build_error(
                f"not a trace: starts with '{seen}'; expected {{ or [" if seen else "the file is empty"
            )
        while (key := _find_key(self._text)) is None:
            if not self._read_on("head"):
                break
        head = self._text if key is None else self._text[: key[0]] + b'"traceEvents":[]}'
        self.rank = self._read_rank(head)
        if key is None:
            raise self._build_error('the list "traceEvents" is missing')
        self._drop(key[1])
        return False

    def _read_rank(self, envelope: bytes) -> int | None:
        try:
            stated = _ENVELOPE.decode(envelope).distributed
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as err:
            raise self._build_json_error(err) from err
        rank = stated.get("rank") if isinstance(stated, dict) else None
        return rank if type(rank) is int and 0 <= rank < 1 << 31 else None

    def _take_batch(self) -> bool:
        """Decode all events up to the last border; return whether there is one."""
        for border in _find_borders(self._text):
            if self._take(b"[" + self._text[: border.start() + 1] + b"]"):
                if self._list_end is None:
                    self._drop(border.end())
                return True
        return False

    def _take(self, text: bytes, repaired: bool = False) -> bool:
        """Decode the events of a list; return whether it is closed. If text follows the list, remember its end."""
        try:
            events = _EVENTS.decode(text)
        except msgspec.ValidationError as err:
            found = _INDEX.search(str(err))
            what, _, where = str(err).replace("`", "").partition(" - at ")
            number, field = self.num_events + int(found[1] if found else 0), where.partition(".")[2]
            what = f"event {number:,}: {field}: {what}" if field else f"event {number:,}: {what}"
            raise self._build_error(what, hint=EVENT_HINT) from err
        except RecursionError as err:
            raise self._build_error("nested too deeply") from err
        except (msgspec.DecodeError, UnicodeDecodeError) as err:
            found = _BYTE_OFFSET.search(str(err))
            index = int(found[1]) - 1 if found else len(text)
            if "trailing characters" in str(err):
                self._list_end = index - 1
                return self._take(text[:index], repaired)
            # A failure at the bracket that the caller added: not a border.
            if type(err) is msgspec.DecodeError and index >= len(text) - 1:
                return False
            if not repaired:
                return self._take(_repair(text), repaired=True)
            raise self._build_json_error(err) from err
        self._add(events, text)
        self.num_events += len(events)
        return True

    def _add(self, found: list[_Event], text: bytes) -> None:
        """Add the events of known kinds to the columns."""
        kinds, names, dims, lanes = self._kinds, self.names, self._dims, self._lane_numbers
        indexes = []
        for index, event in enumerate(found):
            if event.ph == "X" and kinds[event.cat]:
                indexes.append(index)
                if event.ts is None:
                    raise self._build_error(f"event {self.num_events + index:,}: the time (ts) is missing", EVENT_HINT)
            elif event.ph == "M" and event.name == "thread_name" and event.args and isinstance(event.args.name, str):
                self.lane_names[_format_id(event.pid), _format_id(event.tid)] = event.args.name.strip()
        if not indexes:
            return
        events = [found[index] for index in indexes]
        args = [event.args or _NO_ARGS for event in events]
        kind = [kinds[event.cat] for event in events]
        lane = [
            lanes[event.pid, event.tid, None]
            if number < Kind.SYNC
            else lanes[event.pid, event.tid, each.device if isinstance(each.device, int | str) else event.pid]
            for event, each, number in zip(events, args, kind, strict=True)
        ]
        start = np.array([event.ts for event in events], np.float64)
        if self._base is None:
            self._base = int(start[0])
        since = start - self._base
        if np.abs(start).max() >= EXACT_MICROSECONDS and any(type(event.ts) is float for event in events):
            exact = _EXACT_TIMES.decode(text)
            since = np.array([float((exact[index].ts or 0) - self._base) for index in indexes])
        # None becomes NaN; unfinished events are negative.
        duration = np.array([event.dur for event in events], np.float64)
        external = _read_identities([each.external for each in args])
        row: dict[str, npt.NDArray[Any]] = {
            "start_ns": np.rint(since * 1000).astype(np.int64),
            "duration_ns": np.rint(np.nan_to_num(duration).clip(min=0) * 1000).astype(np.int64),
            "kind": np.array(kind, np.int8),
            "lane": np.array(lane, np.int32),
            "name": np.array([names[event.name] for event in events], np.int32),
            "correlation": _read_identities([each.correlation for each in args]),
            "external": np.maximum(external, _read_identities([each.old_external for each in args])),
            "dims": np.array([dims[bytes(each.dims)] for each in args], np.int32),
        }
        for name, piece in row.items():
            self.columns[name].append(piece)

    def _number_lane(self, key: tuple[Any, Any, Any]) -> int:
        pid, tid, device = key
        lane = Lane(_format_id(pid), _format_id(tid), None if device is None else _format_id(device))
        return self.lanes.setdefault(lane, len(self.lanes))


def _walk(text: bytes) -> Iterator[tuple[int, re.Match[bytes]]]:
    """Yield each string and bracket with the depth after it, up to an unclosed string."""
    depth = 0
    for token in _TOKEN.finditer(text):
        what = token[0]
        if what == b'"':
            return
        if what in (b"{", b"["):
            depth += 1
        elif what in (b"}", b"]"):
            depth -= 1
        yield depth, token


def _find_borders(text: bytes) -> Iterator[re.Match[bytes]]:
    """Yield the last likely border near the end, then the last real one, found by counting brackets."""
    yield from [*_BORDER.finditer(text, max(0, len(text) - NEAR_BYTES))][-1:]
    last = None
    for depth, token in _walk(text):
        if depth < 0:  # the end of the list
            break
        if depth == 0 and token[0] == b"}":
            last = _BORDER.match(text, token.start()) or last
    if last:
        yield last


def _find_key(text: bytes) -> tuple[int, int] | None:
    """Return the positions of the key "traceEvents" and of its first event; None if missing."""
    for depth, token in _walk(text):
        if depth == 1 and token[0] == b'"traceEvents"' and (start := _LIST_START.match(text, token.end())):
            return token.start(), start.end()
        if depth == 0:
            break
    return None


def _repair(text: bytes) -> bytes:
    """Replace known invalid output of Kineto: bytes that are not UTF-8, inf and nan."""
    text = text.decode("utf-8", "surrogateescape").encode("utf-8", "replace")
    return _NON_FINITE.sub(lambda found: b"0".rjust(len(found[0])), text)


def _format_id(written: object) -> str:
    """Return the id of a process, thread or device as text: "7" for 7, 7.0, "7" and "stream 7"."""
    if isinstance(written, float) and written.is_integer():
        written = int(written)
    return str(written).strip().removeprefix("stream ")


def _read_identities(written: list[Any]) -> Ints:
    """Return ids as integers, -1 for invalid ones."""
    try:
        found = np.array(written, np.int64)
        if found.ndim == 1:
            return found
    except (TypeError, ValueError, OverflowError):
        pass
    return np.array([each if type(each) is int and 0 <= each < MAX_IDENTITY else -1 for each in written], np.int64)


def _parse_shapes(written: bytes) -> Shapes:
    """Return the shapes of inputs; () for inputs that are not a tensor and for lists of tensors."""
    try:
        inputs = msgspec.json.decode(written, type=list[Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ()
    return tuple(
        tuple(sizes) if isinstance(sizes, list) and all(type(size) is int for size in sizes) else () for sizes in inputs
    )
