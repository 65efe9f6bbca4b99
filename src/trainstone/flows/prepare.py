"""Prepare a run on all ranks before its first step: generate data, fit the recipe, open original outputs."""

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from trainstone.config.schema import Config, change_section
from trainstone.data.splits import OpenSplit
from trainstone.engine.distributed.collectives import World, barrier, broadcast_dict, gather
from trainstone.engine.distributed.data_parallel import rebuild_buckets
from trainstone.engine.fit import Fitted, count_step_work, fit_to_machine
from trainstone.engine.task import Task
from trainstone.engine.training_data import open_data, provide_data, resolve_num_classes
from trainstone.flows.lifecycle import Lifecycle
from trainstone.machine.launch_protocol import get_host_name
from trainstone.measure.recorder import Sink
from trainstone.originals.output_file import RankPlacement, RunFacts
from trainstone.originals.registry import list_writers
from trainstone.results.progress import Progress
from trainstone.workloads.registry import WORKLOADS


def find_placements(world: World) -> tuple[RankPlacement, ...]:
    """Return host and local index of each rank on rank 0 of several; empty otherwise. All ranks must call this."""
    found = None if world.is_single_rank else gather(world, {"host": get_host_name()})
    hosts = [str(one["host"]) for one in found or ()]
    return tuple(RankPlacement(host, hosts[:rank].count(host)) for rank, host in enumerate(hosts))


def provide_data_on_all_ranks(config: Config, life: Lifecycle) -> Iterator[Progress]:
    """Generate missing images on rank 0, then on the first rank of hosts that do not see them; other ranks wait."""
    world = life.world
    for mine in (world.rank.number == 0, world.rank.number > 0 and world.leads_host):
        for progress in provide_data(config) if mine else ():
            yield progress
            if life.signals.received:  # generated images are kept; the next start continues from them
                break
        barrier(world)
    life.check_stop()


def use_values_of_rank_0(config: Config, world: World, *keys: str) -> Config:
    """Return the configuration with rank 0's values for these keys of section train."""
    values = broadcast_dict(world, {key: getattr(config.train, key) for key in keys})
    return change_section(config, "train", **values)


def fit_on_all_ranks(
    life: Lifecycle, config: Config, *, strict: bool, measured: bool = True
) -> Generator[Progress, None, Fitted]:
    """Fit the recipe to this machine; all ranks use rank 0's precision and the smallest batch size of any rank."""
    yield Progress("fitting the recipe to this machine")
    life.check_stop()
    with closing(fit_to_machine(config, strict=strict, world=life.rank, measured=measured)) as fitting:
        while True:
            try:
                yield next(fitting)
            except StopIteration as end:
                fitted: Fitted = end.value
                break
            if life.world.is_single_rank:  # other ranks are at another point of their trials
                life.check_stop()
    if life.world.is_single_rank:
        return fitted
    train, engine = fitted.config.train, fitted.config.engine
    found = gather(life.world, {"batch_size": train.batch_size}) or [{}]
    smallest = min(one.get("batch_size", 0) for one in found)
    agreed = broadcast_dict(
        life.world, {"batch_size": smallest, "precision": train.precision, "compile": engine.compile}
    )
    config = change_section(fitted.config, "engine", compile=agreed.pop("compile"))
    config = change_section(config, "train", **agreed)
    trials = fitted.trials
    if trials and trials.chosen_batch_size:
        trials = trials.model_copy(update={"chosen_batch_size": agreed["batch_size"]})
    return replace(fitted, config=config, work=count_step_work(config, agreed["batch_size"]), trials=trials)


def start_measurement(life: Lifecycle, *, strict: bool) -> Generator[Progress, None, tuple[Fitted, OpenSplit | None]]:
    """Join the ranks, open the data set and fit the recipe; return the fitted recipe and the opened images."""
    yield from life.join()
    config = life.config
    if config.data.source != "synthetic":
        yield Progress("opening the data set")
    yield from provide_data_on_all_ranks(config, life)
    opened = open_data(config)
    fitted = yield from fit_on_all_ranks(life, resolve_num_classes(config, opened), strict=strict)
    life.run.write_config(fitted.config)
    life.run.update(findings=list(fitted.findings), trials=fitted.trials)
    return fitted, opened


def open_originals(life: Lifecycle, fitted: Fitted, **facts: Any) -> Iterator[Sink]:
    """Open the output files that the original benchmark of this recipe writes, on rank 0. All ranks must call this."""
    placements, rank = find_placements(life.world), life.rank
    if rank.number:
        return iter(())
    device = placements[0].device if placements else fitted.device.index or 0
    folder = life.run.path
    return list_writers(
        RunFacts(config=fitted.config, folder=folder, ranks=rank.world, device=device, placements=placements, **facts)
    )


def rebuild_gradient_buckets(task: Task, config: Config) -> None:
    """Fix the gradient buckets of DistributedDataParallel before the first step; no effect on a single rank."""
    if not isinstance(task.model, DistributedDataParallel):
        return
    batch = WORKLOADS[config.workload].empty_batch(config, task.images_per_step // task.accumulate)
    on_device = tuple(torch.zeros_like(tensor, device=task.device) for tensor in batch)

    def run_once() -> None:
        with task.autocast():
            loss = task.loss(task.model, on_device)
        loss.backward()

    rebuild_buckets(task.model, run_once)
