"""Flags and variables of the originals, as tables, and what a line of them says. `argparse` reads the words.

The tables of docs/from are these records.
"""

import argparse
import fnmatch
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from trainstone.config.load import did_you_mean
from trainstone.config.old.launcher import Geometry
from trainstone.config.old.line import VALUES_HINT, Line
from trainstone.errors import ConfigError

Verb = Literal["train", "bench", "eval", "sweep", "profile"]
Kind = Literal["text", "path", "integer", "number", "switch", "epochs", "words"]
SWITCHES = dict.fromkeys(("true", "t", "1", "yes", "y"), True) | dict.fromkeys(("false", "f", "0", "no", "n"), False)
CONVERTERS: dict[Kind, tuple[Callable[[str], Any], str]] = {
    "integer": (int, "a whole number"),
    "number": (float, "a number"),
    "switch": (lambda text: SWITCHES[text.lower()], "true or false"),
}
LONGEST = 1000
"""Characters of a value; what is longer is a mistake."""
LARGEST = 10**15
DASH = "-"


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


class Given(NamedTuple):
    """What a line says."""

    table: tuple[Flag, ...]
    values: dict[str, Any]
    """Of every flag, its default where it was not given; absent where it has none."""
    asked: dict[str, str]
    """Of those that were given: how they were written."""
    notes: list[str]
    """One for each that was given and has no meaning here."""

    def list_keys(self, special: Collection[str]) -> dict[str, Any]:
        """Return the recipe keys that flags set with their value, or their default there; not the `special` ones."""
        rows = [row for row in self.table if row.key and row.name in self.values and row.name not in special]
        return {row.key: list(v) if isinstance(v := self.values[row.name], tuple) else v for row in rows}

    def trace(self) -> dict[str, str]:
        """Return what was written for the keys that the table names."""
        said: dict[str, str] = {}
        for flag in self.table:
            for key in flag.ours.split("`")[1::2] if flag.name in self.asked else ():
                keys = ("measure.iterations", "stop.steps") if key.endswith("--iterations") else (key,)
                said |= dict.fromkeys(keys, self.asked[flag.name])
        return said


class Asked(NamedTuple):
    """What an old line asks for, in our words."""

    verb: Verb
    keys: Mapping[str, Any]
    """Dotted keys of the recipe, those that the line leaves as they are included."""
    options: tuple[str, ...] = ()
    """Words of the command that are not keys: --out DIR, --batch-sizes ..."""
    geometry: Geometry = Geometry()
    notes: Sequence[str] = ()
    runs: int = 1
    said: Mapping[str, str] = {}
    """How keys were written there: train.batch_size -> --batch_size=64."""
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
        refuse([message.removeprefix("argument ")], self.original)
        raise AssertionError(message)


def refuse(complaints: Sequence[str], original: str) -> None:
    """Raise all that is wrong with a line at once."""
    if complaints:
        unset = any("$" in complaint for complaint in complaints)
        known = f"docs/from/{original}.md lists every flag and variable that is known"
        raise ConfigError("; ".join(complaints), hint=VALUES_HINT if unset else known)


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
        known = {flag.name: flag for flag in self.flags}
        found, strange = self.make_parser().parse_known_args(list(words))
        unknown = [word.partition("=")[0] for word in strange if word.startswith("-")]
        options = [f"--{name}" for name in known]
        complaints = [f"unknown flag {word}{did_you_mean(f'--{word.lstrip(DASH)}', options)}" for word in unknown]
        complaints += [f"{word!r} is not a flag of {self.original}" for word in strange if not unknown]
        given = Given(self.flags, read_defaults(self.flags), {}, [])
        for name, value in vars(found).items():
            texts = [value] if isinstance(value, str) else value
            shown = f"--{name}" + ("" if texts in ([], ["true"]) else "=" + " ".join(texts))
            complaints += take_value(given, known[name], name, texts, shown)
        refuse(complaints, self.original)
        return given

    def make_parser(self) -> Parser:
        """Return a parser that takes texts; what they mean is read afterwards, so that all mistakes are named."""
        parser = Parser(self.original, shortened=not self.absl)
        dashes = ("--", "-") if self.absl else ("--",)
        for flag in self.flags:
            names = [*(f"{dash}{flag.name}" for dash in dashes), *filter(None, [self.short.get(flag.name)])]
            if flag.kind == "switch":
                parser.add_argument(*names, dest=flag.name, nargs="?", const="true")
                off = [f"{dash}no{flag.name}" for dash in dashes if self.negated]
                if off:
                    parser.add_argument(*off, dest=flag.name, action="store_const", const="false")
            elif flag.kind in ("epochs", "words"):
                parser.add_argument(*names, dest=flag.name, nargs="*" if flag.may_be_empty else "+")
            else:
                parser.add_argument(*names, dest=flag.name)
        return parser

    def read_variables(self, line: Line, optional: Collection[str] = ()) -> Given:
        """Read variables by their names or patterns; those of files that the table does not have are ignored.

        `optional` are those whose default will do where only a shell could compute them.
        """
        given = Given(self.variables, read_defaults(self.variables), {}, [])
        complaints: list[str] = []
        for name, text in {**line.computed, **line.values}.items():
            row = next((row for row in self.variables if fnmatch.fnmatchcase(name, row.name)), None)
            if row is None:
                unknown = f"unknown variable {name}{did_you_mean(name, [known.name for known in self.variables])}"
                complaints += [unknown] if name in line.typed else []
            elif name in line.values:
                complaints += take_value(given, row, name, [text], f"{name}={text}")
            elif name in optional:
                given.notes.append(f"{name}={text}: {row.remark}")
            elif row.ours:
                complaints.append(f"{name}={text}: only a shell could compute it, and none is started; give its value")
        refuse(complaints, self.original)
        return given


def take_value(given: Given, flag: Flag, name: str, texts: Sequence[str], shown: str) -> list[str]:
    """Take what was written for a flag or variable; return what is wrong with it."""
    given.asked[name] = shown
    if not flag.ours:
        given.notes.append(f"{shown}: {flag.remark}")
    try:
        given.values[name] = read_value(flag, texts)
    except ValueError as err:
        return [f"{shown}: {err}"]
    return []


def read_defaults(table: Sequence[Flag]) -> dict[str, Any]:
    """Return the values of flags that are not given."""
    return {row.name: read_value(row, [row.default]) for row in table if row.default}


def read_value(flag: Flag, texts: Sequence[str]) -> Any:
    """Return what was written after a flag as its kind has it; epochs and words take several."""
    if flag.kind == "words":
        return tuple(texts)
    if flag.kind == "epochs":
        return tuple(_convert("number", part) for text in texts for part in text.replace(",", " ").split())
    if flag.choices and texts[0].lower() not in [choice.lower() for choice in flag.choices]:
        raise ValueError(f"it is {' or '.join(filter(None, (', '.join(flag.choices[:-1]), flag.choices[-1])))}")
    return _convert(flag.kind, texts[0])


def _convert(kind: Kind, text: str) -> Any:
    if len(text) > LONGEST:
        raise ValueError(f"a value of {len(text):,} characters")
    if kind not in CONVERTERS:
        return text
    convert, wanted = CONVERTERS[kind]
    try:
        value = convert(text)
    except (ValueError, KeyError) as err:
        raise ValueError(f"must be {wanted}") from err
    if not abs(value) <= LARGEST:  # not a number, too
        raise ValueError(f"must be {wanted}, at most {LARGEST:,}")
    return value


def set_data(keys: dict[str, Any], path: str | None, flag: str) -> tuple[str, ...]:
    """Set the folder of the images; say where none can be taken from the line."""
    if path is None:
        return (f"{flag} is not given: give --data DIR",)
    if "$" in path or "`" in path:
        return (f"{flag} {path}: no shell reads this, so give --data DIR",)
    keys |= {"data.root": str(Path(path).absolute()), "data.source": "files"}
    return ()


def set_out(asked: str | None) -> tuple[str, ...]:
    """Return --out for a folder of results that was named."""
    return () if not asked or "$" in asked or "`" in asked else ("--out", asked)
