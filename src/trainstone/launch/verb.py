"""Parse the verb that the ranks run, as far as the launcher needs it, and check it with a dry run."""

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
    FOLDER,
    LAUNCH,
    RANKS,
    RUN,
    SINGLE_RANK_VERBS,
    VERBS,
    remove_attempt_files,
    remove_launch_variables,
)
from trainstone.machine.ranks import BIND
from trainstone.results.run_folder import name_run, read_result, refuse_running

# Verbs without --system: their configuration comes with the weights. The launcher still uses it for nodes and devices.
WITHOUT_SYSTEM = ("eval",)
IMAGE_PYTHON = "python3"  # in an Apptainer image, whose interpreter is not the host's


@dataclass(frozen=True)
class Verb:
    """A verb with its arguments, as all ranks run it."""

    name: str
    arguments: tuple[str, ...]  # as ranks get them, without options for the launcher
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

        `binds` and the data folder are mounted under their own paths; a folder inside another is not repeated.
        """
        root = self.config.data.root
        folders = sorted({folder.absolute() for folder in (*binds, *([Path(root)] if root else []))})
        outer = [path for path in folders if not any(path != other and path.is_relative_to(other) for other in folders)]
        bound = [word for folder in outer for word in ("--bind", str(folder))]
        return [program, "exec", *(["--nv"] if gpus else []), *bound, image, *command]


def parse_verb(words: Sequence[str], *, system: str | None, ranks: int | None = None) -> Verb:
    """Parse a command line and let the verb check it in a dry run; its errors keep message and exit code.

    `system`: from the launcher's options, also passed to the verb. `ranks`: world size, if known.
    """
    allowed = VERBS if ranks != 1 else (*VERBS, *SINGLE_RANK_VERBS)
    if not words or words[0] not in allowed:
        what = f"cannot launch {words[0]!r} on many ranks" if words else "no verb to launch"
        raise ConfigError(
            f"{what}: expected {', '.join(allowed)}",
            hint="trainstone launch local --ranks 2 -- train demo-classify",
        )
    name, rest = words[0], list(words[1:])
    as_json, quiet = _take_flag(rest, "--json"), _take_flag(rest, "--quiet", "-q")
    dry_run = _take_flag(rest, "--dry-run")
    verb_system = _find_value(rest, "--system")
    if system is not None and verb_system is not None and verb_system != system:
        raise ConfigError(
            f"--system is given twice: {system} for launch, {verb_system} for {name}", hint="remove one of them"
        )
    if system is not None and verb_system is None and name not in WITHOUT_SYSTEM:
        rest += ["--system", system]
    if (_find_value(rest, "--runs") or "1") != "1":
        hint = "launch one run for each --seed instead"
        raise ConfigError(f"cannot launch {name} --runs: it starts its runs one after the other", hint=hint)
    for option in ("--predict", "--export"):
        if any(word == option or word.startswith(f"{option}=") for word in rest):
            raise ConfigError(
                f"cannot launch {name} {option}: it runs in one process", hint=f"trainstone {name} {option}"
            )
    resume, chosen = _find_value(rest, "--resume"), system or verb_system
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
    """Return the configuration that the verb would run with; raise its error if it would fail."""
    command = [*TRAINSTONE, name, *arguments, "--dry-run", "--json"]
    with TemporaryDirectory() as folder:
        (Path(folder) / FOLDER).mkdir()
        environment = {**remove_launch_variables(os.environ), RUN: folder}  # the folder for its error
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise explain_end(Path(folder), done.returncode, done.stderr)
    return Config.model_validate_json(json.dumps(json.loads(done.stdout)["config"]))


def _take_flag(words: list[str], *names: str) -> bool:
    found = any(word in names for word in words)
    words[:] = [word for word in words if word not in names]
    return found


def _find_value(words: Sequence[str], name: str) -> str | None:
    """Return the value of an option given as --name VALUE or --name=VALUE; the last one counts."""
    value = None
    for index, word in enumerate(words):
        if word == name and index + 1 < len(words):
            value = words[index + 1]
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
    return value


def prepare_folder(verb: Verb, suffix: str = "") -> Path:
    """Create the folder of a new run with launch/ in it, or reuse that of a resumed run; return its absolute path.

    `suffix` follows the recipe's name in the name of a new folder.
    """
    if verb.resume is not None:
        refuse_running(verb.resume, read_result(verb.resume))  # raises if this is not a run folder
    run = (verb.resume or verb.out / name_run(f"{verb.config.name}{suffix}")).absolute()
    try:
        (run / FOLDER).mkdir(parents=True, exist_ok=verb.resume is not None)
        remove_attempt_files(run)
    except OSError as err:
        raise ResultError(
            f"cannot write run folder {run}: {err.strerror or err}", hint="--out DIR chooses another folder"
        ) from err
    return run


def build_rank_environment(run: Path, launch: str, *, ranks: int) -> dict[str, str]:
    return {RUN: str(run), LAUNCH: launch, RANKS: str(ranks), BIND: "cores"}
