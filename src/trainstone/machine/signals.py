"""Stop signals: a run records them and ends between two steps; outside a run they end the command."""

import signal
import threading
from types import FrameType
from typing import Self

# Ctrl-C; a scheduler's signals before it ends a job; a closed terminal.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)

OTHER_RANK = "a signal to another rank"


class StopSignals:
    """Context in which the first stop signal only sets `received`; a second SIGINT raises KeyboardInterrupt.

    `at_once`: every stop signal raises KeyboardInterrupt with the signal's name.
    """

    _active: "list[StopSignals]" = []

    def __init__(self, *, at_once: bool = False) -> None:
        self.received: str | None = None
        self._at_once = at_once
        self._previous: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                ignored = signal.getsignal(number) is signal.SIG_IGN
                if ignored and (self._at_once or number == signal.SIGHUP):
                    continue  # nohup, or a background job: the terminal must not stop it
                self._previous[number] = signal.signal(number, self._handle)
        self._active.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._active.remove(self)
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self._at_once or (number == signal.SIGINT and self.received == "SIGINT"):
            raise KeyboardInterrupt(name)
        self.received = name


def find_stop_signal() -> str | None:
    """Return the stop signal that the active run has received, for code that waits outside the training loop."""
    return next((signals.received for signals in StopSignals._active if signals.received), None)
