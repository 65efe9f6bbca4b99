"""Evaluate the model on the validation images: each exactly once on any number of ranks; padding samples are ignored.

Rank 0 computes the metrics, at once or in a thread during the next steps (eval.async), and broadcasts them. take()
waits for the metrics, so that every rank gets them after the same step.
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
    """Evaluate the network, or its EMA if there is one; afterwards the network has its trained weights again."""
    with task.average.swapped() if task.average else nullcontext():
        return (yield from evaluate_network(task.plain, config, task.device, opened, world, signals))


def evaluate_network(
    model: torch.nn.Module, config: Config, device: torch.device, opened: OpenSplit, world: World, signals: StopSignals
) -> Generator[Progress, None, Tensor | None]:
    """Evaluate this rank's share of the images; return the workload's rows of all ranks.

    The rows are empty on other ranks than 0. None, on all ranks: a stop signal interrupted the evaluation.
    """
    workload = WORKLOADS[config.workload]
    evaluate_batch, total = workload.build_evaluator(config, device), len(opened.source)
    rows: list[Tensor] = []
    agreement = StopAgreement(world, signals, has_loss=False)
    trained = model.training
    model.eval()
    try:
        with closing(workload.open_validation(config, opened, device, world.rank)) as loader:
            done = 0
            for batch in prefetch_to_device(loader, device):
                agreement.update()
                if agreement.agreed.stop:
                    break
                with torch.inference_mode(), autocast(device, config.train.precision):
                    rows.append(evaluate_batch(model, batch))
                done = min(total, done + len(batch[0]) * world.rank.world)
                yield Progress("evaluating", images=done, total_images=total)
    finally:
        model.train(trained)
    stopped = agreement.agreed.stop
    agreement.finish()  # a request after the last batch is too late here; the caller requests it again
    if stopped:
        return None
    # Copied to the host at the end, so that the host does not wait for each batch.
    gathered = gather_rows(world, torch.cat(rows).cpu())
    return torch.empty(0) if gathered is None else gathered


class Scoring:
    """Compute the metrics of a run's evaluations, one at a time. Use it in a `with` block."""

    def __init__(self, config: Config, world: World) -> None:
        self._config, self._world = config, world
        self._pool = ThreadPoolExecutor(1, "scoring") if config.eval.async_ and world.rank.number == 0 else None
        self._scored: Future[EvalScores] | EvalScores | None = None
        self.step: int | None = None
        """Steps done before the evaluation whose scores are not taken yet; None: there is none."""
        self.eval_seconds = 0.0
        """How long that evaluation delayed the next step."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def begin(self, opened: OpenSplit, rows: Tensor, step: int, eval_seconds: float) -> None:
        """Start scoring these rows (on rank 0); take() returns the scores."""
        assert self.step is None, "take() the previous scores first"
        began = time.perf_counter()
        if self._world.rank.number == 0:
            finish = partial(WORKLOADS[self._config.workload].finish_eval, self._config, opened, rows)
            self._scored = self._pool.submit(finish) if self._pool else finish()
        self.step, self.eval_seconds = step, eval_seconds + time.perf_counter() - began

    def take(self) -> EvalScores:
        """Return the scores; on other ranks than 0 only the metrics. All ranks must call this."""
        assert self.step is not None, "call begin() first"
        scored = self._scored.result() if isinstance(self._scored, Future) else self._scored or EvalScores({}, 0)
        self.step, self._scored = None, None
        # JSON has no NaN: drop such metrics.
        metrics = {name: value for name, value in scored.metrics.items() if math.isfinite(value)}
        shared = broadcast_dict(self._world, {"metrics": metrics, "images": scored.images})
        return scored._replace(**shared)


def write_samples(folder: Path, scored: EvalScores) -> tuple[QualitySample, ...]:
    """Write the sample images of an evaluation into the run folder; they replace those of an earlier one."""
    for shown, jpeg in scored.samples:
        path = folder / shown.file
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, [jpeg])
    return tuple(shown for shown, _ in scored.samples)
