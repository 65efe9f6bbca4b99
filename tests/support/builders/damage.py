"""Randomly damaged files; a reader must return records or raise an error with the file and the location."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from trainstone.errors import DataError

quick = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


class Call:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.arguments


@st.composite
def damaged(draw: st.DrawFn, sound: bytes) -> bytes:
    data = bytearray(sound)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        how = draw(st.sampled_from(["change", "insert", "remove", "cut", "repeat"]))
        if how == "change" and at < len(data):
            data[at] = draw(st.integers(0, 255))
        elif how == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=20))
        elif how == "remove":
            del data[at : at + draw(st.integers(1, 20))]
        elif how == "cut":
            del data[at:]
        else:
            data[at:at] = data[at : at + draw(st.integers(1, 600))]
    return bytes(data)


def read_damaged(path: Path, content: bytes, read: Callable[[Path], Any], place: str = "byte") -> None:
    """Read a file that may be damaged; any error other than a DataError with file and location fails the test."""
    path.write_bytes(content)
    message = ""
    try:
        read(path)
    except DataError as err:
        message = err.message
    assert not message or (path.name in message and place in message)


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def real_data(name: str) -> Path:
    folder = os.environ.get("TRAINSTONE_REAL_DATA")
    if not folder:
        pytest.skip("needs TRAINSTONE_REAL_DATA")
    return Path(folder) / name
