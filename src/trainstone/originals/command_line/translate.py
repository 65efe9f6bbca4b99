"""Translate an original's command line into the equivalent recipe and trainstone command."""

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tomli_w

from trainstone.config.load import did_you_mean, format_toml, list_shipped, load_config, load_system, read_toml
from trainstone.config.schema import Config
from trainstone.errors import ConfigError
from trainstone.originals.command_line.reader import MAX_DEVICES, Request
from trainstone.originals.mlperf_resnet.command_line import parse_resnet50
from trainstone.originals.mlperf_ssd.command_line import parse_ssd
from trainstone.originals.sc22.command_line import parse_sc22
from trainstone.originals.tbd.command_line import parse_tbd
from trainstone.originals.wmlce.command_line import parse_wmlce
from trainstone.text import printable

FILE = "FILE.toml"
OPTIONS = {"data.root": "--data", "seed": "--seed", "device": "--device"}
STEPS = {("bench", "measure.iterations"), ("train", "stop.steps")}
UNRELATED = (
    *("data.", "loader.", "engine.", "measure.", "tracking.", "original.", "mlperf.", "seed", "device"),
    "model.pretrained",
)
"""Keys that may differ from a shipped system: they do not change how it trains."""
EVAL_KEYS = ("data.", "eval.", "device")
"""Keys that a checkpoint does not determine."""


ORIGINALS: dict[str, tuple[str, Callable[[Sequence[str]], Request]]] = {
    "mlperf-resnet50": ("resnet50-mlperf", parse_resnet50),
    "mlperf-ssd": ("ssd300-mlperf", parse_ssd),
    "tbd": ("resnet50-tbd", parse_tbd),
    "sc22": ("resnet50-sc22", parse_sc22),
    "wmlce": ("resnet50-wmlce", parse_wmlce),
}
"""Recipe and parser by original."""


class Translation(NamedTuple):
    """The equivalent of an original's command line."""

    old: str
    verb: str
    command: str
    """With the shipped recipe and --set options."""
    file_command: str
    """With the recipe file of format_recipe_file."""
    config: Config | None
    """None if the command runs no recipe; then no file is written."""
    defects: Mapping[str, Any]
    """Values that original_defects = true would use."""
    notes: Sequence[str]


def translate(original: str, words: Sequence[str]) -> Translation:
    """Translate an original's command line; raise ConfigError if that is impossible."""
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
    if max(count, request.geometry.nodes or 1) > MAX_DEVICES:
        raise ConfigError(
            f"too many devices: {count:,}; at most {MAX_DEVICES:,} are supported",
            hint="check the launcher's options (mpirun -np, srun --nodes, #SBATCH)",
        )
    system, changes = find_system(recipe, request)
    config = load_config(recipe, system=system, flags=changes)
    if (
        request.runs > 1 and count == 1
    ):  # --runs works on one device; on several, describe_ranks prints a loop over seeds
        request = request._replace(options=("--runs", str(request.runs), *request.options))
    command, file_command = format_commands(request, recipe, system, changes)
    notes = [*request.notes, *describe_ranks(request, config)] if count > 1 else request.notes
    defects: dict[str, Any] = read_toml("recipes", recipe)[0].get("defects", {})
    if system is not None:
        defects |= load_system(system).recipe[recipe].get("defects", {})
    return Translation(old, request.verb, command, file_command, config, defects, notes)


def find_system(recipe: str, request: Request) -> tuple[str | None, dict[str, Any]]:
    """Return the shipped system that matches the request (None if none does), and the keys that differ from it."""
    nodes, per_node, _ = request.geometry
    count = request.geometry.devices()
    for name in list_shipped("systems") if count is not None else ():
        system = load_system(name)
        if recipe not in system.recipe or system.nodes * system.devices_per_node != count:
            continue
        if (nodes or system.nodes) != system.nodes or (per_node or system.devices_per_node) != system.devices_per_node:
            continue
        changes = find_changes(request.keys, load_config(recipe, system=name))
        if all(key.startswith(UNRELATED) for key in changes):
            return name, changes
    geometry = {} if count is None else {"nodes": nodes or 1, "devices_per_node": per_node or count}
    return None, find_changes({**request.keys, **geometry}, load_config(recipe))


def find_changes(keys: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Return the keys whose values differ from a configuration."""
    return {key: value for key, value in keys.items() if read_key(config, key) != value}


def read_key(config: Config, dotted_key: str) -> Any:
    """Return the value of a key, lists as lists."""
    value: Any = config
    for part in dotted_key.split("."):
        value = getattr(value, part if hasattr(value, part) else f"{part}_")  # async is a Python keyword
    return list(value) if isinstance(value, tuple) else value


def format_commands(request: Request, recipe: str, system: str | None, changes: Mapping[str, Any]) -> tuple[str, str]:
    """Return the command with the shipped recipe, and the one with the recipe file, quoted for a shell.

    A trainstone checkpoint contains its recipe; weights of other tools need the file.
    """
    evaluates = request.verb == "eval"
    words = [request.verb, "CHECKPOINT" if evaluates else recipe]
    words += ["--system", system] if system and not evaluates else []
    for key, value in changes.items():
        if evaluates and not key.startswith(EVAL_KEYS):
            continue
        if key == "data.source" and "data.root" in changes:
            continue
        option = "--iterations" if (request.verb, key) in STEPS else OPTIONS.get(key)
        bare = (
            isinstance(value, str) and re.fullmatch(r"[a-z]\w*", value) and value not in ("true", "false", "inf", "nan")
        )
        text = (
            value if bare else json.dumps(value, ensure_ascii=False)
        )  # JSON and TOML agree on strings, numbers and lists
        words += [option, str(value)] if option else ["--set", f"{key}={text}"]
    file_words = ["eval", "WEIGHTS", "--recipe", FILE] if evaluates else [request.verb, FILE]
    if "--bench" in request.options and "data.root" in changes:  # eval --bench is synthetic unless --data is given
        file_words += ["--data", str(changes["data.root"])]
    command, file_command = (shlex.join(["trainstone", *line, *request.options]) for line in (words, file_words))
    return command, file_command


def describe_ranks(request: Request, config: Config) -> list[str]:
    """Return the command that starts the run on several devices, or repeats it there."""
    if request.verb not in ("bench", "train"):
        return []
    count = config.nodes * config.devices_per_node
    layout = f"--nodes {config.nodes} --ranks-per-node {config.devices_per_node}"
    launcher = f"local --ranks {count}" if config.nodes == 1 else f"slurm {layout}"
    line = f"trainstone launch {launcher} -- {shlex.join([request.verb, FILE, *request.options])}"
    if request.runs > 1:
        seeds = f"$(seq {config.seed} {config.seed + request.runs - 1})"
        return [f"{request.runs} runs: for seed in {seeds}; do {line} --seed $seed; done"]
    single = "bench measures one device; " if request.verb == "bench" else ""
    return [f"{single}on {count:,} devices: {line}"]


def format_recipe_file(translation: Translation) -> str:
    """Return the text of the equivalent recipe file, with both command lines in a comment at the top."""
    first, *more = translation.old.strip().splitlines() or ["(empty: all defaults)"]
    head = ["Recipe translated from an original's command line.", "", f"Original  {first}"]
    head += [f"          {line}" for line in more]
    head += [f"Command   {translation.command}"]
    head += [f"          {translation.file_command}, where {FILE} is this file"] if translation.config else []
    if translation.verb == "eval":
        head.append("          Use the first for a trainstone checkpoint, the second for weights of other tools")
    head += ["", "Notes:", *(f"- {note}" for note in translation.notes)] if translation.notes else []
    comment = "".join(f"# {printable(line)}".rstrip() + "\n" for line in head)
    config = format_toml(translation.config) if translation.config else ""
    defects = tomli_w.dumps({"defects": translation.defects}) if translation.defects else ""
    return "\n".join(filter(None, (comment, config, defects)))
