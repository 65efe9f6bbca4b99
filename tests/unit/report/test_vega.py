"""The chart scripts: made once, kept, made again when the kept ones are damaged or cannot be kept."""

from pathlib import Path

import pytest

from trainstone.errors import ResultError
from trainstone.report.page import load_scripts

WHOLE = "var x=1;/* </script <!-- */window.vegaEmbed=x;window.vega=x;"


def test_load_scripts_keeps_them_and_survives_a_damaged_or_readonly_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = []
    monkeypatch.setenv("TRAINSTONE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda: made.append(1) or WHOLE)
    text = load_scripts()
    assert "window.vegaEmbed=x" in text
    assert "</script" not in text
    assert "<!--" not in text
    (kept,) = (tmp_path / "cache").iterdir()
    assert kept.read_text() == WHOLE
    assert (load_scripts(), len(made)) == (text, 1)
    kept.write_text(WHOLE[:20])
    assert (load_scripts(), len(made), kept.read_text()) == (text, 2, WHOLE)
    (tmp_path / "file").write_text("a file, not a folder")
    monkeypatch.setenv("TRAINSTONE_CACHE", str(tmp_path / "file"))
    assert load_scripts() == text
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda: "half")
    with pytest.raises(ResultError, match="chart scripts"):
        load_scripts()
