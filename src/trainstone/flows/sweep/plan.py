"""The points of a sweep: lists from flags become checked configurations in shuffled order."""

import random
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainstone.config.load import change_config, did_you_mean, flatten, list_keys, load_config, parse_setting
from trainstone.config.schema import Config
from trainstone.errors import ConfigError, ResultError
from trainstone.machine.facts import read_software
from trainstone.results.knee import label_point, name_file
from trainstone.results.run_folder import read_result
from trainstone.results.schema.run import Result
from trainstone.results.schema.sweep import BATCH, Sweep

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 96, 128)  # of the TBD suite's measure_throughput.sh
# Keys that the first child resolves for all others, so that only the swept keys and the seed differ.
RESOLVED_KEYS = ("device", "engine.threads", "loader.threads", "train.precision", BATCH)
LARGEST_BATCH = 10**9
LONGEST_QUOTE = 40


@dataclass(frozen=True)
class PlannedPoint:
    order: int
    value: Any
    curve: Any
    label: str
    name: str  # stem of its file names


@dataclass(frozen=True)
class SweepPlan:
    """All points in running order, and what they have in common."""

    config: Config
    sweep: Sweep
    points: tuple[PlannedPoint, ...]

    @property
    def labels(self) -> list[str]:
        return [label for _, _, label in list_grid(self.sweep)]


def plan_from_flags(
    config: Config,
    batch_sizes: str | None,
    over: str | None,
    *,
    profile: bool = False,
    cores: bool = False,
    strict: bool = False,
) -> SweepPlan:
    """Turn the flags into points; check the configuration of each before anything runs."""
    sizes: list[Any] = list(BATCH_SIZES)
    if batch_sizes is not None:
        try:
            sizes = [int(part) for part in batch_sizes.split(",")]
        except ValueError:  # also thousands of digits
            sizes = [0]
        if not all(0 < size < LARGEST_BATCH for size in sizes):
            quoted = f"invalid --batch-sizes {batch_sizes[:LONGEST_QUOTE]}"
            message = f"{quoted}: expected whole numbers above 0 and below {LARGEST_BATCH:,}"
            raise ConfigError(message, hint="for example --batch-sizes 1,2,4,8")
    swept: dict[str, Any] = {"key": BATCH, "values": sizes}
    if over is not None:
        key, values = parse_over(over)
        if batch_sizes is None:
            swept = {"key": key, "values": values}
        elif key == BATCH:
            message = "--batch-sizes and --over train.batch_size set the same key"
            raise ConfigError(message, hint="give one of them")
        else:
            swept |= {"curve_key": key, "curves": values}
    requested = Sweep(**swept, seed=config.seed, profile=profile or cores, cores=cores, strict=strict)
    plan = build_plan(config, requested)
    seen: dict[str, str] = {}
    for point in plan.points:
        text = configure_point(plan.config, requested, point).model_dump_json()
        if text in seen:
            raise ConfigError(f"{seen[text]} and {point.label} are the same point", hint="give each value once")
        seen[text] = point.label
    return plan


def parse_over(text: str) -> tuple[str, list[Any]]:
    """Split KEY=V,V into the key and its values: a TOML array without its brackets, or words between commas."""
    key, equals, rest = text.partition("=")
    key = key.strip()
    if not equals or not key or not rest.strip():
        raise ConfigError(
            f"invalid --over {text[:LONGEST_QUOTE]}: expected KEY=VALUE,VALUE",
            hint="for example --over train.precision=fp32,bf16",
        )
    known = [row[0] for row in list_keys()]
    if key not in known:
        inside = ", ".join(name for name in known if name.startswith(f"{key}."))
        message = f"this is a section; choose one of its keys ({inside})" if inside else "unknown key"
        raise ConfigError(
            f"invalid --over {key}: {message}{'' if inside else did_you_mean(key, known)}",
            hint="list all keys: trainstone recipes resnet50",
        )
    try:
        values: list[Any] = parse_setting(f"{key}=[{rest}]")[1]
    except ConfigError:
        values = [parse_setting(f"{key}={part}")[1] for part in rest.split(",")]
    return key, values


def list_grid(sweep: Sweep) -> list[tuple[Any, Any, str]]:
    """Return value, curve and label of all points: curve by curve, values in the order they were given."""
    grid = [(value, curve) for curve in (sweep.curves if sweep.curve_key else [None]) for value in sweep.values]
    return [(value, curve, label_point(sweep.key, value, sweep.curve_key, curve)) for value, curve in grid]


def build_plan(config: Config, sweep: Sweep) -> SweepPlan:
    """Build the plan with its points in shuffled order, the same for the same seed."""
    grid = list_grid(sweep)
    order = list(range(len(grid)))
    random.Random(sweep.seed).shuffle(order)
    names = name_files([label for _, _, label in grid])
    points = [PlannedPoint(number, *grid[place], name=names[place]) for number, place in enumerate(order, start=1)]
    return SweepPlan(config, sweep, tuple(points))


def name_files(labels: Sequence[str]) -> list[str]:
    """Return a unique file name for each label; a duplicate (ignoring case) gets the number of its point appended."""
    names: list[str] = []
    for place, name in enumerate(map(name_file, labels)):
        names.append(f"{name}-{place}" if name.lower() in map(str.lower, names) else name)
    return names


def configure_point(config: Config, sweep: Sweep, point: PlannedPoint) -> Config:
    """Return the configuration of one point."""
    changes = {sweep.key: point.value}
    if sweep.curve_key is not None:
        changes[sweep.curve_key] = point.curve
    flag = "--batch-sizes" if sweep.key == BATCH and sweep.curve_key is None else "--over"
    return change_config(config.model_dump(mode="json", exclude_none=True), flag, flags=changes)


def apply_resolved(config: Config, sweep: Sweep, resolved: Config) -> Config:
    """Replace auto by the values that the first point resolved, unless the sweep is over devices."""
    swept = {sweep.key, sweep.curve_key}
    if "device" in swept:
        return config
    found, given = (dict(flatten(one.model_dump(mode="json", exclude_none=True))) for one in (resolved, config))
    values = {key: found[key] for key in RESOLVED_KEYS if key not in swept and given.get(key) == "auto"}
    return change_config(config.model_dump(mode="json", exclude_none=True), "the first point", flags=values)


def resume_plan(path: Path, result: Result) -> SweepPlan:
    """Return the plan of a sweep to resume; raise ResultError if host or software versions differ."""
    if result.sweep is None:
        raise ResultError(f"{path} ended before its points were written", hint=f"start again: {result.command}")
    here = {"host": socket.gethostname(), **read_software()}
    then = {"host": result.process.host, **result.software}
    differing = [
        f"{name} {then[name]} there, {here.get(name)} here"
        for name in ("host", "trainstone", "torch")
        if then.get(name) not in (None, here.get(name))
    ]
    if differing:
        raise ResultError(
            f"cannot resume {path}: {'; '.join(differing)}; its points would not be comparable",
            hint=f"start again: {result.command}",
        )
    return build_plan(check_shared_config(path), result.sweep)


def check_shared_config(path: Path) -> Config:
    """Return the configuration that child runs share; raise if it was changed: they would not be comparable."""
    result, file = read_result(path), path / "config.toml"
    config = load_config(str(file))
    now, then = (dict(flatten(values)) for values in (config.model_dump(mode="json", exclude_none=True), result.config))
    changed = [key for key in sorted(now.keys() | then.keys()) if now.get(key) != then.get(key)]
    # config.toml is written before the result: a kill between the two leaves resolved values in the file only
    resolving = set() if result.machine else {key for key in RESOLVED_KEYS if then.get(key) == "auto"}
    changed = [key for key in changed if key not in resolving]
    if changed:
        shown = ", ".join(f"{key} was {then.get(key)}, is {now.get(key)}" for key in changed[:3])
        raise ResultError(
            f"{file} was changed since this {result.kind} was started: {shown}",
            hint=f"restore it, or start again: {result.command}",
        )
    return config
