"""Signals as a question the loop asks between steps, so that what there is is written before the end."""

import signal
import threading
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Self

USUAL = (signal.SIGINT, signal.SIGTERM)
# What schedulers send ahead of a job's end, and a closed terminal.
RESUMABLE = (*USUAL, signal.SIGUSR1, signal.SIGHUP)


class Interrupt:
    """While in force, the first of some signals only sets `asked`; the second SIGINT ends the program at once."""

    _in_force: "list[Interrupt]" = []

    def __init__(self, signals: Sequence[signal.Signals] = USUAL) -> None:
        self.asked: str | None = None
        self._signals = signals
        self._previous: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                    continue  # nohup: a closed terminal is no reason to stop
                self._previous[number] = signal.signal(number, self._note)
        self._in_force.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._in_force.remove(self)
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.asked == "SIGINT":
            raise KeyboardInterrupt
        self.asked = signal.Signals(number).name


def find_asked() -> str | None:
    """Return the signal that some work under way was asked to stop by, for what waits far from who listens."""
    return next((interrupt.asked for interrupt in Interrupt._in_force if interrupt.asked), None)
