"""Scores what an evaluation found: at once, or in a thread beside the next steps (eval.async).

The first rank scores; all ranks learn the metrics. Whoever takes a result waits for it, so that every rank takes it
after the same step, however long it took.
"""

import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

from torch import Tensor

from trainstone.config.schema import Config
from trainstone.data.splits import OpenSplit
from trainstone.files import write_atomically
from trainstone.results.quality import QualityPicture
from trainstone.train.distributed import World, broadcast_dict
from trainstone.workloads.registry import WORKLOADS
from trainstone.workloads.workload import Scored


class Scoring:
    """The scoring of one run; of one evaluation at a time. Used by `with`."""

    def __init__(self, config: Config, world: World) -> None:
        self._config, self._world = config, world
        self._pool = ThreadPoolExecutor(1, "scoring") if config.eval.async_ and world.rank.number == 0 else None
        self._scored: Future[Scored] | None = None
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
        """Score these rows, which only the first rank has; take() gives what comes of it."""
        assert self.step is None, "take the scores before"
        began = time.perf_counter()
        if self._world.rank.number == 0:
            self._scored = self._start(lambda: WORKLOADS[self._config.workload].finish_eval(self._config, opened, rows))
        self.step, self.eval_seconds = step, eval_seconds + time.perf_counter() - began

    def take(self) -> Scored:
        """Return what came of it, the metrics on every rank. All ranks must come here."""
        assert self.step is not None, "nothing was begun"
        scored = self._scored.result() if self._scored else None
        self.step, self._scored = None, None
        return share_scores(self._world, scored)

    def _start(self, work: Callable[[], Scored]) -> Future[Scored]:
        if self._pool:
            return self._pool.submit(work)
        done: Future[Scored] = Future()
        done.set_result(work())
        return done


def share_scores(world: World, scored: Scored | None) -> Scored:
    """Tell all ranks the metrics that the first one has; what is no number is left out, as JSON has no word for it."""
    told = None
    if scored is not None:
        metrics = {name: value for name, value in scored.metrics.items() if math.isfinite(value)}
        told = {"metrics": metrics, "images": scored.images}
    told = broadcast_dict(world, told)
    known = scored or Scored({}, 0)
    return known._replace(metrics=told["metrics"], images=told["images"])


def keep_pictures(folder: Path, scored: Scored) -> tuple[QualityPicture, ...]:
    """Write the pictures of an evaluation into the run folder, in place of those of an earlier one."""
    for shown, jpeg in scored.pictures:
        path = folder / shown.file
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, [jpeg])
    return tuple(shown for shown, _ in scored.pictures)
