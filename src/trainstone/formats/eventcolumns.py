"""Events of a trace, batch by batch, into columns of numbers and the tables of names beside them."""

from collections.abc import Sequence
from decimal import Decimal
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from trainstone.formats.eventlist import Args, Batch, Event, EventFile

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Shapes = tuple[tuple[int, ...], ...]


class Kind(IntEnum):
    """What an event is; from SYNC on it is a device's."""

    OTHER = 0
    OPERATOR = 1
    MARK = 2
    """A named span of the host: ProfilerStep#5, record_function("data")."""
    CALL = 3
    """Of the driver or its runtime: cudaLaunchKernel."""
    SYNC = 4
    """CUPTI's own record of a wait."""
    KERNEL = 5
    COPY = 6
    """Memory copied or set."""


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
# A float64 holds the nanoseconds of so many microseconds; beyond, decimals are read digit by digit.
EXACT_MICROSECONDS = 2.0**43
MAX_NS = 2.0**61
MAX_IDENTITY = 2**62


class Lane(NamedTuple):
    """A thread, or a stream of a device."""

    process: str
    thread: str
    device: str | None
    """Number of the device; None for a thread."""


class Numbers(dict[Any, int]):
    """Gives each new key the next number."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


class _Kinds(dict[str | None, int]):
    def __missing__(self, key: str | None) -> int:
        number = self[key] = int(KINDS.get((key or "").lower(), Kind.OTHER))
        return number


class _Lanes(dict[tuple[Any, Any, Any], int]):
    """Numbers of (pid, tid, device) as written; 7, "7" and "stream 7" are the same."""

    def __init__(self) -> None:
        self.known = Numbers()

    def __missing__(self, key: tuple[Any, Any, Any]) -> int:
        pid, tid, device = key
        number = self[key] = self.known[Lane(tell(pid), tell(tid), None if device is None else tell(device))]
        return number


class _Dims(dict[bytes, int]):
    """Numbers of shapes as written; the same shapes with other spaces are the same."""

    def __init__(self) -> None:
        self.known = Numbers({(): 0})
        self[b""] = 0

    def __missing__(self, key: bytes) -> int:
        number = self[key] = self.known[_parse_shapes(key)]
        return number


class _Exact(msgspec.Struct):
    ts: Decimal | None = None


class _Half(NamedTuple):
    """A begin or an end, to be paired when all are known."""

    lane: int
    ts: float
    event: Event


_EXACT = msgspec.json.Decoder(list[_Exact])
_NO_ARGS = Args()


class Columns:
    """Gathers events of known kinds: `rows` holds pieces of the eight columns named in formats/kineto.py."""

    def __init__(self, file: EventFile) -> None:
        self.rows: list[list[npt.NDArray[Any]]] = [[] for _ in range(8)]
        self.names = Numbers()
        self.lanes = _Lanes()
        self.dims = _Dims()
        self.lane_names: dict[tuple[str, str], str] = {}
        self._kinds = _Kinds()
        self._file = file
        self._base: int | None = None
        self._halves: list[_Half] = []

    def add(self, batch: Batch) -> None:
        """Add a batch's events; begins and ends are put aside."""
        kinds = self._kinds
        places = [place for place, event in enumerate(batch.events) if event.ph == "X" and kinds[event.cat]]
        if places:
            self._add_rows(batch, places)
        for place, event in enumerate(batch.events):
            if event.ph == "M":
                self._name_lane(event)
            elif event.ph == "B" or event.ph == "E":
                if event.ts is None:
                    raise self._file.wrong(batch, place, "there is no time (ts)")
                self._halves.append(_Half(self.lanes[event.pid, event.tid, None], event.ts, event))

    def add_pairs(self) -> int:
        """Add what begins and ends apart, the last begun of a thread ending first; return how many have no partner."""
        waiting: dict[int, list[_Half]] = {}
        whole: list[Event] = []
        num_unpaired = 0
        for half in sorted(self._halves, key=lambda half: half.ts):  # equal times stay as they stand in the file
            begun = waiting.setdefault(half.lane, [])
            if half.event.ph == "B":
                begun.append(half)
            elif begun:
                first = begun.pop()
                whole.append(msgspec.structs.replace(first.event, ph="X", dur=half.ts - first.ts))
            else:
                num_unpaired += 1
        places = [place for place, event in enumerate(whole) if self._kinds[event.cat]]
        if places:
            self._add_rows(Batch(whole, b"", 0, 0), places)
        return num_unpaired + sum(map(len, waiting.values()))

    def _add_rows(self, batch: Batch, places: list[int]) -> None:
        events = [batch.events[place] for place in places]
        args = [event.args or _NO_ARGS for event in events]
        kinds, names, dims = self._kinds, self.names, self.dims
        kind = [kinds[event.cat] for event in events]
        new = identities([each.external for each in args])
        old = identities([each.old_external for each in args])
        row: tuple[npt.NDArray[Any], ...] = (
            self._read_starts(batch, places),
            self._read_durations(batch, places),
            np.array(kind, np.int8),
            self._read_lanes(events, args, kind),
            np.array([names[event.name] for event in events], np.int32),
            identities([each.correlation for each in args]),
            np.maximum(new, old),
            np.array([dims[bytes(each.dims)] for each in args], np.int32),
        )
        for pieces, piece in zip(self.rows, row, strict=True):
            pieces.append(piece)

    def _read_lanes(self, events: list[Event], args: list[Args], kind: list[int]) -> npt.NDArray[np.int32]:
        lanes = self.lanes
        found = [
            lanes[event.pid, event.tid, None]
            if number < Kind.SYNC
            else lanes[event.pid, event.tid, each.device if isinstance(each.device, int | str) else event.pid]
            for event, each, number in zip(events, args, kind, strict=True)
        ]
        return np.array(found, np.int32)

    def _read_starts(self, batch: Batch, places: list[int]) -> Ints:
        """Return nanoseconds since the base, a whole microsecond, exactly."""
        written = [batch.events[place].ts for place in places]
        start = self._read_floats(batch, places, written)
        missing = np.isnan(start)
        if missing.any():
            raise self._file.wrong(batch, places[int(missing.argmax())], "there is no time (ts)")
        if self._base is None:
            self._base = int(start[0])
        since = start - self._base
        if batch.text and np.abs(start).max() >= EXACT_MICROSECONDS and any(type(ts) is float for ts in written):
            exact = _EXACT.decode(batch.text)
            since = np.array([float((exact[place].ts or 0) - self._base) for place in places])
        return self._to_ns(batch, places, since)

    def _read_durations(self, batch: Batch, places: list[int]) -> Ints:
        duration = self._read_floats(batch, places, [batch.events[place].dur for place in places])
        return self._to_ns(batch, places, np.nan_to_num(duration).clip(min=0))  # some unfinished ones are negative

    def _read_floats(self, batch: Batch, places: list[int], values: Sequence[float | None]) -> Floats:
        try:
            return np.array(values, np.float64)  # None becomes nan
        except OverflowError as err:
            raise self._file.wrong(batch, places[0], "here or later a time is beyond all numbers") from err

    def _to_ns(self, batch: Batch, places: list[int], microseconds: Floats) -> Ints:
        nanoseconds = np.rint(microseconds * 1000)
        beyond = np.abs(nanoseconds) >= MAX_NS
        if beyond.any():
            raise self._file.wrong(batch, places[int(beyond.argmax())], "more than 70 years from the others")
        return nanoseconds.astype(np.int64)

    def _name_lane(self, event: Event) -> None:
        if event.name != "thread_name" or event.args is None:
            return
        try:
            name = msgspec.json.decode(bytes(event.args.name), type=str)
        except (msgspec.DecodeError, UnicodeDecodeError):  # none, or no string
            return
        self.lane_names[tell(event.pid), tell(event.tid)] = name.strip()


def tell(written: object) -> str:
    """Return a process, thread or device as text: 7 for 7, 7.0, "7" and "stream 7"."""
    if isinstance(written, float) and written.is_integer():
        written = int(written)
    return str(written).strip().removeprefix("stream ")


def identities(written: list[Any]) -> Ints:
    """Return ids as numbers, -1 for what is none."""
    try:
        found = np.array(written, np.int64)
        if found.ndim == 1:
            return found
    except (TypeError, ValueError, OverflowError):
        pass
    return np.array([each if type(each) is int and 0 <= each < MAX_IDENTITY else -1 for each in written], np.int64)


def _parse_shapes(written: bytes) -> Shapes:
    """Return sizes of inputs; () for what is no tensor, and for a list of tensors."""
    try:
        inputs = msgspec.json.decode(written)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ()
    if not isinstance(inputs, list):
        return ()
    return tuple(
        tuple(sizes) if isinstance(sizes, list) and all(type(size) is int for size in sizes) else () for sizes in inputs
    )
