"""Clearing the page cache: what is written, and what is told where it may not be. Never this machine's own cache."""

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


def test_clear_page_cache_describes_a_failure(switch: Path):
    switch.unlink()
    switch.mkdir()
    cleared = pagecache.clear_page_cache()
    assert not cleared.done
    assert cleared.told.endswith(f"{switch}: Is a directory")
