"""How several ranks share one measured run (bench, profile): one folder and result, a log and a step file of each."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from trainstone.config.schema import Config
from trainstone.data.splits import OpenSplit
from trainstone.files import sync_path
from trainstone.log import log_into
from trainstone.measure.recorder import StepRecorder
from trainstone.results.store import RunFolder
from trainstone.train.distributed import World
from trainstone.train.failures import explaining, keep_record
from trainstone.train.fit import Fitted
from trainstone.train.meeting import meet_all
from trainstone.train.start import settle_exchange, share_run
from trainstone.train.task import Task, build_task


class Shared(NamedTuple):
    """A run and the ranks that make it."""

    run: RunFolder
    """Written by the first rank."""
    world: World


@contextmanager
def share_measured(config: Config, run: RunFolder | None) -> Iterator[Shared]:
    """Meet the other ranks and tell them of the run, which the first has; each keeps its log in it."""
    with ExitStack() as files:
        if run:
            files.enter_context(log_into(run.path / "log.txt"))
        files.enter_context(keep_record(run) if run else explaining())
        world = files.enter_context(meet_all(config, run))
        shared = share_run(run, world)
        if world.rank.number:
            files.enter_context(log_into(shared.path / f"log-rank{world.rank.number:04d}.txt"))
        yield Shared(shared, world)


def open_steps(shared: Shared, config: Config) -> StepRecorder:
    """Open this rank's step file."""
    path = shared.run.path / f"steps-rank{shared.world.rank.number:04d}.csv"
    return StepRecorder(path, split_phases=config.engine.split_phases)


def sync_steps(shared: Shared, recorder: StepRecorder) -> None:
    """Let the first rank read this rank's steps from its host."""
    if shared.run.result.world.nodes > 1:
        sync_path(recorder.path)


def build_shared(fitted: Fitted, opened: OpenSplit | None, world: World) -> Task:
    """Build what is trained; of many ranks each has its share of the pictures, and gradients are averaged."""
    task = build_task(fitted.config, fitted.device, opened, world=world)
    settle_exchange(task, fitted.config, world)
    return task
