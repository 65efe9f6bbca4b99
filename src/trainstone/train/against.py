"""How `bench --against` flows: fit two variants, run them in turn in this process, judge. The table of contents.

Each variant has a run folder of its own under points/; the parent's result holds the comparison. Everything is written
as it comes: killed at any moment, it leaves folders that can be read.
"""

import logging
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing
from functools import partial

from trainstone.config.schema import Config
from trainstone.data.loader import Loader
from trainstone.data.splits import OpenSplit
from trainstone.measure.clock import choose_timer
from trainstone.measure.recorder import StepRecorder
from trainstone.results import schema
from trainstone.results.paired import gather_findings
from trainstone.results.progress import Progress
from trainstone.results.schema import Status
from trainstone.results.store import RunFolder, create_run
from trainstone.train.contrast import Variant, contrast
from trainstone.train.fit import Fitted
from trainstone.train.interleave import Arm, Interleaved, Turn, interleave, naming
from trainstone.train.lifecycle import Lifecycle, record_failure
from trainstone.train.loop import train_steps
from trainstone.train.network import apply_process_settings
from trainstone.train.observation import Observed, observe
from trainstone.train.task import build_task, open_data, settle_classes
from trainstone.train.variants import fit_pair, label_pair

log = logging.getLogger(__name__)


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
