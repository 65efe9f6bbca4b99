"""An old command line, as words or as pasted text, or a script file: variables, launcher, program and arguments.

Nothing is executed. `shlex` splits text; assignments, `export`, `source FILE`, `$NAME` and `${NAME:-default}` are read.
Lines that are none of these and do not start the program are skipped.
"""

import itertools
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainstone.errors import ConfigError

VALUES_HINT = "no shell is started: give its value, or the script's name"
PROGRAM = r"[\w.-]+\.py"
LONGEST_TEXT = 200_000
LONGEST_VALUE = 1000
NAME = r"[A-Za-z_]\w*"
ASSIGNMENT = re.compile(rf"({NAME})(\+?)=(.*)", re.DOTALL)
USED = re.compile(rf"\$(?:({NAME}|\d)|\{{({NAME}|\d)(?::?-([^$`{{}}]*))?\}})")
SCRIPT = re.compile(r".*\.(?:sh|bash|slurm|sbatch|job|sub)")
OUTPUT = re.compile(r"\||&|(?:\d|&)?>.*|<.*")
KEYWORDS = ("do", "then", "else")
BEGINS, FINISHES = ("if", "for", "while", "until", "case"), ("fi", "done", "esac")
COMMENT = re.compile(r"(?<!\S)#[^\n]*")


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
    """Read one command: assignments, then a sourced file, a script or the program."""
    while words and (words[0] == "export" or ASSIGNMENT.fullmatch(words[0])):
        assign(line, words[0], typed=typed, sure=sure)
        words = [] if re.search(r"\$\(|`", words[0]) else words[1:]  # the rest is computed, too
    expanded = [part for word in words for part in expand_word(word, line.values)]
    words = list(itertools.takewhile(lambda word: not OUTPUT.fullmatch(word), expanded))
    started = next((number for number, word in enumerate(words) if line.programs.fullmatch(word)), None)
    script = next((number for number, word in enumerate(words) if SCRIPT.fullmatch(word)), None)
    if not words:
        return
    if words[0].startswith("-"):
        line.after += words
    elif started is not None:
        if not line.program:
            line.launcher += words[:started]
            line.program = words[started].rpartition("/")[2]
            line.after += words[started + 1 :]
    elif words[0] in ("source", "."):
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
        text = open_file(path)
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


def open_file(path: Path) -> str:
    """Return the text of a file, if it is not too large to be a script."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(LONGEST_TEXT + 1)
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"cannot read {path}: {err}") from err


def assign(line: Line, word: str, *, typed: bool, sure: bool) -> None:
    """Set a variable; one that depends on a condition keeps its name as value, as one that a shell computes."""
    match = ASSIGNMENT.fullmatch(word)
    if match is None:  # export
        return
    name, added, text = match.groups()
    value = (line.values.get(name, "") if added else "") + expand(text, line.values)
    if len(value) > LONGEST_VALUE:
        raise ConfigError(f"{name}: a value of {len(value):,} characters; at most {LONGEST_VALUE:,} are read")
    line.values[name] = value if sure else f"${name}"
    if typed:
        line.typed.add(name)


def expand_word(word: str, values: Mapping[str, str]) -> list[str]:
    """Return a word with its variables filled in; one that is nothing but a variable may be several words."""
    expanded = expand(word, values)
    return split_text(expanded) if USED.fullmatch(word) and expanded != word else [expanded]


def expand(text: str, values: Mapping[str, str]) -> str:
    """Write known values for $NAME and ${NAME}, and the default of ${NAME:-default}; leave others as they are."""

    def replace(match: re.Match[str]) -> str:
        value = values.get(match[1] or match[2]) or match[3]
        return match[0] if value is None or re.search(r"[$`]", value) else value

    return USED.sub(replace, text)
