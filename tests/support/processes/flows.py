"""Run a flow in this process like cli/execute.py, without the command line."""

from collections.abc import Callable, Generator
from typing import Any

from trainstone.config.schema import Config
from trainstone.flows.lifecycle import Lifecycle, lifecycle
from trainstone.machine.signals import StopSignals
from trainstone.measure.clock import HostTimer
from trainstone.results.run_folder import RunFolder


class LateTimer(HostTimer):
    """Reads marks two steps late, like CUDA events."""

    lag = 2


class SimulatedDevice(LateTimer):
    """A device with a queue, and its timer: work is queued at once and done later; the host's clock moves only when the
    host works or waits."""

    def __init__(self) -> None:
        super().__init__(now=lambda: self.host_seconds)
        self.host_seconds = 100.0
        self.ends: list[float] = []
        """Times at which the device has finished each piece of work."""

    def work_on_host(self, seconds: float) -> None:
        self.host_seconds += seconds

    def launch(self, device_seconds: float) -> None:
        self.ends.append(self.mark() + device_seconds)

    def mark(self) -> float:
        """Return when the device reaches this point of its queue."""
        return max([self.host_seconds, *self.ends[-1:]])

    def wait(self, mark: float) -> None:
        self.host_seconds = max(self.host_seconds, mark)

    def synchronize(self) -> None:
        self.wait(self.mark())

    def count_finished(self) -> int:
        return sum(end <= self.host_seconds for end in self.ends)


def follow(
    flow: Callable[[Lifecycle], Generator[Any, None, Any]], config: Config, run: RunFolder | None
) -> Generator[Any, None, Any]:
    with StopSignals() as signals, lifecycle(config, run, signals) as life:
        return (yield from flow(life))


def drain(running: Generator[Any, None, Any]) -> tuple[list[Any], Any]:
    yielded = []
    while True:
        try:
            yielded.append(next(running))
        except StopIteration as end:
            return yielded, end.value
