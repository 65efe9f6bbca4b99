"""docs/reference/ is what scripts/make-reference writes now, and it documents everything."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes.command import ROOT
from trainstone.config.load import list_keys

PAGES = ("cli.md", "exit-codes.md", "findings.md", "recipe-keys.md", "result-json.md")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference")
    subprocess.run([sys.executable, ROOT / "scripts/make-reference", folder], check=True)
    return folder


@pytest.mark.parametrize("name", PAGES)
def test_reference_page_is_up_to_date(made: Path, name: str):
    assert (made / name).read_text() == (ROOT / "docs/reference" / name).read_text(), "run: make reference"


def test_reference_writes_only_these_pages(made: Path):
    assert sorted(path.name for path in made.iterdir()) == sorted(PAGES)


def test_every_exit_code_verb_and_flag_is_described(made: Path):
    assert "|  |" not in (made / "exit-codes.md").read_text()
    text = re.sub(r"\n  ", " ", (made / "cli.md").read_text())
    assert re.findall(r"^- `[^`]+`: *(?:\[default.*)?$", text, re.MULTILINE) == []
    assert re.findall(r"^## .*\n+```", text, re.MULTILINE) == []


def test_every_recipe_key_has_a_sentence():
    assert [key for key, _, _, meaning in list_keys() if not meaning] == []
