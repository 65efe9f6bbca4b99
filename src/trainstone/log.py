"""Logging of the package's own logger; configured by cli/main.py alone, never at import, never the root logger."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainstone.text import printable_lines

LOGGER = logging.getLogger("trainstone")
FILE_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class TerminalFormatter(logging.Formatter):
    """Shows control characters in messages instead of sending them to the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


def configure_terminal(*, verbose: int, quiet: int) -> None:
    """Send messages to stderr: warnings, with -v also information, with -vv everything; -q errors only."""
    level = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO}.get(max(-1, verbose - quiet), logging.DEBUG)
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(level)
    handler.setFormatter(TerminalFormatter("%(levelname)s %(name)s: %(message)s"))
    LOGGER.handlers = [handler]
    LOGGER.setLevel(logging.DEBUG)
    LOGGER.propagate = False


@contextmanager
def log_into(path: Path) -> Iterator[None]:
    """Meanwhile write everything to a file of the run folder as well."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setLevel(logging.DEBUG)
    handler.setFormatter(logging.Formatter(FILE_FORMAT))
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        handler.close()
