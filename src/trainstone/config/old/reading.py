"""Words of an old command line -> values of its flags, all mistakes told at once. Knows no original."""

import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trainstone.config.load import did_you_mean
from trainstone.config.old.flag import Flag, Mistake, check_alone, read_value


class Grammar(NamedTuple):
    """How a program reads its flags."""

    original: str
    """The name of --from."""
    flags: tuple[Flag, ...]
    negated: bool = False
    """--no<name> switches off."""
    single_dash: bool = False
    """-name is --name (absl)."""
    shortened: bool = True
    """The beginning of a name is enough where no other begins so (argparse)."""


class Given(NamedTuple):
    """What a line says."""

    values: Mapping[str, Any]
    """Of every flag, its default where it was not given; absent where it has none."""
    asked: Mapping[str, str]
    """Of those that were given: how they were written."""
    notes: tuple[str, ...]
    """One for each that was given and has no meaning here."""


def read_flags(grammar: Grammar, words: Sequence[str]) -> Given:
    """Read `--name value`, `--name=value`, switches; the last of several counts, as it did there."""
    known = {flag.name: flag for flag in grammar.flags}
    values = {flag.name: read_value(flag, [flag.default]) for flag in grammar.flags if flag.default}
    asked: dict[str, str] = {}
    complaints: list[str] = []
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        name, equals, text = word.lstrip("-").partition("=")
        flag, off = find_flag(grammar, known, word, name)
        if flag is None:
            complaints.append(tell_unknown(grammar, known, word, name))
            place = place if equals else skip_values(words, place)
            continue
        texts = [text] if equals else []
        if not equals and flag.kind != "switch":
            end = skip_values(words, place) if flag.kind in ("epochs", "words") else min(place + 1, len(words))
            texts = [value for value in words[place:end] if not is_flag(value)]
            place += len(texts)
        shown = f"--{'no' if off else ''}{flag.name}{'=' + ' '.join(texts) if texts else ''}"
        asked[flag.name] = shown
        try:
            values[flag.name] = read_given(flag, texts, off=off)
        except Mistake as err:
            complaints.append(f"{shown}: {err}")
    check_alone(complaints, original=grammar.original)
    return Given(values, asked, tell_idle(known, asked))


def read_given(flag: Flag, texts: Sequence[str], *, off: bool) -> Any:
    """Return the value of a flag that was given."""
    if flag.kind == "switch" and not texts:
        return not off
    if not texts and flag.may_be_empty:
        return ()
    if not texts or off:
        raise Mistake("it takes a value" if not off else "it takes none")
    return read_value(flag, texts)


def is_flag(word: str) -> bool:
    """Tell a flag from a value; -1 and -0.5 are values."""
    return re.match(r"--?[A-Za-z_]", word) is not None


def skip_values(words: Sequence[str], place: int) -> int:
    """Return the place of the next flag."""
    return next((number for number in range(place, len(words)) if is_flag(words[number])), len(words))


def find_flag(grammar: Grammar, known: Mapping[str, Flag], word: str, name: str) -> tuple[Flag | None, bool]:
    """Return the flag that a word means, and whether it is switched off."""
    if not word.startswith("-") or (not word.startswith("--") and not grammar.single_dash):
        return None, False
    if name in known:
        return known[name], False
    positive = known.get(name[2:]) if grammar.negated and name.startswith("no") else None
    if positive is not None and positive.kind == "switch":
        return positive, True
    begun = [flag for flag in known.values() if flag.name.startswith(name)] if grammar.shortened and name else []
    return (begun[0], False) if len(begun) == 1 else (None, False)


def tell_unknown(grammar: Grammar, known: Mapping[str, Flag], word: str, name: str) -> str:
    """Say that a word means nothing, and what may have been meant."""
    if not word.startswith("-"):
        return f"{word!r} is no flag of {grammar.original}"
    begun = [flag for flag in known if name and flag.startswith(name)]
    if len(begun) > 1 and grammar.shortened:
        return f"--{name} may be {' or '.join('--' + flag for flag in begun)}"
    shown = word.partition("=")[0]
    return f"unknown flag {shown}{did_you_mean(f'--{name}', [f'--{flag}' for flag in known])}"


def tell_idle(known: Mapping[str, Flag], asked: Mapping[str, str]) -> tuple[str, ...]:
    """Return why each given flag that has no meaning here has none."""
    return tuple(f"{shown}: {known[name].remark}" for name, shown in asked.items() if not known[name].ours)


def read_variables(original: str, table: Sequence[Flag], given: Mapping[str, str]) -> Given:
    """Read variables as a shell script set them; the rows of the table are names or patterns."""
    values = {row.name: read_value(row, [row.default]) for row in table if row.default}
    complaints, notes = [], []
    for name, text in given.items():
        row = next((row for row in table if fnmatch.fnmatchcase(name, row.name)), None)
        if row is None:
            complaints.append(f"unknown variable {name}{did_you_mean(name, [known.name for known in table])}")
            continue
        if not row.ours:
            notes.append(f"{name}={text}: {row.remark}")
            continue
        try:
            values[row.name] = read_value(row, [text])
        except Mistake as err:
            complaints.append(f"{name}={text}: {err}")
    check_alone(complaints, original=original)
    return Given(values, {name: f"{name}={text}" for name, text in given.items()}, tuple(notes))
