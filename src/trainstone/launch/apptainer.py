"""The words that run a rank's command in an Apptainer image, where its folders have the names they have outside."""

from collections.abc import Sequence
from pathlib import Path

PROGRAM = "apptainer"
PYTHON = "python3"
"""Inside an image; the interpreter outside is another."""


def wrap_command(
    command: Sequence[str], image: str, binds: Sequence[Path], *, gpus: bool, program: str = PROGRAM
) -> list[str]:
    """Return a command line that runs `command` in the image; folders that lie within another are not named twice."""
    words = [program, "exec", *(["--nv"] if gpus else [])]
    for folder in list_binds(binds):
        words += ["--bind", str(folder)]
    return [*words, image, *command]


def list_binds(binds: Sequence[Path]) -> list[Path]:
    """Return folders as absolute paths, without those that another one holds."""
    wanted = sorted({folder.absolute() for folder in binds})
    return [one for one in wanted if not any(one != other and one.is_relative_to(other) for other in wanted)]
