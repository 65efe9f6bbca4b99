"""The runs on either side of a comparison: found in folders, checked, grouped by what they executed, told apart.

What was executed and by which software must agree for a ratio to mean the machine; machines may differ.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from trainstone.config.load import HASHED_SECTIONS, flatten
from trainstone.errors import ResultError
from trainstone.results.schema import Result, Throughput
from trainstone.results.store import find_runs as find_folders
from trainstone.results.store import read_result
from trainstone.text import printable
from trainstone.units import format_count

ABSENT = "absent"
# Executed keys that follow from the machine: they may differ, as machines may.
OF_THE_MACHINE = frozenset({"engine.threads", "loader.threads", "data.root"})
ON_BOTH = " on both sides"
# Told of a side even where the other has the same: its number is doubtful.
DOUBTFUL = {"steady": {"no"}, "status": {"running", "interrupted", "failed", "killed"}}
NEVER_STEADY = "never became steady"
NOT_COMPARABLE = {"profile": "a profile is not comparable", "sweep": "the points of a sweep executed different things"}
# Beyond these a number is damage; within them no logarithm or ratio overflows.
PLAUSIBLE_RATES = (1e-9, 1e12)


@dataclass(frozen=True)
class Run:
    """A run that has a number."""

    folder: Path
    result: Result
    throughput: Throughput

    @property
    def identity(self) -> tuple[str, str, str]:
        """The same for a copy of the folder."""
        return self.result.run_id, self.result.process.host, self.result.process.started_utc


class LeftOut(NamedTuple):
    """What was given and not compared, and why."""

    told: str
    lost: bool
    """Whether it leaves a hole: something that should have a number has none. A gate must not pass over that."""


class Difference(NamedTuple):
    """A key and what each side has there; as text `key: a | b`."""

    key: str
    a: str
    b: str
    unlike: bool
    """Whether it forbids comparing without --force."""

    def __str__(self) -> str:
        told = f"{self.a}{ON_BOTH}" if self.a == self.b else f"{self.a} | {self.b}"
        return printable(f"{self.key}: {told}")


def find_runs(paths: Iterable[Path]) -> tuple[list[Run], list[LeftOut]]:
    """Return the runs in run folders, result files and folders of run folders, and what was left out and why."""
    runs: dict[tuple[str, str, str], Run] = {}
    left_out: list[LeftOut] = []
    for path in paths:
        for run in _open(path, left_out):
            if run.identity in runs:
                left_out.append(LeftOut(f"{run.folder}: given twice, counted once", lost=False))
            runs.setdefault(run.identity, run)
    return list(runs.values()), left_out


def refuse_shared(a: Sequence[Run], b: Sequence[Run]) -> None:
    """Refuse a run, or a copy of it, that stands on both sides: its noise would cancel and the interval lie."""
    others = {run.identity for run in b}
    shared = [str(run.folder) for run in a if run.identity in others]
    if shared:
        raise ResultError(
            f"on both sides stands the same run: {', '.join(shared)}",
            hint="name each run before or after --to, not both",
        )


def group_runs(runs: Sequence[Run]) -> list[list[Run]]:
    """Group runs that executed the same; the first run of each decides their order."""
    groups: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(read_executed(run.result).items()), []).append(run)
    return list(groups.values())


def find_differences(a: Sequence[Run], b: Sequence[Run]) -> list[Difference]:
    """Return in what the runs of two sides differ, what forbids comparing first.

    Software must agree among the runs of a side as well, since they are pooled.
    """
    found = list(_differ(a, b, read_executed, unlike=True))
    for difference in _differ(a, b, read_software, unlike=True, within=True):
        # A machine without CUDA has no version of it: that is the machine, not another version.
        optional = difference.key not in ("trainstone", "torch", "source")
        lacking = optional and ABSENT in (difference.a, difference.b)
        found.append(difference._replace(unlike=not lacking))
    found += _differ(a, b, read_surroundings, unlike=False)
    found += _differ(a, b, read_state, unlike=False)
    return sorted(found, key=lambda difference: not difference.unlike)


def find_doubts(runs: Sequence[Run]) -> dict[str, str]:
    """Return what is doubtful about one side: steps that never became steady, a run that did not come to its end."""
    return {difference.key: difference.a for difference in _differ(runs, runs, read_state, unlike=False)}


def tell_unsteady(a: Sequence[Run], b: Sequence[Run]) -> str | None:
    """Name the sides of which half of the runs or more never became steady: their numbers say nothing about later.

    Fewer among several are left to the spread between the runs: of noisy runs 2 to 3 % look like drifting (steady.py).
    """
    told = []
    for name, runs in (("A", a), ("B", b)):
        drifting = sum(read_state(run.result).get("steady") == "no" for run in runs)
        told += [f"{drifting} of {format_count(len(runs), 'run')} of {name}"] if 2 * drifting >= len(runs) else []
    return f"{' and '.join(told)} {NEVER_STEADY}" if told else None


def read_executed(result: Result) -> dict[str, str]:
    """Return what was executed, key by key: recipe, its resolved sections, geometry."""
    facts = {"recipe": result.recipe.name, "recipe.version": str(result.recipe.version)}
    facts |= {"work": "inference" if result.kind == "eval" else "training"}
    for section in HASHED_SECTIONS:
        facts |= _flatten(section, result.config.get(section))
    if result.loader:
        facts |= {"data set": f"{result.loader.pictures} pictures, {result.loader.storage}, {result.loader.digest}"}
    facts |= {"world.ranks": str(result.world.ranks), "world.nodes": str(result.world.nodes)}
    return {key: facts[key] for key in sorted(facts) if key not in OF_THE_MACHINE}


def read_software(result: Result) -> dict[str, str]:
    """Return the versions that decide a speed; builds of torch for CPU and CUDA are of one version."""
    software = {key: _tell(value) for key, value in result.software.items()}
    torch, _, build = software.get("torch", ABSENT).partition("+")
    versions = {"source": result.source, "trainstone": software.get("trainstone", ABSENT), "torch": torch}
    if build.startswith(("cu", "rocm")):
        versions["torch build"] = build
    versions |= {key: software[key] for key in ("cuda", "cudnn", "nccl", "driver") if key in software}
    drivers = {_tell(device["driver"]) for device in _devices(result) if "driver" in device}
    return versions | ({"driver": ", ".join(sorted(drivers))} if drivers else {})


def read_surroundings(result: Result) -> dict[str, str]:
    """Return what else may move a number: the machine, how busy it was, how the run was measured."""
    facts = {"host": result.process.host, "kind": result.kind}
    if result.devices:
        facts["device"] = result.devices[0].name
    cpu, engine = (
        values if isinstance(values, dict) else {}
        for values in (result.machine.get("cpu"), result.config.get("engine"))
    )
    named = {
        "config.device": result.config.get("device"),
        "engine.threads": engine.get("threads"),
        **{f"cpu.{key}": cpu.get(key) for key in ("model", "physical_cores", "available", "governor", "boost", "smt")},
        **{key: result.machine.get(key) for key in ("os", "kernel", "memory", "virtualisation")},
        **{key: result.software.get(key) for key in ("python", "numpy", "libc", "environment")},
        "measure": result.config.get("measure"),
    }
    for key, value in named.items():
        facts |= _flatten(key, value)
    for key in ("power_limit_watts", "ecc", "mig"):
        values = {_tell(device[key]) for device in _devices(result) if key in device}
        facts |= {f"device.{key}": ", ".join(sorted(values))} if values else {}
    build = _tell(result.software.get("torch", "")).partition("+")[2]
    facts |= {"torch build": build} if build and not build.startswith(("cu", "rocm")) else {}
    facts["noise grade"] = result.noise.grade if result.noise else ABSENT
    return facts


def read_state(result: Result) -> dict[str, str]:
    """Return how the run ended, and whether its steps became steady; without a trend they were too few to tell."""
    facts, measured = {"status": str(result.status)}, result.throughput
    if measured is not None:
        lacking = "too few steps to tell" if measured.trend_percent is None else "no"
        facts["steady"] = "yes" if measured.steady else lacking
    return facts


def _open(path: Path, left_out: list[LeftOut]) -> list[Run]:
    # Both are False for a name that is too long, or a folder that may not be read
    if not os.path.isdir(path) or os.path.exists(path / "result.json"):  # noqa: PTH110, PTH112
        return _read_runs(path, left_out)
    runs = [run for child in find_folders(path) for run in _try_runs(child, left_out)]
    if not runs:
        why = "; ".join(left.told for left in left_out) or "no folder in it holds a result.json"
        raise ResultError(f"no runs to compare in {path}: {why}", hint="measure: trainstone bench --out DIR")
    return runs


def _try_runs(path: Path, left_out: list[LeftOut]) -> list[Run]:
    """Read what may be left out: in a folder of runs, or one of --runs."""
    try:
        return _read_runs(path, left_out)
    except ResultError as err:
        # A profile or a sweep among runs is no run that has lost its number
        left_out.append(LeftOut(printable(err.message), lost=not err.message.endswith(tuple(NOT_COMPARABLE.values()))))
        return []


def _read_runs(path: Path, left_out: list[LeftOut]) -> list[Run]:
    """Return the run, or the runs that it consists of (--runs)."""
    result = read_result(path)
    folder = path if path.is_dir() else path.parent
    if result.points and result.kind != "sweep":
        children = [_inside(folder, point.run) for point in result.points]
        runs = [run for child in children for run in _try_runs(child, left_out)]
        if runs:
            return runs
    elif result.throughput is not None and result.kind != "profile":
        return [Run(folder, result, _checked(result.throughput, path))]
    told = NOT_COMPARABLE.get(result.kind, f"no throughput, its status is {result.status}")
    again = "measure it again: trainstone bench RUN/config.toml"
    hint = "name points: RUN/points/X --to OTHER/points/Y" if result.kind == "sweep" else again
    raise ResultError(f"{path}: {told}", hint=hint)


def _inside(folder: Path, name: str) -> Path:
    """Join them; realpath, since Path.resolve raises RuntimeError for links in a circle before Python 3.13."""
    child = folder / name
    if "\0" in name or Path(os.path.realpath(folder)) not in Path(os.path.realpath(child)).parents:
        raise ResultError(f"{folder} is damaged: its point {printable(name)} lies outside of it")
    return child


def _checked(throughput: Throughput, path: Path) -> Throughput:
    """Refuse what is no throughput, whatever read_result lets pass."""
    low, high = throughput.ci95 or (throughput.images_per_second, throughput.images_per_second)
    numbers = (low, throughput.images_per_second, high)
    plausible = all(PLAUSIBLE_RATES[0] <= n <= PLAUSIBLE_RATES[1] for n in numbers)
    if not plausible or not low <= throughput.images_per_second <= high:
        told = f"{throughput.images_per_second} images/s, interval {throughput.ci95}"
        raise ResultError(f"{path} is damaged: its throughput is {told}")
    return throughput


def _differ(
    a: Sequence[Run], b: Sequence[Run], read: Callable[[Result], dict[str, str]], *, unlike: bool, within: bool = False
) -> Iterator[Difference]:
    facts = [[read(run.result) for run in side] for side in (a, b)]
    keys = dict.fromkeys(key for side in facts for run in side for key in run)
    for key in keys:
        of_a, of_b = ({run.get(key, ABSENT) for run in side} for side in facts)
        doubtful = (of_a | of_b) & DOUBTFUL.get(key, set())
        if of_a != of_b or doubtful or (within and len(of_a) > 1):
            yield Difference(key, ", ".join(sorted(of_a)), ", ".join(sorted(of_b)), unlike)


def _devices(result: Result) -> list[Mapping[str, Any]]:
    devices = result.machine.get("devices")
    return [device for device in devices if isinstance(device, dict)] if isinstance(devices, list) else []


def _flatten(key: str, value: Any) -> dict[str, str]:
    return {name: _tell(inner) for name, inner in flatten({key: value}) if inner is not None}


def _tell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
