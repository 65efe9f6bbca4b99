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
    wanted = sorted({folder.absolute() for folder in binds})
    for folder in wanted:
        if not any(folder != other and folder.is_relative_to(other) for other in wanted):
            words += ["--bind", str(folder)]
    return [*words, image, *command]
