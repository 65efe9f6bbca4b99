"""Fits a recipe to this machine: device, threads, precision, batch. What had to be adapted becomes a finding,
or an error with --strict. After it no "auto" is left in the configuration.
"""

from dataclasses import dataclass

import torch

from trainstone.config.schema import Config, change_section
from trainstone.errors import ConfigError
from trainstone.machine.binding import bind_cores
from trainstone.machine.cpus import available_cores
from trainstone.machine.ranks import ALONE, Rank, count_sharing_ranks
from trainstone.measure.devices import choose_device, list_devices
from trainstone.measure.flops import Work
from trainstone.results.checks import finding
from trainstone.results.schema import Finding
from trainstone.train.distributed import place_device
from trainstone.train.fit_batch import count_step_work, fit_batch
from trainstone.train.fit_precision import fit_precision
from trainstone.train.network import apply_process_settings
from trainstone.train.optim import is_torchs
from trainstone.train.schedule import tell_rate

REFUSED = ("engine-adapted", "batch-fitted", "rate-derived")
"""What --strict refuses. An automatic batch is nobody's wish."""


@dataclass(frozen=True)
class Fitted:
    """A configuration that this machine can run as it stands."""

    config: Config
    device: torch.device
    work: Work
    """Of one step at the fitted batch."""
    findings: tuple[Finding, ...]


def fit_to_machine(config: Config, *, strict: bool, world: Rank = ALONE, measured: bool = True) -> Fitted:
    """Resolve every auto and adapt what this machine cannot do.

    `measured`: an automatic batch is small enough for many steps in the time budget; else it is one to learn with.
    """
    asked, notes = config, [finding("recipe-note", note) for note in config.notes]
    config, device, findings = fit_engine(config, strict=strict, world=world, measured=measured)
    config, fitted = fit_batch(config, device, measured=measured)
    if asked.train.batch_size != "auto":
        fitted += derive_rate(asked, config, world) if not measured else []
        refuse(fitted, strict=strict)
    assert isinstance(config.train.batch_size, int)  # fit_batch resolved it
    work = count_step_work(config, config.train.batch_size)
    # What was settled is settled: the configuration repeats this run as it was.
    config = change_section(config, "train", adapt=())
    return Fitted(config, device, work, (*notes, *findings, *fitted))


def derive_rate(asked: Config, fitted: Config, world: Rank) -> list[Finding]:
    """A finding where a step has other images than the recipe's system has, and the rate follows by its rule."""
    assert isinstance(asked.train.batch_size, int)
    assert isinstance(fitted.train.batch_size, int)
    parts = asked.train.accumulate
    geometry = asked.nodes * asked.devices_per_node
    # Without a system a recipe is for any number of ranks.
    meant = (geometry if asked.system or geometry > 1 else world.world) * parts
    told = tell_rate(
        asked.optimizer,
        meant=(meant * asked.train.batch_size, meant),
        now=(world.world * parts * fitted.train.batch_size, world.world * parts),
        where=name_place(asked),
    )
    return [finding("rate-derived", told)] if told else []


def name_place(config: Config) -> str:
    """Say whose geometry a configuration has."""
    return f"system {config.system}" if config.system else f"recipe {config.name}"


def refuse(findings: list[Finding], *, strict: bool) -> None:
    """--strict: what would be adapted is refused."""
    adapted = [found for found in findings if found.code in REFUSED]
    if strict and adapted:
        raise ConfigError(f"--strict: {adapted[0].message}", hint=adapted[0].hint)


def fit_engine(
    config: Config, *, strict: bool = False, world: Rank = ALONE, measured: bool = True
) -> tuple[Config, torch.device, list[Finding]]:
    """Resolve device, threads and precision, and adapt what this machine cannot do; batches are left as they are."""
    device = choose_rank_device(config.device, world)
    if device.type != "cpu":
        torch.accelerator.set_device_index(device)  # events, graphs and streams are made on the current device
    cores = max(1, available_cores().threads // count_sharing_ranks())
    threads = cores if config.engine.threads == "auto" else config.engine.threads
    # Of many ranks each has its own: the number is left to the next start.
    named = str(device) if world.world == 1 else device.type
    config = change_section(config, "engine", threads=threads).model_copy(update={"device": named})
    if config.loader.threads == "auto":
        config = change_section(config, "loader", threads=cores)
    config, adapted = adapt_engine(config, device, world, measured=measured)
    refuse(adapted, strict=strict)
    config, chosen = fit_precision(config, device, threads)
    refuse(chosen, strict=strict)
    apply_process_settings(config)
    return config, device, [*adapted, *chosen]


def choose_rank_device(asked: str, world: Rank) -> torch.device:
    """Return the device of this rank: of many on a host, each has the CUDA device of its number there."""
    if world.world > 1 and asked in ("auto", "cuda") and list_devices()[0].startswith("cuda"):
        return place_device(torch.device("cuda"), world)
    device = choose_device(asked)
    if device.type == "cpu":
        bind_cores(world)
    return device


def refuse_contradictions(config: Config) -> None:
    """Refuse wishes that exclude each other."""
    engine, train = config.engine, config.train
    apart = [
        (engine.cuda_graphs and engine.split_phases, "engine.split_phases", "a replayed graph has no phases"),
        (engine.cuda_graphs and train.accumulate > 1, "train.accumulate", "a graph holds one batch"),
        (engine.cuda_graphs and not is_torchs(config.optimizer), "this optimizer", "its rates are the host's"),
    ]
    for both, key, why in apart:
        if both:
            raise ConfigError(f"engine.cuda_graphs and {key} exclude each other: {why}")
    if engine.split_phases and train.accumulate > 1:
        raise ConfigError("engine.split_phases and train.accumulate exclude each other: the phases alternate")


def adapt_engine(
    config: Config, device: torch.device, world: Rank = ALONE, *, measured: bool = True
) -> tuple[Config, list[Finding]]:
    """Switch off what this device has not, or learning cannot have, and say so."""
    refuse_contradictions(config)
    findings = []
    if config.engine.cuda_graphs and not measured:
        config = change_section(config, "engine", cuda_graphs=False)
        captured = "engine.cuda_graphs is for measuring (a capture moves the weights): switched off"
        findings.append(finding("engine-adapted", captured))
    if config.engine.cuda_graphs and world.world > 1:
        config = change_section(config, "engine", cuda_graphs=False)
        findings.append(
            finding("engine-adapted", f"engine.cuda_graphs is for one rank, not for {world.world}: switched off")
        )
    for key in ("cuda_graphs", "nvtx"):
        if getattr(config.engine, key) and device.type != "cuda":
            config = change_section(config, "engine", **{key: False})
            findings.append(
                finding("engine-adapted", f"engine.{key} needs CUDA; this run is on {device.type}: switched off")
            )
    if config.measure.profiler_range is not None and device.type != "cuda":
        config = change_section(config, "measure", profiler_range=None)
        needed = f"measure.profiler_range needs CUDA; this run is on {device.type}: switched off"
        findings.append(finding("engine-adapted", needed))
    if config.train.precision == "tf32" and not (device.type == "cuda" and torch.cuda.is_tf32_supported()):
        config = change_section(config, "train", precision="fp32")
        findings.append(finding("engine-adapted", "tf32 needs an NVIDIA device of 2020 or later: took fp32"))
    if config.nodes * config.devices_per_node not in (1, world.world):
        geometry = f"{config.nodes} x {config.devices_per_node} devices"
        used = "one" if world.world == 1 else str(world.world)
        findings.append(finding("engine-adapted", f"{name_place(config)} has {geometry}; this run uses {used}"))
        config = config.model_copy(update={"nodes": 1, "devices_per_node": world.world})
    return config, findings
