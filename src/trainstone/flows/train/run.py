"""Train to the target: data, fit, start or resume, train, evaluate, write. The table of contents.

Every rank runs this; rank 0 writes the result, each rank its own steps and log. Killed at any moment, the folder can be
read and the run resumes from its last checkpoint.
"""

import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing

from trainstone.engine.evaluate import Scoring
from trainstone.engine.event_schedule import EventSchedule
from trainstone.engine.fit import Fitted
from trainstone.engine.network import count_parameters, seed_network
from trainstone.engine.task import build_task
from trainstone.engine.training_data import settle_classes
from trainstone.flows import prepare
from trainstone.flows.lifecycle import Lifecycle
from trainstone.flows.observation import measure_device, observe, open_recorder
from trainstone.flows.train import checkpoint, start
from trainstone.flows.train.loop import TrainingContext, train_to_end
from trainstone.flows.train.result import conclude_training, write_end
from trainstone.flows.train.tracking import open_trackers
from trainstone.originals.mlperf.training_log import check_division, clear_caches, find_run_start, open_log
from trainstone.originals.output_file import has_decay
from trainstone.results.progress import Progress
from trainstone.results.schema.run import Status
from trainstone.workloads.registry import WORKLOADS


def run_train(life: Lifecycle, *, strict: bool, resume: bool) -> Generator[Progress, None, Status]:
    """Train to the target; every rank runs this, rank 0 writes the result. Yields progress to show."""
    yield from life.join()
    config = life.config
    if life.rank.number:  # as rank 0 opened it: this one may have looked while the folder was being made
        resume = life.run.result.process.starts > 1
    yield from prepare.provide_for_all(config, life)
    images = start.open_both(config)
    fitted = yield from prepare.fit_all(life, settle_classes(config, images.training), strict=strict, measured=False)
    yield Progress("building the network")
    life.check_stop()
    yield from train_and_evaluate(life, fitted, images, resume=resume)
    return life.run.result.status


def train_and_evaluate(life: Lifecycle, fitted: Fitted, images: start.Images, *, resume: bool) -> Iterator[Progress]:
    """Start or take up the run, learn to the end, write the result.

    The clock, and run_start of mlperf.log, begin when the network is on its device and before any training image is
    read. Opening a data set, before it, reads its index and no image.
    """
    config, run, world, rank = fitted.config, life.run, life.world, life.rank
    training, validation = images
    begun, message = checkpoint.find_start(run, world) if resume else (None, [])
    with ExitStack() as files:
        cleared, uncleared = clear_caches(config, world, resumed=resume)
        network = seed_network(config, fitted.device, world, begins=begun is None)
        counts = len(training.source), len(validation.source) if validation else 0
        mlperf = files.enter_context(open_log(run, fitted, counts, rank, network, cleared))
        if not resume:
            mlperf.begin()
        # The run's clock starts: from here on training data is touched.
        state = start.begin_training_state(config, images, rank, begun, run.result.process.starts)
        task = build_task(config, fitted.device, training, world=world, first_step=state.done, network=network)
        files.enter_context(closing(task))
        state.parameters = count_parameters(task.plain)
        if begun:
            checkpoint.restore(task, begun.tensors, begun.document, str(begun.path))
        prepare.settle_gradients(task, config)
        schedule = EventSchedule(state.images, state.global_batch, config.eval, config.stop, config.checkpoint)
        findings = [*fitted.findings, *uncleared, *message]
        findings += start.list_warnings(config, images, state.global_batch, rank)
        findings += [*check_division(config, counts, rank), *WORKLOADS[config.workload].list_warnings(config)]
        # Not before: a change that a resumed run cannot bear must not stay in its folder.
        run.write_config(config)
        # Evaluations after the checkpoint are to be made again.
        run.update(findings=findings, quality=state.quality(config.eval), phases=state.phases())
        recorder = files.enter_context(open_recorder(life, fitted, state.done, decay_loss=has_decay(config.optimizer)))
        settings = config.model_dump(mode="json", exclude_none=True)
        curves = open_trackers(config.tracking, run.path, run.result.run_id, settings, first_step=state.done)
        trackers = map(files.enter_context, curves if rank.number == 0 else ())
        facts = {
            "kind": "train",
            "global_batch": state.global_batch,
            "train_images": state.images,
            "began": find_run_start(run) or time.time() - state.clock(),
            "steps": schedule.last_step,
            "first_step": state.done,
            "history": tuple(state.history),
        }
        writers = map(files.enter_context, prepare.open_originals(life, fitted, **facts))
        # mlperf.log before the others: its times count. Originals last: one copies mlperf.log when the run ends.
        sinks = recorder, mlperf, *trackers, *writers
        if resume:
            mlperf.resume(state.done, evaluated=state.evaluated_now)
        scoring = files.enter_context(Scoring(config, world))
        context = TrainingContext(life, config, task, schedule, validation, recorder, sinks, scoring)
        with observe(life, fitted, recorder.current_step, time.perf_counter() - state.clock()) as observed:
            yield from train_to_end(context, state)
        write_end(context, state)
        if not state.stopped:  # a scheduler that asks for the end kills whoever is slow
            observed.peaks = yield from measure_device(life, fitted)
        conclude_training(context, fitted, state, observed)
