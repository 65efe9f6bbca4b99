"""Opens mlperf.log of a training run: gathers what its head tells, and clears the page cache where asked for."""

import logging
import time

import psutil
from torch import nn

from trainstone.config.schema import Config
from trainstone.machine.pagecache import NOT_ASKED, CacheCleared, clear_page_cache
from trainstone.machine.ranks import Rank
from trainstone.measure.devices import name_device
from trainstone.results.checks import finding
from trainstone.results.schema import Finding
from trainstone.results.store import RunFolder
from trainstone.train.decision import Cadence
from trainstone.train.distributed import World, gather
from trainstone.train.fit import Fitted
from trainstone.train.original.mllog import MLPERF_LOG, MlperfLog, Submission, judge_division, read_whole
from trainstone.train.schedule import count_warm_up, peak_rate
from trainstone.train.task import order_pictures
from trainstone.workloads.registry import WORKLOADS
from trainstone.workloads.workload import RunSizes

log = logging.getLogger(__name__)

MANY_DEPARTURES = 3


def clear_caches(config: Config, world: World, *, resumed: bool) -> tuple[CacheCleared, list[Finding]]:
    """Clear the page cache on every host where asked for; a finding where it could not be done."""
    if not config.mlperf.clear_caches:
        return NOT_ASKED, []
    if resumed:
        return CacheCleared(False, "page cache not cleared: the run had begun before"), []
    mine = clear_page_cache() if world.rank.local == 0 else CacheCleared(True, "")
    found = [CacheCleared(**one) for one in gather(world, mine._asdict()) or [mine._asdict()]]
    failed = [one for one in found if not one.done]
    if not failed:
        return found[0], []
    return failed[0], [finding("caches-kept", f"mlperf.clear_caches is set, but: {failed[0].told}")]


def open_log(
    run: RunFolder, fitted: Fitted, pictures: tuple[int, int], rank: Rank, network: nn.Module, cleared: CacheCleared
) -> MlperfLog:
    """Return the log of this rank, with nothing written yet; only the first has a file. `pictures`: train and val.

    To be called when the network has just been built: the log tells that moment.
    """
    built_seconds = time.time()
    config = fitted.config
    order = order_pictures(config, pictures[0], rank)
    images = order.global_batch * config.train.accumulate
    cadence = Cadence(order.epoch_pictures, images, config.eval, config.stop, config.checkpoint)
    sizes = measure_sizes(config, *pictures, rank)
    submission = describe_submission(fitted, sizes, network, cleared, built_seconds)
    return MlperfLog(run.path / MLPERF_LOG if rank.number == 0 else None, cadence, submission)


def find_run_start(run: RunFolder) -> float | None:
    """Return when the run began, in seconds since 1970, as its log says; None where it does not."""
    events = read_whole(run.path / MLPERF_LOG)
    return next((event.time_ms / 1000 for event in events if event.key == "run_start"), None)


def check_division(config: Config, pictures: tuple[int, int], rank: Rank) -> list[Finding]:
    """A finding where the closed division is asked for and its rules are not kept."""
    mllog = WORKLOADS[config.workload].mllog
    division, departures = judge_division(config, mllog, measure_sizes(config, *pictures, rank))
    if division == "open" or not departures:
        return []
    more = len(departures) - MANY_DEPARTURES
    rest = f"; and {more} more (log.txt)" if more > 0 else ""
    told = "; ".join(departures[:MANY_DEPARTURES])
    return [finding("not-closed", f"mlperf.division is closed, but its rules are not kept: {told}{rest}")]


def describe_submission(
    fitted: Fitted, sizes: RunSizes, network: nn.Module, cleared: CacheCleared, built_seconds: float
) -> Submission:
    """Gather what the log tells before the first step, and say in log.txt why it is not the closed division's."""
    mllog = WORKLOADS[fitted.config.workload].mllog
    division, departures = judge_division(fitted.config, mllog, sizes)
    why = f": {'; '.join(departures)}" if departures else ""
    log.info(
        "mlperf.log: %s division%s", division, f", against the rules{why}" if division == "closed" and why else why
    )
    return Submission(
        config=fitted.config,
        mllog=mllog,
        sizes=sizes,
        division=division,
        device_name=name_device(fitted.device),
        tensors=mllog.tensor_names(network),
        cleared=cleared,
        init_ms=int(min(built_seconds, find_program_start(), cleared.at_seconds or built_seconds) * 1000),
        built_ms=int(built_seconds * 1000),
    )


def find_program_start() -> float:
    """Return when this process began, which may have replaced itself since (engine.keep_memory); now where unknown."""
    try:
        return psutil.Process().create_time()
    except psutil.Error:
        return time.time()


def measure_sizes(config: Config, train_pictures: int, val_pictures: int, rank: Rank) -> RunSizes:
    """Return the numbers of a run on so many pictures."""
    train = config.train
    assert isinstance(train.batch_size, int)  # train/fit.py resolved it
    global_batch = train.batch_size * train.accumulate * rank.world
    order = order_pictures(config, config.schedule.pictures or train_pictures, rank)
    steps_per_epoch = order.epoch_pictures / global_batch
    warm_up = count_warm_up(config.schedule, steps_per_epoch, order.count / global_batch)
    return RunSizes(
        ranks=rank.world,
        global_batch=global_batch,
        train_pictures=train_pictures,
        val_pictures=val_pictures,
        peak_rate=peak_rate(config.optimizer, global_batch=global_batch, ranks=rank.world * train.accumulate),
        decay_steps=count_decay_steps(config, steps_per_epoch, warm_up),
        warm_up_steps=warm_up,
    )


def count_decay_steps(config: Config, steps_per_epoch: float, warm_up: int) -> int:
    """Return how many steps the rate falls for, as train/schedule.py counts them."""
    total = round(steps_per_epoch * config.stop.epochs)
    return max(0, total - (warm_up if config.schedule.warm_up_offset else 0))
