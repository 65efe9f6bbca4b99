"""Safe output: JSON that any stdout can encode, stderr that may be closed, Ctrl-C without a traceback."""

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from operator import methodcaller
from typing import Any

import typer

from trainstone.errors import EXIT_INTERRUPTED
from trainstone.text import printable


def print_json(document: Any) -> None:
    """Print a document as JSON; escape invisible characters and those missing from the encoding of stdout.

    Fields of models that are None are omitted.
    """
    dump_model = methodcaller("model_dump", mode="json", exclude_none=True)
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    text = json.dumps(document, indent=2, ensure_ascii=not unicode, allow_nan=False, default=dump_model)
    print(re.sub(r"[^ -~\n]", _escape_hidden, text))


def print_stderr(text: str) -> bool:
    """Print a line on stderr; return False if it is closed or its disk is full, which must not fail a run."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        redirect_to_null(2)
        return False
    return True


@contextmanager
def exit_on_interrupt(message: str = "; run the same command again to resume") -> Iterator[None]:
    """On Ctrl-C, print a message and exit instead of showing a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"interrupted{message}", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def redirect_to_null(descriptor: int) -> None:
    """Redirect a broken stream to /dev/null, so that buffered text does not fail again at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


def _escape_hidden(match: re.Match[str]) -> str:
    """Return the JSON escape of a character; above U+FFFF it has two UTF-16 units."""
    if printable(match[0]) == match[0]:
        return match[0]
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
