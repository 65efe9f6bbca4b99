"""Evaluates the validation images: every one exactly once on any number of ranks; what fills up a batch counts not.

The first rank scores, at once or in a thread beside the next steps (eval.async); all ranks learn the metrics. Whoever
takes scores waits for them, so that every rank takes them after the same step, however long it took.
"""

import math
import time
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from trainstone.config.schema import Config
from trainstone.data.splits import OpenSplit
from trainstone.engine.batches import prefetch_to_device
from trainstone.engine.distributed.collectives import World, broadcast_dict, gather_rows
from trainstone.engine.distributed.stop_agreement import StopAgreement
from trainstone.engine.task import Task
from trainstone.files import write_atomically
from trainstone.machine.signals import StopSignals
from trainstone.measure.devices import autocast
from trainstone.results.progress import Progress
from trainstone.results.schema.quality import QualitySample
from trainstone.workloads.registry import WORKLOADS
from trainstone.workloads.workload import EvalScores


def evaluate(
    task: Task, config: Config, opened: OpenSplit, world: World, signals: StopSignals
) -> Generator[Progress, None, Tensor | None]:
    """Let the network judge the images, or its average where one is kept; it is left as it was, ready to train."""
    with task.average.swapped() if task.average else nullcontext():
        return (yield from evaluate_network(task.plain, config, task.device, opened, world, signals))


def evaluate_network(
    model: torch.nn.Module, config: Config, device: torch.device, opened: OpenSplit, world: World, signals: StopSignals
) -> Generator[Progress, None, Tensor | None]:
    """Let a network judge all ranks' shares of the images; return the workload's rows of all of them.

    On other ranks than the first they are empty. None, on all ranks: somebody asked for the end before.
    """
    workload = WORKLOADS[config.workload]
    look, total = workload.build_evaluator(config, device), len(opened.source)
    rows: list[Tensor] = []
    agreement = StopAgreement(world, signals, learns=False)
    trained = model.training
    model.eval()
    try:
        with closing(workload.open_validation(config, opened, device, world.rank)) as loader:
            seen = 0
            for batch in prefetch_to_device(loader, device):
                agreement.look()
                if agreement.agreed.stop:
                    break
                with torch.inference_mode(), autocast(device, config.train.precision):
                    rows.append(look(model, batch))
                seen = min(total, seen + len(batch[0]) * world.rank.world)
                yield Progress("evaluating", images=seen, total_images=total)
    finally:
        model.train(trained)
    stopped = agreement.agreed.stop
    agreement.finish()  # what was asked since the last batch is too late here, and asked again elsewhere
    if stopped:
        return None
    # Fetched at the end, so that no batch makes the host wait.
    gathered = gather_rows(world, torch.cat(rows).cpu())
    return torch.empty(0) if gathered is None else gathered


class Scoring:
    """The scoring of one run; of one evaluation at a time. Used by `with`."""

    def __init__(self, config: Config, world: World) -> None:
        self._config, self._world = config, world
        self._pool = ThreadPoolExecutor(1, "scoring") if config.eval.async_ and world.rank.number == 0 else None
        self._scored: Future[EvalScores] | EvalScores | None = None
        self.step: int | None = None
        """Steps done before the evaluation whose scores were not taken yet; None: there is none."""
        self.eval_seconds = 0.0
        """How long it kept the steps waiting."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def begin(self, opened: OpenSplit, rows: Tensor, step: int, eval_seconds: float) -> None:
        """Score these rows, which only rank 0 has; take() returns the scores."""
        assert self.step is None, "take the scores before"
        began = time.perf_counter()
        if self._world.rank.number == 0:
            finish = partial(WORKLOADS[self._config.workload].finish_eval, self._config, opened, rows)
            self._scored = self._pool.submit(finish) if self._pool else finish()
        self.step, self.eval_seconds = step, eval_seconds + time.perf_counter() - began

    def take(self) -> EvalScores:
        """Return the scores; on other ranks than 0 the metrics alone. All ranks must call this."""
        assert self.step is not None, "nothing was begun"
        scored = self._scored.result() if isinstance(self._scored, Future) else self._scored or EvalScores({}, 0)
        self.step, self._scored = None, None
        # JSON has no NaN: such a metric is left out.
        metrics = {name: value for name, value in scored.metrics.items() if math.isfinite(value)}
        message = broadcast_dict(self._world, {"metrics": metrics, "images": scored.images})
        return scored._replace(**message)


def write_samples(folder: Path, scored: EvalScores) -> tuple[QualitySample, ...]:
    """Write the images of an evaluation into the run folder, in place of those of an earlier one."""
    for shown, jpeg in scored.samples:
        path = folder / shown.file
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, [jpeg])
    return tuple(shown for shown, _ in scored.samples)
