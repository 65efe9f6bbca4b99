"""MLPerf's closed division as its benchmarks share it: a recipe compared with the one that keeps the rules.

Rules: https://github.com/mlcommons/training_policies, and the rule files of mlperf-logging 4.1.68.
"""

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from trainstone.config.load import load_config
from trainstone.config.schema import Config
from trainstone.workloads.workload import RunSizes

ROUNDING = 1e-5  # the checker's
COMPARED: dict[str, tuple[str, ...]] = {
    "model": (),
    "data": ("image_size",),
    "augment": (),
    "detect": (),
    "loader": ("last", "on_bad"),
    "train": (),
    "optimizer": (),
    "schedule": (),
    "eval": (),
}
"""Sections that the reference's are compared with, and which keys: none named means all. Others change the speed."""
FREE = frozenset(
    {
        *("train.batch_size", "train.accumulate", "train.precision", "train.loss_scale", "train.adapt"),
        *("optimizer.learning_rate", "optimizer.rate_for", "optimizer.rate_growth", "optimizer.weight_decay"),
        *("schedule.warm_up_epochs", "schedule.pictures", "eval.offset", "eval.batch_size", "eval.target"),
    }
)
"""Keys that every benchmark leaves free, or has a rule of its own for."""

Rule = tuple[bool, str]
"""Whether it is kept, and what to say where it is not."""


@dataclass(frozen=True)
class ClosedRules:
    """What the closed division of a benchmark demands beside rules of its own."""

    recipe: str
    """The one that keeps the rules."""
    train_pictures: int
    val_pictures: tuple[int, ...]
    data: str
    """How a sentence calls them."""
    target: float
    free: Collection[str]
    """Further keys."""
    also_allowed: Mapping[str, tuple[Any, ...]]

    def find_departures(self, config: Config, sizes: RunSizes, free: Collection[str], rules: list[Rule]) -> list[str]:
        """Say what is not allowed: whatever is not as in the reference and not free, and `rules` that are not kept."""
        changed = compare_sections(config, load_reference(self.recipe), {*FREE, *self.free, *free}, self.also_allowed)
        return [*changed, *(text for kept, text in (*self.check_goal(config, sizes), *rules) if not kept)]

    def check_goal(self, config: Config, sizes: RunSizes) -> list[Rule]:
        """The images, and what the network is trained to."""
        train, val, target = sizes.train_pictures, sizes.val_pictures, config.eval.target
        seen = train == self.train_pictures and val in self.val_pictures
        counted = config.schedule.pictures
        goal = "there is no target" if target is None else f"the target is {target:g}"
        return [
            (seen, f"{train:,} and {val:,} pictures, not {self.data}"),
            (counted in (None, train), f"schedule.pictures = {counted}, the data set has {train}"),
            ((target or 0) >= self.target, f"{goal}: at least {self.target} is asked for"),
        ]


@functools.cache
def load_reference(recipe: str) -> Config:
    """Return the recipe that follows the rules."""
    return load_config(recipe)


def compare_sections(
    config: Config, reference: Config, free: Collection[str], also_allowed: Mapping[str, tuple[Any, ...]]
) -> list[str]:
    """Name keys of sections whose value is not the reference's."""
    found = []
    for section, keys in COMPARED.items():
        ours, theirs = getattr(config, section), getattr(reference, section)
        for key in keys or type(ours).model_fields:
            name = f"{section}.{key}"
            value, wanted = getattr(ours, key), getattr(theirs, key)
            if name not in free and value not in (wanted, *also_allowed.get(name, ())):
                found.append(f"{name} = {format_value(value)}, not {format_value(wanted)}")
    return found


def format_value(value: Any) -> str:
    """Write a value as a recipe does, without its quotation marks."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(format_value, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def is_whole(value: float) -> bool:
    """Return whether the checker takes a value for a whole number."""
    return abs(round(value) - value) < ROUNDING


def as_integer(value: float) -> float:
    """Return 2 for 2.0: MLPerf's logs have it so."""
    return int(value) if value == int(value) else value
