"""Clearing the page cache: what is written, and what is told where it may not be. Never this machine's own cache."""

import re
from pathlib import Path

import pytest

from trainstone.machine import pagecache


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    file = tmp_path / "drop_caches"
    file.write_text("0")
    monkeypatch.setattr(pagecache, "SWITCH", file)
    monkeypatch.setattr(pagecache.os, "sync", lambda: None)
    return file


def test_pages_and_names_are_forgotten(switch: Path):
    done, told, at_seconds = pagecache.clear_page_cache()
    assert (done, told, switch.read_text()) == (True, "page cache cleared", "3")
    assert at_seconds is not None


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PermissionError(13, "Permission denied"), "not root"),
        (FileNotFoundError(2, "No such file"), "this system has no .*drop_caches"),
        (OSError(30, "Read-only file system"), ".*drop_caches: Read-only file system"),
    ],
)
def test_where_it_may_not_it_says_so(switch: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, told: str):
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(Path, "write_text", refuse)
    cleared = pagecache.clear_page_cache()
    assert not cleared.done
    assert re.fullmatch(f"page cache not cleared: {told}", cleared.told)
