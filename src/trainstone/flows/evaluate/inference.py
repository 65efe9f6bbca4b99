"""`trainstone eval --bench`: measure inference speed (forward passes on one device)."""

import itertools
import math
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from typing import Any

import torch
from torch import nn

from trainstone.config.schema import Config, change_section
from trainstone.data.pipeline.input_pipeline import IGNORED
from trainstone.data.splits import OpenSplit
from trainstone.engine.batches import prefetch_to_device, synthetic_batches
from trainstone.engine.distributed.stop_agreement import StopAgreement
from trainstone.engine.fit import Fitted, count_step_work, fit_engine
from trainstone.engine.network import compile_model
from trainstone.errors import ConfigError
from trainstone.flows.bench.result import SideMeasurements, conclude
from trainstone.flows.bench.stop_rule import AFTER_SHARE, record_steps
from trainstone.flows.evaluate.load_weights import SavedWeights, load_network
from trainstone.flows.evaluate.run import open_images
from trainstone.flows.lifecycle import Lifecycle
from trainstone.flows.observation import measure_device, observe, open_recorder
from trainstone.flows.prepare import provide_data_on_all_ranks
from trainstone.machine.ranks import SINGLE_RANK
from trainstone.measure.clock import StepBegin, Timer, choose_timer
from trainstone.measure.devices import autocast
from trainstone.results.progress import Progress
from trainstone.results.schema.run import Status
from trainstone.results.steps import StepRecord
from trainstone.workloads.registry import WORKLOADS
from trainstone.workloads.workload import Batch, choose_eval_batch


def run_inference(life: Lifecycle, saved: SavedWeights) -> Generator[Progress, None, Status]:
    yield from life.join()
    config, run = life.config, life.run
    yield from provide_data_on_all_ranks(config, life)
    opened, batch = None, choose_eval_batch(config)
    if config.data.source != "synthetic":
        opened = open_images(config)
        if len(opened.source) < batch:
            raise ConfigError(
                f"split {opened.name} has too few images for one batch: {len(opened.source)}; at least {batch} needed",
                hint=f"--set eval.batch_size={len(opened.source)}",
            )
    yield Progress("fitting the recipe to this machine")
    life.check_stop()
    began = time.perf_counter()
    fit = yield from fit_engine(config)
    config, device, findings = fit.config, fit.device, fit.findings
    # Set both batch sizes to that of inference: readers of the result may look at either.
    config = change_section(change_section(config, "train", batch_size=batch), "eval", batch_size=batch)
    # A forward pass has no phases and no optimiser.
    config = change_section(
        config, "engine", split_phases=False, cuda_graphs=False, compile=config.engine.compile is True
    )
    fitted = Fitted(config, device, count_step_work(config, batch, backward=False), tuple(findings))
    run.write_config(config)
    run.update(findings=findings)
    yield Progress("building the network")
    model = load_network(config, device, saved)
    peaks = yield from measure_device(life, fitted)
    life.check_stop()
    with open_recorder(life, fitted) as recorder, observe(life, fitted, recorder.current_step) as observed:
        agreement, timer = StopAgreement(life.world, life.signals, has_loss=False), choose_timer(device)
        called = compile_model(model) if config.engine.compile else model
        with closing(repeat_batches(config, opened, device)) as batches:
            steps = infer_steps(
                called, config, device, prefetch_to_device(batches, device), timer, observed.clock_start
            )
            if config.measure.iterations is not None:
                steps = itertools.islice(steps, config.measure.iterations)
            end = began + (1 - AFTER_SHARE) * config.measure.seconds
            yield from record_steps(steps, timer, config.measure, recorder, agreement, end)
    observed.peaks = yield from measure_device(life, fitted, peaks)
    observed.interrupted = life.signals.received
    title = f"{WORKLOADS[config.workload].title(config)}, inference"
    conclude(life, fitted, recorder, observed, SideMeasurements(), title=title)
    if run.result.phases:  # the time of batches is evaluation time, not training time
        timed = {"eval_seconds": run.result.phases.train_seconds, "train_seconds": None}
        run.update(phases=run.result.phases.model_copy(update=timed))
    return run.result.status


def repeat_batches(config: Config, opened: OpenSplit | None, device: torch.device) -> Generator[Batch, None, None]:
    """Yield full batches forever: random ones, or real images, the same in each pass."""
    if opened is None:
        yield from synthetic_batches(config, device)
        return
    while True:
        with closing(WORKLOADS[config.workload].open_validation(config, opened, device, SINGLE_RANK)) as loader:
            for batch in loader:
                if batch[1][-1] != IGNORED:  # the last batch of a pass may contain padding
                    yield batch


def infer_steps(
    model: nn.Module, config: Config, device: torch.device, batches: Iterable[Batch], timer: Timer, origin: float
) -> Iterator[StepRecord]:
    """Run inference, yielding each batch as a step record when the device has finished it: `timer.lag` batches late.

    Records have no loss and no learning rate.
    """
    score = WORKLOADS[config.workload].build_forward(config, device)
    pending: deque[tuple[int, StepBegin, Any, Any, int]] = deque()
    batches = iter(batches)
    timer.pause()
    for step in itertools.count():
        begin = timer.begin_step()
        images = next(batches)[0]
        ready = timer.mark()
        with torch.inference_mode(), autocast(device, config.train.precision):
            score(model, images)
        pending.append((step, begin, ready, timer.end_step(), len(images)))
        if len(pending) > timer.lag:
            number, begin, ready, end, num_images = pending.popleft()
            timer.wait(end)
            waited, spent = timer.seconds(begin.waits_from, ready), timer.seconds(begin.mark, end)
            started = begin.seconds - origin
            yield StepRecord(number, 0, started, waited, spent, num_images, loss=math.nan, lr=0.0)
