"""Load a recipe, a system file, flags and `--set` into one validated Config; an error is one sentence.

Recipes and systems shipped with the package are in config/recipes and config/systems.
"""

import difflib
import hashlib
import json
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from trainstone.config.schema import Config, ConfigSection, System
from trainstone.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)

# Sections that decide what is executed: two configurations that agree in them do the same work.
HASHED_SECTIONS = (
    *("workload", "model", "data", "augment", "detect", "loader"),
    *("train", "optimizer", "schedule", "parallel", "engine"),
)


def list_shipped(kind: str) -> list[str]:
    """Return the names of the files shipped in config/recipes or config/systems."""
    folder = resources.files("trainstone.config") / kind
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def read_source(kind: str, name: str) -> tuple[str, str]:
    """Return the text of a shipped recipe or system, or of a file, and where it came from."""
    singular, shipped = kind.removesuffix("s"), list_shipped(kind)
    if name.endswith(".toml") or "/" in name:
        path = Path(name) / "config.toml" if Path(name).is_dir() else Path(name)
        try:
            return path.read_text(encoding="utf-8"), str(path)
        except FileNotFoundError as err:
            raise ConfigError(
                f"{singular} file not found: {path}", hint=f"shipped {kind}: {', '.join(shipped)}"
            ) from err
        except (OSError, UnicodeDecodeError) as err:
            raise ConfigError(f"cannot read {singular} file {path}: {err}") from err
    if name not in shipped:
        raise ConfigError(
            f"unknown {singular} {name!r}{did_you_mean(name, shipped)}",
            hint=f"shipped {kind}: {', '.join(shipped)}; or the path of a .toml file",
        )
    source = resources.files("trainstone.config") / kind / f"{name}.toml"
    return source.read_text(encoding="utf-8"), f"{singular} {name}"


def read_toml(kind: str, name: str) -> tuple[dict[str, Any], str]:
    """Return the values of a shipped recipe or system, or of a file, and where they came from."""
    text, where = read_source(kind, name)
    try:
        return tomllib.loads(text), where
    except tomllib.TOMLDecodeError as err:
        raise ConfigError(f"{where} is not valid TOML: {err}") from err


def load_config(
    name: str,
    *,
    settings: Sequence[str] = (),
    system: str | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Config:
    """Resolve a recipe: its file, then the system's table for it, then flags, then each `--set key=value`."""
    values, where = read_toml("recipes", name)
    if system is not None:
        loaded = load_system(system)
        recipe = str(values.get("name", name))
        _merge(values, loaded.recipe.get(recipe, {}))
        if loaded.recipe and recipe not in loaded.recipe:
            known = ", ".join(loaded.recipe)
            note = f"system {loaded.name} has no settings for recipe {recipe}; it has settings for {known}"
            values["notes"] = [*values.get("notes", []), note]
        values |= loaded.model_dump(include={"nodes", "devices_per_node"}) | {"system": loaded.name}
    return change_config(values, where, settings=settings, flags=flags)


def change_config(
    values: dict[str, Any], where: str, *, settings: Sequence[str] = (), flags: Mapping[str, Any] | None = None
) -> Config:
    """Apply flags and each `--set` to the values of a configuration, and validate it; `where` names the source."""
    changes = [*(flags or {}).items(), *map(parse_setting, settings)]
    defects, has_defects = values.pop("defects", None), bool(values.get("original_defects", False))
    wants_defects = dict(changes).get("original_defects", has_defects)
    if defects is None and wants_defects != has_defects and isinstance(wants_defects, bool) and "original" in values:
        raise ConfigError(
            f"cannot change original_defects: {where} is a resolved configuration with "
            f"original_defects = {format_value(has_defects)}",
            hint="start from the recipe to change it",
        )
    if wants_defects is True and isinstance(defects, dict):
        _merge(values, defects)
    for key, value in changes:
        table, (*sections, last) = values, key.split(".")
        for section in sections:
            table = table.setdefault(section, {})
            if not isinstance(table, dict):
                raise ConfigError(f"invalid key {key}: {section} is a single value, not a section")
        if value is None:
            table.pop(last, None)
        else:
            table[last] = value
    requested = {key for key, _ in changes}
    train = values.get("train")
    if isinstance(train, dict) and isinstance(train.get("adapt"), list):  # keep what the user requested
        train["adapt"] = [key for key in train["adapt"] if f"train.{key}" not in requested]
    return _check(Config, values, where)


def load_system(name: str) -> System:
    """Read a shipped system, or the one in a file."""
    return _check(System, *read_toml("systems", name))


def parse_setting(setting: str) -> tuple[str, Any]:
    """Split `key=value`; the value is TOML, a bare word is text."""
    key, equals, text = setting.partition("=")
    key, text = key.strip(), text.strip()
    if not equals or not key or not text:
        raise ConfigError(f"invalid --set {setting!r}: expected KEY=VALUE", hint="--set train.batch_size=8")
    try:
        return key, tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as err:
        if re.fullmatch(r"[\w./:@-]+", text):
            return key, text
        raise ConfigError(
            f"invalid --set {setting!r}: {text!r} is not a TOML value", hint=f"--set '{key}=\"TEXT\"'"
        ) from err
    except (ValueError, RecursionError) as err:  # thousands of digits or brackets
        raise ConfigError(
            f"invalid --set {key}={text[:40]}…: the value cannot be read", hint="give a shorter value"
        ) from err


def format_toml(config: Config) -> str:
    """Return the resolved configuration as TOML; `trainstone bench FILE` repeats the run."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def format_value(value: Any) -> str:
    """Return a value as --set takes it."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(format_value, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def hash_config(config: Config) -> str:
    """Return the SHA-256 of what is executed, without names, seed, device and time budget."""
    hashed = config.model_dump(mode="json", include=set(HASHED_SECTIONS))
    return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys of a configuration with their values."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def list_keys(section: type[BaseModel] = Config, prefix: str = "") -> list[tuple[str, str, Any, str]]:
    """Return every key with its type in words, default and documentation, in the order of the schema."""
    rows: list[tuple[str, str, Any, str]] = []
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, ConfigSection):
            rows += list_keys(field.annotation, f"{prefix}{name}.")
        else:
            default = None if field.is_required() else field.default
            documentation = " ".join((field.description or "").split())
            rows.append((f"{prefix}{field.alias}", _describe_type(field.annotation), default, documentation))
    return rows


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ', did you mean ...?' for the nearest known words, or nothing."""
    known, last = list(known), word.rpartition(".")[2]
    tails = {key: key.rpartition(".")[2] for key in known}
    close = [key for key, tail in tails.items() if tail == last][:2]  # no section, or another one
    close = close or difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if not close:
        nearest = difflib.get_close_matches(last, tails.values(), n=1, cutoff=0.75)
        close = [key for key, tail in tails.items() if tail in nearest][:2]
    return f", did you mean {' or '.join(close)}?" if close else ""


def _merge(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for key, change in changes.items():
        if isinstance(change, Mapping) and isinstance(values.get(key), dict):
            _merge(values[key], change)
        else:
            values[key] = change


def _check(model: type[Model], values: dict[str, Any], where: str) -> Model:
    try:
        return model.model_validate(values)
    except ValidationError as err:
        refused = err
    known = [row[0] for row in list_keys(model)]
    by_key: dict[str, list[ErrorDetails]] = {}
    for detail in refused.errors(include_url=False):  # one error per branch of a union (a number or "auto")
        parts = [str(part) for part in detail["loc"]]
        key = next((k for n in range(len(parts), 0, -1) if (k := ".".join(parts[:n])) in known), ".".join(parts))
        by_key.setdefault(key, []).append(detail)
    key, details = next(iter(by_key.items()))
    error, given = details[0]["type"], details[0]["input"]
    messages = [detail["msg"].removeprefix("Value error, ") for detail in details]
    allowed = "; or ".join(dict.fromkeys(message[:1].lower() + message[1:] for message in messages))
    if error == "extra_forbidden":
        allowed = f"unknown key {key!r}{did_you_mean(key, known)}"
    elif error == "missing":
        allowed = f"missing key {key!r}"
    elif error == "model_type":
        inside = ", ".join(k for k in known if k.startswith(f"{key}."))
        allowed = f"invalid {key} = {given!r}: {key} is a section; set its keys ({inside})"
    elif not isinstance(given, dict):  # a dict is a section whose keys conflict; its message names them
        allowed = f"invalid {key} = {given!r}: {allowed}"
    more = f" (and {len(by_key) - 1} more)" if len(by_key) > 1 else ""
    hint = "list all keys: trainstone recipes resnet50"
    raise ConfigError(f"{where}: {allowed}{more}", hint=hint) from refused


def _describe_type(annotation: Any) -> str:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _describe_type(typing.get_args(annotation)[0])
    if origin is typing.Literal:
        return " | ".join(json.dumps(value) for value in typing.get_args(annotation))
    if origin in (typing.Union, types.UnionType):
        return " | ".join(_describe_type(part) for part in typing.get_args(annotation) if part is not type(None))
    if origin is tuple:
        parts = typing.get_args(annotation)
        return f"[{', '.join('...' if part is Ellipsis else _describe_type(part) for part in parts)}]"
    return {str: "text", int: "integer", float: "number", bool: "true | false"}.get(annotation, "table")
