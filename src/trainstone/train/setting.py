"""What a training run learns with: opened once in train/to_target.py, used by learn.py and judging.py."""

from dataclasses import dataclass
from pathlib import Path

from trainstone.config.schema import Config
from trainstone.data.splits import OpenSplit
from trainstone.machine.signals import StopSignals
from trainstone.measure.recorder import StepRecorder
from trainstone.measure.sink import Sink
from trainstone.results.store import RunFolder
from trainstone.train.cadence import Cadence
from trainstone.train.distributed import World
from trainstone.train.scoring import Scoring
from trainstone.train.task import Task

CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Setting:
    """What a run learns with; nothing of it changes on the way."""

    config: Config
    run: RunFolder
    world: World
    task: Task
    cadence: Cadence
    validation: OpenSplit | None
    """None: nothing is evaluated."""
    recorder: StepRecorder
    """The first of the sinks, whose columns become the result."""
    sinks: tuple[Sink, ...]
    scoring: Scoring
    signals: StopSignals

    @property
    def checkpoints(self) -> Path:
        """Folder of the run's checkpoints."""
        return self.run.path / CHECKPOINTS
