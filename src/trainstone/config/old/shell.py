"""Assignments in a config_*.sh, read as text. Nothing is executed: what is no plain assignment is named and refused."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trainstone.config.old.commands import split_commands, split_words
from trainstone.config.old.script import read_text
from trainstone.errors import ConfigError

NAME = r"[A-Za-z_]\w*"
ASSIGNMENT = re.compile(rf"(?:export\s+|readonly\s+)?({NAME})=(.*)", re.DOTALL)
DEFAULTED = re.compile(rf"\$\{{({NAME}):?[-=]([^$`]*)\}}")
SOURCED = re.compile(r"(?:source|\.)\s+(.*)")
# They do nothing but speak, or make a script stop early.
HARMLESS = re.compile(r"echo\b[^$`;&|<>]*|set\s+[-+]\w+(\s+pipefail)?|:|true|#SBATCH.*")
READ = re.compile(rf"{ASSIGNMENT.pattern}|{SOURCED.pattern}|{HARMLESS.pattern}", re.DOTALL)
"""Commands that are read here."""


PASTED = Path("the text")
"""In place of a file: commands that were pasted."""


class Assigned(NamedTuple):
    """What was found."""

    values: dict[str, str]
    computed: dict[str, str]
    """Values that only a shell could tell."""
    notes: list[str]


def read_script(path: Path, outer: Mapping[str, str], seen: frozenset[Path] = frozenset()) -> Assigned:
    """Read the assignments of a file, and of files beside it that it sources."""
    commands = [command.text for command in split_commands(read_text(path))]
    return read_commands(commands, path, outer, seen | {path})


def read_commands(
    commands: Sequence[str], path: Path, outer: Mapping[str, str], seen: frozenset[Path] = frozenset()
) -> Assigned:
    """Read commands that are assignments, or source a file beside `path`, where they come from."""
    found = Assigned({}, {}, [])
    refused: list[str] = []
    for line in commands:
        if assignment := ASSIGNMENT.fullmatch(line):
            for name, text in split_assignments(line) or [(assignment[1], assignment[2])]:
                assign(found, name, text, outer)
        elif sourced := SOURCED.fullmatch(line):
            follow(found, path, sourced[1], outer, seen)
        elif not HARMLESS.fullmatch(line):
            refused.append(line)
    if refused:
        shown = "; ".join(line[:80] for line in refused[:3])
        raise ConfigError(
            f"{path}: lines that are no assignments, and no shell is started here: {shown}",
            hint="give the assignments alone: NAME=value, one a word or a line",
        )
    return found


def split_assignments(line: str) -> list[tuple[str, str]]:
    """Return the several of one line: A=1 B=2; none where it is one, or something else follows it."""
    if re.search(r"[$`(]", line):
        return []
    words = [word for word in split_words(line) if word not in ("export", "readonly")]
    matches = [ASSIGNMENT.fullmatch(word) for word in words]
    found = [(match[1], shlex.quote(match[2])) for match in matches if match]
    return found if len(found) == len(words) else []


def assign(found: Assigned, name: str, text: str, outer: Mapping[str, str]) -> None:
    """Take a value as the file writes it."""
    value = fill_default(text, {**found.values, **outer})
    if value is None:
        found.computed[name] = text
        return
    words = split_words(value)
    if len(words) > 1:
        raise ConfigError(f"{name}={text}: more than one word", hint="quote it")
    found.values[name] = words[0] if words else ""
    found.computed.pop(name, None)


def fill_default(text: str, known: Mapping[str, str]) -> str | None:
    """Return a plain value, and of ${NAME:-default} what it gives; None where a shell would have to compute it."""
    if defaulted := DEFAULTED.fullmatch(text.strip("\"'")):
        text = known.get(defaulted[1]) or defaulted[2]
    return None if "$" in text or "`" in text else text


def follow(found: Assigned, path: Path, sourced: str, outer: Mapping[str, str], seen: frozenset[Path]) -> None:
    """Read a sourced file where it lies beside the one that sources it; a pasted text names it from here."""
    written = sourced.strip("\"' ")
    beside = path.parent / written.rpartition("/")[2]
    if path == PASTED and not re.search(r"[$`]", written):
        beside = Path(written)
        if not beside.is_file():
            raise ConfigError(
                f"source {written}: there is no such file", hint="what it sets is needed: give it where it lies"
            )
    if beside in seen or not beside.is_file():
        found.notes.append(f"source {sourced}: there is no {beside.name} beside {path.name}; what it sets is not known")
        return
    inner = read_script(beside, {**found.values, **outer}, seen)
    found.values.update(inner.values)
    found.computed.update(inner.computed)
    found.notes.extend(inner.notes)


def read_assignments(words: Sequence[str], *, program: str) -> Assigned:
    """Read NAME=value words, `export` between them, and files whose lines are such; words beat files.

    The program is the one whose flags could be given instead.
    """
    plain = [match for word in words if (match := ASSIGNMENT.fullmatch(word))]
    given = {match[1]: match[2] for match in plain if fill_default(match[2], {}) == match[2]}
    files = Assigned({}, {}, [])
    line = Assigned({}, {}, [])
    strange: list[str] = []
    for word in words:
        if assignment := ASSIGNMENT.fullmatch(word):
            value = fill_default(assignment[2], {**files.values, **given})
            (line.computed if value is None else line.values)[assignment[1]] = assignment[2] if value is None else value
        elif word.endswith(".sh") and Path(word).is_file():
            found = read_script(Path(word), given)
            files.values.update(found.values)
            files.computed.update(found.computed)
            files.notes.extend(found.notes)
        elif word not in ("export", "source", ".", "&&", ";"):
            strange.append(word)
    if strange:
        raise ConfigError(
            f"neither NAME=value nor a config_*.sh that is there: {', '.join(strange)}",
            hint=f"no shell is started: plain assignments, a file with them, or flags of {program}",
        )
    return merge(files, line)


def merge(first: Assigned, then: Assigned) -> Assigned:
    """Return what two have set, of both the later."""
    computed = {name: text for name, text in first.computed.items() if name not in then.values}
    values = {**first.values, **then.values}
    return Assigned(values, {**computed, **then.computed}, [*first.notes, *then.notes])
