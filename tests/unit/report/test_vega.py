"""The chart scripts: made once, kept, remade when the kept ones are damaged or cannot be kept."""

from pathlib import Path

import pytest

from trainstone.errors import ResultError
from trainstone.report import vega
from trainstone.report.vega import Scripts, is_whole

WHOLE = "var x=1;/* </script <!-- */window.vegaEmbed=x;window.vega=x;"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINSTONE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(vega, "MAKE", f"import sys; sys.stdout.write({WHOLE!r})")
    return tmp_path / "cache"


def test_they_are_made_once_and_kept(cache: Path, monkeypatch: pytest.MonkeyPatch):
    made = Scripts().text()
    assert "window.vegaEmbed=x" in made
    assert "</script" not in made
    assert "<!--" not in made
    (kept,) = cache.iterdir()
    assert kept.read_text() == WHOLE
    monkeypatch.setattr(vega, "MAKE", "raise SystemExit(1)")
    assert Scripts().text() == made


def test_a_damaged_copy_is_made_anew(cache: Path):
    Scripts().text()
    (kept,) = cache.iterdir()
    kept.write_text(WHOLE[:20])
    assert is_whole(Scripts().text())
    assert kept.read_text() == WHOLE


def test_a_cache_that_cannot_be_written_costs_only_time(cache: Path):
    cache.write_text("a file, not a folder")
    assert is_whole(Scripts().text())


def test_a_broken_library_is_one_message(cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vega, "MAKE", "raise SystemExit('no such library')")
    with pytest.raises(ResultError, match="no such library"):
        Scripts().text()


def test_what_nobody_waited_for_is_ended(cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vega, "MAKE", "import time; time.sleep(600)")
    with Scripts() as scripts:
        maker = scripts._maker
        assert maker is not None
    assert maker.returncode is not None


def test_a_maker_that_hangs_is_one_message(cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vega, "MAKE", "import time; time.sleep(600)")
    monkeypatch.setattr(vega, "TIMEOUT_SECONDS", 0.1)
    with Scripts() as scripts, pytest.raises(ResultError, match="not made within"):
        scripts.text()
