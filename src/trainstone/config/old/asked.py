"""What an old command line asks for, in our words: the verb, recipe keys, flags, and what has to be said about it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from trainstone.config.old.flag import VALUES_HINT, Flag
from trainstone.config.old.launcher import EACH, NODES, RANKS, Geometry
from trainstone.config.old.line import Line

Verb = Literal["train", "bench", "eval", "sweep", "profile"]
MOST_SHOWN = 200
INTERPRETER = re.compile(r"(.*/)?(python[\d.]*|sh|bash|source|\.)|-u")
"""Words that start a program and ask for nothing."""


class Asked(NamedTuple):
    """An old line, understood."""

    verb: Verb
    keys: Mapping[str, Any]
    """Dotted keys of the recipe, those that the line leaves as they are included."""
    options: tuple[str, ...] = ()
    """Words of the command that are no keys: --out DIR, --batch-sizes ..."""
    geometry: Geometry = Geometry()
    notes: tuple[str, ...] = ()
    said: Mapping[str, str] = {}
    """How keys were said there: train.batch_size -> --batch_size=64."""
    command: str = ""
    """A whole command here, where the old line trains nothing and is no recipe."""


def trace_flags(table: Sequence[Flag], asked: Mapping[str, str]) -> dict[str, str]:
    """Return what was written for the keys that a table names."""
    said: dict[str, str] = {}
    for flag in table:
        for key in flag.ours.split("`")[1::2] if flag.name in asked else ():
            keys = ("measure.iterations", "stop.steps") if key.endswith("--iterations") else (key,)
            said |= dict.fromkeys(keys, asked[flag.name])
    return said


def set_data(keys: dict[str, Any], path: str | None, flag: str) -> tuple[str, ...]:
    """Set the folder of the pictures; say where none can be taken from the line."""
    if path is None:
        return (f"{flag} is not given: give --data DIR",)
    if "$" in path or "`" in path:
        return (f"{flag} {path}: no shell reads this, so give --data DIR",)
    keys["data.root"] = path
    return ()


def set_out(asked: str | None) -> tuple[str, ...]:
    """Return --out for a folder of results that was named."""
    return () if not asked or "$" in asked or "`" in asked else ("--out", asked)


def tell_launcher(line: Line) -> tuple[str, ...]:
    """Say what becomes of the words before a program."""
    if all(INTERPRETER.fullmatch(word) for word in line.before):
        return ()
    shown = " ".join(line.before)
    if len(shown) > MOST_SHOWN:
        shown = f"{shown[:MOST_SHOWN]}…"
    notes = [f"{shown}: left out but for the number of devices; `trainstone launch` starts ranks here"]
    if any(word.endswith(("nvprof", "ncu", "nsys")) for word in line.before):
        notes.append("the profiler: `trainstone profile` records steps, telemetry is in every run")
    return (*notes, *tell_unknown_counts(line.before))


def tell_unknown_counts(words: Sequence[str]) -> list[str]:
    """Name the numbers of devices that only a shell could tell."""
    notes = []
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, text = word.partition("=")
        shown = word if equals else f"{word} {following}"
        if name in (*RANKS, *NODES, *EACH) and "$" in (text if equals else following):
            notes.append(f"{shown}: {VALUES_HINT}")
    return notes
