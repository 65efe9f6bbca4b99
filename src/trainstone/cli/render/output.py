"""JSON on stdout in characters that it can carry and a terminal does not obey; stderr that may be gone; Ctrl-C."""

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
    """Print it as files hold it, but escape what cannot be seen and what is not in stdout's encoding.

    Models in it are printed without their absent fields.
    """
    dump_model = methodcaller("model_dump", mode="json", exclude_none=True)
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    text = json.dumps(document, indent=2, ensure_ascii=not unicode, allow_nan=False, default=dump_model)
    print(re.sub(r"[^ -~\n]", _escape_hidden, text))


def print_stderr(text: str) -> bool:
    """Print a line on stderr; False: its terminal or pipe is gone, or its disk full, which is not the run's problem."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        silence(2)
        return False
    return True


@contextmanager
def interruptible(message: str = "; give the same command again to resume") -> Iterator[None]:
    """Ctrl-C ends the work with a word, not with a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"interrupted{message}", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def silence(descriptor: int) -> None:
    """Send a stream that cannot be written to nowhere: what is still buffered must not fail again at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


def _escape_hidden(match: re.Match[str]) -> str:
    """JSON writes a character beyond U+FFFF as two UTF-16 units."""
    if printable(match[0]) == match[0]:
        return match[0]
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
