"""From an old command line to the recipe and the command that equal it; which original is read by which file."""

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tomli_w

from trainstone.config.load import did_you_mean, list_shipped, load_config, load_system, read_source, write_toml
from trainstone.config.old import mlperf, sc22, ssd, tbd, wmlce
from trainstone.config.old.flag import Asked
from trainstone.config.old.launcher import MOST_DEVICES, Geometry
from trainstone.config.schema import Config
from trainstone.errors import ConfigError
from trainstone.text import printable

FILE = "FILE.toml"
OPTIONS = {"data.root": "--data", "seed": "--seed", "device": "--device"}
MOST_SEEDS = 20
STEPS = {("bench", "measure.iterations"), ("train", "stop.steps")}
BESIDE = (
    *("data.", "loader.", "engine.", "measure.", "tracking.", "original.", "mlperf.", "seed", "device"),
    "model.pretrained",
)
"""Keys that may be others without making it another system's training."""
EVALUATED = ("data.", "eval.", "device")
"""Keys that saved weights do not bring with them."""


class Original(NamedTuple):
    """Who reads its lines, and the recipe it became."""

    recipe: str
    understand: Callable[[Sequence[str]], Asked]


ORIGINALS = {
    "mlperf-resnet50": Original("resnet50-mlperf", mlperf.understand),
    "mlperf-ssd": Original("ssd300-mlperf", ssd.understand),
    "tbd": Original("resnet50-tbd", tbd.understand),
    "sc22": Original("resnet50-sc22", sc22.understand),
    "wmlce": Original("resnet50-wmlce", wmlce.understand),
}


class Told(NamedTuple):
    """What equals an old command line."""

    old: str
    verb: str
    command: str
    """Without a file: the shipped recipe and what is changed of it."""
    file_command: str
    """With the file that write_file gives."""
    config: Config | None
    """None: it is not a run of a recipe, and there is no file."""
    defects: Mapping[str, Any]
    """What original_defects = true would bring back."""
    notes: Sequence[str]


def tell_old(original: str, words: Sequence[str]) -> Told:
    """Translate an old command line, or raise what cannot be."""
    if original not in ORIGINALS:
        raise ConfigError(
            f"--from {original}: unknown original{did_you_mean(original, ORIGINALS)}",
            hint=f"known: {', '.join(ORIGINALS)}",
        )
    recipe, understand = ORIGINALS[original]
    asked = understand(words)
    old = words[0] if len(words) == 1 else shlex.join(words)
    if asked.command:
        return Told(old, asked.command.split()[1], asked.command, "", None, {}, asked.notes)
    check_geometry(asked.geometry)
    try:
        system, changes = fit_system(recipe, asked)
        config = load_config(recipe, system=system, flags=changes)
    except ConfigError as err:
        raise say_in_old_words(err, asked, recipe) from err
    several = (asked.geometry.devices() or 1) > 1
    if asked.runs > 1 and not several:  # several devices repeat by a loop over seeds
        asked = asked._replace(options=("--runs", str(asked.runs), *asked.options))
    command, file_command = write_commands(asked, recipe, system, changes)
    notes = [*asked.notes, *tell_ranks(asked, config)] if several else asked.notes
    return Told(old, asked.verb, command, file_command, config, read_defects(recipe, system), notes)


def check_geometry(geometry: Geometry) -> None:
    """Refuse numbers of devices that no machine has."""
    if (count := geometry.devices() or 1) > MOST_DEVICES or (geometry.nodes or 1) > MOST_DEVICES:
        shown = f"{geometry.nodes or 1:,} x {geometry.each:,}" if geometry.each else f"{count:,}"
        raise ConfigError(f"{shown} devices: must be at most {MOST_DEVICES:,}", hint="see the words that start it")


def say_in_old_words(err: ConfigError, asked: Asked, recipe: str) -> ConfigError:
    """Name the old flag of a value that the recipe does not take."""
    told = re.sub(rf"^recipe {re.escape(recipe)}: ", "", err.message)
    hint = f"`trainstone recipes {recipe}` lists the keys"
    single = re.match(r"([\w.]+) = .*?: (.*)", told, re.DOTALL)
    if single and single[1] in asked.said:
        return ConfigError(f"{asked.said[single[1]]}: {single[2]} ({single[1]} of {recipe})", hint=hint)
    named = [shown for key, shown in asked.said.items() if re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", told)]
    old = ", ".join(dict.fromkeys(named))
    return ConfigError(f"{old}: {told} ({recipe})" if old else f"{recipe}: {told}", hint=hint)


def fit_system(recipe: str, asked: Asked) -> tuple[str | None, dict[str, Any]]:
    """Return the shipped system that is what the line asks for, or none, and the keys that differ from it."""
    nodes, each, _ = asked.geometry
    count = asked.geometry.devices()
    for name in list_shipped("systems") if count is not None else ():
        system = load_system(name)
        if recipe not in system.recipe or system.nodes * system.devices_per_node != count:
            continue
        if (nodes or system.nodes) != system.nodes or (each or system.devices_per_node) != system.devices_per_node:
            continue
        changes = find_changes(asked.keys, load_config(recipe, system=name))
        if all(key.startswith(BESIDE) for key in changes):
            return name, changes
    geometry = {} if count is None else {"nodes": nodes or 1, "devices_per_node": each or count}
    return None, find_changes({**asked.keys, **geometry}, load_config(recipe))


def find_changes(keys: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Return the keys whose values are others in a configuration."""
    return {key: value for key, value in keys.items() if read_key(config, key) != value}


def read_key(config: Config, dotted_key: str) -> Any:
    """Return the value of a key, lists as lists."""
    value: Any = config
    for part in dotted_key.split("."):
        value = getattr(value, part if hasattr(value, part) else f"{part}_")  # async is a word of Python
    return list(value) if isinstance(value, tuple) else value


def write_commands(asked: Asked, recipe: str, system: str | None, changes: Mapping[str, Any]) -> tuple[str, str]:
    """Return the command with the shipped recipe, and with the file, quoted for a shell.

    Saved weights of trainstone bring their own recipe, those of others need the file.
    """
    evaluates = asked.verb == "eval"
    words = [asked.verb, "CHECKPOINT"] if evaluates else [asked.verb, recipe, *(["--system", system] if system else [])]
    for key, value in changes.items():
        if evaluates and not key.startswith(EVALUATED):
            continue
        if key == "data.source" and "data.root" in changes:
            continue
        option = "--iterations" if (asked.verb, key) in STEPS else OPTIONS.get(key)
        words += [option, str(value)] if option else ["--set", f"{key}={write_value(value)}"]
    file_words = ["eval", "WEIGHTS", "--recipe", FILE] if evaluates else [asked.verb, FILE]
    if "--bench" in asked.options and "data.root" in changes:  # synthetic but for --data, whatever the file says
        file_words += ["--data", str(changes["data.root"])]
    command, file_command = (shlex.join(["trainstone", *line, *asked.options]) for line in (words, file_words))
    return command, file_command


def write_value(value: Any) -> str:
    """Return a value as --set takes it."""
    if isinstance(value, str) and re.fullmatch(r"[a-z]\w*", value) and value not in ("true", "false", "inf", "nan"):
        return value
    return json.dumps(value, ensure_ascii=False)  # of texts, numbers and lists TOML has the same


def tell_ranks(asked: Asked, config: Config) -> list[str]:
    """Say how several devices are started, and how a run is repeated on them."""
    if asked.verb not in ("bench", "train"):
        return []
    count = config.nodes * config.devices_per_node
    places = f"--nodes {config.nodes} --ranks-per-node {config.devices_per_node}"
    launcher = f"local --ranks {count}" if config.nodes == 1 else f"slurm {places}"
    line = f"trainstone launch {launcher} -- {shlex.join([asked.verb, FILE, *asked.options])}"
    if asked.verb == "bench":
        return [f"bench by itself measures one device; the original's {count:,} worked together: {line}"]
    where = f"{count} devices" if config.nodes == 1 else f"{config.nodes} x {config.devices_per_node} devices"
    if asked.runs == 1:
        return [f"on {where}: {line}"]
    last = config.seed + asked.runs - 1
    seeds = f"$(seq {config.seed} {last})"
    if asked.runs <= MOST_SEEDS:
        seeds = " ".join(str(seed) for seed in range(config.seed, last + 1))
    return [f"{asked.runs} runs on {where}: for seed in {seeds}; do {line} --seed $seed; done"]


def read_defects(recipe: str, system: str | None) -> Mapping[str, Any]:
    """Return what the recipe, and the system for it, list under [defects]."""
    defects: dict[str, Any] = tomllib.loads(read_source("recipes", recipe)[0]).get("defects", {})
    if system is not None:
        defects = {**defects, **load_system(system).recipe[recipe].get("defects", {})}
    return defects


def write_file(told: Told) -> str:
    """Return a recipe file that is the old command line, with a head comment that says so."""
    first, *more = told.old.strip().splitlines() or ["(nothing: all defaults)"]
    head = ["The old command line, in trainstone's words.", "", f"Was       {first}"]
    head += [f"          {line}" for line in more]
    head += [f"Command   {told.command}"]
    head += [f"          {told.file_command}, where {FILE} is this file"] if told.config else []
    head += ["          The first for a checkpoint of trainstone, the second for weights of other tools"] * (
        told.verb == "eval"
    )
    head += ["", "What has to be said:", *(f"- {note}" for note in told.notes)] if told.notes else []
    comment = "".join(f"# {printable(line)}".rstrip() + "\n" for line in head)
    config = write_toml(told.config) if told.config else ""
    defects = tomli_w.dumps({"defects": told.defects}) if told.defects else ""
    return "\n".join(filter(None, (comment, config, defects)))
