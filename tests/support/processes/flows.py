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
