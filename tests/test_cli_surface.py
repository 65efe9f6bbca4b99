"""The verbs and flags, frozen: other people's scripts hang on them, so a change here is a decision."""

import re
import subprocess
import sys

import pytest
import typer.main

from trainstone.cli.main import app

COMMON = {"--set", "--system", "--out", "--seconds", "--runs", "--seed", "--device", "--strict", "--dry-run", "--json"}
LOUDNESS = {"--verbose", "-v", "--quiet", "-q"}
SURFACE = {
    "bench": (["recipe"], COMMON | LOUDNESS | {"--iterations", "--against"}),
    "compare": (["runs"], {"--to", "--force", "--fail-below", "--page", "--json"}),
    "doctor": (["recipe"], {"--aa", "--set", "--seconds", "--device", "--out", "--json"} | LOUDNESS),
    "recipes": (["name"], {"--json"}),
    "report": (["runs"], {"--page", "--png", "--svg", "--pdf", "--json"}),
}


def commands():
    return typer.main.get_command(app).commands


def test_verbs():
    assert set(commands()) == set(SURFACE)


@pytest.mark.parametrize("verb", SURFACE)
def test_flags_of(verb: str):
    arguments, flags = SURFACE[verb]
    parameters = commands()[verb].params
    assert [p.name for p in parameters if p.param_type_name == "argument"] == arguments
    assert {name for p in parameters if p.param_type_name == "option" for name in p.opts} == flags


@pytest.mark.parametrize("verb", SURFACE)
def test_no_more_than_fifteen_flags(verb: str):
    assert len([p for p in commands()[verb].params if p.param_type_name == "option"]) <= 15


@pytest.mark.parametrize("verb", SURFACE)
def test_every_flag_is_explained(verb: str):
    unexplained = [p.name for p in commands()[verb].params if p.name != "help" and not getattr(p, "help", None)]
    assert not unexplained


def test_help_names_the_verbs():
    done = subprocess.run([sys.executable, "-m", "trainstone", "--help"], capture_output=True, text=True, check=True)
    assert re.search(r"bench\s+Measure how fast", done.stdout)


def test_completion_is_offered():
    done = subprocess.run(
        [sys.executable, "-m", "trainstone", "--show-completion", "bash"], capture_output=True, text=True
    )
    assert "complete" in done.stdout
