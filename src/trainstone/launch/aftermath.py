"""After ranks have failed: which was the first, and why. Written into the run folder, and raised as one error.

For batch scripts: python -m trainstone.launch.aftermath RUN ENGINE CODE ENGINE_LOG
"""

import logging
import signal
import sys
from pathlib import Path

from trainstone.errors import EXIT_RESUMABLE, LaunchError, TrainstoneError, error_of_child
from trainstone.files import write_atomically
from trainstone.launch.child_runs import name_signal
from trainstone.launch.deaths import Death, find_deaths, find_engine_words, find_told
from trainstone.launch.engine import LOG
from trainstone.machine.launched import CAUSE, FOLDER, Failure, launch_name, name_host, read_code, read_failures
from trainstone.results.checks import finding
from trainstone.results.schema import FINISHED
from trainstone.results.store import RunFolder, read_result
from trainstone.text import printable_lines

log = logging.getLogger(__name__)

MEMORY_HINT = "SIGKILL mostly means that memory ran out: take a smaller train.batch_size"
BUG_HINT = "this is a bug; its traceback is in {}"
ENGINES = {"local": "torchrun", "mpi": "mpirun", "slurm": "srun"}
STOPPING = (-signal.SIGTERM, -signal.SIGUSR1)
"""How a rank ends that was asked to stop before it could listen."""


def settle(
    run: Path, engine_text: str, engine: str, code: int, *, stopped: bool = False, launch: str | None = None
) -> int:
    """Return the exit code of a run that came to an orderly end; else write down the cause and raise it.

    `stopped`: ranks were asked to stop. Those that were too young to hear of it died of it, which is no failure.
    `launch`: its name, if not that of this process.
    """
    told = read_code(run)
    if code == 0 and told is not None:
        return told
    if stopped and died_of_stop(run, engine_text, engine, code):
        return EXIT_RESUMABLE
    err = find_cause(run, engine_text, engine, code)
    record_cause(run, err, launch)
    raise err


def died_of_stop(run: Path, engine_text: str, engine: str, code: int) -> bool:
    """Say whether nothing went wrong but that ranks, or the engine before it had any, died of the signal to stop."""
    failures = read_failures(run)
    if any(not failure.echo for failure in failures):
        return False
    echoed = {failure.rank for failure in failures}
    deaths = [death.code for death in find_deaths(engine_text, engine) if death.rank not in echoed]
    return all(end in STOPPING for end in deaths or [code])


def find_cause(run: Path, engine_text: str, engine: str, code: int) -> TrainstoneError:
    """Return the error of the first rank that failed, of its class and with its hint; else what the engine says."""
    failures = read_failures(run)
    causes = [failure for failure in failures if not failure.echo]
    if causes:
        return _tell_failure(causes[0], run, engine)
    # Who left an echo did not die first, even where the engine saw it first.
    echoed = {failure.rank for failure in failures}
    for death in find_deaths(engine_text, engine):
        if death.rank not in echoed:
            return _tell_death(death, engine_text)
    if failures:
        return _tell_failure(failures[0], run, engine)
    return _tell_engine(engine_text, engine, code)


def _tell_failure(failure: Failure, run: Path, engine: str) -> TrainstoneError:
    message = f"rank {failure.rank} on {failure.host}: {failure.message}"
    if failure.exit_code == TrainstoneError.exit_code:
        where = "the job's log" if engine == "slurm" else run / FOLDER / LOG
        return TrainstoneError(message, hint=BUG_HINT.format(where))
    return error_of_child(failure.exit_code, message, failure.hint)


def _tell_death(death: Death, engine_text: str) -> TrainstoneError:
    """A rank that left no word: its signal, or its exit code with what it printed."""
    who = f"rank {death.rank} on {death.host or name_host()}"
    if death.code < 0:
        name = name_signal(-death.code)
        return LaunchError(f"{who} was ended by {name}", hint=MEMORY_HINT if name == "SIGKILL" else None)
    message, hint = find_told(engine_text)
    return error_of_child(death.code, f"{who}: {message or f'ended with exit code {death.code}'}", hint)


def _tell_engine(engine_text: str, engine: str, code: int) -> TrainstoneError:
    """No rank is known to have failed: the engine's own words."""
    name = ENGINES.get(engine, engine)
    message, hint = find_told(engine_text)
    if message:
        return error_of_child(code, message, hint)
    ended = f"was ended by {name_signal(-code)}" if code < 0 else f"ended with exit code {code}"
    if code == 0:
        ended = "ended, but no rank said how its work went"
    words, hint = find_engine_words(engine_text)
    return LaunchError(f"{name} {ended}" + (f": {words}" if words else ""), hint=hint)


def record_cause(run: Path, err: TrainstoneError, launch: str | None = None) -> None:
    """Let the run folder say what happened, even where its first rank was killed; what cannot be written is not.

    The result of another launch that is still under way there is its own.
    """
    try:
        write_atomically(run / FOLDER / CAUSE, tell(err))
        if not (run / "result.json").is_file():
            return
        result = read_result(run)
        if result.status == "running" and result.process.launch not in (None, launch or launch_name()):
            return
        # An echo in the first rank's own words would be a second cause.
        echoes = {failure.message for failure in read_failures(run) if failure.echo}
        kept = [one for one in result.findings if one.code != "rank-failed" and one.message not in echoes]
        failed = finding("rank-failed", err.message, hint=err.hint)
        status = result.status if result.status in FINISHED else "failed"
        RunFolder(run, result).update(status=status, findings=[failed, *kept])
    except (OSError, TrainstoneError) as problem:
        log.warning("%s does not tell of the failure: %s", run, problem)


def tell(err: TrainstoneError) -> str:
    """Return message and hint as the command line prints them."""
    told = [("error: ", err.message), ("hint:  ", err.hint)]
    return "".join(
        f"{name}{printable_lines(text)}\n".replace("\n", "\n       ").rstrip(" ") for name, text in told if text
    )


def main(words: list[str]) -> int:
    """Settle what a batch script has run, and return the code that it shall end with."""
    run, engine, code, file = Path(words[0]), words[1], int(words[2]), Path(words[3])
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    try:
        return settle(run, text, engine, code)
    except TrainstoneError as err:
        sys.stderr.write(tell(err))
        return err.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
