"""Progress of a training run over all its starts: steps, evaluations, times; saved in each checkpoint."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from trainstone.config.schema import EvalConfig
from trainstone.errors import ResultError
from trainstone.results.schema.quality import Evaluation, Quality, QualitySample, QualityTable
from trainstone.results.schema.run import Phases
from trainstone.results.steps import StepRecord

SMOOTHING = 0.05
"""Weight of the newest step in the moving averages of the progress line (loss, step time)."""
TIMES = ("train_seconds", "data_wait_seconds", "eval_seconds", "checkpoint_seconds")
HISTORY = TypeAdapter(list[Evaluation])
TABLES, SHOWN = TypeAdapter(tuple[QualityTable, ...]), TypeAdapter(tuple[QualitySample, ...])


@dataclass
class TrainingState:
    """The part of a run's state that is not tensors. Seconds are on the run's clock, which pauses between starts."""

    metric: str
    images: int
    """Images per epoch."""
    global_batch: int
    parameters: int = 0
    data: dict[str, str] = field(default_factory=dict)
    """Identifies each split: its number of images and a digest of some of them."""
    done: int = 0
    """Steps done."""
    history: list[Evaluation] = field(default_factory=list)
    tables: tuple[QualityTable, ...] = ()
    """Tables of the best evaluation, on rank 0."""
    shown: tuple[QualitySample, ...] = ()
    """Sample images of the best evaluation, on rank 0."""
    starts: int = 1
    """Starts of the run so far, this one included."""
    train_seconds: float = 0.0
    data_wait_seconds: float = 0.0
    eval_seconds: float = 0.0
    checkpoint_seconds: float = 0.0
    seconds_before: float = 0.0
    """The run's clock when this start began."""
    saved_at_seconds: float = 0.0
    reached: bool = False
    stopped: bool = False
    loss: float | None = None
    seconds_per_step: float = 0.0
    began: float = field(default_factory=time.perf_counter)

    def clock(self) -> float:
        """Return the seconds since training data was first used."""
        return self.seconds_before + time.perf_counter() - self.began

    def add_step(self, record: StepRecord) -> None:
        self.done = record.step + 1
        self.train_seconds += record.step_seconds
        self.data_wait_seconds += record.data_seconds
        first = self.loss is None
        self.loss = record.loss if self.loss is None else self.loss + SMOOTHING * (record.loss - self.loss)
        # The first step of a start takes longer than the others.
        slow = first or self.seconds_per_step > 2 * record.step_seconds
        self.seconds_per_step += (1.0 if slow else SMOOTHING) * (record.step_seconds - self.seconds_per_step)

    @property
    def best(self) -> Evaluation | None:
        return max(self.history, key=lambda one: one.metrics[self.metric], default=None)

    @property
    def evaluated_now(self) -> bool:
        """Whether the current weights were evaluated."""
        return bool(self.history) and self.history[-1].step == self.done

    @property
    def is_best_now(self) -> bool:
        """Whether the current weights were evaluated and have the best score so far."""
        best = self.best
        return best is not None and best.step == self.done

    def has_reached(self, target: float | None) -> bool:
        """Return whether an evaluation has reached the target."""
        return target is not None and any(one.metrics[self.metric] >= target for one in self.history)

    def quality(self, config: EvalConfig, *, ended: bool = False) -> Quality | None:
        """Return the quality section of result.json; None before the first evaluation unless the run has ended."""
        best = self.best
        if best is None and not ended:
            return None
        first = next((one for one in self.history if config.target and one.metrics[self.metric] >= config.target), None)
        return Quality(
            metric=self.metric,
            value=(first or best).metrics[self.metric] if best else None,
            target=config.target,
            seconds_to_target=first.seconds if first else None,
            epochs=self.done * self.global_batch / self.images,
            steps=self.done,
            history=self.history,
            tables=list(self.tables),
            samples=list(self.shown),
            starts=self.starts,
            parameters=self.parameters,
            global_batch=self.global_batch,
        )

    def phases(self) -> Phases:
        return Phases(**{name: getattr(self, name) for name in TIMES})

    def document(self) -> dict[str, Any]:
        """Return the values that a checkpoint stores for a later start."""
        return {
            "step": self.done,
            "epoch": self.done * self.global_batch / self.images,
            "images": self.images,
            "global_batch": self.global_batch,
            "data": self.data,
            "seconds": self.clock(),
            **{name: getattr(self, name) for name in TIMES},
            "history": HISTORY.dump_python(self.history, mode="json"),
            "tables": TABLES.dump_python(self.tables, mode="json"),
            "shown": SHOWN.dump_python(self.shown, mode="json"),
        }

    def resume_from(self, document: Mapping[str, Any], where: str) -> None:
        """Load the values that an earlier start stored."""
        try:
            self.done = int(document["step"])
            self.seconds_before = self.saved_at_seconds = float(document["seconds"])
            for name in TIMES:
                setattr(self, name, float(document[name]))
            self.history = HISTORY.validate_python(document["history"])
            self.tables = TABLES.validate_python(document.get("tables", ()))
            self.shown = SHOWN.validate_python(document.get("shown", ()))
        except (KeyError, TypeError, ValueError, ValidationError) as err:
            raise ResultError(f"{where} has invalid training progress: {err}") from err
