"""How `eval --bench` flows: fit, weights, peak, forward passes timed like steps of training, judge, write.

One device. A step is a batch of eval.batch_size pictures: wait for it, normalise, forward. No labels are looked at.
"""

import itertools
import math
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from typing import Any

import torch
from torch import nn

from trainstone.config.schema import Config, change_section
from trainstone.data.feeding.feed import IGNORED
from trainstone.data.splits import OpenSplit
from trainstone.errors import ConfigError
from trainstone.machine.ranks import ALONE
from trainstone.measure.clock import Timer, choose_timer
from trainstone.measure.devices import autocast
from trainstone.measure.recorder import StepRecorder
from trainstone.results.progress import Progress
from trainstone.results.schema import Status
from trainstone.results.steps import StepRecord
from trainstone.train.checkpoint import Saved, load_network
from trainstone.train.conclude import conclude
from trainstone.train.evaluation import open_pictures
from trainstone.train.fit import Fitted, count_step_work, fit_engine
from trainstone.train.lifecycle import Lifecycle
from trainstone.train.observation import measure_device, observe, open_recorder
from trainstone.train.start import provide_for_all
from trainstone.train.stopping import Pact, record_steps
from trainstone.train.task import compile_model, feed_device, synthetic_batches
from trainstone.workloads.registry import WORKLOADS
from trainstone.workloads.workload import Batch, choose_eval_batch


def run_inference(life: Lifecycle, saved: Saved) -> Generator[Progress, None, Status]:
    yield from life.join()
    config, run = life.config, life.run
    yield from provide_for_all(config, life)
    opened = open_enough(config)
    yield Progress("fitting the recipe to this machine")
    life.check_stop()
    fitted = fit_inference(config)
    run.write_config(fitted.config)
    run.update(findings=list(fitted.findings))
    yield Progress("building the network")
    model = load_network(fitted.config, fitted.device, saved)
    yield Progress("measuring this device's peak")
    peaks = measure_device(life, fitted)
    life.check_stop()
    with open_recorder(life, fitted) as recorder, observe(life, fitted, recorder.current_step) as observed:
        pact = Pact(life.world, life.signals, learns=False)
        yield from measure_batches(fitted, model, opened, recorder, pact, observed.clock_start)
    yield Progress("measuring this device's peak again")
    observed.peaks = peaks.best_of(measure_device(life, fitted))
    observed.interrupted = life.signals.received
    title = f"{WORKLOADS[config.workload].title(config)}, inference"
    conclude(life, fitted, recorder, observed, title=title)
    if run.result.phases:  # time of batches is time of evaluation, not of training
        timed = {"eval_seconds": run.result.phases.train_seconds, "train_seconds": None}
        run.update(phases=run.result.phases.model_copy(update=timed))
    return run.result.status


def open_enough(config: Config) -> OpenSplit | None:
    """Open pictures where they are real; there must be enough for a batch."""
    if config.data.source == "synthetic":
        return None
    opened, batch = open_pictures(config), choose_eval_batch(config)
    if len(opened.source) < batch:
        raise ConfigError(
            f"split {opened.name} has {len(opened.source)} pictures, fewer than the {batch} of a batch",
            hint=f"--set eval.batch_size={len(opened.source)}",
        )
    return opened


def fit_inference(config: Config) -> Fitted:
    """Resolve every auto; both batch sizes become that of inference, so that all that reads a result sees it."""
    config, device, findings = fit_engine(config)
    batch = choose_eval_batch(config)
    config = change_section(change_section(config, "train", batch_size=batch), "eval", batch_size=batch)
    # What is timed here has neither phases nor an optimiser.
    config = change_section(config, "engine", split_phases=False, cuda_graphs=False)
    return Fitted(config, device, count_step_work(config, batch, backward=False), tuple(findings))


def measure_batches(
    fitted: Fitted,
    model: nn.Module,
    opened: OpenSplit | None,
    recorder: StepRecorder,
    pact: Pact,
    clock_start: float,
) -> Iterator[Progress]:
    """Judge batches until the stop rule of bench says that it is enough."""
    config, timer = fitted.config, choose_timer(fitted.device)
    called = compile_model(model) if config.engine.compile else model
    with closing(repeat_batches(config, opened, fitted.device)) as batches:
        steps = infer_steps(called, config, fitted.device, feed_device(batches, fitted.device), timer, clock_start)
        if config.measure.iterations is not None:
            steps = itertools.islice(steps, config.measure.iterations)
        yield from record_steps(steps, timer, config.measure, recorder, pact)


def repeat_batches(config: Config, opened: OpenSplit | None, device: torch.device) -> Generator[Batch, None, None]:
    """Yield full batches for ever: random ones, or real pictures, the same at each pass."""
    if opened is None:
        yield from synthetic_batches(config, device)
        return
    while True:
        with closing(WORKLOADS[config.workload].open_validation(config, opened, device, ALONE)) as loader:
            for batch in loader:
                if batch[1][-1] != IGNORED:  # the last batch of a pass may be filled up with nothing
                    yield batch


def infer_steps(
    model: nn.Module,
    config: Config,
    device: torch.device,
    batches: Iterable[Batch],
    timer: Timer,
    origin: float,
) -> Iterator[StepRecord]:
    """Judge batch after batch, yielding each when the device has finished it: `timer.lag` batches late."""
    score = WORKLOADS[config.workload].build_scores(config, device)
    pending: deque[tuple[int, float, int, list[Any]]] = deque()
    batches = iter(batches)
    for step in itertools.count():
        started, marks = timer.now() - origin, [timer.mark()]
        images = next(batches)[0]
        marks.append(timer.mark())
        with torch.inference_mode(), autocast(device, config.train.precision):
            score(model, images)
        marks.append(timer.mark())
        pending.append((step, started, len(images), marks))
        if len(pending) > timer.lag:
            yield settle(timer, *pending.popleft())


def settle(timer: Timer, step: int, started: float, images: int, marks: list[Any]) -> StepRecord:
    """Wait for the batch's end and turn its marks into seconds; there is no loss and no rate."""
    begin, ready, end = marks
    timer.wait(end)
    waited, spent = timer.seconds(begin, ready), timer.seconds(begin, end)
    return StepRecord(step, 0, started, waited, spent, images, loss=math.nan, lr=0.0)
