"""How `eval` flows: data, fit, weights, judge, write. The table of contents, the same on every rank.

The first rank writes the result. Nothing is learned and nothing timed but the whole.
"""

import logging
import time
from collections.abc import Generator

from trainstone.config.schema import Config
from trainstone.data.splits import OpenSplit
from trainstone.errors import ConfigError, DataError
from trainstone.machine.launched import name_host
from trainstone.measure.devices import name_device
from trainstone.results import schema
from trainstone.results.checks import finding
from trainstone.results.progress import Progress
from trainstone.results.quality import Evaluation, Quality
from trainstone.results.schema import Status
from trainstone.results.store import RunFolder
from trainstone.results.verdicts import write_eval_verdict
from trainstone.train.checkpoint import Saved, load_network
from trainstone.train.conclude import gather_devices
from trainstone.train.distributed import World
from trainstone.train.evaluate import Scoring, judge_network, keep_pictures
from trainstone.train.fit import fit_engine
from trainstone.train.lifecycle import OTHER_RANK, Lifecycle
from trainstone.train.start import agree_on, provide_for_all
from trainstone.train.task import count_parameters, open_data
from trainstone.units import format_count
from trainstone.workloads.registry import WORKLOADS
from trainstone.workloads.workload import Scored, choose_eval_batch

log = logging.getLogger(__name__)

DATA_HINT = "give --data DIR: pictures of the classes that these weights know"


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
    phases = schema.Phases(eval_seconds=time.perf_counter() - began, program_seconds=life.seconds)
    conclude_eval(run, config, world, saved, opened, judged, phases, count_parameters(model))
    return run.result.status


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


def conclude_eval(
    run: RunFolder,
    config: Config,
    world: World,
    saved: Saved,
    opened: OpenSplit,
    judged: Scored,
    phases: schema.Phases,
    parameters: int,
) -> None:
    device = schema.Device(host=name_host(), name=name_device(world.device), label=str(world.device))
    devices = gather_devices(world, device)
    evaluation = Evaluation(
        epoch=saved.epoch or 0.0,
        step=saved.step,
        seconds=phases.program_seconds or 0.0,
        eval_seconds=phases.eval_seconds or 0.0,
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
        phases=phases,
        devices=devices,
        findings=[*run.result.findings, *tell_left_out(opened, judged.images, config)],
        verdict=write_eval_verdict(title, evaluation, config.eval.metric, saved.origin),
    )


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
