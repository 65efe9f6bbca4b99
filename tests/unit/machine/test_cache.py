"""Where generated and downloaded things are kept."""

from pathlib import Path

import pytest

from trainstone.machine.cache import cache_folder


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TRAINSTONE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "trainstone"
    monkeypatch.setenv("TRAINSTONE_CACHE", "elsewhere")
    assert cache_folder() == Path("elsewhere")


def test_without_any_variable_it_is_below_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRAINSTONE_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache/trainstone"
