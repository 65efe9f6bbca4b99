"""The project speaks plain English: words of its old dialect must not come back.

Counted in source, tests, documents, benchmarks and scripts; the help output is part of the source and of
docs/reference/cli.md.
"""

import re
import subprocess
from pathlib import Path

import pytest

from support.processes.command import ROOT

WORDS = re.compile(
    r"\b(told|tells?|asked|pictures?|anew|nobody|somebody|whoever|judg\w*|mend\w*)\b"
    r"|held against|gone on|taken up|(?<!there )\bis no (?!longer\b)[a-z]+"
    r"|(?<![a-z])(tell|told|asked|judge|judged|picture)_|_(tells?|told|asked|judge|judged|pictures?)(?![a-z])",
    re.IGNORECASE,
)
ALLOWED = {
    ".tell(": "a method of Python's files",
    "Mendeley": "a name",
}
SUFFIXES = {".py", ".md", ".toml", ".j2", ".css", ".js", ".txt", ""}
SELF = {"tests/test_language.py"}


def list_files() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    return [
        name
        for name in listed.stdout.splitlines()
        if Path(name).suffix in SUFFIXES and name not in SELF and (ROOT / name).is_file()
    ]


def find_dialect(text: str) -> list[str]:
    for phrase in ALLOWED:
        text = text.replace(phrase, "")
    return [f"line {text.count(chr(10), 0, found.start()) + 1}: {found[0]}" for found in WORDS.finditer(text)]


@pytest.mark.parametrize(
    "text", ["as told before", "tell_rate()", "Pictures", "it is no number", "was mended", "MISJUDGED_x"]
)
def test_find_dialect_finds_old_words(text: str):
    assert bool(find_dialect(text)) == ("MIS" not in text)


def test_files_are_in_plain_english():
    found = {name: find_dialect((ROOT / name).read_text(errors="replace")) for name in list_files()}
    assert {name: words for name, words in found.items() if words} == {}
    assert len(found) > 500
