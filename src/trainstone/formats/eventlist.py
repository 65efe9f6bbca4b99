"""A trace's list of events in batches, never the whole file: `{... "traceEvents": [ ... ] ...}` or a bare `[ ...`.

Where an event ends is not looked for byte by byte: a piece cut at a likely border (`},{`) and closed by `]` either
parses, and then the border is one, or an earlier border is tried. What events mean is in formats/kineto.py.
"""

import re
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from trainstone.errors import DataError
from trainstone.formats.borders import find_last_border, likely_borders, locate, mend
from trainstone.formats.inflate import is_gzip, read_pieces
from trainstone.text import printable

PIECE_BYTES = 1 << 22
MAX_BYTES = 1 << 26
"""Of one event, and of what stands before or behind the list."""
COUNTED_BYTES = 1 << 16
"""Brackets are counted when twice as much is there without a border, and again whenever it has doubled."""
MAX_KEYS = 100
"""Places that look like the list's key, tried before giving up: each costs a look at all before it."""
HINT = "write the trace again; one that is written while its program is killed, or copied halfway, is no use"
_SPACE = b" \t\r\n"
_KEY = re.compile(rb'"traceEvents"[ \t\r\n]*+:[ \t\r\n]*+\[')
_PLACE = re.compile(r"\(byte (\d+)\)")
_INDEX = re.compile(r"\$\[(\d+)\]")
_NONE = msgspec.Raw(b"")


class Args(msgspec.Struct, gc=False):
    """What is read of an event's `args`; the rest is skipped without being built."""

    correlation: Any = -1
    external: Any = msgspec.field(default=-1, name="External id")
    old_external: Any = msgspec.field(default=-1, name="external id")
    device: Any = None
    name: msgspec.Raw = _NONE
    dims: msgspec.Raw = msgspec.field(default=_NONE, name="Input Dims")


class Event(msgspec.Struct, gc=False):
    """An event as it stands in the file; times in microseconds."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    ts: int | float | None = None
    dur: int | float | None = 0
    args: Args | None = None


class Around(msgspec.Struct):
    """What stands around the list."""

    events: msgspec.Raw = msgspec.field(default=_NONE, name="traceEvents")
    distributed: Any = msgspec.field(default=None, name="distributedInfo")


class Batch(NamedTuple):
    """Events, with the JSON list they were read from."""

    events: list[Event]
    text: bytes
    offset: int
    """In the file, of the text's first byte behind the bracket."""
    first: int
    """Number of the first event in the file, from 0."""


_EVENTS = msgspec.json.Decoder(list[Event])
_AROUND = msgspec.json.Decoder(Around)


class EventFile:
    """A trace that is read once, from front to back; `rank` is known at the end."""

    def __init__(self, path: Path, piece_bytes: int = PIECE_BYTES) -> None:
        self.name = printable(str(path))
        self.num_events = 0
        self.rank: int | None = None
        self._unpacked = " of the unpacked text" if is_gzip(path) else ""
        self._pieces = read_pieces(path, piece_bytes)
        self._text = b""  # read, but not yet given out
        self._offset = 0  # of its first byte
        self._list_end: int | None = None  # within the text, once it is seen
        self._counted_bytes = COUNTED_BYTES

    def close(self) -> None:
        """End the thread that reads ahead; left to the garbage collector it may have to end itself, which it cannot."""
        self._pieces.close()

    def batches(self) -> Generator[Batch, None, None]:
        """Yield all events; raise DataError with file and byte where there is no sense in it."""
        bare = self._find_list()
        while self._list_end is None:
            batch = self._take()
            if batch is None and not self._read_on("event"):
                batch = self._take_last(bare)
            if batch is not None:
                self.num_events += len(batch.events)
                yield batch
        self._drop(self._list_end)
        self._read_rest(bare)

    def damaged(self, place: int, what: str) -> DataError:
        """Return the error for something at a byte of the text in hand."""
        return DataError(f"{self.name}, byte {self._offset + place}{self._unpacked}: {what}", hint=HINT)

    def _cut_off(self) -> DataError:
        whole = f"the {self.num_events:,} events before are whole" if self.num_events else "no event is whole"
        return self.damaged(len(self._text), f"the trace is cut off in the middle; {whole}")

    def _read_on(self, what: str) -> bool:
        """Fetch the next piece; say whether there is one."""
        try:
            piece = next(self._pieces, b"")
        except DataError as err:
            raise DataError(f"{err.message}; {self.num_events:,} events before are whole", hint=err.hint) from err
        self._text += piece
        if len(self._text) > MAX_BYTES:
            raise self.damaged(0, f"no {what} ends within {MAX_BYTES >> 20} MiB")
        return bool(piece)

    def _drop(self, size: int) -> None:
        self._text = self._text[size:]
        self._offset += size
        self._counted_bytes = COUNTED_BYTES

    def _find_list(self) -> bool:
        """Read up to the first event; say whether the list stands bare."""
        while not self._text.removeprefix(b"\xef\xbb\xbf").lstrip(_SPACE) and self._read_on("white space"):
            pass
        start = self._text.removeprefix(b"\xef\xbb\xbf").lstrip(_SPACE)
        self._drop(len(self._text) - len(start))
        if start.startswith(b"["):
            self._drop(1)
            return True
        if not start.startswith(b"{"):
            seen = printable(start[:20].decode("utf-8", "replace"))
            raise self.damaged(
                0, f"a trace begins with {{ or [, this file with '{seen}'" if seen else "the file is empty"
            )
        self._find_key()
        return False

    def _find_key(self) -> None:
        """Drop all up to the list's bracket. A place is the key if what stands before is an object closed behind it."""
        last = -1
        num_keys = 0
        while True:
            for place in _KEY.finditer(self._text, last + 1):
                last = place.start()
                num_keys += 1
                before = self._decode_around(self._text[:last] + b'"traceEvents":[]}')
                if before is not None and bytes(before.events):  # else the key was the end of another string
                    self.rank = _read_rank(before)
                    self._drop(place.end())
                    return
            if num_keys >= MAX_KEYS or not self._read_on("head"):
                raise self._no_list()

    def _no_list(self) -> DataError:
        """Say why there is no list."""
        try:
            msgspec.json.decode(self._text, type=Around)
        except msgspec.ValidationError:
            pass
        except msgspec.DecodeError as err:
            place = _PLACE.search(str(err))
            return self.damaged(int(place[1]) - 1, "this is no JSON") if place else self._cut_off()
        except (RecursionError, UnicodeDecodeError):
            return self.damaged(0, "this is no JSON")
        return self.damaged(0, 'there is no list "traceEvents"')

    def _take(self) -> Batch | None:
        """Give out all up to a border; None if more must be read first."""
        for border in likely_borders(self._text):
            batch = self._decode(b"[" + self._text[: border.start() + 1] + b"]")
            if batch is not None:
                if self._list_end is None:
                    self._drop(border.end())
                return batch
        return self._take_carefully()

    def _take_carefully(self) -> Batch | None:
        """Give out all up to the last border, found by counting brackets: slow, for events full of objects."""
        if len(self._text) < 2 * self._counted_bytes:
            return None
        self._counted_bytes = len(self._text)
        border = find_last_border(self._text)
        if border is None:
            return None
        batch = self._decode(b"[" + self._text[: border.start() + 1] + b"]")
        if batch is not None and self._list_end is None:
            self._drop(border.end())
        return batch

    def _take_last(self, bare: bool) -> Batch:
        """Give out what is left at the end of the file. A bare list need not be closed, as Chrome has it."""
        batch = self._decode(b"[" + self._text)
        if batch is None and bare:
            batch = self._decode(b"[" + self._text.rstrip(_SPACE).removesuffix(b",") + b"]")
        if batch is None:
            raise self._cut_off()
        if self._list_end is None:
            self._list_end = len(self._text)
        return batch

    def _decode(self, text: bytes, mended: bool = False) -> Batch | None:
        """Decode a list; None if it is not closed. If more stands behind its end, note where."""
        try:
            return Batch(_EVENTS.decode(text), text, self._offset, self.num_events)
        except msgspec.ValidationError as err:
            raise self._wrong_type(text, str(err)) from err
        except RecursionError as err:
            raise self.damaged(0, "nested too deeply") from err
        except UnicodeDecodeError as err:
            if mended:
                raise self.damaged(0, f"no UTF-8 ({err.reason})") from err
            return self._decode(mend(text), mended=True)
        except msgspec.DecodeError as err:
            found = _PLACE.search(str(err))
            place = int(found[1]) - 1 if found else len(text)
            if "trailing characters" in str(err):
                self._list_end = place - 1
                return self._decode(text[:place], mended)
            if place >= len(text) - 1:  # at our own bracket: the border was none
                return None
            if not mended:
                return self._decode(mend(text), mended=True)
            raise self.damaged(place - 1, "this is no JSON") from err

    def wrong(self, batch: Batch, place: int, what: str) -> DataError:
        """Return the error for an event of a batch."""
        byte = batch.offset + locate(batch.text, place)
        told = f"{self.name}, byte {byte}{self._unpacked}: event {batch.first + place:,}: {what}"
        return DataError(told, hint="a trace is as torch.profiler or chrome://tracing write it, times in microseconds")

    def _wrong_type(self, text: bytes, fault: str) -> DataError:
        found = _INDEX.search(fault)
        what, _, where = fault.replace("`", "").partition(" - at ")
        field = where.partition(".")[2]
        batch = Batch([], text, self._offset, self.num_events)
        return self.wrong(batch, int(found[1]) if found else 0, f"{field}: {what}" if field else what)

    def _decode_around(self, text: bytes) -> Around | None:
        try:
            return _AROUND.decode(text)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return None

    def _read_rest(self, bare: bool) -> None:
        """Read what stands behind the list; the rank may be there."""
        while self._read_on("end"):
            pass
        if bare:
            if self._text.strip(_SPACE):
                raise self.damaged(0, "something stands behind the end of the list")
            return
        try:
            around = _AROUND.decode(mend(b'{"traceEvents":[]' + self._text))
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as err:
            found = _PLACE.search(str(err))
            if found is None:
                raise self._cut_off() from err
            raise self.damaged(max(0, int(found[1]) - 18), "this is no JSON") from err
        if bytes(around.events) != b"[]":
            raise self.damaged(0, 'there is a second list "traceEvents"')
        self.rank = _read_rank(around) if self.rank is None else self.rank


def _read_rank(around: Around) -> int | None:
    rank = around.distributed.get("rank") if isinstance(around.distributed, dict) else None
    return rank if type(rank) is int and 0 <= rank < 1 << 31 else None
