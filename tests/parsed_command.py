"""What the real command line makes of a printed command: parsed, not run."""

import re
import shlex
from functools import cache
from typing import Any

import typer

from trainstone.cli.main import app
from trainstone.config.old.translate import Translation

STARTED = re.compile(r"trainstone launch [^;]*")


def parse_told(told: Translation) -> None:
    started = [line.replace("$seed", "1") for note in told.notes for line in STARTED.findall(note) if " -- " in line]
    for command in (told.command, told.file_command, *started):
        if command:
            parse_command(command)


def parse_command(command: str) -> dict[str, Any]:
    words = shlex.split(command)
    assert words[0] == "trainstone", command
    return parse_words(words[1:])


def parse_words(words: list[str]) -> dict[str, Any]:
    """Walk down the verbs; of `launch ... -- VERB ...` what is started is parsed, too."""
    launches = words[:1] == ["launch"]
    verb, rest = find_verb(words)
    if launches:
        parse_words(rest[rest.index("--") + 1 :])
    return dict(verb.make_context(" ".join(words), list(rest)).params)


def find_verb(words: list[str]) -> tuple[Any, list[str]]:
    found, rest = read_surface(), list(words)
    while (below := getattr(found, "commands", None)) is not None and (rest or found is read_surface()):
        assert "".join(rest[:1]) in below, f"there is no {shlex.join(words)}"
        found = below[rest.pop(0)]
    return found, rest


@cache
def read_surface() -> Any:
    return typer.main.get_command(app)
