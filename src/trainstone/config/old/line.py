"""An old command line, as words or as pasted text, or a script file: variables, launcher, program and arguments.

Nothing is executed. `shlex` splits text; assignments, `export`, `source FILE`, `$NAME` and `${NAME:-default}` are
understood. What else a shell would do is skipped, and a value that it would have to compute counts as unknown.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainstone.errors import ConfigError

VALUES_HINT = "no shell is started: give its value, or the script's name"
PROGRAM = r"[\w.-]+\.py"
NONE = r"(?!)"
LONGEST_TEXT = 1_000_000
LONGEST_VALUE = 10_000
MOST_SHOWN = 3
NAME = r"[A-Za-z_]\w*"
ASSIGNMENT = re.compile(rf"({NAME})(\+?)=(.*)", re.DOTALL)
USED = re.compile(rf"\$(?:({NAME})|\{{({NAME})(?::?-([^$`{{}}]*))?\}})")
SCRIPT = re.compile(r".*\.(?:sh|bash|slurm|sbatch|job|sub)")
REDIRECTION = re.compile(r"(?:\d?>>?|&>>?|<)(.*)")
COMMENT = re.compile(r"(?<!\S)#[^\n]*")
EXPORTS = ("export", "readonly", "local", "declare")
KEYWORDS = ("do", "then", "else", "{", "!", "time", "exec", "nohup")
SILENT = ("echo", "set", "true", "fi", "done", "esac", "}", ")")
BEGINS, FINISHES = ("if", "for", "while", "until", "case"), ("fi", "done", "esac")


@dataclass
class Line:
    """An old command line, taken apart."""

    programs: re.Pattern[str]
    """Names that end the search: a program, or a script that is known without its file."""
    scripts: re.Pattern[str]
    """Scripts that are known without their file, and read where it is there."""
    values: dict[str, str] = field(default_factory=dict)
    computed: dict[str, str] = field(default_factory=dict)
    """Variables with values that only a shell could compute."""
    typed: set[str] = field(default_factory=set)
    """Variables that were given themselves, not in a file or a script."""
    files: list[Path] = field(default_factory=list)
    """Files that were read."""
    batch: list[str] = field(default_factory=list)
    """Options of #SBATCH lines."""
    before: list[str] = field(default_factory=list)
    """What starts the program."""
    path: str = ""
    """The program as it was written; empty where flags are given alone."""
    after: list[str] = field(default_factory=list)
    """Its arguments."""
    notes: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Commands that mean nothing here, of a script."""
    strange: list[str] = field(default_factory=list)
    """And of what was typed."""

    @property
    def program(self) -> str:
        """Return the program's file without its folder."""
        return self.path.rpartition("/")[2]

    @property
    def launcher(self) -> list[str]:
        """Return all words that say how many devices; of contradictions the last counts."""
        return [*self.batch, *self.before]


def read_line(words: Sequence[str], programs: str, scripts: str = NONE) -> Line:
    """Read words that a shell has split, or one word that is text of one or several lines."""
    line = Line(re.compile(rf"(?:.*/)?(?:{programs})"), re.compile(rf"(?:.*/)?(?:{scripts})"))
    if len(words) == 1 and any(char.isspace() for char in words[0]):
        read_text(line, words[0], None, typed="\n" not in words[0].strip())
    else:
        read_commands(line, split_commands(word for word in words if word.strip(" \t\r\n\\")), None, typed=True)
    nothing = not (line.path or line.after or line.values or line.computed)
    skipped = [*line.strange, *line.skipped]
    shown = "; ".join(text[:80] for text in skipped[:MOST_SHOWN])
    if (nothing and skipped) or (line.strange and not (line.path or line.after)):
        hint = VALUES_HINT if "$" in shown else "give flags, NAME=value, or the line that starts the program"
        raise ConfigError(f"nothing here starts the program: {shown}", hint=hint)
    if skipped:
        more = f" and {len(skipped) - MOST_SHOWN} more" if len(skipped) > MOST_SHOWN else ""
        line.notes.insert(0, f"skipped: {shown}{more}")
    return line


def read_text(line: Line, text: str, file: Path | None, *, typed: bool = False) -> None:
    """Read the lines of a script, or of pasted text (file: None)."""
    if len(text) > LONGEST_TEXT:
        raise ConfigError(f"a command line of {len(text):,} characters", hint="give the line itself")
    for options in re.findall(r"^#SBATCH\s+(.*)$", text, re.MULTILINE):
        line.batch += split_words(COMMENT.sub("", options))
    joined = re.sub(r"\\[ \t]*\r?\n", " ", COMMENT.sub("", text))
    read_commands(line, split_commands(split_tokens(joined)), file, typed=typed)


def split_tokens(text: str) -> list[str]:
    """Split text as a shell does; ends of commands and pipes become tokens of their own."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";|\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        return list(lexer)
    except ValueError as err:
        raise ConfigError(f"cannot read {text[:80]!r}: {str(err).lower()}", hint="close the quotes") from err


def split_words(text: str) -> list[str]:
    """Split the words of one command."""
    return [token for token in split_tokens(text) if token.strip(";|\n")]


def split_commands(tokens: Iterable[str]) -> Iterator[list[str]]:
    """Yield the words of each command."""
    words: list[str] = []
    for token in tokens:
        if token in ("&&", "||") or not token.strip(";\n"):
            if words:
                yield words
            words = []
        else:
            words.append(token)
    if words:
        yield words


def read_commands(line: Line, commands: Iterable[list[str]], file: Path | None, *, typed: bool) -> None:
    """Read commands one after the other; what a condition or a loop sets is unknown."""
    depth = 0
    for command in commands:
        depth = max(0, depth + (command[0] in BEGINS) - (command[0] in FINISHES))
        words = list(command)
        while words and words[0] in KEYWORDS:
            words.pop(0)
        read_command(line, words, file, typed=typed, sure=depth == 0)


def read_command(line: Line, words: list[str], file: Path | None, *, typed: bool, sure: bool) -> None:
    """Read one command: assignments, then a sourced file, a script or the program."""
    while words and (words[0] in EXPORTS or ASSIGNMENT.fullmatch(words[0])):
        assign(line, words[0], typed=typed, sure=sure)
        words = [] if re.search(r"\$\(|`", words[0]) else words[1:]  # the rest is computed, too
    words, output = split_output([part for word in words for part in expand_word(word, line.values)])
    if not words:
        return
    place = next((number for number, word in enumerate(words) if is_started(line, word, typed=typed)), len(words))
    started = words[place] if place < len(words) else ""
    sources = words[0] in ("source", ".") and len(words) > 1
    if words[0].startswith("-"):
        line.after += words
        line.notes += output
    elif line.path and started:
        line.notes.append(f"{' '.join(words)}: a second command, not translated: give it by itself")
    elif line.programs.fullmatch(started) or (line.scripts.fullmatch(started) and not Path(started).is_file()):
        line.before += [word for word in words[:place] if word not in ("source", ".")]
        line.path = started
        line.after += words[place + 1 :]
        line.notes += output
    elif sources and place >= len(words) - 1:
        read_sourced(line, words[-1], file, typed=typed)
    elif started:
        read_script(line, words, place, file)
    elif words[0] not in SILENT:
        (line.strange if typed else line.skipped).append(" ".join(words))


def is_started(line: Line, word: str, *, typed: bool) -> bool:
    """Tell the program, or a script that leads to it, from other words; scripts within a script lead elsewhere."""
    known = line.programs.fullmatch(word) or line.scripts.fullmatch(word)
    return bool(known or (typed and SCRIPT.fullmatch(word)))


def read_script(line: Line, words: list[str], place: int, file: Path | None) -> None:
    """Read a script that a command names; variables that were given before it stay as they are."""
    path, rest = Path(words[place]), words[place + 1 :]
    if not path.is_file():
        raise ConfigError(f"there is no file {path}", hint=f'give its text: "$(cat {shlex.quote(str(path))})"')
    given = {name: line.values[name] for name in line.typed if name in line.values}
    line.before += words[:place]
    open_file(line, path)
    line.values |= given
    if line.path:
        line.notes.append(f"{path}: read as text, not executed")
        line.after += rest if " ".join(rest).startswith("-") else []
    else:
        read_command(line, rest, file, typed=True, sure=True)


def read_sourced(line: Line, written: str, file: Path | None, *, typed: bool) -> None:
    """Read a sourced file: beside the one that sources it, or where the user's own words say."""
    beside = file is not None or "$" in written
    path = Path(file or "").parent / written.rpartition("/")[2] if beside else Path(written)
    if path.is_file():
        open_file(line, path)
    elif typed:
        raise ConfigError(f"source {written}: there is no such file", hint="what it sets is needed: give its path")
    else:
        line.notes.append(f"source {written}: there is no {path.name} here; what it sets is not known")


def open_file(line: Line, path: Path) -> None:
    """Read a file once, if it is not too large to be a script."""
    if path in line.files:
        return
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LONGEST_TEXT + 1)
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"cannot read {path}: {err}") from err
    line.files.append(path)
    read_text(line, text, path)


def assign(line: Line, word: str, *, typed: bool, sure: bool) -> None:
    """Set a variable; one that a shell would have to compute is not known."""
    match = ASSIGNMENT.fullmatch(word)
    if match is None:  # export
        return
    name, added, text = match.groups()
    value = (line.values.get(name, "") if added else "") + expand(text, line.values)
    if not sure or re.search(r"[$`]", value) or len(value) > LONGEST_VALUE:
        line.values.pop(name, None)
        line.computed[name] = text
    else:
        line.computed.pop(name, None)
        line.values[name] = value
    if typed:
        line.typed.add(name)


def expand_word(word: str, values: dict[str, str]) -> list[str]:
    """Return a word with its variables filled in; one that is nothing but a variable may be several words."""
    expanded = expand(word, values)
    return split_words(expanded) if USED.fullmatch(word) and expanded != word else [expanded]


def expand(text: str, values: dict[str, str]) -> str:
    """Write known values for $NAME and ${NAME}, and the default of ${NAME:-default}; leave others as they are."""
    if text.count("$") * LONGEST_VALUE > LONGEST_TEXT:
        return text

    def replace(match: re.Match[str]) -> str:
        value = values.get(match[1] or match[2])
        if not value and match[3] is not None:
            value = match[3]
        return match[0] if value is None else value

    return USED.sub(replace, text)


def split_output(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Take out where output goes, and what it is piped to; return the rest, and a note."""
    pipe = words.index("|") if "|" in words else len(words)
    kept: list[str] = []
    gone: list[str] = []
    target = False
    for word in words[:pipe]:
        redirection = None if target else REDIRECTION.fullmatch(word)
        (gone if target or redirection else kept).append(word)
        target = redirection is not None and not redirection[1]
    gone += words[pipe:]
    note = [f"{' '.join(gone)}: the output is in the run folder"] if gone else []
    return [word for word in kept if word != "&"], note
