"""The errors trainstone raises for its user, and the exit code each one ends the program with.

TrainstoneError       1   raised itself only for a bug in another rank; a bug here keeps its traceback and exits 1 too
 ├ ConfigError        2   recipe, --set, flags
 ├ DataError          3   missing, corrupt or wrongly counted data
 ├ MachineError       4   a device, driver, library or instruction this machine lacks
 ├ LaunchError        5   scheduler, rendezvous, a child process that died (PeerLostError: another rank)
 ├ RunError           6   NaN loss, out of memory (OutOfMemoryError), time-out
 └ ResultError        7   unreadable, unwritable or unlike result files

Further codes are not errors: 8 target not reached (train --require-target), 9 a gate failed (compare --fail-below),
75 interrupted but resumable (a checkpoint was written), 130 interrupted by Ctrl-C.
A message says what happened, the value seen and what is allowed; `hint` is the next thing to type.
"""

EXIT_TARGET = 8
EXIT_GATE = 9
EXIT_RESUMABLE = 75
EXIT_INTERRUPTED = 130


class TrainstoneError(Exception):
    """Parent of all errors that the user can repair."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigError(TrainstoneError):
    exit_code = 2


class DataError(TrainstoneError):
    exit_code = 3


class MachineError(TrainstoneError):
    exit_code = 4


class LaunchError(TrainstoneError):
    exit_code = 5


class PeerLostError(LaunchError):
    """Another rank died or does not answer: not the cause, but a consequence."""


class RunError(TrainstoneError):
    exit_code = 6


class OutOfMemoryError(RunError):
    """A run that needs more memory than there is; a sweep goes on without it."""


class ResultError(TrainstoneError):
    exit_code = 7


def error_of_child(exit_code: int, message: str, hint: str | None) -> TrainstoneError:
    """Return the error of the class that a child process ended with; a cause found there keeps its code."""
    kinds = {kind.exit_code: kind for kind in TrainstoneError.__subclasses__()}
    return kinds.get(exit_code, LaunchError)(message, hint=hint)
