"""Flags and variables of the originals, as tables, and what a line of them says. `argparse` reads the words.

The tables of docs/from are these records.
"""

import argparse
import fnmatch
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from trainstone.config.load import did_you_mean
from trainstone.config.old.launcher import Geometry
from trainstone.config.old.line import VALUES_HINT, Line
from trainstone.errors import ConfigError

Verb = Literal["train", "bench", "eval", "sweep", "profile"]
Kind = Literal["text", "path", "integer", "number", "switch", "epochs", "words"]
EXPECTED = {
    "integer": "a whole number",
    "number": "a number",
    "epochs": "a number",
    "switch": "true or false",
}
SWITCHES = dict.fromkeys(("true", "t", "1", "yes", "y"), True) | dict.fromkeys(("false", "f", "0", "no", "n"), False)
LARGEST = 10**15


class Flag(NamedTuple):
    """A row of the table."""

    name: str
    """As written there, without dashes. MXNET_* stands for all that begin so."""
    kind: Kind
    default: str = ""
    """As it would be written; empty: none."""
    ours: str = ""
    """Key, flag or command here; empty: it has no meaning here, and the remark says why."""
    remark: str = ""
    choices: tuple[str, ...] = ()
    may_be_empty: bool = False
    """Of a list: it may be given without any value (argparse's nargs="*")."""

    @property
    def key(self) -> str:
        """The recipe key that gets the value as it is, if that is all."""
        named = re.fullmatch(r"`(seed|[a-z]\w*\.\w+)`", self.ours)
        return named[1] if named else ""

    def read(self, text: str) -> Any:
        """Return what was written as the flag's kind has it; choices in their own spelling."""
        if self.choices:
            text = next((choice for choice in self.choices if choice.lower() == text.lower()), text)
        expected = f"one of {', '.join(self.choices)}" if self.choices else EXPECTED.get(self.kind, "")
        try:
            value = convert(self.kind, text)
            valid = isinstance(value, str) or abs(value) <= LARGEST
        except (ValueError, KeyError):
            valid = False
        if not valid or (self.choices and text not in self.choices):
            raise argparse.ArgumentTypeError(f"invalid value {text[:80]!r}: expected {expected}")
        return value

    def read_default(self) -> Any:
        """Return the value of a flag that is not given."""
        if self.kind in ("epochs", "words"):
            return [self.read(text) for text in self.default.split()]
        return self.read(self.default)


def convert(kind: Kind, text: str) -> Any:
    """Return a text as a kind has it."""
    if kind == "integer":
        return int(text)
    if kind in ("number", "epochs"):
        return float(text)
    return SWITCHES[text.lower()] if kind == "switch" else text


class Given(NamedTuple):
    """What a line says."""

    table: tuple[Flag, ...]
    values: dict[str, Any]
    """Of every flag, its default where it was not given; absent where it has none."""
    written: dict[str, str]
    """Of those that were given: how they were written."""
    notes: list[str]
    """One for each that was given and has no meaning here."""

    def list_keys(self, special: Collection[str]) -> dict[str, Any]:
        """Return the recipe keys that flags set with their value, or their default there; not the `special` ones."""
        rows = [row for row in self.table if row.key and row.name in self.values and row.name not in special]
        return {row.key: self.values[row.name] for row in rows}


class Request(NamedTuple):
    """What an old line requests, in our words."""

    verb: Verb
    keys: Mapping[str, Any]
    """Dotted keys of the recipe, those that the line leaves as they are included."""
    options: tuple[str, ...] = ()
    """Words of the command that are not keys: --out DIR, --batch-sizes ..."""
    geometry: Geometry = Geometry()
    notes: Sequence[str] = ()
    runs: int = 1
    command: str = ""
    """A whole command here, where the old line trains nothing and is not a recipe."""


def idle(remark: str, kind: Kind, named: str) -> tuple[Flag, ...]:
    """Return rows without a meaning here that have the same reason: "name=default name"."""
    return tuple(
        Flag(name, kind, default, "", remark) for name, _, default in (n.partition("=") for n in named.split())
    )


class Parser(argparse.ArgumentParser):
    """argparse whose errors are ours."""

    def __init__(self, original: str, *, shortened: bool = True) -> None:
        super().__init__(add_help=False, allow_abbrev=shortened, argument_default=argparse.SUPPRESS)
        self.original = original

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print before it exits."""
        known = f"docs/from/{self.original}.md lists every flag and variable that is known"
        raise ConfigError(message.removeprefix("argument "), hint=VALUES_HINT if "$" in message else known)


class Grammar(NamedTuple):
    """How a program reads its flags, and its scripts their variables."""

    original: str
    """The name of --from."""
    flags: tuple[Flag, ...]
    variables: tuple[Flag, ...] = ()
    negated: bool = False
    """--no<name> switches off."""
    absl: bool = False
    """-name is --name, and a name is written in full."""
    short: Mapping[str, str] = {}
    """Short names: -j of dali-workers."""

    def read_flags(self, words: Sequence[str]) -> Given:
        """Read `--name value`, `--name=value`, switches; the last of several counts, as it did there."""
        parser = Parser(self.original, shortened=not self.absl)
        dashes = ("--", "-") if self.absl else ("--",)
        for flag in self.flags:
            names = [*(f"{dash}{flag.name}" for dash in dashes), *filter(None, [self.short.get(flag.name)])]
            if flag.kind == "switch":
                parser.add_argument(*names, dest=flag.name, nargs="?", const=True, type=flag.read)
                if self.negated:
                    off = [f"{dash}no{flag.name}" for dash in dashes]
                    parser.add_argument(*off, dest=flag.name, action="store_false", default=argparse.SUPPRESS)
            elif flag.kind in ("epochs", "words"):
                parser.add_argument(*names, dest=flag.name, nargs="*" if flag.may_be_empty else "+", type=flag.read)
            else:
                parser.add_argument(*names, dest=flag.name, type=flag.read)
        found, strange = parser.parse_known_args(list(words))
        if strange:
            unknown = [word.partition("=")[0] for word in strange if word.startswith("-")] or strange
            options = [f"--{flag.name}" for flag in self.flags]
            named = [f"{word[:80]}{did_you_mean('--' + word.lstrip('-'), options)}" for word in unknown]
            parser.error("; ".join(f"unknown flag {text}" for text in named))
        return collect(self.flags, vars(found), "--")

    def read_variables(self, line: Line) -> Given:
        """Read variables by their names or patterns; those of files that the table does not have are ignored."""
        parser = Parser(self.original)
        found: dict[str, Any] = {}
        table = list(self.variables)
        for name, text in line.values.items():
            row = next((row for row in self.variables if fnmatch.fnmatchcase(name, row.name)), None)
            if row is None and name in line.typed:
                parser.error(f"unknown variable {name}{did_you_mean(name, [row.name for row in self.variables])}")
            if row is None:
                continue
            try:
                found[name] = row.read(text) if row.ours else text
            except argparse.ArgumentTypeError as err:
                parser.error(f"{name}: {err}")
            table += [row._replace(name=name)] * (row.name != name)
        return collect(tuple(table), found, "")


def collect(table: tuple[Flag, ...], found: Mapping[str, Any], dashes: str) -> Given:
    """Return what was found, with defaults, and a note for each that has no meaning here."""
    values = {row.name: row.read_default() for row in table if row.default}
    written = {}
    for name, value in found.items():
        text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
        written[name] = f"{dashes}{name}" if value is True else f"{dashes}{name}={text}"
    notes = [f"{written[row.name]}: {row.remark}" for row in table if row.name in found and not row.ours]
    return Given(table, values | dict(found), written, notes)


def check_counts(values: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise an error for a number of devices, epochs or runs below 1."""
    for name in names:
        if values.get(name, 1) < 1:
            raise ConfigError(f"{name}={values[name]}: must be at least 1")


def set_data(keys: dict[str, Any], path: str | None, flag: str) -> tuple[str, ...]:
    """Set the folder of the images; return a note where none can be taken from the line."""
    if path is None or "$" in path or "`" in path:
        return (f"{flag} {'is not given' if path is None else path}: give --data DIR",)
    keys |= {"data.root": str(Path(path).absolute()), "data.source": "files"}
    return ()


def set_out(folder: str | None) -> tuple[str, ...]:
    """Return --out for a folder of results that was named."""
    return () if not folder or "$" in folder or "`" in folder else ("--out", folder)
