"""Parser of the originals' command lines and scripts: variables, launcher, program and arguments.

Nothing is executed. `shlex` splits text; assignments, `export`, `source FILE`, `$NAME` and `${NAME:-default}` are read.
Lines that are none of these and do not start the program are skipped. The number of devices is taken from the words
before the program (mpirun, ddlrun, horovodrun, srun, sbatch, torch's launcher). Each original's flags and variables are
rows of its flags.csv, as docs/how-to/move-from-ORIGINAL.md shows them; `argparse` reads the words.
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

VALUES_HINT = "no shell is started: write the value itself, or give the script's name"
PROGRAM = r"[\w.-]+\.py"
MAX_TEXT_CHARACTERS = 200_000
MAX_VALUE_CHARACTERS = 1000
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
PER_NODE = r"--nproc[_-]per[_-]node|--ntasks-per-node|--gpus-per-node|--?npernode|--gres"
HOSTS = re.compile(r"(?<!\S)-(?:H|-?hosts?)[ =](\S+)")
DDL_MODE = re.compile(r"\bp:(\d{1,9})x(\d{1,9})x1x1\b")  # GPUs per node x nodes
DDL_GPUS = 4
"""GPUs per host with ddlrun, which starts one process per GPU: an AC922 has four."""
MAX_DEVICES = 100_000
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
MAX_NUMBER = 10**15


class Geometry(NamedTuple):
    """Numbers of nodes and devices; None if the line does not give them."""

    nodes: int | None = None
    per_node: int | None = None
    """Devices per node."""
    ranks: int | None = None

    def devices(self) -> int | None:
        """Return the total number of devices."""
        return self.ranks if self.per_node is None else self.per_node * (self.nodes or 1)


@dataclass
class Line:
    """The parts of an original's command line."""

    programs: re.Pattern[str]
    """File names of the programs to look for."""
    scripts: Mapping[str, str]
    """Texts of the original's scripts, by name: used if the file does not exist."""
    values: dict[str, str] = field(default_factory=dict)
    """Variables, and a script's arguments as 1, 2, ..."""
    typed: set[str] = field(default_factory=set)
    """Variables set on the command line itself, not in a file or a script."""
    files: list[str] = field(default_factory=list)
    """Files that were read."""
    launcher: list[str] = field(default_factory=list)
    """Options of #SBATCH lines, then the words before the program; the last of several values counts."""
    program: str = ""
    """File name of the program; empty if only flags or variables are given."""
    after: list[str] = field(default_factory=list)
    """The program's arguments."""
    notes: list[str] = field(default_factory=list)

    @property
    def geometry(self) -> Geometry:
        return read_launcher(" ".join(self.launcher))


def read_line(words: Sequence[str], programs: str, scripts: Mapping[str, str] | None = None) -> Line:
    """Parse words split by a shell, or a single word that holds one or several lines of text."""
    line = Line(re.compile(rf"(?:.*/)?(?:{programs})"), scripts or {})
    if len(words) == 1 and any(char.isspace() for char in words[0]):
        read_text(line, words[0], None, typed="\n" not in words[0].strip())
    else:
        read_commands(line, [word for word in words if word.strip(" \t\r\n\\")], None, typed=True)
    if words and not (line.program or line.after or line.values):
        hint = "give flags, NAME=value, or the line that starts the program"
        raise ConfigError(f"no program, flag or variable found in: {' '.join(words)[:80]}", hint=hint)
    launcher = " ".join(line.launcher)
    line.notes += [f"{launcher[:200]}: {VALUES_HINT}"] if "$" in launcher else []  # the number of devices may be in it
    return line


def read_text(line: Line, text: str, file: Path | None, *, typed: bool = False) -> None:
    """Parse the lines of a script, or of pasted text (file: None)."""
    if len(text) > MAX_TEXT_CHARACTERS:
        raise ConfigError(
            f"command line too long: {len(text):,} characters; at most {MAX_TEXT_CHARACTERS:,} are read",
            hint="give only the line that starts the program",
        )
    for options in re.findall(r"^#SBATCH\s+(.*)$", text, re.MULTILINE):
        line.launcher += split_text(COMMENT.sub("", options))
    joined = re.sub(r"\\[ \t]*\r?\n", " ", COMMENT.sub("", text))
    read_commands(line, split_text(joined), file, typed=typed)


def split_text(text: str) -> list[str]:
    """Split text like a shell; command separators and pipes become separate words."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";|\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        return list(lexer)
    except ValueError as err:
        raise ConfigError(f"cannot parse {text[:80]!r}: {str(err).lower()}", hint="close the quotes") from err


def read_commands(line: Line, words: Iterable[str], file: Path | None, *, typed: bool) -> None:
    """Parse the commands in order; variables set inside a condition or a loop are unknown."""
    depth = 0
    for ends, command in itertools.groupby(words, lambda word: word in ("&&", "||") or not word.strip(";\n")):
        if not ends:
            rest = list(itertools.dropwhile(lambda word: word in KEYWORDS, command))
            depth += sum(word in BEGINS for word in rest[:1]) - sum(word in FINISHES for word in rest[:1])
            read_command(line, rest, file, typed=typed, sure=depth <= 0)


def read_command(line: Line, words: list[str], file: Path | None, *, typed: bool, sure: bool) -> None:
    """Parse one command: assignments, then a sourced file, a script or the program.

    The value of a variable that depends on a condition, or is computed by the shell, is its own name ($NAME).
    """
    while words and (match := ASSIGNMENT.fullmatch(words[0])):
        name, added, text = match.groups()
        if name:  # else it is export
            value = (line.values.get(name, "") if added else "") + expand(text, line.values)
            if len(value) > MAX_VALUE_CHARACTERS:
                raise ConfigError(
                    f"value of {name} too long: {len(value):,} characters; at most {MAX_VALUE_CHARACTERS:,} are read"
                )
            line.values[name] = value if sure else f"${name}"
            line.typed |= {name} if typed else set()
        words = [] if re.search(r"\$\(|`", words[0]) else words[1:]  # the rest is computed by the shell, too
    expanded: list[str] = []
    for word in words:  # a word that is only a variable may expand to several words
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


def read_script(line: Line, words: list[str], index: int) -> None:
    """Parse the script at `index` of a command; variables set before it keep their values."""
    rest = words[index + 1 :]
    given = {name: line.values[name] for name in line.typed}
    line.values |= {str(number): word for number, word in enumerate(rest, 1)}
    read_file(line, words[index], None, typed=True)
    line.launcher += words[:index]
    line.values |= given
    line.after += rest if " ".join(rest).startswith("-") else []


def read_file(line: Line, written: str, file: Path | None, *, typed: bool) -> None:
    """Parse a script file: next to the script that sources it, or at the path that the user gives."""
    path = Path(written)
    if file is not None or "$" in written:
        path = Path(file or "").parent / path.name
    if path.is_file():
        try:
            with path.open(encoding="utf-8") as opened:
                text = opened.read(MAX_TEXT_CHARACTERS + 1)
        except (OSError, UnicodeDecodeError) as err:
            raise ConfigError(f"cannot read {path}: {err}") from err
        line.notes.append(f"{path}: read as text, not executed")
    elif path.name in line.scripts:
        text = line.scripts[path.name]
        line.notes.append(f"{path.name}: no such file; the original's published script is used")
    elif typed:
        known = f"; known without a file: {', '.join(line.scripts)}" if line.scripts else ""
        raise ConfigError(f"file not found: {path}", hint=f'give its text: "$(cat {shlex.quote(str(path))})"{known}')
    else:
        line.notes.append(f"source {written}: {path.name} not found; the variables it sets are unknown")
        return
    if str(path) not in line.files:
        line.files.append(str(path))
        read_text(line, text, path)


def expand(text: str, values: Mapping[str, str]) -> str:
    """Substitute known values for $NAME and ${NAME}, and the default of ${NAME:-default}; leave others unchanged."""

    def replace(match: re.Match[str]) -> str:
        value = values.get(match[1] or match[2]) or match[3]
        return match[0] if value is None or re.search(r"[$`]", value) else value

    return USED.sub(replace, text)


def complete_geometry(nodes: int | None, per_node: int | None, ranks: int | None = None) -> Geometry:
    """Return the geometry, with a missing number derived from the other two if possible."""
    if per_node is None and nodes and ranks and ranks % nodes == 0:
        per_node = ranks // nodes
    if nodes is None and per_node and ranks and ranks % per_node == 0:
        nodes = ranks // per_node
    return Geometry(nodes, per_node, ranks)


def read_launcher(text: str) -> Geometry:
    """Return the numbers of nodes and devices in the words before a program; the last of several values counts.

    Positive numbers are read from -N4, -N 4, --nodes=4, --nodes 4 or --gres=gpu:v100:4.
    """
    per_node_flags, node_flags = (f"{PER_NODE}|-N", NODES) if "mpirun" in text else (PER_NODE, f"{NODES}|-N")
    number = r"[ =]?(?:\S*:)?0*([1-9]\d{0,999})(?!\S)"
    found = (re.findall(rf"(?<!\S)(?:{names}){number}", text) for names in (node_flags, per_node_flags, RANKS))
    nodes, per_node, ranks = (int(numbers[-1]) if numbers else None for numbers in found)
    if mode := DDL_MODE.search(text):
        per_node, nodes = int(mode[1]), int(mode[2])
    if hosts := HOSTS.search(text):
        names = [name for name in hosts[1].split(",") if name]
        nodes, slots = len(names) or nodes, hosts[1].rpartition(":")[2]
        per_node = int(slots) if slots.isdecimal() else per_node
    if nodes and not per_node and not ranks and "ddlrun" in text:
        per_node = DDL_GPUS
    return complete_geometry(nodes, per_node, ranks)


class Flag(NamedTuple):
    """A row of flags.csv: one flag or variable of an original."""

    old: str
    """The original's spelling: a flag with dashes, a variable without. MXNET_* matches every name with that prefix."""
    kind: str
    default: str
    """As text; empty: none."""
    equivalent: str
    """trainstone's key, flag or command; empty: none, and the remark gives the reason."""
    remark: str
    choices: tuple[str, ...]
    rule: str
    """own: the original's module computes the key's value."""

    @property
    def name(self) -> str:
        return self.old.lstrip("-")

    @property
    def key(self) -> str:
        """The recipe key that gets the value unchanged; empty if the value is computed."""
        named = re.fullmatch(r"`(seed|[a-z]\w*\.\w+)`", self.equivalent)
        return named[1] if named and not self.rule else ""

    def read(self, text: str) -> Any:
        """Convert text to the flag's kind; a choice is returned in its listed spelling."""
        expected, convert = KINDS[self.kind]
        if self.choices:
            text = next((choice for choice in self.choices if choice.lower() == text.lower()), text)
            expected = f"one of {', '.join(self.choices)}"
        try:
            value = convert(text)
            valid = isinstance(value, str) or abs(value) <= MAX_NUMBER
        except (ValueError, KeyError):
            valid = False
        if not valid or (self.choices and text not in self.choices):
            raise argparse.ArgumentTypeError(f"invalid value {text[:80]!r}: expected {expected}")
        return value


@functools.cache
def read_table(original: str) -> tuple[Flag, ...]:
    """Return the rows of an original's flags.csv, by its --from name: its variables, then its flags."""
    folder = resources.files("trainstone.originals") / original.removesuffix("50").replace("-", "_")
    text = (folder / "flags.csv").read_text(encoding="utf-8")
    _, *rows = csv.reader(text.splitlines())
    return tuple(
        Flag(old, kind, default, equivalent, remark, tuple(choices.split()), rule)
        for old, kind, default, equivalent, remark, choices, rule in rows
    )


class ParsedFlags(NamedTuple):
    """Parsed flags or variables of a command line."""

    values: dict[str, Any]
    """Value or default by name; flags with neither are absent."""
    written: frozenset[str]
    """Names that are on the command line."""
    keys: dict[str, Any]
    """Recipe keys whose value, or the original's default, is used unchanged."""
    notes: list[str]
    """One per flag on the command line that trainstone ignores."""


class Request(NamedTuple):
    """The trainstone command, recipe keys and devices that an original's command line requests."""

    verb: Verb
    keys: Mapping[str, Any]
    """Values by dotted recipe key, including the original's defaults."""
    options: tuple[str, ...] = ()
    """Further words of the command: --out DIR, --batch-sizes ..."""
    geometry: Geometry = Geometry()
    notes: Sequence[str] = ()
    runs: int = 1
    command: str = ""
    """The complete trainstone command, if the line trains nothing and needs no recipe."""


class Parser(argparse.ArgumentParser):
    """argparse parser that raises ConfigError."""

    def __init__(self, original: str, *, allow_abbrev: bool = True) -> None:
        super().__init__(add_help=False, allow_abbrev=allow_abbrev, argument_default=argparse.SUPPRESS)
        self.original = original

    def error(self, message: str) -> NoReturn:
        known = f"docs/how-to/move-from-{self.original}.md lists all known flags and variables"
        raise ConfigError(message.removeprefix("argument "), hint=VALUES_HINT if "$" in message else known)


def read_flags(
    original: str,
    words: Sequence[str],
    *,
    negated: bool = False,
    absl: bool = False,
    short: Mapping[str, str] | None = None,
) -> ParsedFlags:
    """Parse `--name value`, `--name=value` and switches; the last of several counts, as in the original.

    `negated`: --no<name> switches off. `absl`: -name means --name, no abbreviations. `short`: further names.
    """
    parser, dashes = Parser(original, allow_abbrev=not absl), ("--", "-") if absl else ("--",)
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


def read_variables(original: str, line: Line) -> ParsedFlags:
    """Parse variables by name or pattern; unknown variables from files are ignored."""
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
            found[name] = row.read(text) if row.equivalent else text
        except argparse.ArgumentTypeError as err:
            parser.error(f"{name}: {err}")
        table += [row._replace(old=name)] * (row.old != name)
    return collect(table, found)


def collect(table: Sequence[Flag], found: Mapping[str, Any]) -> ParsedFlags:
    """Return the values found, the defaults, and a note per value that trainstone ignores."""
    values: dict[str, Any] = {}
    notes = []
    for row in table:
        if row.default:
            values[row.name] = [*map(row.read, row.default.split())] if row.kind in LISTS else row.read(row.default)
        if row.name in found and not row.equivalent:
            value = found[row.name]
            text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            notes.append(f"{row.old}{'' if value is True else f'={text}'}: {row.remark}")
    values |= found
    keys = {row.key: values[row.name] for row in table if row.key and row.name in values}
    return ParsedFlags(values, frozenset(found), keys, notes)


def check_counts(values: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise ConfigError if a number of devices, epochs or runs is below 1."""
    for name in names:
        if values.get(name, 1) < 1:
            raise ConfigError(f"invalid {name}={values[name]}: must be at least 1")


def set_data(keys: dict[str, Any], path: str | None, flag: str) -> tuple[str, ...]:
    """Set the folder of the images in `keys`; return a note if the command line does not give one."""
    if path is None or "$" in path or "`" in path:
        return (f"{flag} {'is not given' if path is None else path}: add --data DIR",)
    keys |= {"data.root": str(Path(path).absolute()), "data.source": "files"}
    return ()


def set_out(folder: str | None) -> tuple[str, ...]:
    """Return the --out option for a results folder; empty if there is none or the shell computes it."""
    return () if not folder or "$" in folder or "`" in folder else ("--out", folder)
