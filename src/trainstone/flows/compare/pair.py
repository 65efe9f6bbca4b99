"""`bench --against`: measure two configurations in one process in alternating blocks (A B B A).

Each variant has its own run folder under points/; the parent's result holds the comparison. Everything is written as it
is measured: a run killed at any moment leaves readable folders.
"""

import logging
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing
from functools import partial

from trainstone.config.schema import Config
from trainstone.data.loader import Loader
from trainstone.engine.fit import Fitted, fit_to_machine, needed_bytes
from trainstone.engine.loop import train_steps
from trainstone.engine.network import apply_process_settings
from trainstone.engine.task import build_task
from trainstone.engine.training_data import open_data, resolve_num_classes
from trainstone.errors import ConfigError, RunError
from trainstone.flows.compare.interleave import Arm, Interleaving, prefix_errors
from trainstone.flows.compare.result import Variant, label_pair, write_pair
from trainstone.flows.lifecycle import Lifecycle, record_failure
from trainstone.flows.observation import observe
from trainstone.measure.clock import choose_timer
from trainstone.measure.devices import choose_device, free_bytes
from trainstone.measure.recorder import StepRecorder
from trainstone.results.interleaved import gather_findings
from trainstone.results.progress import Progress
from trainstone.results.run_folder import RunFolder, create_run
from trainstone.results.schema import run as schema
from trainstone.results.schema.run import Status
from trainstone.units import format_bytes

log = logging.getLogger(__name__)
# Weights and momentum stay in memory while the other variant runs; activations and gradients are freed.
RESIDENT_COPIES = 2


def run_against(life: Lifecycle, b: Config, *, same_recipe: bool, strict: bool) -> Generator[Progress, None, Status]:
    """Measure the run's configuration A against B; `same_recipe`: B is A with some keys changed. Yields progress."""
    yield from life.join()
    run = life.run
    opened = {"A": open_data(life.config), "B": open_data(b)}
    requested = {"A": resolve_num_classes(life.config, opened["A"]), "B": resolve_num_classes(b, opened["B"])}
    yield Progress("fitting both to this machine")
    life.check_stop()
    fitted = yield from fit_pair(requested["A"], requested["B"], same_recipe=same_recipe, strict=strict)
    run.write_config(fitted["A"].config)
    folders = create_points(run, fitted)
    with record_failure(folders["A"], life), record_failure(folders["B"], life):
        life.check_stop()
        clock_start = time.perf_counter()
        loaders: dict[str, Loader] = {}
        variants, arms = dict[str, Variant](), dict[str, Arm]()
        with ExitStack() as files:
            for name, one in fitted.items():
                config, path = one.config, folders[name].path / "steps-rank0000.csv"
                with prefix_errors(name):
                    task = files.enter_context(closing(build_task(config, one.device, opened[name])))
                recorder = files.enter_context(StepRecorder(path, split_phases=config.engine.split_phases))
                timer = choose_timer(one.device)
                steps = train_steps(task, timer, num_steps=config.measure.iterations, origin=clock_start)
                if task.loader:
                    task.loader.pause()
                    loaders[name] = task.loader
                enter = partial(enter_turn, name, config, loaders)
                arms[name] = Arm(name, config, steps, timer, enter, keep=recorder.step)
                variants[name] = Variant(requested[name], one, folders[name], recorder)
            both = Interleaving(arms, fitted["A"].measure_rest(), lambda: life.signals.received)

            def count_steps() -> int:
                return sum(variant.recorder.current_step() for variant in variants.values())

            with observe(life, fitted["A"], count_steps, clock_start) as observation:
                yield from both.run()
            observation.interrupted = life.signals.received
        log.info("steps per block: %s; complete blocks: %s", both.steps_per_block, both.blocks)
        write_pair(life, variants, both, observation)
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


def enter_turn(name: str, config: Config, loaders: Mapping[str, Loader]) -> None:
    """Switch the process to one variant: apply its settings, resume its loader and pause the other one's."""
    for other, loader in loaders.items():
        if other != name:
            loader.pause()
    if name in loaders:
        loaders[name].resume()
    apply_process_settings(config)


def fit_pair(a: Config, b: Config, *, same_recipe: bool, strict: bool) -> Generator[Progress, None, dict[str, Fitted]]:
    """Fit both variants. With `same_recipe`, B uses the values that A's autos resolved to.

    Raise RunError if a variant does not fit into memory beside the weights of the other.
    """
    devices = {name: choose_device(config.device) for name, config in (("A", a), ("B", b))}
    if devices["A"] != devices["B"]:
        raise ConfigError(
            f"--against needs one device for both variants: A requests {devices['A']}, B requests {devices['B']}",
            hint="run each by itself, then: trainstone compare RUN --to RUN",
        )
    with prefix_errors("A"):
        first = second = yield from fit_to_machine(a, strict=strict)
    if b != a:
        with prefix_errors("B"):
            inherited = inherit_autos(a, b, first.config) if same_recipe else b
            second = yield from fit_to_machine(inherited, strict=strict)
    free = free_bytes(first.device)
    needed = max(
        needed_bytes(one.config, one.device, one.config.train.batch_size) + RESIDENT_COPIES * other.work.parameter_bytes
        for one, other in ((first, second), (second, first))
    )
    if free is not None and needed > free:
        raise RunError(
            f"out of memory: both variants in one process need about {format_bytes(needed)}, {format_bytes(free)} are "
            "free",
            hint="use a smaller batch for both: --set train.batch_size=N",
        )
    return {"A": first, "B": second}


def inherit_autos(a: Config, b: Config, fitted: Config) -> Config:
    """Return b; keys that are auto in both a and b get the value that a was fitted to."""
    changed = {}
    for section in ("train", "engine", "loader"):
        requested, found = getattr(a, section), getattr(fitted, section)
        mine = getattr(b, section)
        autos = [key for key in type(mine).model_fields if getattr(mine, key) == "auto" == getattr(requested, key)]
        changed[section] = mine.model_copy(update={key: getattr(found, key) for key in autos})
    return b.model_copy(update=changed)
