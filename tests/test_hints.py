"""Commands in hints, errors, findings, docs and recipes are pasted by users: the real command line must accept each.

In a message a command ends at a semicolon, comma, colon, closing bracket or backtick, or at the end of the text.
"""

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.builders.command_lines import parse_command, read_surface
from support.processes.command import ROOT
from trainstone.config.load import list_keys, parse_setting
from trainstone.results.finding_codes import CODES

SOURCES = sorted((ROOT / "src").rglob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "benchmarks/README.md"]
HOLE = "{}"
"""A placeholder of an f-string."""
FILLERS = ("1", "x", "train.batch_size=1", "bench", "train", "local", "tbd")
"""What placeholders stand for; a command is good if one combination is accepted."""
COMMAND = re.compile(r"(?<![\w/.-])trainstone (?=[a-z{])[^;,`\n·]*?(?=[;,`\n)]| ·|: |\.$|\. |$)")
SETTING = re.compile(r"--set (?P<setting>[\w.]+=[^\s;,`)]+)")
ELLIPSIS = re.compile(r" \.\.\.| …")
KEYS = {key for key, *_ in list_keys()}


def read_text(node: ast.expr) -> str:
    """Return the text of a string or f-string, also of joined ones, with HOLE for every placeholder."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(read_text(part) if isinstance(part, ast.Constant) else HOLE for part in node.values)
    if isinstance(node, ast.BinOp):
        return read_text(node.left) + read_text(node.right)
    return ""


def list_strings(tree: ast.AST) -> Iterator[str]:
    inner: set[int] = set()
    for node in ast.walk(tree):
        if id(node) in inner or isinstance(node, ast.FormattedValue):
            continue
        if isinstance(node, ast.JoinedStr | ast.BinOp):
            inner |= {id(part) for part in ast.walk(node) if part is not node}
        if isinstance(node, ast.JoinedStr | ast.BinOp | ast.Constant) and (text := read_text(node)):
            yield text


def list_docstrings(tree: ast.AST) -> set[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    return {node.body[0].value.value for node in ast.walk(tree) if isinstance(node, kinds) and ast.get_docstring(node)}


def list_messages(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    own = list_docstrings(tree)
    yield from (text for text in list_strings(tree) if "trainstone " in text and text not in own)


def find_commands(text: str) -> list[str]:
    text = re.sub(r"\s*\\\n\s*", " ", text)
    return [found.rstrip(" .") for found in COMMAND.findall(text)]


def is_name(command: str) -> bool:
    """A verb that is only named: `trainstone data convert`."""
    found = read_surface()
    for word in command.split()[1:]:
        found = getattr(found, "commands", {}).get(word)
        if found is None:
            return False
    return True


def is_prose(text: str) -> bool:
    """In messages, trainstone can be the subject of a sentence: "trainstone reads format 2"."""
    return text.split()[1] not in {*read_surface().commands, HOLE}


def accepts(command: str) -> str:
    """Return why the real command line refuses a command; empty: it accepts it."""
    refused = ""
    for fillers in itertools.product(FILLERS, repeat=min(3, command.count(HOLE))):
        parts = command.split(HOLE)
        holes = itertools.chain(fillers, itertools.repeat("x"))
        filled = parts[0] + "".join(f"{next(holes)}{part}" for part in parts[1:])
        filled = re.sub(r"\b(N|NODES|BATCH|K)\b", "2", filled)
        if is_name(filled):
            return ""
        try:
            parse_command(filled)
        except (Exception, SystemExit) as err:  # noqa: BLE001  typer's own classes are private
            refused = f"{filled}: {getattr(err, 'message', None) or err}"
        else:
            return ""
    return refused


MESSAGES = [
    pytest.param(command, id=f"{path.stem}: {command}")
    for path in SOURCES
    for command in dict.fromkeys(itertools.chain.from_iterable(map(find_commands, list_messages(path))))
    if not is_prose(command)
]
DOCUMENTED = [
    pytest.param(command, id=f"{path.stem}: {command}")
    for path in PAGES
    for command in dict.fromkeys(re.findall(r"`(trainstone [a-z][^`]*)`", path.read_text()))
]
"""Inline only: tests/test_docs.py has the blocks."""


@pytest.mark.parametrize("command", MESSAGES)
def test_command_in_a_message_is_accepted(command: str):
    if not ELLIPSIS.search(command):
        assert accepts(command) == ""


@pytest.mark.parametrize("command", DOCUMENTED)
def test_command_in_the_docs_is_accepted(command: str):
    if not ELLIPSIS.search(command):
        assert accepts(" ".join(command.split(" > ")[0].split())) == ""


def test_settings_in_messages_and_docs_are_recipe_keys():
    texts = [text for path in SOURCES for text in list_strings(ast.parse(path.read_text()))]
    texts += [known.hint for known in CODES.values()] + [path.read_text() for path in PAGES]
    settings = {found["setting"] for text in texts for found in SETTING.finditer(text) if HOLE not in found[0]}
    unknown = sorted(one for one in settings if parse_setting(one)[0] not in KEYS and "KEY" not in one.upper())
    assert unknown == []
    assert len(settings) > 40
