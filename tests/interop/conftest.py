"""Data sets for the interop tests, made once per session: image folders and the data sets that the CLI writes."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.builders.raw_data_sets import SCENES, make_imagenet, make_unusual_folders
from support.processes.command import LIMIT, command_line

LAUNCHERS = ("RANK", "WORLD_SIZE", "SLURM_", "OMPI_", "PMI")


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that runs `trainstone data` and returns the data set; the same command runs only once."""
    root = tmp_path_factory.mktemp("made")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    made: dict[tuple[str, ...], Path] = {}

    def run(verb: str, *arguments: Path | str) -> Path:
        key = (verb, *map(str, arguments))
        if key not in made:
            target = root / f"{len(made)}-{verb}"
            to = [str(target)] if verb == "convert" else ["--to", str(target)]
            command = command_line("data", *key, *to, "-q")
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT)
            assert done.returncode == 0, done.stderr
            made[key] = target
        return made[key]

    return run


@pytest.fixture(scope="session")
def shapes(make: Callable[..., Path]) -> Path:
    return make("make", "classify", "--count", "131", "--val", "35", "--classes", "6", "--size", "56x48")


@pytest.fixture(scope="session")
def scenes(make: Callable[..., Path]) -> Path:
    return make("make", "detect", *SCENES)


@pytest.fixture(scope="session")
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("imagenet")
    make_imagenet(root)
    return root


@pytest.fixture(scope="session")
def oddities(imagenet: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders with almost all kinds of files that im2rec reads or skips."""
    root = tmp_path_factory.mktemp("oddities")
    make_unusual_folders(root, imagenet)
    return root
