"""Pickles of arrays by name, as MLPerf's SSD keeps its backbone, read without running anything in them.

Python's own reader calls whatever a pickle names. This one has no call in it: it knows the few operations that a dict
of numpy arrays is made of and does them itself, with bytes that are in the file. All else is refused by its name.
"""

import io
import pickletools
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from trainstone.errors import DataError
from trainstone.models.pickledparts import KNOWN, MAKERS, ArrayInMaking, DtypeInMaking, Named, Refused, lay_out
from trainstone.text import printable
from trainstone.units import format_bytes

MAX_BYTES = 4 << 30
MAX_OPERATIONS = 1 << 18
"""Some 20 for an array; each may make an object that is far larger than its one byte in the file."""
GROWTH = 3
"""All that is made of a file may have so many times its bytes: what is in it once can be named again and again."""
LIST_ITEM_BYTES = 100
HINT = "it should hold a dict of numpy arrays by name: pickle.dump({name: array, ...}, file)"
PLAIN = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
}  # fmt: skip


def read_pickled(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a pickle by name, in memory of their own; DataError for all that is anything else."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise DataError(f"{path} has {format_bytes(size)}; a pickle of weights may have {format_bytes(MAX_BYTES)}")
        data = path.read_bytes()
    except OSError as err:
        raise DataError(f"cannot read {path}: {err.strerror or err}") from err
    try:
        return _collect(_Machine().run(data))
    except Refused as err:
        raise DataError(f"{path} {err}; it was not opened", hint=HINT) from err
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError, struct.error) as err:
        reason = printable((str(err).splitlines() or [""])[0])[:120] or type(err).__name__
        raise DataError(f"{path} is cut off, damaged or no pickle of arrays: {reason}", hint=HINT) from err


def _collect(found: Any) -> dict[str, NDArray[Any]]:
    if not isinstance(found, dict):
        raise Refused(f"holds no arrays by name but one {type(found).__name__}")
    others = [
        str(name) for name, value in found.items() if not isinstance(value, ArrayInMaking) or value.content is None
    ]
    if others:
        raise Refused(f"holds {len(others)} that are no arrays (first {printable(others[0])[:100]})")
    # A copy: what numpy sees in bytes cannot be written to, and may have its bytes the other way round. One of each:
    # an array may have many names.
    arrays = {id(value): value.content for value in found.values()}
    copies = {number: array.astype(array.dtype.newbyteorder("=")) for number, array in arrays.items()}
    return {name: copies[id(value)] for name, value in found.items()}


class _Machine:
    """The stack, the marks in it and the memo of a pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.bytes_left = 0
        self.argument: Any = None
        """Of the operation that is done."""

    def run(self, data: bytes) -> Any:
        """Do all operations and return what is left; there must be an end, and nothing after it."""
        # Not from the file itself: of a file that says it holds 4 GB more, 4 GB of memory would be asked for.
        stream = io.BytesIO(data)
        self.bytes_left = GROWTH * len(data)
        for count, (operation, argument, at) in enumerate(pickletools.genops(stream)):
            if count >= MAX_OPERATIONS:
                raise Refused(f"has more than {MAX_OPERATIONS:,} operations: far too many for weights")
            if operation.name in PLAIN:
                self.stack.append(argument)
            elif operation.name in OPERATIONS:
                self.argument = argument
                self.do(operation.name, at)
            else:
                raise Refused(f"holds code, or objects other than arrays: it asks for the operation {operation.name}")
        if stream.read(1):
            raise ValueError("there is more after its end")
        if self.marks or len(self.stack) != 1:
            raise ValueError("it leaves more or less than one object")
        return self.stack.pop()

    def do(self, name: str, at: int | None) -> None:
        """Do one operation; where that fails, say which and where."""
        try:
            OPERATIONS[name](self)
        except (IndexError, KeyError) as err:
            raise ValueError(f"the operation {name} at byte {at} takes what is not there") from err
        except (ValueError, TypeError, OverflowError) as err:
            raise ValueError(f"the operation {name} at byte {at} fails: {err}") from err

    def pop_marked(self) -> list[Any]:
        """Take all above the last mark."""
        at = self.marks.pop()
        taken = self.stack[at:]
        del self.stack[at:]
        return taken

    def pop_last(self, count: int) -> tuple[Any, ...]:
        """Take the last few; a mark may not lie among them."""
        if count > len(self.stack) - (self.marks[-1] if self.marks else 0):
            raise IndexError("it takes more than it has")
        at = len(self.stack) - count
        taken = tuple(self.stack[at:])
        del self.stack[at:]
        return taken

    def spend(self, parts: Iterable[Any]) -> None:
        """Count what something is made of."""
        texts = sum(len(part) for part in parts if isinstance(part, str | bytes | bytearray))
        items = sum(len(part) for part in parts if isinstance(part, list))
        self.bytes_left -= texts + LIST_ITEM_BYTES * items
        if self.bytes_left < 0:
            raise Refused("would fill the memory with copies of what it holds once")

    def pass_by(self) -> None:
        """Do nothing."""

    def remember(self, number: int) -> None:
        """Note the last object."""
        self.memo[number] = self.stack[-1]

    def name(self, text: str) -> None:
        """Push what a module and a name in it stand for, if arrays need it."""
        if text not in KNOWN:
            raise Refused(
                f"holds code, or objects other than arrays: it asks for {printable(text.replace(' ', '.', 1))[:100]}"
            )
        self.stack.append(Named(KNOWN[text]))

    def fill(self, pairs: list[Any] | tuple[Any, ...]) -> None:
        """Put names and values into the last object, a dict."""
        target = self.stack[-1]
        if not isinstance(target, dict) or len(pairs) % 2:
            raise Refused("holds objects other than arrays: it sets items of what is no dict")
        for name, value in zip(pairs[::2], pairs[1::2], strict=True):
            if not isinstance(name, str):
                raise Refused(f"holds a name that is no text but {type(name).__name__}")
            target[name] = value

    def begin_filled(self) -> None:
        """Push a dict of all above the last mark."""
        pairs = self.pop_marked()
        self.stack.append({})
        self.fill(pairs)

    def extend(self, items: list[Any] | tuple[Any, ...]) -> None:
        """Put items into the last object, a list."""
        if not isinstance(self.stack[-1], list):
            raise Refused("holds objects other than arrays: it appends to what is no list")
        self.stack[-1].extend(items)

    def call(self) -> None:
        """Where Python would call the first object with the second: make what is known, by hand."""
        named, arguments = self.pop_last(2)
        if not isinstance(named, Named) or not isinstance(arguments, tuple) or named.meaning not in MAKERS:
            raise Refused("holds code: it calls what is no part of an array")
        self.spend(arguments)
        self.stack.append(MAKERS[named.meaning](*arguments))

    def build(self) -> None:
        """Give an array or a dtype its content."""
        target, state = self.pop_last(2)
        if isinstance(target, ArrayInMaking) and isinstance(state, tuple) and len(state) == 5:
            _, shape, kind, by_column, data = state
            self.spend([data])
            target.content = lay_out(data, kind, shape, by_column=bool(by_column))
        elif isinstance(target, DtypeInMaking) and isinstance(state, tuple) and len(state) >= 5:
            if state[1] not in ("<", ">", "|", "=") or any(field is not None for field in state[2:5]):
                raise Refused("holds an array of compound elements")
            target.order = state[1]
        else:
            raise Refused("holds objects other than arrays: it gives a state to what has none")
        self.stack.append(target)


OPERATIONS: dict[str, Callable[[_Machine], object]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), _Machine.pass_by),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), lambda on: on.remember(int(on.argument))),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda on: on.stack.append(on.memo[int(on.argument)])),
    "MEMOIZE": lambda on: on.remember(len(on.memo)),
    "MARK": lambda on: on.marks.append(len(on.stack)),
    "NONE": lambda on: on.stack.append(None),
    "NEWTRUE": lambda on: on.stack.append(True),
    "NEWFALSE": lambda on: on.stack.append(False),
    "EMPTY_DICT": lambda on: on.stack.append({}),
    "EMPTY_LIST": lambda on: on.stack.append([]),
    "EMPTY_TUPLE": lambda on: on.stack.append(()),
    "LIST": lambda on: on.stack.append(on.pop_marked()),
    "TUPLE": lambda on: on.stack.append(tuple(on.pop_marked())),
    "TUPLE1": lambda on: on.stack.append(on.pop_last(1)),
    "TUPLE2": lambda on: on.stack.append(on.pop_last(2)),
    "TUPLE3": lambda on: on.stack.append(on.pop_last(3)),
    "DICT": lambda on: on.begin_filled(),
    "SETITEM": lambda on: on.fill(on.pop_last(2)),
    "SETITEMS": lambda on: on.fill(on.pop_marked()),
    "APPEND": lambda on: on.extend(on.pop_last(1)),
    "APPENDS": lambda on: on.extend(on.pop_marked()),
    "GLOBAL": lambda on: on.name(on.argument),
    "STACK_GLOBAL": lambda on: on.name(" ".join(on.pop_last(2))),
    "REDUCE": _Machine.call,
    "BUILD": _Machine.build,
}
