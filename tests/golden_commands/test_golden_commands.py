"""Every verb, run small, shows and writes what the golden files record. README.md says how to record again."""

import difflib
import os
from pathlib import Path

import pytest

from golden_commands.cases import Case
from golden_commands.harness import CASES, Harness, same
from nursery import Nursery

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def harness(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Harness:
    return Harness(nursery, tmp_path_factory.mktemp("golden-commands"))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_command_shows_and_writes_what_is_recorded(case: Case, harness: Harness):
    path = HERE / f"{case.name}.txt"
    now = harness.describe(case)
    if os.environ.get("GOLDEN_RECORD"):
        if not path.exists() or not same(path.read_text(), now, case.losses):
            path.write_text(now)
        return
    recorded = path.read_text()
    if not same(recorded, now, case.losses):
        lines = difflib.unified_diff(recorded.splitlines(), now.splitlines(), path.name, "now", lineterm="", n=1)
        pytest.fail("\n".join(lines), pytrace=False)


def test_every_golden_file_belongs_to_a_command():
    assert {path.stem for path in HERE.glob("*.txt")} == set(CASES)
