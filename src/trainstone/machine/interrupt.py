"""Ctrl-C and SIGTERM as a question the loop asks between steps, so that what was measured is written before the end."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Self


class Interrupt:
    """While in force, the first SIGINT or SIGTERM only sets `asked`; the second SIGINT ends the program at once."""

    def __init__(self) -> None:
        self.asked: str | None = None
        self._previous: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.asked == "SIGINT":
            raise KeyboardInterrupt
        self.asked = signal.Signals(number).name
