"""How `bench --against` flows: fit two variants, run them in turn in this process, judge. The table of contents.

Each variant has a run folder of its own under points/; the parent's result holds the comparison. Everything is written
as it comes: killed at any moment, it leaves folders that can be read.
"""

import logging
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from trainstone.config.load import flatten, format_value
from trainstone.config.schema import Config
from trainstone.data.loader import Loader
from trainstone.data.splits import OpenSplit
from trainstone.errors import ConfigError, RunError
from trainstone.measure.clock import choose_timer
from trainstone.measure.devices import choose_device, free_bytes
from trainstone.measure.recorder import StepRecorder
from trainstone.results import schema
from trainstone.results.checks import check_throughput, finding
from trainstone.results.progress import Progress
from trainstone.results.ratio import MIN_ROUNDS, ORDER, compare_blocks, gather_findings, write_comparison
from trainstone.results.samples import read_samples, summarise
from trainstone.results.schema import Status
from trainstone.results.store import RunFolder, create_run
from trainstone.results.summary import summarise_steps
from trainstone.train import conclude
from trainstone.train.fit import Fitted, fit_to_machine, needed_bytes
from trainstone.train.interleave import Arm, Interleaving, naming
from trainstone.train.lifecycle import Lifecycle, record_failure
from trainstone.train.loop import train_steps
from trainstone.train.observation import Observed, observe
from trainstone.train.task import apply_process_settings, build_task, open_data, settle_classes
from trainstone.units import format_bytes, format_count

log = logging.getLogger(__name__)
# What is called and how long it is measured is no difference in what runs.
NOT_COMPARED = ("name", "version", "summary", "system", "measure")
# Weights and momentum stay while the other one runs; activations and gradients are given back.
RESIDENT_COPIES = 2


@dataclass(frozen=True)
class Variant:
    """One of the two: what was asked for, what runs, and where it is written."""

    asked: Config
    fitted: Fitted
    folder: RunFolder
    recorder: StepRecorder
    arm: Arm


def run_against(life: Lifecycle, b: Config, *, same_recipe: bool, strict: bool) -> Generator[Progress, None, Status]:
    """Measure the run's configuration a against b; `same_recipe`: b is a with some keys changed. Yields progress."""
    yield from life.join()
    a, run = life.config, life.run
    opened = {name: open_data(config) for name, config in (("A", a), ("B", b))}
    a, b = settle_classes(a, opened["A"]), settle_classes(b, opened["B"])
    yield Progress("fitting both to this machine")
    life.check_stop()
    fitted = fit_pair(a, b, same_recipe=same_recipe, strict=strict)
    run.write_config(fitted["A"].config)
    folders = create_points(run, fitted)
    with record_failure(folders["A"], life), record_failure(folders["B"], life):
        life.check_stop()
        clock_start = time.perf_counter()
        loaders: dict[str, Loader] = {}
        with ExitStack() as files:
            variants = {
                name: build_variant(name, asked, fitted[name], opened[name], folders[name], files, loaders, clock_start)
                for name, asked in (("A", a), ("B", b))
            }
            arms = {name: variant.arm for name, variant in variants.items()}
            both = Interleaving(arms, fitted["A"].config.measure, lambda: life.signals.received)

            def count_steps() -> int:
                return sum(variant.recorder.current_step() for variant in variants.values())

            with observe(life, fitted["A"], count_steps, clock_start) as seen:
                yield from both.run()
            seen.interrupted = life.signals.received
        log.info("steps per block %s, blocks run to their end: %s", both.steps_per_block, both.blocks)
        contrast(run, variants, both, seen, program_seconds=life.seconds)
    return run.result.status


def create_points(run: RunFolder, fitted: Mapping[str, Fitted]) -> dict[str, RunFolder]:
    folders = {}
    for name, one in fitted.items():
        short = name.lower()
        run_id = f"{run.result.run_id}-{short}"
        folder = create_run(run.path / "points", "bench", one.config, run.result.command, run_id=run_id, folder=short)
        folder.write_machine(run.result.machine, run.result.software)
        folder.update(findings=list(one.findings))
        folders[name] = folder
    labels = label_pair(fitted["A"].config, fitted["B"].config)
    run.update(
        points=[schema.Point(label=f"{name}: {labels[name]}", run=f"points/{name.lower()}") for name in fitted],
        findings=gather_findings({name: one.findings for name, one in fitted.items()}),
    )
    return folders


def build_variant(
    name: str,
    asked: Config,
    fitted: Fitted,
    opened: OpenSplit | None,
    folder: RunFolder,
    files: ExitStack,
    loaders: dict[str, Loader],
    clock_start: float,
) -> Variant:
    config = fitted.config
    with naming(name):
        task = files.enter_context(closing(build_task(config, fitted.device, opened)))
    recorder = files.enter_context(
        StepRecorder(folder.path / "steps-rank0000.csv", split_phases=config.engine.split_phases)
    )
    timer = choose_timer(fitted.device)
    steps = train_steps(task, timer, num_steps=config.measure.iterations, origin=clock_start)
    if task.loader:
        task.loader.pause()
        loaders[name] = task.loader
    enter = partial(enter_turn, name, config, loaders)
    arm = Arm(name, config, steps, lag=timer.lag, enter=enter, keep=recorder.step)
    return Variant(asked, fitted, folder, recorder, arm)


def enter_turn(name: str, config: Config, loaders: Mapping[str, Loader]) -> None:
    """Give the process to one variant: its settings, its loader; the other one's loader rests."""
    for other, loader in loaders.items():
        if other != name:
            loader.pause()
    if name in loaders:
        loaders[name].go_on()
    apply_process_settings(config)


def contrast(
    run: RunFolder,
    variants: Mapping[str, Variant],
    both: Interleaving,
    seen: Observed,
    *,
    program_seconds: float,
) -> None:
    """Write the final result of each variant, then the parent's with the comparison."""
    telemetry = summarise_telemetry(variants, both, seen)
    findings = {name: conclude_variant(variant, seen, telemetry) for name, variant in variants.items()}
    fitted = {name: variant.fitted.config for name, variant in variants.items()}
    labels, blocks = label_pair(fitted["A"], fitted["B"]), both.whole_rounds()
    num_rounds = len(blocks) // len(ORDER)
    comparison, told = None, format_count(num_rounds, "complete round")
    if blocks:
        runs = {name: f"points/{variant.folder.path.name}" for name, variant in variants.items()}
        asked = {name: variant.asked for name, variant in variants.items()}
        paired = compare_blocks(*both.sum_blocks(blocks))
        comparison = write_comparison(paired, fitted["A"].name, labels, runs, tell_unasked(asked, fitted))
    found = gather_findings(findings)
    if num_rounds < MIN_ROUNDS:
        few = f"A against B: no interval, not established: {told} {' '.join(ORDER)}, {MIN_ROUNDS} needed"
        found = [finding("few-steps", few), *found]
    if seen.interrupted:
        found.append(finding("interrupted", f"stopped by {seen.interrupted} after {told}"))
    noises = [variant.folder.result.noise for variant in variants.values()]
    run.update(
        status="interrupted" if seen.interrupted else "ok",
        comparison=comparison,
        verdict=comparison.verdict if comparison else f"A ({labels['A']}) against B ({labels['B']}): not judged",
        phases=schema.Phases(program_seconds=program_seconds),
        memory=conclude.describe_memory(seen),
        noise=max((noise for noise in noises if noise is not None), key=lambda noise: noise.grade, default=None),
        devices=[conclude.describe_device(variants["A"].fitted, seen.reader, telemetry)],
        findings=found,
    )


def conclude_variant(variant: Variant, seen: Observed, telemetry: dict[str, Any]) -> list[schema.Finding]:
    """Write one variant's result as a run of its own; return its findings.

    Utilisation, energy, memory and page faults are of the process and so of both: a variant has none of its own.
    """
    fitted, recorder = variant.fitted, variant.recorder
    stopped = conclude.tell_interruption(seen.interrupted, len(recorder))
    if not len(recorder):
        variant.folder.update(status="interrupted", findings=[*fitted.findings, *stopped])
        return list(fitted.findings)
    summary = summarise_steps(recorder.columns(), compiled=fitted.config.engine.compile)
    device = conclude.describe_device(fitted, seen.reader, {}, summary)
    speed = conclude.describe_speed(fitted, summary, telemetry, seen, [device])
    found = [*fitted.findings, *check_throughput(summary.throughput, summary.step_seconds), *speed["findings"]]
    variant.folder.update(
        status="interrupted" if seen.interrupted else "ok",
        throughput=summary.throughput,
        step_seconds=summary.step_seconds,
        phases=summary.phases,
        noise=speed["noise"],
        devices=[device],
        findings=[*found, *stopped],
        verdict=conclude.tell_verdict(fitted, summary, None, speed["noise"]),
    )
    return found


def summarise_telemetry(variants: Mapping[str, Variant], both: Interleaving, seen: Observed) -> dict[str, Any]:
    """Sum up the samples from the first block on; two samples per second cannot tell one arm from the other."""
    begins, ends = list[float](), list[float]()
    for name, variant in variants.items():
        if len(variant.recorder):
            columns = variant.recorder.columns()
            first = next((block.first_step for block in both.blocks if block.arm == name), 0)
            begins.append(float(columns["start_seconds"][first]))
            ends.append(float(columns["start_seconds"][-1] + columns["step_seconds"][-1]))
    samples = read_samples(seen.telemetry_file)
    return summarise(samples, min(begins, default=0.0), max(ends, default=0.0), meter=seen.reader.meter)


def fit_pair(a: Config, b: Config, *, same_recipe: bool, strict: bool) -> dict[str, Fitted]:
    """Fit both. Of the same recipe, B takes over what A's autos became: only what was asked for differs."""
    devices = {name: choose_device(config.device) for name, config in (("A", a), ("B", b))}
    if devices["A"] != devices["B"]:
        raise ConfigError(
            f"--against runs both in turn on one device; A asks for {devices['A']}, B for {devices['B']}",
            hint="run each by itself, then: trainstone compare RUN RUN",
        )
    with naming("A"):
        first = fit_to_machine(a, strict=strict)
    second = first
    if b != a:
        with naming("B"):
            second = fit_to_machine(inherit_autos(a, b, first.config) if same_recipe else b, strict=strict)
    check_both_fit(first, second)
    return {"A": first, "B": second}


def inherit_autos(a: Config, b: Config, fitted: Config) -> Config:
    """Return b with every auto that a has too replaced by what a was fitted to."""
    changed = {}
    for section in ("train", "engine", "loader"):
        asked, found = getattr(a, section), getattr(fitted, section)
        mine = getattr(b, section)
        autos = [key for key in type(mine).model_fields if getattr(mine, key) == "auto" == getattr(asked, key)]
        changed[section] = mine.model_copy(update={key: getattr(found, key) for key in autos})
    return b.model_copy(update=changed)


def check_both_fit(first: Fitted, second: Fitted) -> None:
    """Refuse what fits into memory one by one but not with the other one's weights beside it."""
    free = free_bytes(first.device)
    needed = max(
        needed_bytes(one.config, one.device, one.config.train.batch_size) + RESIDENT_COPIES * other.work.parameter_bytes
        for one, other in ((first, second), (second, first))
    )
    if free is not None and needed > free:
        raise RunError(
            f"out of memory: both in one process need about {format_bytes(needed)}, {format_bytes(free)} are free",
            hint="take a smaller train.batch_size for both: --set train.batch_size=N",
        )


def list_differences(a: Config, b: Config) -> list[tuple[str, Any, Any]]:
    left, right = (dict(flatten(config.model_dump(exclude=set(NOT_COMPARED)))) for config in (a, b))
    return [(key, left[key], right[key]) for key in left if left[key] != right[key]]


def label_pair(a: Config, b: Config) -> dict[str, str]:
    """Name each by its recipe where they have two, else by its values of the keys in which they differ."""
    differing = list_differences(a, b)
    if a.name != b.name or not differing:
        return {"A": a.name, "B": b.name}
    return {
        arm: ", ".join(f"{row[0]}={format_value(row[column])}" for row in differing)
        for arm, column in (("A", 1), ("B", 2))
    }


def tell_unasked(asked: Mapping[str, Config], fitted: Mapping[str, Config]) -> list[str]:
    """Say where the machine made the two differ though nobody asked for it, or made them the same."""
    wanted = {key for key, _, _ in list_differences(asked["A"], asked["B"])}
    differing = list_differences(fitted["A"], fitted["B"])
    if wanted and not differing:
        return ["in nothing: fitted to this machine, both come to the same"]
    return [
        f"{key}: {format_value(left)} and {format_value(right)}, as fitted to this machine"
        for key, left, right in differing
        if key not in wanted
    ]
