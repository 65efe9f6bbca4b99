"""A text that a shell would read -> its commands: ends, quotes, comments and brackets known. Nothing is executed."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trainstone.errors import ConfigError

LONGEST_TEXT = 1_000_000
LONGEST_VALUE = 10_000
ENDS = ("&&", "||", ";")
TOKEN = re.compile(
    r"""(?P<joined>\\[ \t]*\r?\n) | (?P<kept>\\. | '[^']*' | "(?:\\.|[^"\\])*")
    | (?P<comment>(?<!\S)\#[^\n]*) | (?P<end>&& | \|\| | ;+ | \n) | (?P<pipe>\|&?)
    | (?P<open>\() | (?P<close>\)) | (?P<quote>['"]) | (?P<plain>[^\\'"\#&|;\n()]+ | .)""",
    re.VERBOSE | re.DOTALL,
)
KEYWORDS = re.compile(r"(?:(?:do|then|else|\{|!|time|exec|nohup)\s+)+")
NAME = r"[A-Za-z_]\w*"
USED = re.compile(rf"'[^']*'|\$(?:({NAME}|[1-9@*])|\{{({NAME}|[1-9@*])(?::?-([^$`{{}}]*))?\}})")
SET = re.compile(rf"(?:(?:export|readonly|local|declare)\s+)?({NAME})(\+?)=(.*)", re.DOTALL)


class Command(NamedTuple):
    """One of the commands of a text."""

    text: str
    joint: str = "\n"
    """What stands before it: an end of line, ;, && or ||."""


def split_commands(text: str) -> list[Command]:
    """Return the commands of a text; of comments #SBATCH lines alone."""
    if len(text) > LONGEST_TEXT:
        raise ConfigError(f"a command line of {len(text):,} characters", hint="give the line itself")
    commands: list[Command] = []
    joint, depth = "\n", 0
    parts: list[str] = []
    for match in TOKEN.finditer(f"{text}\n"):
        kind, token = match.lastgroup, match[0]
        if kind == "quote":
            shown = text[match.start() :].partition("\n")[0][:80]
            raise ConfigError(f"cannot read {shown!r}: no closing quotation", hint="close the quotes")
        if kind == "end" and not depth:
            add_command(commands, "".join(parts), joint)
            joint, parts = token.replace(";;", ";"), []
            continue
        if kind == "comment":
            begins = not any(part.strip() for part in parts)
            parts += [token] if begins and token.startswith("#SBATCH") else []
            continue
        depth = max(0, depth + (kind == "open") - (kind == "close"))
        parts.append(
            " " if kind == "joined" or token == "\n" else f" {token} " if kind == "pipe" and not depth else token
        )
    add_command(commands, "".join(parts), joint)
    return commands


def add_command(commands: list[Command], text: str, joint: str) -> None:
    """Keep a command that says something, without words that only lead to it."""
    said = KEYWORDS.sub("", f"{text.strip()} ", count=1).strip() if KEYWORDS.match(text.strip()) else text.strip()
    if said:
        commands.append(Command(said, joint))


def split_words(line: str) -> list[str]:
    """Split as a shell does, quotes and comments known."""
    try:
        return shlex.split(line, comments=True)
    except ValueError as err:
        raise ConfigError(f"cannot read {line[:80]!r}: {str(err).lower()}", hint="close the quotes") from err


def fill(text: str, known: Mapping[str, str]) -> str:
    """Write known values for $NAME and ${NAME}, and the default of ${NAME:-default}; leave others as they are."""
    if text.count("$") * LONGEST_VALUE > LONGEST_TEXT:
        return text

    def replace(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        value = None if name is None else known.get(name, match[3])
        return match[0] if value is None else value.strip("\"'")

    return USED.sub(replace, text)


def fill_commands(commands: Sequence[Command], known: Mapping[str, str]) -> list[str]:
    """Return the texts of commands with the plain values that those before them set."""
    values = dict(known)
    texts = []
    depth = 0
    for command in commands:
        first = command.text.split(maxsplit=1)[0]
        depth = max(0, depth + (first in ("if", "for", "while", "until", "case")) - (first in ("fi", "done", "esac")))
        match = match_assignment(command.text)
        texts.append(command.text if match else fill(command.text, values))
        if match:
            set_value(values, match, sure=depth == 0)
    return texts


def match_assignment(text: str) -> re.Match[str] | None:
    """Tell NAME=value from a command that begins so: name, +, value."""
    match = SET.fullmatch(text)
    if match is None or match[3].lstrip('"').startswith(("$(", "`", "(")):
        return match
    return match if len(split_words(match[3])) <= 1 else None


def set_value(values: dict[str, str], match: re.Match[str], *, sure: bool) -> None:
    """Take what a variable is set to; one that a condition sets, or a shell computes, is not known."""
    name, added, text = match.groups()
    value = read_plain(fill(text, values))
    if value is not None and added:
        value = values.get(name, "") + value
    if value is None or not sure or len(value) > LONGEST_VALUE:
        values.pop(name, None)
    else:
        values[name] = value


def read_plain(text: str) -> str | None:
    """Return a value that needs no shell: without $, brackets and quotes within."""
    if re.search(r"[$`()\\]", text):
        return None
    try:
        words = shlex.split(text)
    except ValueError:
        return None
    if len(words) > 1 or any(char in "".join(words) for char in "\"'"):
        return None
    return words[0] if words else ""
