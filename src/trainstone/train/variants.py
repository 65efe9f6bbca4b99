"""Two configurations side by side: fitted to this machine together, named by what tells them apart."""

from collections.abc import Mapping
from typing import Any

from trainstone.config.load import flatten, format_value
from trainstone.config.schema import Config
from trainstone.errors import ConfigError, RunError
from trainstone.measure.devices import choose_device
from trainstone.train.fit import Fitted, fit_to_machine
from trainstone.train.fit_batch import free_bytes, needed_bytes
from trainstone.train.interleave import naming
from trainstone.units import format_bytes

MAX_KEYS_NAMED = 3
# What is called and how long it is measured is no difference in what runs.
NOT_COMPARED = ("name", "version", "summary", "system", "measure")
# Weights and momentum stay while the other one runs; activations and gradients are given back.
RESIDENT_COPIES = 2


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
