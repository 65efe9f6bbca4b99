"""Configuration of the logger `trainstone`; only cli/main.py calls it. The root logger is not changed."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainstone.text import printable_lines

LOGGER = logging.getLogger("trainstone")
FILE_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class TerminalFormatter(logging.Formatter):
    """Escape control characters in messages."""

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


def configure_terminal(*, verbose: int, quiet: int) -> None:
    """Log to stderr: warnings by default, INFO with -v, DEBUG with -vv, only errors with -q."""
    level = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO}.get(max(-1, verbose - quiet), logging.DEBUG)
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(level)
    handler.setFormatter(TerminalFormatter("%(levelname)s %(name)s: %(message)s"))
    LOGGER.handlers = [handler]
    LOGGER.setLevel(logging.DEBUG)
    LOGGER.propagate = False


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Also log everything to a file of the run folder until the context ends."""
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
