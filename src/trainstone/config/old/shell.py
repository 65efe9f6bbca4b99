"""Assignments in a config_*.sh, read as text. Nothing is executed: what is no plain assignment is named and refused."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trainstone.config.old.line import LONGEST_TEXT, split_words
from trainstone.errors import ConfigError

NAME = r"[A-Za-z_]\w*"
ASSIGNMENT = re.compile(rf"(?:export\s+|readonly\s+)?({NAME})=(.*)", re.DOTALL)
DEFAULTED = re.compile(rf"\$\{{({NAME}):?[-=]([^$`]*)\}}")
SOURCED = re.compile(r"(?:source|\.)\s+(.*)")
# They do nothing but speak, or make a script stop early.
HARMLESS = re.compile(r"echo\b[^$`;&|<>]*|set\s+[-+]\w+(\s+pipefail)?|:|true")


class Assigned(NamedTuple):
    """What was found."""

    values: dict[str, str]
    computed: dict[str, str]
    """Values that only a shell could tell."""
    notes: list[str]


def read_script(path: Path, outer: Mapping[str, str], seen: frozenset[Path] = frozenset()) -> Assigned:
    """Read the assignments of a file, and of files beside it that it sources."""
    found = Assigned({}, {}, [])
    refused: list[str] = []
    for line in join_substitutions(read_text(path)):
        if assignment := ASSIGNMENT.fullmatch(line):
            assign(found, assignment[1], assignment[2], outer)
        elif sourced := SOURCED.fullmatch(line):
            follow(found, path, sourced[1], outer, seen | {path})
        elif not HARMLESS.fullmatch(line):
            refused.append(line)
    if refused:
        shown = "; ".join(line[:80] for line in refused[:3])
        raise ConfigError(
            f"{path} has {len(refused)} lines that are no assignments, and no shell is started here: {shown}",
            hint="give the assignments alone: NAME=value, one a word or a line",
        )
    return found


def read_text(path: Path) -> str:
    """Return the text of a file that is not too large to be a script."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LONGEST_TEXT + 1)
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"cannot read {path}: {err}") from err
    if len(text) > LONGEST_TEXT:
        raise ConfigError(f"{path} is larger than {LONGEST_TEXT:,} characters: no config_*.sh")
    return text


def join_substitutions(text: str) -> list[str]:
    """Return lines without comments and blanks; one that opens $( goes on to its closing bracket."""
    lines: list[str] = []
    open_brackets = 0
    for raw in re.sub(r"\\\r?\n", " ", text).split("\n"):
        line = re.sub(r"(^|\s)#.*$", "", raw).strip()
        if open_brackets and lines:
            lines[-1] += f" {line}"
        elif line:
            lines.append(line)
        open_brackets = max(0, open_brackets + line.count("(") - line.count(")"))
    return lines


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
    """Read a sourced file where it lies beside the one that sources it."""
    beside = path.parent / sourced.strip("\"' ").rpartition("/")[2]
    if beside in seen or not beside.is_file():
        found.notes.append(f"source {sourced}: there is no {beside.name} beside {path.name}; what it sets is not known")
        return
    inner = read_script(beside, outer, seen)
    found.values.update(inner.values)
    found.computed.update(inner.computed)
    found.notes.extend(inner.notes)


def read_assignments(words: Sequence[str]) -> Assigned:
    """Read NAME=value words, `export` between them, and files whose lines are such; words beat files."""
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
            hint="no shell is started: plain assignments, a file with them, or flags of train_imagenet.py",
        )
    values = {**files.values, **line.values}
    computed = {name: text for name, text in {**files.computed, **line.computed}.items() if name not in line.values}
    return Assigned(values, computed, files.notes)
