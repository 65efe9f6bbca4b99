"""Stop signals. During a run they are only noted, so that it ends between two steps; elsewhere they end the command."""

import signal
import threading
from types import FrameType
from typing import Self

# Ctrl-C; what schedulers send before they end a job; a closed terminal.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)

OTHER_RANK = "a signal to another rank"


class StopSignals:
    """While in force, the first stop signal only sets `received`; a second SIGINT raises KeyboardInterrupt.

    With `at_once` every stop signal raises KeyboardInterrupt with the signal's name.
    """

    _in_force: "list[StopSignals]" = []

    def __init__(self, *, at_once: bool = False) -> None:
        self.received: str | None = None
        self._at_once = at_once
        self._previous: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                ignored = signal.getsignal(number) is signal.SIG_IGN
                if ignored and (self._at_once or number == signal.SIGHUP):
                    continue  # nohup, or a job in the background: not to be stopped by the terminal
                self._previous[number] = signal.signal(number, self._note)
        self._in_force.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._in_force.remove(self)
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self._at_once or (number == signal.SIGINT and self.received == "SIGINT"):
            raise KeyboardInterrupt(name)
        self.received = name


def find_stop_signal() -> str | None:
    """Return the stop signal that a run in progress has received, for code that waits far from the run's own loop."""
    return next((signals.received for signals in StopSignals._in_force if signals.received), None)
