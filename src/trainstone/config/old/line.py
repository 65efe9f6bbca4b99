"""A pasted command line or job script -> what starts the program, the program, its words. Nothing is executed."""

import re
import shlex
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trainstone.errors import ConfigError

REDIRECTED = re.compile(r"\d?>|<|\||&|;")
MOST_TOLD = 3
LONGEST_TEXT = 1_000_000


class Line(NamedTuple):
    """A command line, taken apart."""

    before: tuple[str, ...]
    """What starts the program: launchers, variables, what #SBATCH lines ask for."""
    program: str
    """Its file; empty where flags stand alone."""
    after: tuple[str, ...]
    """Its flags and arguments."""
    notes: tuple[str, ...]


def read_line(words: Sequence[str], program: str) -> Line:
    """Take the words of a line apart, or of a text with several; `program` is a pattern of file names."""
    if len(words) == 1 and any(char.isspace() for char in words[0]):
        return read_text(words[0], program)
    return take_apart([word for word in words if word.strip(" \t\r\n\\")], program, ())


def read_text(text: str, program: str) -> Line:
    """Find the command in a text: the line with the program, and those after it that begin with a flag."""
    asked: list[str] = []
    lines: list[list[str]] = []
    for line in join_lines(text):
        if line.startswith("#SBATCH"):
            asked += split_words(line.removeprefix("#SBATCH"))
        elif words := split_words(line):
            lines.append(words)
    if not any(find_program(words, program) is not None for words in lines):
        return take_apart([*asked, *(word for words in lines for word in words)], program, ())
    taken: list[str] = []
    left: list[str] = []
    for words in lines:
        if (not taken and find_program(words, program) is not None) or (taken and words[0].startswith("-")):
            taken += words
        else:
            left.append(" ".join(words))
    return take_apart(taken, program, asked, left)


def join_lines(text: str) -> list[str]:
    """Return the lines of a text without blank ones; a backslash at a line's end joins it to the next."""
    if len(text) > LONGEST_TEXT:
        raise ConfigError(f"a command line of {len(text):,} characters", hint="give the line itself")
    return [line.strip() for line in re.sub(r"\\[ \t]*\r?\n", " ", text).split("\n") if line.strip()]


def split_words(line: str) -> list[str]:
    """Split as a shell does, quotes and comments known."""
    try:
        return shlex.split(line, comments=True)
    except ValueError as err:
        raise ConfigError(f"cannot read {line[:80]!r}: {str(err).lower()}", hint="close the quotes") from err


def find_program(words: Sequence[str], program: str) -> int | None:
    """Return the place of the program's file among the words."""
    pattern = re.compile(rf"(.*/)?({program})")
    return next((place for place, word in enumerate(words) if pattern.fullmatch(word)), None)


def take_apart(words: Sequence[str], program: str, asked: Iterable[str], left: Sequence[str] = ()) -> Line:
    """Split at the program, and end at a redirection."""
    notes = []
    if left:
        more = f" and {len(left) - MOST_TOLD} more" if len(left) > MOST_TOLD else ""
        notes.append(f"lines left out: {'; '.join(left[:MOST_TOLD])}{more}")
    place = find_program(words, program)
    before = [] if place is None else list(words[:place])
    after = list(words if place is None else words[place + 1 :])
    end = next((number for number, word in enumerate(after) if REDIRECTED.match(word)), len(after))
    if end < len(after):
        notes.append(f"{' '.join(after[end:])}: output lies in the run folder")
    name = "" if place is None else words[place].rpartition("/")[2]
    return Line((*asked, *before), name, tuple(after[:end]), tuple(notes))
