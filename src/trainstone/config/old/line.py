"""A pasted command line or job script -> what starts the program, the program, its words. Nothing is executed."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trainstone.config.old.commands import (
    ENDS,
    NAME,
    Command,
    fill_commands,
    match_assignment,
    split_commands,
    split_words,
)
from trainstone.config.old.flag import VALUES_HINT
from trainstone.errors import ConfigError

REDIRECTION = re.compile(r"(?:\d?>>?|&>>?|<)(.*)")
MOST_TOLD = 3
MOST_SHOWN = 200
BARE = ("if", "then", "else", "fi", "do", "done", "esac", "{", "}")
SECOND = "a second command, not translated: give it by itself"


class Line(NamedTuple):
    """A command line, taken apart."""

    before: tuple[str, ...]
    """What starts the program: launchers, variables, what #SBATCH lines ask for."""
    path: str
    """The program as it was written; empty where flags stand alone."""
    after: tuple[str, ...]
    """Its flags and arguments."""
    notes: tuple[str, ...] = ()
    earlier: tuple[str, ...] = ()
    """Commands before it that the caller reads itself."""

    @property
    def program(self) -> str:
        """Return the program's file without its folder."""
        return self.path.rpartition("/")[2]


class Reading(NamedTuple):
    """What is looked for in a line."""

    programs: tuple[str, ...]
    """Patterns of file names; the first that is found counts."""
    kept: re.Pattern[str] | None = None
    """Commands before the program that go into `earlier`."""
    known: Mapping[str, str] = {}
    """Values of variables."""
    started: tuple[str, ...] = ()
    """Words that started the script which the text is of."""


def read_line(words: Sequence[str], reading: Reading) -> Line:
    """Take the words of a line apart, or one word that is a text of several."""
    if is_text(words):
        return read_commands(split_commands(words[0]), reading)
    commands: list[tuple[str, list[str]]] = [("\n", [])]
    for word in words:
        if not word.strip(" \t\r\n\\"):
            continue
        ended = word if word in ENDS else ";" if re.fullmatch(r"[^=\s]+;", word) else ""
        if word not in ENDS:
            commands[-1][1].append(word.removesuffix(";") if ended else word)
        if ended:
            commands.append((ended, []))
    split = [part for _, part in commands if part]
    if reading.kept and find_command(split, reading.programs)[1] is None:
        after, notes = strip_output([word for part in split for word in part])
        return Line(reading.started, "", tuple(after), tuple(notes))
    texts = [Command(" ".join(part), joint) for joint, part in commands if part]
    return choose(texts, split, reading, list(reading.started))


def is_text(words: Sequence[str]) -> bool:
    """Tell a pasted text from words that a shell has split."""
    return len(words) == 1 and any(char.isspace() for char in words[0])


def read_commands(commands: Sequence[Command], reading: Reading) -> Line:
    """Find the command in a text: the line with the program, and those after it that begin with a flag."""
    batch = [command.text for command in commands if command.text.startswith("#SBATCH")]
    asked = [word for text in batch for word in split_words(text.removeprefix("#SBATCH"))]
    commands = [command for command in commands if not command.text.startswith("#SBATCH")]
    split = [split_words(text) or [""] for text in fill_commands(commands, reading.known)]
    used = {name for command in commands for name in re.findall(rf"\$\{{?({NAME})", command.text)}
    kept = [not ((match := match_assignment(command.text)) and match[1] in used) for command in commands]
    if reading.kept is None:
        commands = [command for command, keep in zip(commands, kept, strict=True) if keep]
        split = [words for words, keep in zip(split, kept, strict=True) if keep]
    return choose(commands, split, reading, [*asked, *reading.started])


def choose(commands: Sequence[Command], split: Sequence[list[str]], reading: Reading, asked: list[str]) -> Line:
    """Take the command with the program, and lines of flags that follow it; say what is left."""
    pattern, start = find_command(split, reading.programs)
    if start is None:
        return take_flags(commands, split, reading, asked)
    before = [command.text for command in commands[:start]]
    earlier = [text for text in before if reading.kept and reading.kept.fullmatch(text)]
    left = [text for text in before if not (reading.kept and reading.kept.fullmatch(text))]
    taken, notes = strip_output(split[start])
    second = ""
    beside = True  # still on the program's line
    for command, words in zip(commands[start + 1 :], split[start + 1 :], strict=True):
        beside = beside and command.joint in ENDS
        if command.joint == "\n" and words[0].startswith("-"):
            more, told = strip_output(words)
            taken, notes = [*taken, *more], [*notes, *told]
        elif beside or (not second and find_program(words, pattern) is not None):
            second += f" {command.joint} {command.text}" if len(second) < MOST_SHOWN else ""
        else:
            left.append(command.text)
    notes = [*tell_left(left), *notes, *([f"{second.strip()}: {SECOND}"] if second else [])]
    place = find_program(taken, pattern) or 0
    return Line((*asked, *taken[:place]), taken[place], tuple(taken[place + 1 :]), tuple(notes), tuple(earlier))


def find_command(split: Sequence[list[str]], programs: Sequence[str]) -> tuple[str, int | None]:
    """Return the pattern that is found first, and the place of the command that has it; flags start nothing."""
    for pattern in programs:
        for place, words in enumerate(split):
            if not words[0].startswith("-") and find_program(strip_output(words)[0], pattern) is not None:
                return pattern, place
    return "", None


def find_program(words: Sequence[str], program: str) -> int | None:
    """Return the place of the program's file among the words."""
    pattern = re.compile(rf"(.*/)?({program})")
    return next((place for place, word in enumerate(words) if pattern.fullmatch(word)), None)


def take_flags(commands: Sequence[Command], split: Sequence[list[str]], reading: Reading, asked: list[str]) -> Line:
    """Read commands none of which has a program: flags alone, or what the caller reads itself."""
    if reading.kept is not None:
        return keep_commands(commands, split, reading.kept, asked)
    if split and not split[0][0].startswith("-"):
        shown = "; ".join(command.text[:80] for command in commands[:MOST_TOLD])
        hint = VALUES_HINT if any("$" in command.text for command in commands) else "give flags alone, or its line"
        raise ConfigError(f"nothing here starts the program: {shown}", hint=hint)
    after: list[str] = []
    notes: list[str] = []
    for command, words in zip(commands, split, strict=True):
        if command.joint in ENDS and after:
            notes.append(f"{command.joint} {command.text}: {SECOND}")
        elif not words[0].startswith("-"):
            notes += tell_left([command.text])
        else:
            taken, told = strip_output(words)
            after += taken
            notes += told
    return Line(tuple(asked), "", tuple(after), tuple(notes))


def keep_commands(
    commands: Sequence[Command], split: Sequence[list[str]], kept: re.Pattern[str], asked: list[str]
) -> Line:
    """Leave commands to the caller where one of them is for it, else their words."""
    files = [words for words in split if words[0] not in ("source", ".") and words[-1].endswith(".sh")]
    if not files and any(kept.fullmatch(command.text) for command in commands):
        return Line(tuple(asked), "", (), (), tuple(command.text for command in commands))
    after, notes = strip_output([word for words in split for word in words])
    return Line(tuple(asked), "", tuple(after), tuple(notes))


def strip_output(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Take out where output goes, and what it is piped to; say so."""
    kept: list[str] = []
    gone: list[str] = []
    pipe = next((place for place, word in enumerate(words) if word in ("|", "|&")), len(words))
    target = False
    for word in words[:pipe]:
        redirection = None if target else REDIRECTION.fullmatch(word)
        (gone if target or redirection else kept).append(word)
        target = redirection is not None and not redirection[1]
    gone += words[pipe:]
    notes = [f"{' '.join(gone)}: output lies in the run folder"] if gone else []
    if "&" in kept:
        notes.append("&: put it behind the new command")
    return [word for word in kept if word != "&"], notes


def tell_left(left: Sequence[str]) -> list[str]:
    """Say which lines mean nothing here."""
    left = [line for line in left if line not in BARE]
    if not left:
        return []
    more = f" and {len(left) - MOST_TOLD} more" if len(left) > MOST_TOLD else ""
    return [f"lines left out: {'; '.join(' '.join(line.split()) for line in left[:MOST_TOLD])}{more}"]
