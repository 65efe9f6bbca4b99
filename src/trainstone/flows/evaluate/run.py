"""What `eval` does with saved weights: data, fit, weights, judge, write. Nothing is learned.

run_eval judges all validation pictures, the same on every rank, and times nothing but the whole. run_inference
(`eval --bench`) times forward passes on one device like steps of training; a step is a batch of eval.batch_size
pictures: wait for it, normalise, forward. No labels are looked at. predict says what the weights see in single
pictures, which are read, decoded and cut as evaluation does it; export_weights writes a plain file for other tools.
"""

import itertools
import json
import logging
import math
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainstone.config.schema import Config, change_section
from trainstone.data.loader import Memory
from trainstone.data.pipeline.feed import IGNORED, Feed, Worker
from trainstone.data.recognise import open_dataset
from trainstone.data.sample import ClassName, PictureSource
from trainstone.data.splits import OpenSplit
from trainstone.data.synthetic.dataset import find_stored
from trainstone.engine.evaluate import Scoring, judge_network, keep_pictures
from trainstone.engine.fit import Fitted, count_step_work, fit_engine
from trainstone.engine.task import compile_model, count_parameters, feed_device, find_data, open_data, synthetic_batches
from trainstone.errors import ConfigError, DataError
from trainstone.flows.bench.result import conclude, gather_devices, measure_device, observe, open_recorder
from trainstone.flows.bench.stop_rule import Pact, record_steps
from trainstone.flows.lifecycle import OTHER_RANK, Lifecycle
from trainstone.flows.prepare import agree_on, provide_for_all
from trainstone.flows.train.checkpoint import Saved, load_network
from trainstone.machine.launch_protocol import name_host
from trainstone.machine.ranks import ALONE
from trainstone.measure.clock import Timer, choose_timer
from trainstone.measure.devices import autocast, name_device
from trainstone.models.weights import write_weights
from trainstone.results.findings import finding
from trainstone.results.progress import Progress
from trainstone.results.schema import run as schema
from trainstone.results.schema.quality import Evaluation, Quality
from trainstone.results.schema.run import Status
from trainstone.results.steps import StepRecord
from trainstone.results.verdicts import write_eval_verdict
from trainstone.units import format_count
from trainstone.workloads.registry import WORKLOADS
from trainstone.workloads.workload import Batch, Scored, choose_eval_batch

log = logging.getLogger(__name__)

DATA_HINT = "give --data DIR: pictures of the classes that these weights know"
EDGES = ("left", "top", "right", "bottom")
"""Of a box, as shares of the image's width and height."""


def run_eval(life: Lifecycle, saved: Saved) -> Generator[Progress, None, Status]:
    """Evaluate saved weights; every rank runs this, rank 0 writes the result."""
    yield from life.join()
    config, run, world = life.config, life.run, life.world
    yield from provide_for_all(config, life)
    yield Progress("opening the data set")
    opened = open_pictures(config)
    yield Progress("fitting the recipe to this machine")
    life.check_stop()
    config, device, findings = fit_engine(config, world=life.rank)
    config = agree_on(config, world, "precision")
    run.write_config(config)
    findings += [finding("checkpoint-damaged", doubt) for doubt in saved.doubts]
    run.update(findings=findings)
    yield Progress("building the network")
    model = load_network(config, device, saved)
    life.check_stop()
    began = time.perf_counter()
    rows = yield from judge_network(model, config, device, opened, world, life.signals)
    if rows is None:
        raise KeyboardInterrupt(life.signals.received or OTHER_RANK)
    with Scoring(config, world) as scoring:
        scoring.begin(opened, rows, saved.step, time.perf_counter() - began)
        judged = scoring.take()
    conclude_eval(life, config, saved, opened, judged, time.perf_counter() - began, count_parameters(model))
    return run.result.status


def conclude_eval(
    life: Lifecycle,
    config: Config,
    saved: Saved,
    opened: OpenSplit,
    judged: Scored,
    eval_seconds: float,
    parameters: int,
) -> None:
    """Write the final result. All ranks must come here: each describes its device."""
    run, world, program_seconds = life.run, life.world, life.seconds
    own = schema.Device(host=name_host(), name=name_device(world.device), label=str(world.device))
    devices = gather_devices(world, own)
    evaluation = Evaluation(
        epoch=saved.epoch or 0.0,
        step=saved.step,
        seconds=program_seconds,
        eval_seconds=eval_seconds,
        metrics=judged.metrics,
        images=judged.images,
    )
    quality = Quality(
        metric=config.eval.metric,
        value=judged.metrics[config.eval.metric],
        epochs=evaluation.epoch,
        history=[evaluation],
        tables=list(judged.tables),
        pictures=list(keep_pictures(run.path, judged)),
        parameters=parameters,
    )
    title = WORKLOADS[config.workload].title(config)
    run.update(
        status="ok",
        quality=quality,
        phases=schema.Phases(eval_seconds=eval_seconds, program_seconds=program_seconds),
        devices=devices,
        findings=[*run.result.findings, *tell_left_out(opened, judged.images, config)],
        verdict=write_eval_verdict(title, evaluation, config.eval.metric, saved.origin),
    )


def open_pictures(config: Config) -> OpenSplit:
    """Open the pictures to judge by; errors tell what to do where the network cannot change."""
    try:
        opened = open_data(config, "val")
    except DataError as err:
        other_network = err.hint is None or err.hint.startswith("--set model.num_classes")
        raise DataError(err.message, hint=DATA_HINT if other_network else err.hint) from err
    if opened is None:
        raise ConfigError(f"recipe {config.name} has no pictures to judge by: its data is synthetic", hint=DATA_HINT)
    return opened


def tell_left_out(opened: OpenSplit, judged: int, config: Config) -> list[schema.Finding]:
    """Findings where not all pictures were judged: damaged ones, or the rest that fills no batch."""
    batch, pictures = choose_eval_batch(config), len(opened.source)
    rest = pictures % batch if config.eval.drop_rest else 0
    found = []
    if rest:
        told = f"{format_count(rest, 'picture')} not judged: they fill no batch of {batch} (eval.drop_rest)"
        found.append(finding("pictures-skipped", told, hint="--set eval.drop_rest=false judges all"))
    if damaged := pictures - rest - judged:
        told = f"{format_count(damaged, 'damaged picture')} not judged; log.txt names them"
        found.append(finding("pictures-skipped", told))
    return found


def run_inference(life: Lifecycle, saved: Saved) -> Generator[Progress, None, Status]:
    yield from life.join()
    config, run = life.config, life.run
    yield from provide_for_all(config, life)
    opened, batch = None, choose_eval_batch(config)
    if config.data.source != "synthetic":
        opened = open_pictures(config)
        if len(opened.source) < batch:
            raise ConfigError(
                f"split {opened.name} has {len(opened.source)} pictures, fewer than the {batch} of a batch",
                hint=f"--set eval.batch_size={len(opened.source)}",
            )
    yield Progress("fitting the recipe to this machine")
    life.check_stop()
    config, device, findings = fit_engine(config)
    # Both batch sizes are that of inference, so that all that reads a result sees it.
    config = change_section(change_section(config, "train", batch_size=batch), "eval", batch_size=batch)
    # What is timed here has neither phases nor an optimiser.
    config = change_section(config, "engine", split_phases=False, cuda_graphs=False)
    fitted = Fitted(config, device, count_step_work(config, batch, backward=False), tuple(findings))
    run.write_config(config)
    run.update(findings=findings)
    yield Progress("building the network")
    model = load_network(config, device, saved)
    peaks = yield from measure_device(life, fitted)
    life.check_stop()
    with open_recorder(life, fitted) as recorder, observe(life, fitted, recorder.current_step) as observed:
        pact, timer = Pact(life.world, life.signals, learns=False), choose_timer(device)
        called = compile_model(model) if config.engine.compile else model
        with closing(repeat_batches(config, opened, device)) as batches:
            steps = infer_steps(called, config, device, feed_device(batches, device), timer, observed.clock_start)
            if config.measure.iterations is not None:
                steps = itertools.islice(steps, config.measure.iterations)
            yield from record_steps(steps, timer, config.measure, recorder, pact)
    observed.peaks = yield from measure_device(life, fitted, peaks)
    observed.interrupted = life.signals.received
    title = f"{WORKLOADS[config.workload].title(config)}, inference"
    conclude(life, fitted, recorder, observed, title=title)
    if run.result.phases:  # time of batches is time of evaluation, not of training
        timed = {"eval_seconds": run.result.phases.train_seconds, "train_seconds": None}
        run.update(phases=run.result.phases.model_copy(update=timed))
    return run.result.status


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
    model: nn.Module, config: Config, device: torch.device, batches: Iterable[Batch], timer: Timer, origin: float
) -> Iterator[StepRecord]:
    """Judge batch after batch, yielding each when the device has finished it: `timer.lag` batches late.

    There is no loss and no rate.
    """
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
            number, start_seconds, num_images, (begin, ready, end) = pending.popleft()
            timer.wait(end)
            waited, spent = timer.seconds(begin, ready), timer.seconds(begin, end)
            yield StepRecord(number, 0, start_seconds, waited, spent, num_images, loss=math.nan, lr=0.0)


def predict(config: Config, saved: Saved, images: Sequence[Path], top: int) -> Iterator[dict[str, Any]]:
    """Yield what is seen in each image, the likeliest class first, as --json prints it; or why it cannot be read."""
    config, device, findings = fit_engine(config)
    for found in findings:
        log.info("%s", found.message)
    model, classes = load_network(config, device, saved), find_classes(config)
    look = WORKLOADS[config.workload].build_look(config, device)
    worker, uncached = Worker(), change_section(config, "loader", cache="off")
    feed = Feed(PictureSource(images), uncached, train=False)
    memory = Memory(1, config.data.image_size, "class", pinned=False)
    for index, image in enumerate(images):
        try:
            feed.show(index, 0, memory.pixels[0], worker)
        except DataError as err:
            yield {"image": str(image), "error": err.message}
            continue
        with torch.inference_mode(), autocast(device, config.train.precision):
            (seen,) = look(model, memory.images.to(device))
        guesses = []
        for one in seen[:top]:  # scores of all classes sum up to 1, of an image or of a default box
            named = classes[one.label] if one.label < len(classes) else ClassName("")
            box = dict(zip(EDGES, one.edges, strict=True)) if one.edges is not None else None
            guess = {"class": one.label, "name": named.name, "text": named.text, "score": one.score, "box": box}
            guesses.append({key: value for key, value in guess.items() if value not in ("", None)})
        yield {"image": str(image), "guesses": guesses}


def find_classes(config: Config) -> Sequence[ClassName]:
    """Return the names of the classes, from the data set that was trained on; none where it is not to be had."""
    try:
        if config.data.source == "generated":
            return find_stored(config).plan.classes
        if config.data.source == "synthetic":
            raise ConfigError("the data is synthetic")
        dataset = open_dataset(find_data(config))
        WORKLOADS[config.workload].check_classes(config, dataset)
    except (DataError, ConfigError) as err:
        log.warning("names of classes are not known, numbers are given: %s; --data DIR names a data set", err.message)
        return ()
    return dataset.classes


def export_weights(config: Config, saved: Saved, target: Path) -> dict[str, Any]:
    """Write the weights that evaluation judges as plain safetensors, under the names that the network gives them."""
    if target.exists():
        raise ConfigError(f"{target} exists; it is not written over", hint="choose another name, or remove it first")
    model = load_network(config, torch.device("cpu"), saved)
    metadata = {"recipe": config.name, "step": str(saved.step)}
    if saved.run_id is not None:
        metadata["run_id"] = saved.run_id
    classes = find_classes(config)
    if classes:
        metadata["classes"] = json.dumps([one.name for one in classes])
    state = model.state_dict()
    write_weights(target, state, metadata)
    return {
        "tensors": len(state),
        "parameters": count_parameters(model),
        "bytes": target.stat().st_size,
        "averaged": saved.averaged,
    }
