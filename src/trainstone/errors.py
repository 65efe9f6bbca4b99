"""Errors that trainstone raises for its user, and the exit codes of the command.

docs/reference/exit-codes.md is generated from the texts below. A message states what is wrong, the value seen and what
is allowed; `hint` is the next command to run.
"""

EXIT_TARGET = 8
"""The training did not reach its target (`train --require-target`)."""
EXIT_GATE = 9
"""A check failed: `compare --fail-below`, `data verify`, `mlperf check`."""
EXIT_RESUMABLE = 75
"""A scheduler's signal (SIGTERM, SIGUSR1, SIGHUP) interrupted a `train` or `sweep` that can be resumed."""
EXIT_INTERRUPTED = 130
"""Interrupted by Ctrl-C; other verbs also by a scheduler's signal. What was measured is stored."""


class TrainstoneError(Exception):
    """Base class of errors that the user can fix; raised itself only for a bug in another rank."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigError(TrainstoneError):
    """A recipe, a system file, `--set` or a flag is wrong."""

    exit_code = 2


class DataError(TrainstoneError):
    """Data is missing, damaged or has the wrong number of images."""

    exit_code = 3


class MachineError(TrainstoneError):
    """This machine lacks a device, driver, library or instruction."""

    exit_code = 4


class LaunchError(TrainstoneError):
    """The scheduler, the rendezvous of the ranks or a child process failed."""

    exit_code = 5


class PeerLostError(LaunchError):
    """Another rank died or does not answer: a consequence, not the cause."""


class RunError(TrainstoneError):
    """The run failed: NaN loss, out of memory, or a timeout."""

    exit_code = 6


class OutOfMemoryError(RunError):
    """A run needs more memory than is available; a sweep continues without it."""


class ResultError(TrainstoneError):
    """Result files cannot be read, written or compared."""

    exit_code = 7


def build_child_error(exit_code: int, message: str, hint: str | None) -> TrainstoneError:
    """Return the error of the class that a child process ended with; the child's exit code is kept."""
    kinds = {kind.exit_code: kind for kind in TrainstoneError.__subclasses__()}
    return kinds.get(exit_code, LaunchError)(message, hint=hint)
