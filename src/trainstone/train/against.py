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
from trainstone.measure.devices import choose_device
from trainstone.measure.recorder import StepRecorder
from trainstone.results import schema
from trainstone.results.checks import check_limits, check_throughput, finding
from trainstone.results.paired import MIN_ROUNDS, ORDER, compare_blocks, gather_findings, write_comparison
from trainstone.results.progress import Progress
from trainstone.results.samples import read_samples, summarise
from trainstone.results.schema import Status
from trainstone.results.store import RunFolder, create_run
from trainstone.results.summary import summarise_steps
from trainstone.train.conclude import (
    assess_noise,
    check_setting,
    describe_device,
    describe_memory,
    tell_interruption,
    tell_throttling,
    tell_unmeasured,
    tell_verdict,
)
from trainstone.train.fit import Fitted, fit_to_machine, free_bytes, needed_bytes
from trainstone.train.interleave import Arm, Interleaved, Turn, interleave, naming, sum_blocks
from trainstone.train.lifecycle import Lifecycle, record_failure
from trainstone.train.loop import train_steps
from trainstone.train.observation import Observed, observe
from trainstone.train.task import apply_process_settings, build_task, open_data, settle_classes
from trainstone.units import format_bytes, format_count

log = logging.getLogger(__name__)
MAX_KEYS_NAMED = 3
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
        done, clock_start = Interleaved(), time.perf_counter()
        loaders: dict[str, Loader] = {}
        with ExitStack() as files:
            variants = {
                name: build_variant(name, asked, fitted[name], opened[name], folders[name], files, loaders, clock_start)
                for name, asked in (("A", a), ("B", b))
            }
            seen = yield from measure_turns(life, variants, done, clock_start)
        log.info("steps a block %s, blocks run to their end: %s", done.steps_per_block, done.blocks)
        contrast(run, variants, done, seen, program_seconds=life.seconds)
    return run.result.status


def measure_turns(
    life: Lifecycle, variants: Mapping[str, Variant], done: Interleaved, clock_start: float
) -> Generator[Progress, None, Observed]:
    """Run both in turn, one sampler beside them; return what was seen beside the steps."""
    fitted = variants["A"].fitted
    arms = {name: variant.arm for name, variant in variants.items()}

    def count_steps() -> int:
        return sum(variant.recorder.current_step() for variant in variants.values())

    with observe(life, fitted, count_steps, clock_start) as observed:
        for turn in interleave(arms, fitted.config.measure, done, stopped=lambda: life.signals.received):
            yield tell_progress(turn, done)
    observed.interrupted = life.signals.received
    return observed


def create_points(run: RunFolder, fitted: Mapping[str, Fitted]) -> dict[str, RunFolder]:
    """Make points/a and points/b, and name them in the parent's result."""
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
    """Build one variant's model and loop, and open its step file."""
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


def tell_progress(turn: Turn, done: Interleaved) -> Progress:
    """Return e.g. comparing: B, pair 12."""
    if turn.round == 0:
        return Progress("warming up", step=turn.record.step + 1)
    rate = turn.record.images / turn.record.step_seconds
    phase = f"comparing: {turn.arm}, pair {len(done.blocks) // 2 + 1}"
    return Progress(phase, images_per_second=rate, seconds_left=turn.seconds_left)


def contrast(
    run: RunFolder,
    variants: Mapping[str, Variant],
    done: Interleaved,
    seen: Observed,
    *,
    program_seconds: float,
) -> None:
    """Write the final result of each variant, then the parent's with the comparison."""
    telemetry = summarise_telemetry(variants, done, seen)
    throttled = tell_throttling(telemetry)
    findings = {name: conclude_variant(variant, seen, throttled) for name, variant in variants.items()}
    fitted = {name: variant.fitted.config for name, variant in variants.items()}
    labels, blocks = label_pair(fitted["A"], fitted["B"]), done.whole_rounds()
    arms = {name: variant.arm for name, variant in variants.items()}
    paired = compare_blocks(*sum_blocks(arms, blocks)) if blocks else None
    comparison = None
    if paired is not None:
        runs = {name: f"points/{variant.folder.path.name}" for name, variant in variants.items()}
        asked = {name: variant.asked for name, variant in variants.items()}
        comparison = write_comparison(paired, fitted["A"].name, labels, runs, tell_unasked(asked, fitted))
    noises = [variant.folder.result.noise for variant in variants.values()]
    num_rounds = paired.num_rounds if paired else 0
    run.update(
        status="interrupted" if seen.interrupted else "ok",
        comparison=comparison,
        verdict=comparison.verdict if comparison else f"A ({labels['A']}) against B ({labels['B']}): not judged",
        phases=schema.Phases(program_seconds=program_seconds),
        memory=describe_memory(seen),
        noise=max((noise for noise in noises if noise is not None), key=lambda noise: noise.grade, default=None),
        devices=[describe_device(variants["A"].fitted, seen.reader, telemetry)],
        findings=[
            *tell_few_rounds(num_rounds),
            *gather_findings(findings),
            *tell_unmeasured(seen.reader.unsupported),
            *tell_stop(seen.interrupted, num_rounds),
        ],
    )


def conclude_variant(variant: Variant, seen: Observed, throttled: str | None) -> list[schema.Finding]:
    """Write one variant's result as a run of its own; return what is doubtful about it.

    Utilisation, energy, memory and page faults are of the process and so of both: a variant has none of its own.
    """
    fitted, recorder = variant.fitted, variant.recorder
    stopped = tell_interruption(seen.interrupted, len(recorder))
    if not len(recorder):
        variant.folder.update(status="interrupted", findings=[*fitted.findings, *stopped])
        return list(fitted.findings)
    summary = summarise_steps(recorder.columns(), compiled=fitted.config.engine.compile)
    noise = assess_noise(seen, summary, throttled)
    findings = [
        *fitted.findings,
        *check_throughput(summary.throughput, summary.step_seconds),
        *check_limits(schema.Utilisation(), summary.data_share, throttled),
        *check_setting(fitted, noise, describe_memory(seen)),
    ]
    variant.folder.update(
        status="interrupted" if seen.interrupted else "ok",
        throughput=summary.throughput,
        step_seconds=summary.step_seconds,
        phases=summary.phases,
        noise=noise,
        devices=[describe_device(fitted, seen.reader, {}, summary)],
        findings=[*findings, *stopped],
        verdict=tell_verdict(fitted, summary, None, noise),
    )
    return findings


def summarise_telemetry(variants: Mapping[str, Variant], done: Interleaved, seen: Observed) -> dict[str, Any]:
    """Sum up the samples from the first block on; a sample a half second cannot tell one arm from the other."""
    begins, ends = [], []
    for name, variant in variants.items():
        if not len(variant.recorder):
            continue
        columns = variant.recorder.columns()
        first = next((block.first_step for block in done.blocks if block.arm == name), 0)
        begins.append(float(columns["start_seconds"][first]))
        ends.append(float(columns["start_seconds"][-1] + columns["step_seconds"][-1]))
    samples = read_samples(seen.telemetry_file)
    return summarise(samples, min(begins, default=0.0), max(ends, default=0.0), meter=seen.reader.meter)


def tell_few_rounds(num_rounds: int) -> list[schema.Finding]:
    """A finding where there is no interval."""
    if num_rounds >= MIN_ROUNDS:
        return []
    rounds = f"{format_count(num_rounds, 'complete round')} {' '.join(ORDER)}, {MIN_ROUNDS} needed"
    return [finding("few-steps", f"A against B: no interval, not established: {rounds}")]


def tell_stop(signal_name: str | None, num_rounds: int) -> list[schema.Finding]:
    """A finding where somebody stopped the comparison."""
    told = f"stopped by {signal_name} after {format_count(num_rounds, 'complete round')}"
    return [finding("interrupted", told)] if signal_name else []


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
    needs = []
    for one, other in ((first, second), (second, first)):
        assert isinstance(one.config.train.batch_size, int)  # train/fit.py resolved it
        alone = needed_bytes(one.config, one.device, one.config.train.batch_size)
        needs.append(alone + RESIDENT_COPIES * other.work.parameter_bytes)
    if free is not None and max(needs) > free:
        raise RunError(
            f"out of memory: both in one process need about {format_bytes(max(needs))}, {format_bytes(free)} are free",
            hint="take a smaller train.batch_size for both: --set train.batch_size=N",
        )


def list_differences(a: Config, b: Config) -> list[tuple[str, Any, Any]]:
    """Every key in which two configurations differ in what they run, with both values."""
    left, right = (dict(flatten(config.model_dump(exclude=set(NOT_COMPARED)))) for config in (a, b))
    return [(key, left[key], right[key]) for key in left if left[key] != right[key]]


def label_pair(a: Config, b: Config) -> dict[str, str]:
    """Name each by its recipe where they have two, else by its values of the keys in which they differ."""
    differing = list_differences(a, b)
    if a.name != b.name or not differing:
        return {"A": a.name, "B": b.name}
    more = f" and {len(differing) - MAX_KEYS_NAMED} more" if len(differing) > MAX_KEYS_NAMED else ""
    named = differing[:MAX_KEYS_NAMED]
    return {
        arm: ", ".join(f"{row[0]}={format_value(row[column])}" for row in named) + more
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
