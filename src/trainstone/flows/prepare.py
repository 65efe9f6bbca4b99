"""What happens before the first step of a training run: ranks agree, data is there, a checkpoint is taken up."""

from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.nn.parallel import DistributedDataParallel

from trainstone.config.schema import Config, change_section
from trainstone.data.splits import OpenSplit, digest_samples
from trainstone.engine.distributed.collectives import World, barrier, broadcast_dict, gather, settle_buckets
from trainstone.engine.fit import Fitted, fit_to_machine
from trainstone.engine.lr_schedule import check_rate, peak_rate
from trainstone.engine.task import Task, find_data, open_data, order_pictures, provide_data, settle_classes
from trainstone.errors import ConfigError, DataError
from trainstone.flows.lifecycle import Lifecycle
from trainstone.flows.train.checkpoint import Checkpoint, keep_best
from trainstone.flows.train.state import Course
from trainstone.machine.launch_protocol import name_host
from trainstone.machine.ranks import Rank
from trainstone.measure.recorder import Sink
from trainstone.originals.output_file import Facts, Seat
from trainstone.originals.registry import list_writers
from trainstone.results.findings import finding
from trainstone.results.progress import Progress
from trainstone.results.schema import run as schema
from trainstone.units import format_count
from trainstone.workloads.registry import WORKLOADS


def find_seats(world: World) -> tuple[Seat, ...]:
    """Return where each rank computes, on the first of several; empty otherwise. All ranks must come here."""
    found = None if world.alone else gather(world, {"host": name_host()})
    hosts = [str(one["host"]) for one in found or ()]
    return tuple(Seat(host, hosts[:rank].count(host)) for rank, host in enumerate(hosts))


def provide_for_all(config: Config, life: Lifecycle) -> Iterator[Progress]:
    """Let rank 0 make the images that are missing, then the first rank of hosts that do not see them; others wait."""
    world = life.world
    for mine in (world.rank.number == 0, world.rank.number > 0 and world.leads_host):
        for progress in provide_data(config) if mine else ():
            yield progress
            if life.signals.received:  # what was made stays, and the next start continues with it
                break
        barrier(world)
    life.check_stop()


class Pictures(NamedTuple):
    """What is trained on, and what is validated with."""

    training: OpenSplit
    validation: OpenSplit | None
    """None: the set has no such split, and the recipe can do without."""


def open_both(config: Config) -> Pictures:
    """Open the pictures to train on and those to validate with; these may lack where nothing depends on them."""
    training = open_data(config, "train")
    if training is None:
        raise ConfigError(
            f"recipe {config.name} has no pictures to learn from: its data is synthetic",
            hint="give --data DIR; `trainstone train demo-classify` and `demo-detect` make their own",
        )
    # A set of one split is taken for either.
    alone = len(training.dataset.splits) == 1
    has_validation = not alone and any(split.name == "val" for split in training.dataset.splits)
    if not has_validation and config.eval.target is None and not (config.eval.every_epochs or config.eval.at_epochs):
        return Pictures(training, None)
    if alone and "val" not in training.dataset.lacking:  # of those opening val tells
        raise DataError(
            f"{find_data(config)} has one split, {training.name}: nothing is left to validate with",
            hint="`trainstone data` makes a train and a val split of what it knows; class folders: train/ and val/; "
            "with eval.every_epochs = 0 and no eval.target `train` does without",
        )
    return Pictures(training, open_data(config, "val"))


def agree_on(config: Config, world: World, *keys: str) -> Config:
    """Return the configuration with what the first rank found for keys of its section train."""
    told = broadcast_dict(world, {key: getattr(config.train, key) for key in keys})
    return change_section(config, "train", **told)


def fit_all(
    life: Lifecycle, config: Config, *, strict: bool, measured: bool = True
) -> Generator[Progress, None, Fitted]:
    """Fit the recipe to this machine; all ranks take the batch and the precision that rank 0 found."""
    yield Progress("fitting the recipe to this machine")
    life.check_stop()
    fitted = fit_to_machine(config, strict=strict, world=life.rank, measured=measured)
    return replace(fitted, config=agree_on(fitted.config, life.world, "batch_size", "precision"))


def start_measurement(life: Lifecycle, *, strict: bool) -> Generator[Progress, None, tuple[Fitted, OpenSplit | None]]:
    yield from life.join()
    config = life.config
    if config.data.source != "synthetic":
        yield Progress("opening the data set")
    yield from provide_for_all(config, life)
    opened = open_data(config)
    fitted = yield from fit_all(life, settle_classes(config, opened), strict=strict)
    life.run.write_config(fitted.config)
    life.run.update(findings=list(fitted.findings))
    return fitted, opened


def open_originals(life: Lifecycle, fitted: Fitted, **facts: Any) -> Iterator[Sink]:
    """Open the files that the recipe's original wrote, on rank 0. All ranks must call this."""
    seats, rank = find_seats(life.world), life.rank
    if rank.number:
        return iter(())
    device = seats[0].device if seats else fitted.device.index or 0
    folder = life.run.path
    return list_writers(
        Facts(config=fitted.config, folder=folder, ranks=rank.world, device=device, seats=seats, **facts)
    )


def begin_course(config: Config, pictures: Pictures, rank: Rank, checkpoint: Checkpoint | None, starts: int) -> Course:
    """Start the run's clock, or let it go on."""
    train, training = config.train, pictures.training
    order = order_pictures(config, len(training.source), rank)
    course = Course(config.eval.metric, order.epoch_pictures, order.global_batch * train.accumulate, starts=starts)
    course.data = {split.name: f"{len(split.source)} {digest_samples(split.source)}" for split in pictures if split}
    if checkpoint:
        course.go_on_from(checkpoint.document, str(checkpoint.path))
        # With other images, or another number of them a step, it would not be the same run.
        before = checkpoint.document.get("global_batch")
        if before != course.global_batch:
            ranks = format_count(rank.world, "rank")
            raise ConfigError(
                f"the run has {before} images a step so far; {ranks} with train.batch_size = {train.batch_size} have "
                f"{course.global_batch}",
                hint="take as many ranks as before, or change train.batch_size or train.accumulate to match",
            )
        if (checkpoint.document.get("pictures"), checkpoint.document.get("data")) != (course.pictures, course.data):
            raise DataError(
                "the data set is not the one that the run began with: pictures were added, taken away or changed",
                hint="bring it back as it was, or start a new run",
            )
        if course.is_best_now and config.checkpoint.best and rank.number == 0:
            keep_best(checkpoint.path.parent, course.done)  # it may have been killed before it did
    return course


def settle_gradients(task: Task, config: Config) -> None:
    """Before the first step of several ranks: bring gradients into the order that they are all-reduced in."""
    if not isinstance(task.model, DistributedDataParallel):
        return
    batch = WORKLOADS[config.workload].empty_batch(config, task.images_per_step // task.accumulate)
    on_device = tuple(torch.zeros_like(tensor, device=task.device) for tensor in batch)

    def run_once() -> None:
        with task.autocast():
            loss = task.loss(task.model, on_device)
        loss.backward()

    settle_buckets(task.model, run_once)


def list_doubts(config: Config, pictures: Pictures, global_batch: int, rank: Rank) -> list[schema.Finding]:
    """Findings about a rate that is far from usual ones, and where there is nothing to validate with."""
    peak = peak_rate(config.optimizer, global_batch=global_batch, ranks=rank.world * config.train.accumulate)
    told = check_rate(config.optimizer, peak=peak, global_batch=global_batch)
    findings = [finding("learning-rate", told)] if told else []
    if pictures.validation is None:
        splits = ", ".join(split.name for split in pictures.training.dataset.splits)
        told = f"{find_data(config)} has nothing to validate with (splits: {splits}): the network is not evaluated"
        told += "; without eval_accuracy MLPerf's checker refuses mlperf.log"
        findings.append(finding("not-evaluated", told))
    return findings
