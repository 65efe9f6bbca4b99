"""Words for MLPerf's closed division that its benchmarks share: a recipe held against the one that keeps the rules."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from trainstone.config.schema import Config

ROUNDING = 1e-5  # the checker's


def compare_sections(
    config: Config,
    reference: Config,
    compared: Mapping[str, Sequence[str]],
    free: Collection[str],
    also_allowed: Mapping[str, tuple[Any, ...]],
) -> list[str]:
    """Name keys of sections whose value is not the reference's; no keys of a section named: all of them."""
    found = []
    for section, keys in compared.items():
        ours, theirs = getattr(config, section), getattr(reference, section)
        for key in keys or type(ours).model_fields:
            name = f"{section}.{key}"
            value, wanted = getattr(ours, key), getattr(theirs, key)
            if name not in free and value not in (wanted, *also_allowed.get(name, ())):
                found.append(f"{name} = {tell_value(value)}, not {tell_value(wanted)}")
    return found


def tell_value(value: Any) -> str:
    """Write a value as a recipe does, without its quotation marks."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(tell_value, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def is_whole(value: float) -> bool:
    """Say whether the checker takes a value for a whole number."""
    return abs(round(value) - value) < ROUNDING


def as_integer(value: float) -> float:
    """Return 2 for 2.0: MLPerf's logs have it so."""
    return int(value) if value == int(value) else value
