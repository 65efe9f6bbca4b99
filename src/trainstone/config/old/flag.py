"""One flag or variable of an original: its name and default there, what it is here, or why it is nothing here.

The tables of docs/from are these records. Reading a whole line of them is in config/old/reading.py.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from trainstone.errors import ConfigError

VALUES_HINT = "no shell is started: give its value, or the script's name"
Kind = Literal["text", "path", "integer", "number", "switch", "epochs", "words"]

TRUE, FALSE = ("true", "t", "1", "yes", "y"), ("false", "f", "0", "no", "n")
LONGEST = 1000
"""Characters of a value that is shown or read; what is longer is no flag of anybody."""
LARGEST = 10**15


class Flag(NamedTuple):
    """A row of the table."""

    name: str
    """As written there, without dashes. MXNET_* stands for all that begin so."""
    kind: Kind
    default: str = ""
    """As it would be written; empty: none."""
    ours: str = ""
    """Key, flag or command here; empty: it has no meaning here, and the remark says why."""
    remark: str = ""
    choices: tuple[str, ...] = ()
    may_be_empty: bool = False
    """Of a list: it may stand without any value (argparse's nargs="*")."""


class Mistake(ValueError):
    """A value that a flag does not take; says what it takes."""


def read_value(flag: Flag, texts: Sequence[str]) -> Any:
    """Return what was written after a flag as its kind has it; epochs and words take several."""
    if flag.kind == "words":
        return tuple(texts)
    if flag.kind == "epochs":
        return tuple(_read_number(part) for text in texts for part in text.replace(",", " ").split())
    text = texts[0]
    if len(text) > LONGEST:
        raise Mistake(f"a value of {len(text):,} characters")
    if flag.choices and text.lower() not in [choice.lower() for choice in flag.choices]:
        raise Mistake(f"it is {list_or(flag.choices)}")
    return _read_one(flag.kind, text)


def list_or(words: Sequence[str]) -> str:
    """Return 'a, b or c'."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def check_alone(complaints: Sequence[str], *, original: str) -> None:
    """Raise all that is wrong with a line at once."""
    if complaints:
        raise ConfigError(
            "; ".join(complaints),
            hint=VALUES_HINT
            if any("$" in complaint for complaint in complaints)
            else f"every flag and variable that is known stands in docs/from/{original}.md",
        )


def _read_one(kind: Kind, text: str) -> Any:
    if kind == "integer":
        return _read_integer(text)
    if kind == "number":
        return _read_number(text)
    if kind == "switch":
        return _read_switch(text)
    return text


def _read_integer(text: str) -> int:
    try:
        number = int(text)
    except ValueError as err:
        raise Mistake("must be a whole number") from err
    if abs(number) > LARGEST:
        raise Mistake(f"must be at most {LARGEST:,}")
    return number


def _read_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError as err:
        raise Mistake("must be a number") from err
    if not math.isfinite(number):
        raise Mistake("must be a finite number")
    return number


def _read_switch(text: str) -> bool:
    if text.lower() in TRUE:
        return True
    if text.lower() in FALSE:
        return False
    raise Mistake("must be true or false")
