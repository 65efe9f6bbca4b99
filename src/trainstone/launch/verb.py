"""The verb that ranks are to run: parsed as far as the launcher must know, and planned by a dry run of it."""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from trainstone.config.load import load_system
from trainstone.config.schema import Config, System
from trainstone.errors import ConfigError, ResultError
from trainstone.flows.child_runs import TRAINSTONE, explain_end
from trainstone.machine.launch_protocol import (
    ALONE_VERBS,
    FOLDER,
    LAUNCH,
    RANKS,
    RUN,
    VERBS,
    forget_attempt,
    without_launch,
)
from trainstone.machine.ranks import BIND
from trainstone.results.run_folder import name_run, read_result, refuse_running

# Those that take no --system: the weights bring their configuration. The launcher takes the geometry from it.
WITHOUT_SYSTEM = ("eval",)
IMAGE_PYTHON = "python3"  # inside an Apptainer image; the interpreter outside is another


@dataclass(frozen=True)
class Verb:
    name: str
    arguments: tuple[str, ...]  # as ranks get them: what only concerns the launcher is taken out
    config: Config
    out: Path
    resume: Path | None
    system: System | None
    as_json: bool
    quiet: bool
    dry_run: bool

    def command(self, python: str = TRAINSTONE[0]) -> list[str]:
        return [python, *TRAINSTONE[1:], self.name, *self.arguments]

    def wrap(self, command: Sequence[str], image: str, binds: Sequence[Path], *, gpus: bool, program: str) -> list[str]:
        """Return a command line that runs `command` in an Apptainer image.

        These folders and the data's have the names they have outside; one that lies within another is not named twice.
        """
        root = self.config.data.root
        wanted = sorted({folder.absolute() for folder in (*binds, *([Path(root)] if root else []))})
        outer = [one for one in wanted if not any(one != other and one.is_relative_to(other) for other in wanted)]
        bound = [word for folder in outer for word in ("--bind", str(folder))]
        return [program, "exec", *(["--nv"] if gpus else []), *bound, image, *command]


def read_verb(words: Sequence[str], *, system: str | None, ranks: int | None = None) -> Verb:
    """Take a command line apart and let the verb itself check it; its own mistakes keep their message and code.

    `system`: given to the launcher, for the verb as well. `ranks`: of one world, where it is known.
    """
    allowed = VERBS if ranks != 1 else (*VERBS, *ALONE_VERBS)
    if not words or words[0] not in allowed:
        named = repr(words[0]) if words else "nothing"
        raise ConfigError(
            f"{named} cannot be launched on many ranks; {', '.join(allowed)} can",
            hint="for example: trainstone launch local --ranks 2 -- train demo-classify",
        )
    name, rest = words[0], list(words[1:])
    as_json, quiet = _take_flag(rest, "--json"), _take_flag(rest, "--quiet", "-q")
    dry_run = _take_flag(rest, "--dry-run")
    theirs = _find_value(rest, "--system")
    if system is not None and theirs is not None and theirs != system:
        raise ConfigError(f"--system {system} and --system {theirs}", hint="give one of them")
    if system is not None and theirs is None and name not in WITHOUT_SYSTEM:
        rest += ["--system", system]
    if (_find_value(rest, "--runs") or "1") != "1":
        hint = "launch one run for each --seed instead"
        raise ConfigError("--runs starts worlds of its own, one after the other", hint=hint)
    for option in ("--predict", "--export"):
        if any(word == option or word.startswith(f"{option}=") for word in rest):
            raise ConfigError(f"{option} is the work of one process", hint="start it without `trainstone launch`")
    resume, chosen = _find_value(rest, "--resume"), system or theirs
    return Verb(
        name=name,
        arguments=tuple(rest),
        config=resolve_plan(name, rest),
        out=Path(_find_value(rest, "--out") or "runs"),
        resume=Path(resume) if resume else None,
        system=load_system(chosen) if chosen else None,
        as_json=as_json,
        quiet=quiet,
        dry_run=dry_run,
    )


def resolve_plan(name: str, arguments: Sequence[str]) -> Config:
    """Return the configuration that the verb would run with; raise its error where it would not run."""
    command = [*TRAINSTONE, name, *arguments, "--dry-run", "--json"]
    with TemporaryDirectory() as folder:
        (Path(folder) / FOLDER).mkdir()
        environment = {**without_launch(os.environ), RUN: folder}  # where it leaves its error
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise explain_end(Path(folder), done.returncode, done.stderr)
    return Config.model_validate_json(json.dumps(json.loads(done.stdout)["config"]))


def _take_flag(words: list[str], *names: str) -> bool:
    found = any(word in names for word in words)
    words[:] = [word for word in words if word not in names]
    return found


def _find_value(words: Sequence[str], name: str) -> str | None:
    """Return the value of an option, as --name VALUE or --name=VALUE; the last counts."""
    value = None
    for place, word in enumerate(words):
        if word == name and place + 1 < len(words):
            value = words[place + 1]
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
    return value


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
    return {RUN: str(run), LAUNCH: launch, RANKS: str(ranks)} | ({BIND: "cores"} if bind else {})
