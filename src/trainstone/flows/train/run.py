"""`trainstone train`: prepare data, fit the recipe, start or resume, train and evaluate, write the result.

Every rank runs this; rank 0 writes the result, each rank its own steps and log. After a kill at any moment the run
folder is readable and the run can resume from its last checkpoint.
"""

import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing

from trainstone.engine.evaluate import Scoring
from trainstone.engine.event_schedule import EventSchedule
from trainstone.engine.fit import Fitted
from trainstone.engine.network import count_parameters, seed_network
from trainstone.engine.task import build_task
from trainstone.engine.training_data import resolve_num_classes
from trainstone.flows import prepare
from trainstone.flows.lifecycle import Lifecycle
from trainstone.flows.observation import measure_device, observe, open_recorder
from trainstone.flows.train import checkpoint, start
from trainstone.flows.train.loop import TrainingContext, train_to_end
from trainstone.flows.train.result import write_measurements, write_outcome
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
    if life.rank.number:  # rank 0 decides: this rank may have looked while the folder was being created
        resume = life.run.result.process.starts > 1
    yield from prepare.provide_data_on_all_ranks(config, life)
    splits = start.open_splits(config)
    fitted = yield from prepare.fit_on_all_ranks(
        life, resolve_num_classes(config, splits.training), strict=strict, measured=False
    )
    yield Progress("building the network")
    life.check_stop()
    yield from train_and_evaluate(life, fitted, splits, resume=resume)
    return life.run.result.status


def train_and_evaluate(
    life: Lifecycle, fitted: Fitted, splits: start.TrainingSplits, *, resume: bool
) -> Iterator[Progress]:
    """Start or resume the run, train to the end, write the result.

    The clock and run_start of mlperf.log begin when the network is on its device and before any training image is
    read. Opening a data set happens earlier; it reads the index and no image.
    """
    config, run, world, rank = fitted.config, life.run, life.world, life.rank
    training, validation = splits
    resumed_from, resume_findings = checkpoint.find_resume_checkpoint(run, world) if resume else (None, [])
    with ExitStack() as files:
        cleared, cache_findings = clear_caches(config, world, resumed=resume)
        network = seed_network(config, fitted.device, world, begins=resumed_from is None)
        counts = len(training.source), len(validation.source) if validation else 0
        mlperf = files.enter_context(open_log(run, fitted, counts, rank, network, cleared))
        if not resume:
            mlperf.begin()
        # The run's clock starts here: training data is used from now on.
        state = start.build_training_state(config, splits, rank, resumed_from, run.result.process.starts)
        task = build_task(config, fitted.device, training, world=world, first_step=state.done, network=network)
        files.enter_context(closing(task))
        state.parameters = count_parameters(task.plain)
        if resumed_from:
            checkpoint.restore(task, resumed_from.tensors, resumed_from.document, str(resumed_from.path))
        prepare.rebuild_gradient_buckets(task, config)
        schedule = EventSchedule(state.images, state.global_batch, config.eval, config.stop, config.checkpoint)
        findings = [*fitted.findings, *cache_findings, *resume_findings]
        findings += start.list_warnings(config, splits, state.global_batch, rank)
        findings += [*check_division(config, counts, rank), *WORKLOADS[config.workload].list_warnings(config)]
        # Written only now: a change that is refused above must not stay in the folder of a resumed run.
        run.write_config(config)
        # Evaluations after the checkpoint are repeated.
        run.update(findings=findings, quality=state.quality(config.eval), phases=state.phases(), trials=fitted.trials)
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
        # mlperf.log comes first: its times count. Originals come last: one copies mlperf.log when the run ends.
        sinks = recorder, mlperf, *trackers, *writers
        if resume:
            mlperf.resume(state.done, evaluated=state.evaluated_now)
        scoring = files.enter_context(Scoring(config, world))
        context = TrainingContext(life, config, task, schedule, validation, recorder, sinks, scoring)
        with observe(life, fitted, recorder.current_step, time.perf_counter() - state.clock()) as observed:
            yield from train_to_end(context, state)
        write_outcome(context, state)
        if not state.stopped:  # after a stop signal the scheduler soon kills the process
            observed.peaks = yield from measure_device(life, fitted)
        write_measurements(context, fitted, state, observed)
