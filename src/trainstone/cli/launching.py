"""What the engines of `trainstone launch` have in common: dry run, progress, the end."""

import secrets
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trainstone.cli.execute import Options, execute
from trainstone.cli.output import print_stderr
from trainstone.errors import (
    EXIT_INTERRUPTED,
    EXIT_RESUMABLE,
    ConfigError,
    DataError,
    MachineError,
    ResultError,
    TrainstoneError,
)
from trainstone.text import printable

if TYPE_CHECKING:
    from collections.abc import Generator

    from trainstone.launch.engine import Plan
    from trainstone.launch.verb import Verb
    from trainstone.machine.signals import StopSignals
    from trainstone.train.lifecycle import Lifecycle

# A start more would meet the same: the recipe, the data, the machine or the disk is to be mended first.
LASTING = (ConfigError, DataError, MachineError, ResultError)


def name_launch(engine: str) -> str:
    """Return a new name for a launch."""
    return f"{engine}-{secrets.token_hex(4)}"


def print_plan(plan: "Plan", verb: "Verb") -> None:
    """--dry-run."""
    from trainstone.cli.output import print_json
    from trainstone.launch.engine import write_script

    if verb.as_json:
        config = verb.config.model_dump(mode="json", exclude_none=True)
        environment = dict(plan.environment)
        print_json({"command": plan.command, "environment": environment, "prologue": plan.prologue, "config": config})
    else:
        print(printable_script(write_script(plan)), end="")


def printable_script(script: str) -> str:
    """Return a script as a terminal may show it."""
    return "".join(f"{printable(line)}\n" for line in script.splitlines())


def run_launch(plan: "Plan", verb: "Verb", run: Path, *, verbose: bool) -> None:
    """Run it, show what came of it, and leave with the run's exit code."""
    for note in plan.notes:
        print_stderr(f"note:  {printable(note)}")
    if verbose:
        from trainstone.launch.engine import write_script

        print(printable_script(write_script(plan)), end="", file=sys.stderr)

    def flow(life: "Lifecycle") -> "Generator[str, None, int]":
        return (yield from run_attempts(plan, run, life.signals))

    show = partial(show_result, run, as_json=verb.as_json)
    execute(None, verb.config, flow, Options(quiet=verb.quiet), show)


def run_attempts(plan: "Plan", run: Path, signals: "StopSignals") -> "Generator[str, None, int]":
    """Start the engine, again where that may help after a rank failed; return the run's exit code."""
    from trainstone.launch.aftermath import settle
    from trainstone.launch.engine import run_plan
    from trainstone.machine.launched import LAUNCH, forget_attempt

    for attempt in range(1, plan.attempts + 1):
        code, text = yield from run_plan(plan, run, signals)
        try:
            ended = settle(
                run, text, plan.engine, code, stopped=signals.received is not None, launch=plan.environment[LAUNCH]
            )
            return told_code(ended, signals.received)
        except TrainstoneError as err:
            if signals.received or isinstance(err, LASTING) or attempt == plan.attempts:
                raise
            print_stderr(f"{err.message}; start {attempt + 1} of at most {plan.attempts}")
            forget_attempt(run)
    raise AssertionError("there is at least one attempt")


def told_code(code: int, signal: str | None) -> int:
    """Ranks are always stopped as by a scheduler; that it was Ctrl-C only the launcher knows."""
    return EXIT_INTERRUPTED if code == EXIT_RESUMABLE and signal == "SIGINT" else code


def show_result(run: Path, *, as_json: bool) -> None:
    """Print the product; the first rank has written the page."""
    from trainstone.cli.output import print_json
    from trainstone.cli.summary import print_result
    from trainstone.results.store import read_result

    if not (run / "result.json").is_file():
        print(f"nothing was begun in {run}", file=sys.stderr)
        return
    result = read_result(run)
    if as_json:
        print_json(result.model_dump(mode="json", exclude_none=True))
    else:
        print_result(result, run)
