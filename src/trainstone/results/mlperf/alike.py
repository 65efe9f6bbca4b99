"""Whether runs may be packed as one result: of one thing on one kind of machine, each with its seed, and enough."""

from collections.abc import Mapping, Sequence
from typing import Any

from trainstone.config.load import flatten, format_value
from trainstone.errors import ConfigError
from trainstone.results.mlperf.logged import LoggedRun
from trainstone.results.mlperf.score import NUM_RUNS
from trainstone.results.mlperf.summary import find_repetition
from trainstone.results.schema import Result
from trainstone.text import printable
from trainstone.units import format_count

SAME = ("benchmark", "org", "division", "platform", "status", "global_batch")
"""What the logs of one result must agree on."""
MAY_DIFFER = frozenset(
    [
        *("name", "version", "summary", "notes", "system", "measure", "tracking"),
        *("seed", "device", "data.root", "loader.threads", "engine.threads"),
    ]
)
"""Keys and tables of a configuration that change nothing of what is learned: names, the seed, where it ran."""
TRAIN = "trainstone train RECIPE"
HINT = "one result is runs of the same thing: trainstone train RECIPE --runs 5, and give its run folder"


def check_alike(runs: Sequence[LoggedRun], results: Sequence[Result]) -> None:
    """Refuse runs that are no one result, and say by what."""
    for name in SAME:
        values = list(dict.fromkeys(str(getattr(run, name)) for run in runs))
        if len(values) > 1:
            raise ConfigError(f"the logs differ in {name}: {printable(', '.join(values))}", hint=HINT)
    machines = {(result.world.ranks, *sorted({device.name for device in result.devices})) for result in results}
    if len(machines) > 1:
        raise ConfigError("the runs are of different devices, or of different numbers of them", hint=HINT)
    _check_configs(runs, results)
    repeated = find_repetition(runs)
    if repeated is not None:
        raise ConfigError(printable(repeated), hint="train again with a seed that is not among them: --seed N")


def check_number(runs: Sequence[LoggedRun]) -> None:
    """Refuse fewer or more runs than a result needs, as the package checker would, where that number is known."""
    benchmark, count = runs[0].benchmark or "", len(runs)
    needed = NUM_RUNS.get(benchmark, count)
    if count != needed:
        raise ConfigError(
            f"{benchmark} needs {format_count(needed, 'run')}, here {'is' if count == 1 else 'are'} {count}",
            hint=f"{TRAIN} --runs {needed}; many ranks, {needed} times: trainstone launch ... -- train RECIPE --seed N"
            if count < needed
            else f"give {needed}, not the fastest ones",
        )


def _check_configs(runs: Sequence[LoggedRun], results: Sequence[Result]) -> None:
    first = dict(flatten(results[0].config))
    for run, result in zip(runs[1:], results[1:], strict=True):
        other = dict(flatten(result.config))
        for key in dict.fromkeys((*first, *other)):
            if not MAY_DIFFER & {key, key.partition(".")[0]} and first.get(key) != other.get(key):
                names = " and ".join(printable(one.path.absolute().parent.name) for one in (runs[0], run))
                values = ", ".join(_show(values, key) for values in (first, other))
                raise ConfigError(f"{names} differ in {printable(key)}: {values}", hint=HINT)


def _show(values: Mapping[str, Any], key: str) -> str:
    return printable(format_value(values[key]))[:80] if key in values else "not there"
