"""Two loops in turn in one process, A B B A, block by block, so that what drifts evenly hits both alike.

The engine, which runs and counts, and what is made of it: `doctor --aa` (run_same_twice) and `bench --against`
(run_against). Of the latter each variant has a run folder of its own under points/; the parent's result holds the
comparison. Everything is written as it comes: killed at any moment, it leaves folders that can be read.
"""

import logging
import math
import statistics
import time
from array import array
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, NamedTuple

from trainstone.config.load import flatten, format_value
from trainstone.config.schema import Config, MeasureConfig
from trainstone.data.loader import Loader
from trainstone.engine.distributed.collectives import explain_torch_error
from trainstone.engine.fit import Fitted, fit_to_machine, needed_bytes
from trainstone.engine.loop import train_steps
from trainstone.engine.task import apply_process_settings, build_task, open_data, settle_classes
from trainstone.errors import ConfigError, RunError, TrainstoneError
from trainstone.flows.bench import result
from trainstone.flows.bench.result import Observed, observe
from trainstone.flows.bench.stop_rule import check_loss
from trainstone.flows.lifecycle import Lifecycle, record_failure
from trainstone.measure.clock import choose_timer
from trainstone.measure.devices import choose_device, free_bytes
from trainstone.measure.recorder import StepRecorder
from trainstone.results.findings import check_throughput, finding
from trainstone.results.progress import Progress
from trainstone.results.run_folder import RunFolder, create_run
from trainstone.results.schema import run as schema
from trainstone.results.schema.run import Status
from trainstone.results.step_summary import summarise_steps
from trainstone.results.steps import StepRecord
from trainstone.results.telemetry import read_samples, summarise
from trainstone.stats import throughput
from trainstone.stats.ratio import MIN_ROUNDS, ORDER, compare_blocks, gather_findings, write_comparison
from trainstone.units import format_bytes, format_count

log = logging.getLogger(__name__)
# What is called and how long it is measured is no difference in what runs.
NOT_COMPARED = ("name", "version", "summary", "system", "measure")
# Weights and momentum stay while the other one runs; activations and gradients are given back.
RESIDENT_COPIES = 2

# Short blocks and many rounds: what drifts more slowly than a round cancels out.
MAX_ROUNDS = 50
# Steps of each arm, and share of the time, before the first block; first steps, which may compile, are beside the time.
WARM_UP_STEPS = 5
WARM_UP_SHARE = 0.1
MIN_PAIRS = 6


@dataclass
class Arm:
    """One of the two: its loop, and what each of its steps took so far."""

    name: str
    config: Config
    steps: Iterator[StepRecord]
    lag: int = 0
    """Steps that the loop has begun beyond the one it yields (measure/clock.py)."""
    enter: Callable[[], None] = lambda: None
    """Called before each turn: sets what the process has only once."""
    keep: Callable[[StepRecord], None] = lambda _record: None
    """Takes every record."""
    seconds: "array[float]" = field(default_factory=lambda: array("d"))
    images: "array[float]" = field(default_factory=lambda: array("d"))

    def advance(self) -> StepRecord:
        """Run one more step and return the one that ended; StopIteration: the loop is over."""
        with naming(self.name):
            record = next(self.steps)
            self.keep(record)
            self.seconds.append(record.step_seconds)
            self.images.append(record.images)
            check_loss(record)
        return record


class Block(NamedTuple):
    """Steps of one arm without a change between them, by their index in the arm."""

    arm: str
    first_step: int
    num_steps: int


@dataclass
class Interleaving:
    """Two arms, A and B, that run in turn; `blocks` are those that were run to their end."""

    arms: Mapping[str, Arm]
    measure: MeasureConfig
    stopped: Callable[[], object]
    """Asked between steps; if it says so, the run ends there."""
    now: Callable[[], float] = time.perf_counter
    steps_per_block: dict[str, int] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)

    def whole_rounds(self) -> list[Block]:
        return self.blocks[: len(self.blocks) // len(ORDER) * len(ORDER)]

    def sum_blocks(self, blocks: Sequence[Block]) -> tuple[list[float], list[float]]:
        parts = [
            (self.arms[block.arm], slice(block.first_step, block.first_step + block.num_steps)) for block in blocks
        ]
        return [sum(arm.images[part]) for arm, part in parts], [sum(arm.seconds[part]) for arm, part in parts]

    def run(self) -> Iterator[Progress]:
        """Warm both up, then run rounds for the time or the steps of `measure`."""
        if not self.stopped():
            yield from self._warm_up()
        if not self.stopped():
            yield from self._run_rounds()
        for arm in self.arms.values():
            if arm.lag and arm.seconds:  # a clock that reads late has not read the last steps yet
                arm.enter()
                with suppress(StopIteration):
                    for _ in range(arm.lag):
                        arm.advance()

    def _warm_up(self) -> Iterator[Progress]:
        """Run each arm's first steps, in turn: steps and time enough, or what the rounds leave of a number of steps."""
        begin = math.inf
        while True:
            for name in "BA":  # ends with the arm that a round begins with
                arm = self.arms[name]
                arm.enter()
                yield Progress("warming up", step=arm.advance().step + 1)
                if self.stopped():  # compiling the other one may take minutes
                    return
            begin = min(begin, self.now())
            if self.measure.iterations is not None:
                over = len(arm.seconds) + arm.lag >= split_iterations(self.measure.iterations)[2]
            else:
                passed = self.now() - begin
                over = len(arm.seconds) >= WARM_UP_STEPS and passed >= WARM_UP_SHARE * self.measure.seconds
            if over:
                return

    def _run_rounds(self) -> Iterator[Progress]:
        """Run A B B A until the rounds or the time are over; a round that was begun is finished.

        The step after a change of arm belongs to no block: it finds the other one's data in the caches and heaps.
        """
        limit = math.inf if self.measure.iterations is not None else self.measure.seconds
        num_rounds, self.steps_per_block = self.plan_blocks()
        begin, running = self.now(), "A"
        for _ in range(num_rounds):
            if self.now() - begin >= limit:
                return
            for name in ORDER:
                arm, num_steps, num_settling = self.arms[name], self.steps_per_block[name], int(name != running)
                running = name
                arm.enter()
                first_step = len(arm.seconds) + arm.lag + num_settling  # lag: steps that were begun in turns before
                for _ in range(num_settling + num_steps):
                    record = arm.advance()
                    left = limit - (self.now() - begin)
                    yield Progress(
                        f"comparing: {name}, pair {len(self.blocks) // 2 + 1}",
                        images_per_second=record.images / record.step_seconds,
                        seconds_left=left if math.isfinite(left) else None,
                    )
                    if self.stopped():
                        return
                self.blocks.append(Block(name, first_step, num_steps))

    def plan_blocks(self) -> tuple[int, dict[str, int]]:
        """Return the rounds, at most, and the steps of each arm's blocks, so that blocks of both take the same time.

        A block takes its share of the budget, but at least the slower arm's step. Arms of the same configuration get
        the same number of steps, whatever their warm-up was like.
        """
        if self.measure.iterations is not None:
            num_rounds, num_steps, _ = split_iterations(self.measure.iterations)
            return num_rounds, dict.fromkeys("AB", num_steps)
        step_seconds = {arm.name: statistics.median(arm.seconds[1:] or arm.seconds) for arm in self.arms.values()}
        if self.arms["A"].config == self.arms["B"].config:
            step_seconds = dict.fromkeys(step_seconds, min(step_seconds.values()))
        block_seconds = max(self.measure.seconds / (len(ORDER) * MAX_ROUNDS), *step_seconds.values())
        return MAX_ROUNDS, {name: max(1, round(block_seconds / seconds)) for name, seconds in step_seconds.items()}


def split_iterations(iterations: int) -> tuple[int, int, int]:
    """Return rounds, steps per block and steps of warm-up of so many steps per arm: whole rounds, the rest warms up.

    A round has two blocks of each arm, and one step of each that follows a change.
    """
    spare = max(0, iterations - WARM_UP_STEPS)
    num_steps = max(1, math.ceil((spare / MAX_ROUNDS - 1) / 2))
    num_rounds = spare // (2 * num_steps + 1)
    return num_rounds, num_steps, iterations - (2 * num_steps + 1) * num_rounds


@contextmanager
def naming(arm: str) -> Iterator[None]:
    """Say in an error which of the two it is about."""
    try:
        yield
    except (TrainstoneError, RuntimeError) as err:
        known = err if isinstance(err, TrainstoneError) else explain_torch_error(err)
        if known is None:
            raise
        raise type(known)(f"{arm}: {known.message}", hint=known.hint) from err


def run_same_twice(life: Lifecycle, outcome: dict[str, Any]) -> Generator[Progress, None, Status]:
    """Train two equal models in turn, block by block, for the recipe's seconds; fills what --json prints."""
    config = life.config
    yield Progress("fitting the recipe to this machine")
    fitted = fit_to_machine(settle_classes(config, None), strict=False)
    timer = choose_timer(fitted.device)
    arms = {}
    for name in "AB":
        steps = train_steps(build_task(fitted.config, fitted.device), timer, num_steps=config.measure.iterations)
        enter = partial(apply_process_settings, fitted.config)
        arms[name] = Arm(name, fitted.config, steps, lag=timer.lag, enter=enter)
    both = Interleaving(arms, fitted.config.measure, lambda: life.signals.received)
    yield from both.run()
    block_seconds: dict[str, list[float]] = {"A": [], "B": []}
    for block, seconds in zip(both.blocks, both.sum_blocks(both.blocks)[1], strict=True):
        block_seconds[block.arm].append(seconds)
    pairs = list(zip(block_seconds["A"], block_seconds["B"], strict=False))
    if len(pairs) < MIN_PAIRS:
        if life.signals.received:
            raise KeyboardInterrupt(life.signals.received)
        raise RunError(
            f"only {len(pairs)} pairs of blocks in the time; {MIN_PAIRS} are needed for a noise floor",
            hint="give more time: --seconds 120",
        )
    outcome |= asdict(throughput.minimum_detectable([math.log(b / a) for a, b in pairs]))
    outcome |= {"steps_per_block": both.steps_per_block["A"], "block_seconds": block_seconds}
    return "interrupted" if life.signals.received else "ok"


@dataclass(frozen=True)
class Variant:
    """One of the two: what was asked for, what runs, and where it is written."""

    asked: Config
    fitted: Fitted
    folder: RunFolder
    recorder: StepRecorder


def run_against(life: Lifecycle, b: Config, *, same_recipe: bool, strict: bool) -> Generator[Progress, None, Status]:
    """Measure the run's configuration a against b; `same_recipe`: b is a with some keys changed. Yields progress."""
    yield from life.join()
    run = life.run
    opened = {"A": open_data(life.config), "B": open_data(b)}
    asked = {"A": settle_classes(life.config, opened["A"]), "B": settle_classes(b, opened["B"])}
    yield Progress("fitting both to this machine")
    life.check_stop()
    fitted = fit_pair(asked["A"], asked["B"], same_recipe=same_recipe, strict=strict)
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
                with naming(name):
                    task = files.enter_context(closing(build_task(config, one.device, opened[name])))
                recorder = files.enter_context(StepRecorder(path, split_phases=config.engine.split_phases))
                timer = choose_timer(one.device)
                steps = train_steps(task, timer, num_steps=config.measure.iterations, origin=clock_start)
                if task.loader:
                    task.loader.pause()
                    loaders[name] = task.loader
                enter = partial(enter_turn, name, config, loaders)
                arms[name] = Arm(name, config, steps, lag=timer.lag, enter=enter, keep=recorder.step)
                variants[name] = Variant(asked[name], one, folders[name], recorder)
            both = Interleaving(arms, fitted["A"].config.measure, lambda: life.signals.received)

            def count_steps() -> int:
                return sum(variant.recorder.current_step() for variant in variants.values())

            with observe(life, fitted["A"], count_steps, clock_start) as seen:
                yield from both.run()
            seen.interrupted = life.signals.received
        log.info("steps per block %s, blocks run to their end: %s", both.steps_per_block, both.blocks)
        contrast(life, variants, both, seen)
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
    """Give the process to one variant: its settings, its loader; the other one's loader rests."""
    for other, loader in loaders.items():
        if other != name:
            loader.pause()
    if name in loaders:
        loaders[name].go_on()
    apply_process_settings(config)


def contrast(life: Lifecycle, variants: Mapping[str, Variant], both: Interleaving, seen: Observed) -> None:
    """Write the final result of each variant, then the parent's with the comparison."""
    program_seconds, telemetry = life.seconds, summarise_telemetry(variants, both, seen)
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
    life.run.update(
        status="interrupted" if seen.interrupted else "ok",
        comparison=comparison,
        verdict=comparison.verdict if comparison else f"A ({labels['A']}) against B ({labels['B']}): not judged",
        phases=schema.Phases(program_seconds=program_seconds),
        memory=result.describe_memory(seen),
        noise=max((noise for noise in noises if noise is not None), key=lambda noise: noise.grade, default=None),
        devices=[result.describe_device(variants["A"].fitted, seen.reader, telemetry)],
        findings=found,
    )


def conclude_variant(variant: Variant, seen: Observed, telemetry: dict[str, Any]) -> list[schema.Finding]:
    """Write one variant's result as a run of its own; return its findings.

    Utilisation, energy, memory and page faults are of the process and so of both: a variant has none of its own.
    """
    fitted, recorder = variant.fitted, variant.recorder
    stopped = result.tell_interruption(seen.interrupted, len(recorder))
    if not len(recorder):
        variant.folder.update(status="interrupted", findings=[*fitted.findings, *stopped])
        return list(fitted.findings)
    summary = summarise_steps(recorder.columns(), compiled=fitted.config.engine.compile)
    device = result.describe_device(fitted, seen.reader, {}, summary)
    speed = result.describe_speed(fitted, summary, telemetry, seen, [device])
    found = [*fitted.findings, *check_throughput(summary.throughput, summary.step_seconds), *speed["findings"]]
    variant.folder.update(
        status="interrupted" if seen.interrupted else "ok",
        throughput=summary.throughput,
        step_seconds=summary.step_seconds,
        phases=summary.phases,
        noise=speed["noise"],
        devices=[device],
        findings=[*found, *stopped],
        verdict=result.tell_verdict(fitted, summary, None, speed["noise"]),
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
    """Fit both. Of the same recipe, B takes over what A's autos became: only what was asked for differs.

    What fits into memory one by one but not with the other one's weights beside it is refused.
    """
    devices = {name: choose_device(config.device) for name, config in (("A", a), ("B", b))}
    if devices["A"] != devices["B"]:
        raise ConfigError(
            f"--against runs both in turn on one device; A asks for {devices['A']}, B for {devices['B']}",
            hint="run each by itself, then: trainstone compare RUN RUN",
        )
    with naming("A"):
        first = second = fit_to_machine(a, strict=strict)
    if b != a:
        with naming("B"):
            second = fit_to_machine(inherit_autos(a, b, first.config) if same_recipe else b, strict=strict)
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
