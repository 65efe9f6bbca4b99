"""`trainstone eval`: evaluate saved weights on all validation images; export them for other tools.

Speed measurement is in inference.py, predictions for single images are in predict.py.
"""

import json
import logging
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch

from trainstone.config.schema import Config
from trainstone.data.splits import OpenSplit
from trainstone.engine.evaluate import Scoring, evaluate_network, write_samples
from trainstone.engine.fit import fit_engine
from trainstone.engine.network import count_parameters
from trainstone.engine.training_data import open_data
from trainstone.errors import ConfigError, DataError
from trainstone.flows.evaluate.load_weights import SavedWeights, load_network
from trainstone.flows.evaluate.predict import find_classes
from trainstone.flows.lifecycle import Lifecycle
from trainstone.flows.prepare import provide_data_on_all_ranks, use_values_of_rank_0
from trainstone.flows.speed_summary import gather_devices
from trainstone.machine.launch_protocol import get_host_name
from trainstone.machine.signals import OTHER_RANK
from trainstone.measure.devices import name_device
from trainstone.models.weights import write_weights
from trainstone.results.findings import finding
from trainstone.results.progress import Progress
from trainstone.results.schema import run as schema
from trainstone.results.schema.quality import Evaluation, Quality
from trainstone.results.schema.run import Status
from trainstone.results.verdicts import format_eval_verdict
from trainstone.units import format_count
from trainstone.workloads.registry import WORKLOADS
from trainstone.workloads.workload import EvalScores, choose_eval_batch

log = logging.getLogger(__name__)

DATA_HINT = "give --data DIR with images of the classes that these weights were trained on"


def run_eval(life: Lifecycle, saved: SavedWeights) -> Generator[Progress, None, Status]:
    """Evaluate saved weights; every rank runs this, rank 0 writes the result."""
    yield from life.join()
    config, run, world = life.config, life.run, life.world
    yield from provide_data_on_all_ranks(config, life)
    yield Progress("opening the data set")
    opened = open_images(config)
    yield Progress("fitting the recipe to this machine")
    life.check_stop()
    fit = yield from fit_engine(config, world=life.rank)
    config, device, findings = fit.config, fit.device, fit.findings
    config = use_values_of_rank_0(config, world, "precision")
    run.write_config(config)
    findings += [finding("checkpoint-damaged", warning) for warning in saved.warnings]
    run.update(findings=findings)
    yield Progress("building the network")
    model = load_network(config, device, saved)
    life.check_stop()
    began = time.perf_counter()
    rows = yield from evaluate_network(model, config, device, opened, world, life.signals)
    if rows is None:
        raise KeyboardInterrupt(life.signals.received or OTHER_RANK)
    with Scoring(config, world) as scoring:
        scoring.begin(opened, rows, saved.step, time.perf_counter() - began)
        evaluated = scoring.take()
    conclude_eval(life, config, saved, opened, evaluated, time.perf_counter() - began, count_parameters(model))
    return run.result.status


def conclude_eval(
    life: Lifecycle,
    config: Config,
    saved: SavedWeights,
    opened: OpenSplit,
    evaluated: EvalScores,
    eval_seconds: float,
    parameters: int,
) -> None:
    """Write the final result. All ranks must call this: each describes its device."""
    run, world, program_seconds = life.run, life.world, life.seconds
    own = schema.Device(host=get_host_name(), name=name_device(world.device), label=str(world.device))
    devices = gather_devices(world, own)
    evaluation = Evaluation(
        epoch=saved.epoch or 0.0,
        step=saved.step,
        seconds=program_seconds,
        eval_seconds=eval_seconds,
        metrics=evaluated.metrics,
        images=evaluated.images,
    )
    quality = Quality(
        metric=config.eval.metric,
        value=evaluated.metrics[config.eval.metric],
        epochs=evaluation.epoch,
        history=[evaluation],
        tables=list(evaluated.tables),
        samples=list(write_samples(run.path, evaluated)),
        parameters=parameters,
    )
    title = WORKLOADS[config.workload].title(config)
    run.update(
        status="ok",
        quality=quality,
        phases=schema.Phases(eval_seconds=eval_seconds, program_seconds=program_seconds),
        devices=devices,
        findings=[*run.result.findings, *describe_skipped(opened, evaluated.images, config)],
        verdict=format_eval_verdict(title, evaluation, config.eval.metric, saved.origin),
    )


def open_images(config: Config) -> OpenSplit:
    """Open the validation images; errors have hints that fit a network that cannot change."""
    try:
        opened = open_data(config, "val")
    except DataError as err:
        other_network = err.hint is None or err.hint.startswith("--set model.num_classes")
        raise DataError(err.message, hint=DATA_HINT if other_network else err.hint) from err
    if opened is None:
        raise ConfigError(f"recipe {config.name} has no images to evaluate: data.source is synthetic", hint=DATA_HINT)
    return opened


def describe_skipped(opened: OpenSplit, evaluated: int, config: Config) -> list[schema.Finding]:
    """Return findings about images that were not evaluated: damaged ones, or an incomplete last batch."""
    batch, images = choose_eval_batch(config), len(opened.source)
    rest = images % batch if config.eval.drop_last else 0
    found = []
    if rest:
        message = f"{format_count(rest, 'image')} not evaluated: incomplete batch of {batch} (eval.drop_last)"
        found.append(finding("images-skipped", message, hint="to evaluate all: --set eval.drop_last=false"))
    if damaged := images - rest - evaluated:
        message = f"{format_count(damaged, 'damaged image')} not evaluated; log.txt names them"
        found.append(finding("images-skipped", message))
    return found


def export_weights(config: Config, saved: SavedWeights, target: Path) -> dict[str, Any]:
    """Write the weights that evaluation uses to a plain safetensors file, under the network's own parameter names."""
    if target.exists():
        raise ConfigError(f"{target} exists and is not overwritten", hint="choose another name, or remove it first")
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
