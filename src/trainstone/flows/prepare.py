"""What happens before the first step of a training run: ranks agree, data is there, a checkpoint is taken up."""

from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from trainstone.config.schema import Config, change_section
from trainstone.data.splits import OpenSplit
from trainstone.engine.distributed.collectives import World, barrier, broadcast_dict, gather
from trainstone.engine.distributed.data_parallel import settle_buckets
from trainstone.engine.fit import Fitted, fit_to_machine
from trainstone.engine.task import Task
from trainstone.engine.training_data import open_data, provide_data, settle_classes
from trainstone.flows.lifecycle import Lifecycle
from trainstone.machine.launch_protocol import name_host
from trainstone.measure.recorder import Sink
from trainstone.originals.output_file import RankPlacement, RunFacts
from trainstone.originals.registry import list_writers
from trainstone.results.progress import Progress
from trainstone.workloads.registry import WORKLOADS


def find_placements(world: World) -> tuple[RankPlacement, ...]:
    """Return where each rank computes, on the first of several; empty otherwise. All ranks must come here."""
    found = None if world.alone else gather(world, {"host": name_host()})
    hosts = [str(one["host"]) for one in found or ()]
    return tuple(RankPlacement(host, hosts[:rank].count(host)) for rank, host in enumerate(hosts))


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


def agree_on(config: Config, world: World, *keys: str) -> Config:
    """Return the configuration with what the first rank found for keys of its section train."""
    message = broadcast_dict(world, {key: getattr(config.train, key) for key in keys})
    return change_section(config, "train", **message)


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
    placements, rank = find_placements(life.world), life.rank
    if rank.number:
        return iter(())
    device = placements[0].device if placements else fitted.device.index or 0
    folder = life.run.path
    return list_writers(
        RunFacts(config=fitted.config, folder=folder, ranks=rank.world, device=device, placements=placements, **facts)
    )


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
