"""A line that names a job script instead of the program: the file is read as if it were pasted. Nothing is executed."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from trainstone.config.old.commands import LONGEST_TEXT
from trainstone.config.old.flag import VALUES_HINT
from trainstone.config.old.line import Line, Reading, read_line
from trainstone.errors import ConfigError

PROGRAM = r"[\w.-]+\.py"
ANY_SCRIPT = r"[\w.-]+\.(?:sh|bash|slurm|sbatch|job|sub)"


def read_started(words: Sequence[str], own_scripts: str = "") -> Line:
    """Take a line apart, or the script that it names; one of the original's own that is not there stays as it is."""
    patterns = (PROGRAM, *filter(None, (own_scripts,)), ANY_SCRIPT)
    line = read_line(words, Reading(patterns))
    if not line.path or line.program.endswith(".py"):
        return line
    if Path(line.path).is_file():
        return open_script(line, patterns, own_scripts)
    if not own_scripts or not re.fullmatch(own_scripts, line.program):
        hint = f'where it lies, give its text: "$(cat {shlex.quote(line.path)})"'
        raise ConfigError(f"there is no file {line.path}", hint=hint)
    return line


def tell_own(line: Line, whose: str) -> str:
    """Say where the words of a script come from that is not there."""
    return f"{line.program}: what the {whose}'s own script ran; a file of that name that is there would be read"


def open_script(line: Line, patterns: tuple[str, ...], own_scripts: str) -> Line:
    """Read the line with which a script starts the program; its arguments are $1, $2 and so on."""
    text = read_text(Path(line.path))
    known = {str(number): word for number, word in enumerate(line.after[:9], start=1)}
    known |= {"@": " ".join(line.after), "*": " ".join(line.after)}
    inner = read_line([f"{text}\n"], Reading(patterns, known=known, started=line.before))
    if not inner.program.endswith(".py") and not (own_scripts and re.fullmatch(own_scripts, inner.program)):
        raise ConfigError(f"{line.path}: no line of it starts the program", hint=VALUES_HINT)
    return inner._replace(notes=(*line.notes, f"{line.path}: read as text, not executed", *inner.notes))


def read_text(path: Path) -> str:
    """Return the text of a file that is not too large to be a script."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LONGEST_TEXT + 1)
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"cannot read {path}: {err}") from err
    if len(text) > LONGEST_TEXT:
        raise ConfigError(f"{path} is larger than {LONGEST_TEXT:,} characters: no script")
    return text
