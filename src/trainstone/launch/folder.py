"""The run folder that a launcher makes before there are ranks, and what it tells them of it."""

from pathlib import Path

from trainstone.errors import ResultError
from trainstone.launch.verb import Verb
from trainstone.machine.launched import BIND, FOLDER, LAUNCH, RANKS, RUN, forget_attempt
from trainstone.results.store import name_run, read_result, refuse_running


def prepare_folder(verb: Verb, suffix: str = "") -> Path:
    """Make the folder of a run with launch/ in it, or open that of a run to be resumed; return its absolute path.

    `suffix` is appended to the recipe's name in the name of a new folder.
    """
    if verb.resume is not None:
        refuse_running(verb.resume, read_result(verb.resume))  # which says what is wrong where this is no run
    run = (verb.resume or verb.out / name_run(f"{verb.config.name}{suffix}")).absolute()
    try:
        (run / FOLDER).mkdir(parents=True, exist_ok=verb.resume is not None)
        forget_attempt(run)
    except OSError as err:
        raise ResultError(
            f"cannot write run folder {run}: {err.strerror or err}", hint="choose another folder with --out DIR"
        ) from err
    return run


def rank_environment(run: Path, launch: str, *, ranks: int, bind: bool) -> dict[str, str]:
    """Return the variables that every rank gets."""
    return {RUN: str(run), LAUNCH: launch, RANKS: str(ranks)} | ({BIND: "cores"} if bind else {})
