"""An old command line, as words or as pasted text, or a script file: variables, launcher, program and arguments.

Nothing is executed. `shlex` splits text; assignments, `export`, `source FILE`, `$NAME` and `${NAME:-default}` are read.
Lines that are none of these and do not start the program are skipped. The words before the program (mpirun, ddlrun,
horovodrun, srun, sbatch, torch's launcher) say how many devices there are. Flags and variables of each original are
rows of ORIGINAL.csv, as docs/from shows them; `argparse` reads the words.
"""

import argparse
import csv
import fnmatch
import functools
import itertools
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from trainstone.config.load import did_you_mean
from trainstone.errors import ConfigError

VALUES_HINT = "no shell is started: give its value, or the script's name"
PROGRAM = r"[\w.-]+\.py"
LONGEST_TEXT = 200_000
LONGEST_VALUE = 1000
NAME = r"[A-Za-z_]\w*"
ASSIGNMENT = re.compile(rf"export|({NAME})(\+?)=(.*)", re.DOTALL)
USED = re.compile(rf"\$(?:({NAME}|\d)|\{{({NAME}|\d)(?::?-([^$`{{}}]*))?\}})")
SCRIPT = re.compile(r".*\.(?:sh|bash|slurm|sbatch|job|sub)")
OUTPUT = re.compile(r"\||&|(?:\d|&)?>.*|<.*")
KEYWORDS = ("do", "then", "else")
BEGINS, FINISHES = ("if", "for", "while", "until", "case"), ("fi", "done", "esac")
COMMENT = re.compile(r"(?<!\S)#[^\n]*")
RANKS = r"-np?|--np|--ntasks|--num-proc"
NODES = r"--nodes|--nnodes"
EACH = r"--nproc[_-]per[_-]node|--ntasks-per-node|--gpus-per-node|--?npernode|--gres"
HOSTS = re.compile(r"(?<!\S)-(?:H|-?hosts?)[ =](\S+)")
DDL_MODE = re.compile(r"\bp:(\d{1,9})x(\d{1,9})x1x1\b")  # GPUs per node x nodes
DDL_GPUS = 4
"""GPUs of a host of ddlrun, which starts one process for each: an AC922 has four."""
MOST_DEVICES = 100_000
Verb = Literal["train", "bench", "eval", "sweep", "profile"]
SWITCHES = dict.fromkeys(("true", "t", "1", "yes", "y"), True) | dict.fromkeys(("false", "f", "0", "no", "n"), False)
KINDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    **dict.fromkeys(("text", "path", "words"), ("", str)),
    **dict.fromkeys(("number", "epochs", "epochs_or_none"), ("a number", float)),
    "integer": ("a whole number", int),
    "switch": ("true or false", lambda text: SWITCHES[text.lower()]),
}
LISTS = {"words": "+", "epochs": "+", "epochs_or_none": "*"}
"""Kinds that take several values, and argparse's nargs."""
LARGEST = 10**15


class Geometry(NamedTuple):
    """Devices; None where the line does not say."""

    nodes: int | None = None
    each: int | None = None
    """Devices per node."""
    ranks: int | None = None

    def devices(self) -> int | None:
        """Return the number of all devices."""
        return self.ranks if self.each is None else self.each * (self.nodes or 1)


@dataclass
class Line:
    """An old command line, taken apart."""

    programs: re.Pattern[str]
    """Names that end the search."""
    scripts: Mapping[str, str]
    """Text of scripts of the original, by name: used where there is no such file."""
    values: dict[str, str] = field(default_factory=dict)
    """Variables, and arguments of a script as 1, 2, ..."""
    typed: set[str] = field(default_factory=set)
    """Variables that were given themselves, not in a file or a script."""
    files: list[str] = field(default_factory=list)
    """Files that were read."""
    launcher: list[str] = field(default_factory=list)
    """Options of #SBATCH lines, then the words that start the program; of contradictions the last counts."""
    program: str = ""
    """Its file without the folder; empty where flags or variables are given alone."""
    after: list[str] = field(default_factory=list)
    """The program's arguments."""
    notes: list[str] = field(default_factory=list)

    @property
    def geometry(self) -> Geometry:
        return read_launcher(" ".join(self.launcher))


def read_line(words: Sequence[str], programs: str, scripts: Mapping[str, str] | None = None) -> Line:
    """Read words that a shell has split, or one word that is text of one or several lines."""
    line = Line(re.compile(rf"(?:.*/)?(?:{programs})"), scripts or {})
    if len(words) == 1 and any(char.isspace() for char in words[0]):
        read_text(line, words[0], None, typed="\n" not in words[0].strip())
    else:
        read_commands(line, [word for word in words if word.strip(" \t\r\n\\")], None, typed=True)
    if words and not (line.program or line.after or line.values):
        hint = "give flags, NAME=value, or the line that starts the program"
        raise ConfigError(f"nothing here starts the program: {' '.join(words)[:80]}", hint=hint)
    launcher = " ".join(line.launcher)
    line.notes += [f"{launcher[:200]}: {VALUES_HINT}"] if "$" in launcher else []  # it hides how many devices there are
    return line


def read_text(line: Line, text: str, file: Path | None, *, typed: bool = False) -> None:
    """Read the lines of a script, or of pasted text (file: None)."""
    if len(text) > LONGEST_TEXT:
        raise ConfigError(f"a command line of {len(text):,} characters", hint="give the line itself")
    for options in re.findall(r"^#SBATCH\s+(.*)$", text, re.MULTILINE):
        line.launcher += split_text(COMMENT.sub("", options))
    joined = re.sub(r"\\[ \t]*\r?\n", " ", COMMENT.sub("", text))
    read_commands(line, split_text(joined), file, typed=typed)


def split_text(text: str) -> list[str]:
    """Split text as a shell does; ends of commands and pipes become words of their own."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";|\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        return list(lexer)
    except ValueError as err:
        raise ConfigError(f"cannot read {text[:80]!r}: {str(err).lower()}", hint="close the quotes") from err


def read_commands(line: Line, words: Iterable[str], file: Path | None, *, typed: bool) -> None:
    """Read one command after the other; what a condition or a loop sets is unknown."""
    depth = 0
    for ends, command in itertools.groupby(words, lambda word: word in ("&&", "||") or not word.strip(";\n")):
        if not ends:
            rest = list(itertools.dropwhile(lambda word: word in KEYWORDS, command))
            depth += sum(word in BEGINS for word in rest[:1]) - sum(word in FINISHES for word in rest[:1])
            read_command(line, rest, file, typed=typed, sure=depth <= 0)


def read_command(line: Line, words: list[str], file: Path | None, *, typed: bool, sure: bool) -> None:
    """Read one command: assignments, then a sourced file, a script or the program.

    A variable that depends on a condition keeps its name as value, as one that a shell computes.
    """
    while words and (match := ASSIGNMENT.fullmatch(words[0])):
        name, added, text = match.groups()
        if name:  # else it is export
            value = (line.values.get(name, "") if added else "") + expand(text, line.values)
            if len(value) > LONGEST_VALUE:
                raise ConfigError(f"{name}: a value of {len(value):,} characters; at most {LONGEST_VALUE:,} are read")
            line.values[name] = value if sure else f"${name}"
            line.typed |= {name} if typed else set()
        words = [] if re.search(r"\$\(|`", words[0]) else words[1:]  # the rest is computed, too
    expanded: list[str] = []
    for word in words:  # one that is nothing but a variable may be several words
        value = expand(word, line.values)
        expanded += split_text(value) if USED.fullmatch(word) and value != word else [value]
    words = list(itertools.takewhile(lambda word: not OUTPUT.fullmatch(word), expanded))
    started = next((number for number, word in enumerate(words) if line.programs.fullmatch(word)), None)
    script = next((number for number, word in enumerate(words) if SCRIPT.fullmatch(word)), None)
    if "".join(words[:1]).startswith("-"):
        line.after += words
    elif started is not None:
        if not line.program:
            line.launcher += words[:started]
            line.program = words[started].rpartition("/")[2]
            line.after += words[started + 1 :]
    elif words[:1] in (["source"], ["."]):
        read_file(line, words[-1], file, typed=typed)
    elif script is not None and (typed or Path(words[script]).name in line.scripts):
        read_script(line, words, script)


def read_script(line: Line, words: list[str], place: int) -> None:
    """Read a script that a command names; variables that were given before it stay as they are."""
    rest = words[place + 1 :]
    given = {name: line.values[name] for name in line.typed}
    line.values |= {str(number): word for number, word in enumerate(rest, 1)}
    read_file(line, words[place], None, typed=True)
    line.launcher += words[:place]
    line.values |= given
    line.after += rest if " ".join(rest).startswith("-") else []


def read_file(line: Line, written: str, file: Path | None, *, typed: bool) -> None:
    """Read a script: beside the one that sources it, or where the user's own words say."""
    path = Path(written)
    if file is not None or "$" in written:
        path = Path(file or "").parent / path.name
    if path.is_file():
        try:
            with path.open(encoding="utf-8") as opened:
                text = opened.read(LONGEST_TEXT + 1)
        except (OSError, UnicodeDecodeError) as err:
            raise ConfigError(f"cannot read {path}: {err}") from err
        line.notes.append(f"{path}: read as text, not executed")
    elif path.name in line.scripts:
        text = line.scripts[path.name]
        line.notes.append(f"{path.name}: the original's own script; a file of that name would be read")
    elif typed:
        known = f"; known without a file: {', '.join(line.scripts)}" if line.scripts else ""
        raise ConfigError(f"there is no file {path}", hint=f'give its text: "$(cat {shlex.quote(str(path))})"{known}')
    else:
        line.notes.append(f"source {written}: there is no {path.name} here; what it sets is not known")
        return
    if str(path) not in line.files:
        line.files.append(str(path))
        read_text(line, text, path)


def expand(text: str, values: Mapping[str, str]) -> str:
    """Write known values for $NAME and ${NAME}, and the default of ${NAME:-default}; leave others as they are."""

    def replace(match: re.Match[str]) -> str:
        value = values.get(match[1] or match[2]) or match[3]
        return match[0] if value is None or re.search(r"[$`]", value) else value

    return USED.sub(replace, text)


def settle(nodes: int | None, each: int | None, ranks: int | None = None) -> Geometry:
    """Fill in what the rest says."""
    if each is None and nodes and ranks and ranks % nodes == 0:
        each = ranks // nodes
    if nodes is None and each and ranks and ranks % each == 0:
        nodes = ranks // each
    return Geometry(nodes, each, ranks)


def read_launcher(text: str) -> Geometry:
    """Return what the words before a program say; of contradictions the last counts.

    Numbers above 0 are read of -N4, -N 4, --nodes=4, --nodes 4 or --gres=gpu:v100:4.
    """
    per_node, of_nodes = (f"{EACH}|-N", NODES) if "mpirun" in text else (EACH, f"{NODES}|-N")
    number = r"[ =]?(?:\S*:)?0*([1-9]\d{0,999})(?!\S)"
    found = (re.findall(rf"(?<!\S)(?:{names}){number}", text) for names in (of_nodes, per_node, RANKS))
    nodes, each, ranks = (int(numbers[-1]) if numbers else None for numbers in found)
    if mode := DDL_MODE.search(text):
        each, nodes = int(mode[1]), int(mode[2])
    if hosts := HOSTS.search(text):
        names = [name for name in hosts[1].split(",") if name]
        nodes, slots = len(names) or nodes, hosts[1].rpartition(":")[2]
        each = int(slots) if slots.isdecimal() else each
    if nodes and not each and not ranks and "ddlrun" in text:
        each = DDL_GPUS
    return settle(nodes, each, ranks)


class Flag(NamedTuple):
    """A row of the table."""

    old: str
    """As written there: a flag with its dashes, a variable without. MXNET_* stands for all that begin so."""
    kind: str
    default: str
    """As it would be written; empty: none."""
    here: str
    """Key, flag or command here; empty: it has no meaning here, and the remark says why."""
    remark: str
    choices: tuple[str, ...]
    rule: str
    """own: the original's module computes the key's value."""

    @property
    def name(self) -> str:
        return self.old.lstrip("-")

    @property
    def key(self) -> str:
        """The recipe key that gets the value as it is, if that is all."""
        named = re.fullmatch(r"`(seed|[a-z]\w*\.\w+)`", self.here)
        return named[1] if named and not self.rule else ""

    def read(self, text: str) -> Any:
        """Return what was written as the flag's kind has it; choices in their own spelling."""
        expected, convert = KINDS[self.kind]
        if self.choices:
            text = next((choice for choice in self.choices if choice.lower() == text.lower()), text)
            expected = f"one of {', '.join(self.choices)}"
        try:
            value = convert(text)
            valid = isinstance(value, str) or abs(value) <= LARGEST
        except (ValueError, KeyError):
            valid = False
        if not valid or (self.choices and text not in self.choices):
            raise argparse.ArgumentTypeError(f"invalid value {text[:80]!r}: expected {expected}")
        return value


@functools.cache
def read_table(original: str) -> tuple[Flag, ...]:
    """Return the rows of an original, named as --from names it: its variables, then its flags."""
    folder = resources.files("trainstone.originals") / original.removesuffix("50").replace("-", "_")
    text = (folder / "flags.csv").read_text(encoding="utf-8")
    _, *rows = csv.reader(text.splitlines())
    return tuple(
        Flag(old, kind, default, here, remark, tuple(choices.split()), rule)
        for old, kind, default, here, remark, choices, rule in rows
    )


class Given(NamedTuple):
    """What a line says."""

    values: dict[str, Any]
    """Of every flag, its default where it was not given; absent where it has none."""
    written: frozenset[str]
    """Names of those that were given."""
    keys: dict[str, Any]
    """Recipe keys that get a value, or its default there, as it is."""
    notes: list[str]
    """One for each that was given and has no meaning here."""


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


class Parser(argparse.ArgumentParser):
    """argparse whose errors are ours."""

    def __init__(self, original: str, *, shortened: bool = True) -> None:
        super().__init__(add_help=False, allow_abbrev=shortened, argument_default=argparse.SUPPRESS)
        self.original = original

    def error(self, message: str) -> NoReturn:
        known = f"docs/from/{self.original}.md lists every flag and variable that is known"
        raise ConfigError(message.removeprefix("argument "), hint=VALUES_HINT if "$" in message else known)


def read_flags(
    original: str,
    words: Sequence[str],
    *,
    negated: bool = False,
    absl: bool = False,
    short: Mapping[str, str] | None = None,
) -> Given:
    """Read `--name value`, `--name=value`, switches; the last of several counts, as it did there.

    `negated`: --no<name> switches off. `absl`: -name is --name, and a name is written in full. `short`: further names.
    """
    parser, dashes = Parser(original, shortened=not absl), ("--", "-") if absl else ("--",)
    table = tuple(row for row in read_table(original) if row.old.startswith("--"))
    for flag in table:
        shorter = [word for word, name in (short or {}).items() if name == flag.name]
        names = [*(f"{dash}{flag.name}" for dash in dashes), *shorter]
        if flag.kind == "switch":
            parser.add_argument(*names, dest=flag.name, nargs="?", const=True, type=flag.read)
            if negated:
                off = [f"{dash}no{flag.name}" for dash in dashes]
                parser.add_argument(*off, dest=flag.name, action="store_false", default=argparse.SUPPRESS)
        else:
            parser.add_argument(*names, dest=flag.name, nargs=LISTS.get(flag.kind), type=flag.read)
    found, strange = parser.parse_known_args(list(words))
    if strange:
        unknown = [word.partition("=")[0] for word in strange if word.startswith("-")] or strange
        options = [flag.old for flag in table]
        named = [f"{word[:80]}{did_you_mean('--' + word.lstrip('-'), options)}" for word in unknown]
        parser.error("; ".join(f"unknown flag {text}" for text in named))
    return collect(table, vars(found))


def read_variables(original: str, line: Line) -> Given:
    """Read variables by their names or patterns; those of files that the table does not have are ignored."""
    parser = Parser(original)
    found: dict[str, Any] = {}
    table = [row for row in read_table(original) if not row.old.startswith("--")]
    for name, text in line.values.items():
        row = next((row for row in table if fnmatch.fnmatchcase(name, row.old)), None)
        if row is None and name in line.typed:
            parser.error(f"unknown variable {name}{did_you_mean(name, [row.old for row in table])}")
        if row is None:
            continue
        try:
            found[name] = row.read(text) if row.here else text
        except argparse.ArgumentTypeError as err:
            parser.error(f"{name}: {err}")
        table += [row._replace(old=name)] * (row.old != name)
    return collect(table, found)


def collect(table: Sequence[Flag], found: Mapping[str, Any]) -> Given:
    """Return what was found, with defaults, and a note for each that has no meaning here."""
    values: dict[str, Any] = {}
    notes = []
    for row in table:
        if row.default:
            values[row.name] = [*map(row.read, row.default.split())] if row.kind in LISTS else row.read(row.default)
        if row.name in found and not row.here:
            value = found[row.name]
            text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            notes.append(f"{row.old}{'' if value is True else f'={text}'}: {row.remark}")
    values |= found
    keys = {row.key: values[row.name] for row in table if row.key and row.name in values}
    return Given(values, frozenset(found), keys, notes)


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
