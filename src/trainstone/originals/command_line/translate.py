"""From an old command line to the recipe and the command that equal it; which original is read by which file."""

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tomli_w

from trainstone.config.load import did_you_mean, list_shipped, load_config, load_system, read_toml, write_toml
from trainstone.config.schema import Config
from trainstone.errors import ConfigError
from trainstone.originals.command_line.reader import MOST_DEVICES, Request
from trainstone.originals.mlperf_resnet.command_line import understand_resnet50
from trainstone.originals.mlperf_ssd.command_line import understand_ssd
from trainstone.originals.sc22.command_line import understand_sc22
from trainstone.originals.tbd.command_line import understand_tbd
from trainstone.originals.wmlce.command_line import understand_wmlce
from trainstone.text import printable

FILE = "FILE.toml"
OPTIONS = {"data.root": "--data", "seed": "--seed", "device": "--device"}
STEPS = {("bench", "measure.iterations"), ("train", "stop.steps")}
BESIDE = (
    *("data.", "loader.", "engine.", "measure.", "tracking.", "original.", "mlperf.", "seed", "device"),
    "model.pretrained",
)
"""Keys that may be others without making it another system's training."""
EVALUATED = ("data.", "eval.", "device")
"""Keys that saved weights do not bring with them."""


ORIGINALS: dict[str, tuple[str, Callable[[Sequence[str]], Request]]] = {
    "mlperf-resnet50": ("resnet50-mlperf", understand_resnet50),
    "mlperf-ssd": ("ssd300-mlperf", understand_ssd),
    "tbd": ("resnet50-tbd", understand_tbd),
    "sc22": ("resnet50-sc22", understand_sc22),
    "wmlce": ("resnet50-wmlce", understand_wmlce),
}
"""The recipe that each became, and what reads its lines."""


class Translation(NamedTuple):
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


def translate(original: str, words: Sequence[str]) -> Translation:
    """Translate an old command line, or raise what cannot be."""
    if original not in ORIGINALS:
        raise ConfigError(
            f"--from {original}: unknown original{did_you_mean(original, ORIGINALS)}",
            hint=f"known: {', '.join(ORIGINALS)}",
        )
    recipe, understand = ORIGINALS[original]
    request = understand(words)
    old = words[0] if len(words) == 1 else shlex.join(words)
    if request.command:
        return Translation(old, request.command.split()[1], request.command, "", None, {}, request.notes)
    count = request.geometry.devices() or 1
    if max(count, request.geometry.nodes or 1) > MOST_DEVICES:
        raise ConfigError(f"{count:,} devices: must be at most {MOST_DEVICES:,}", hint="see the words that start it")
    system, changes = fit_system(recipe, request)
    config = load_config(recipe, system=system, flags=changes)
    if request.runs > 1 and count == 1:  # several devices repeat by a loop over seeds
        request = request._replace(options=("--runs", str(request.runs), *request.options))
    command, file_command = write_commands(request, recipe, system, changes)
    notes = [*request.notes, *describe_ranks(request, config)] if count > 1 else request.notes
    defects: dict[str, Any] = read_toml("recipes", recipe)[0].get("defects", {})
    if system is not None:
        defects |= load_system(system).recipe[recipe].get("defects", {})
    return Translation(old, request.verb, command, file_command, config, defects, notes)


def fit_system(recipe: str, request: Request) -> tuple[str | None, dict[str, Any]]:
    """Return the shipped system that is what the line requests, or none, and the keys that differ from it."""
    nodes, each, _ = request.geometry
    count = request.geometry.devices()
    for name in list_shipped("systems") if count is not None else ():
        system = load_system(name)
        if recipe not in system.recipe or system.nodes * system.devices_per_node != count:
            continue
        if (nodes or system.nodes) != system.nodes or (each or system.devices_per_node) != system.devices_per_node:
            continue
        changes = find_changes(request.keys, load_config(recipe, system=name))
        if all(key.startswith(BESIDE) for key in changes):
            return name, changes
    geometry = {} if count is None else {"nodes": nodes or 1, "devices_per_node": each or count}
    return None, find_changes({**request.keys, **geometry}, load_config(recipe))


def find_changes(keys: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Return the keys whose values are others in a configuration."""
    return {key: value for key, value in keys.items() if read_key(config, key) != value}


def read_key(config: Config, dotted_key: str) -> Any:
    """Return the value of a key, lists as lists."""
    value: Any = config
    for part in dotted_key.split("."):
        value = getattr(value, part if hasattr(value, part) else f"{part}_")  # async is a word of Python
    return list(value) if isinstance(value, tuple) else value


def write_commands(request: Request, recipe: str, system: str | None, changes: Mapping[str, Any]) -> tuple[str, str]:
    """Return the command with the shipped recipe, and with the file, quoted for a shell.

    Saved weights of trainstone bring their own recipe, those of others need the file.
    """
    evaluates = request.verb == "eval"
    words = [request.verb, "CHECKPOINT" if evaluates else recipe]
    words += ["--system", system] if system and not evaluates else []
    for key, value in changes.items():
        if evaluates and not key.startswith(EVALUATED):
            continue
        if key == "data.source" and "data.root" in changes:
            continue
        option = "--iterations" if (request.verb, key) in STEPS else OPTIONS.get(key)
        bare = (
            isinstance(value, str) and re.fullmatch(r"[a-z]\w*", value) and value not in ("true", "false", "inf", "nan")
        )
        text = value if bare else json.dumps(value, ensure_ascii=False)  # texts, numbers and lists are as in TOML
        words += [option, str(value)] if option else ["--set", f"{key}={text}"]
    file_words = ["eval", "WEIGHTS", "--recipe", FILE] if evaluates else [request.verb, FILE]
    if "--bench" in request.options and "data.root" in changes:  # synthetic but for --data, whatever the file says
        file_words += ["--data", str(changes["data.root"])]
    command, file_command = (shlex.join(["trainstone", *line, *request.options]) for line in (words, file_words))
    return command, file_command


def describe_ranks(request: Request, config: Config) -> list[str]:
    """Return how several devices are started, and how a run is repeated on them."""
    if request.verb not in ("bench", "train"):
        return []
    count = config.nodes * config.devices_per_node
    places = f"--nodes {config.nodes} --ranks-per-node {config.devices_per_node}"
    launcher = f"local --ranks {count}" if config.nodes == 1 else f"slurm {places}"
    line = f"trainstone launch {launcher} -- {shlex.join([request.verb, FILE, *request.options])}"
    if request.runs > 1:
        seeds = f"$(seq {config.seed} {config.seed + request.runs - 1})"
        return [f"{request.runs} runs: for seed in {seeds}; do {line} --seed $seed; done"]
    alone = "bench by itself measures one device; " if request.verb == "bench" else ""
    return [f"{alone}on {count:,} devices together: {line}"]


def write_file(translation: Translation) -> str:
    """Return a recipe file that is the old command line, with a head comment that says so."""
    first, *more = translation.old.strip().splitlines() or ["(nothing: all defaults)"]
    head = ["The old command line, in trainstone's words.", "", f"Was       {first}"]
    head += [f"          {line}" for line in more]
    head += [f"Command   {translation.command}"]
    head += [f"          {translation.file_command}, where {FILE} is this file"] if translation.config else []
    if translation.verb == "eval":
        head.append("          The first for a checkpoint of trainstone, the second for weights of other tools")
    head += ["", "What has to be said:", *(f"- {note}" for note in translation.notes)] if translation.notes else []
    comment = "".join(f"# {printable(line)}".rstrip() + "\n" for line in head)
    config = write_toml(translation.config) if translation.config else ""
    defects = tomli_w.dumps({"defects": translation.defects}) if translation.defects else ""
    return "\n".join(filter(None, (comment, config, defects)))
