"""Clearing the page cache: what is written, and what is told where it may not be. Never this machine's own cache."""

from pathlib import Path

import pytest

from trainstone.machine import pagecache


def test_clear_page_cache_forgets_pages_and_names_and_describes_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    switch = tmp_path / "drop_caches"
    monkeypatch.setattr(pagecache, "SWITCH", switch)
    monkeypatch.setattr(pagecache.os, "sync", lambda: None)
    done, told, at_seconds = pagecache.clear_page_cache()
    assert (done, told, switch.read_text()) == (True, "page cache cleared", "3")
    assert at_seconds is not None
    switch.unlink()
    switch.mkdir()
    cleared = pagecache.clear_page_cache()
    assert not cleared.done
    assert cleared.told.endswith(f"{switch}: Is a directory")
