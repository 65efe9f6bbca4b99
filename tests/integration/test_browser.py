"""tests/browser.py sees what a page does wrong: else no test of a page could fail."""

from pathlib import Path

import pytest

from browser import Browser, BrowserError

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("body", "error", "request_"),
    [
        ("<script>console.error('bad', 7)</script>", "bad 7", ""),
        ("<script>undefinedFunction()</script>", "undefinedFunction is not defined", ""),
        ("<script>fetch('http://example.com/x').catch(() => {})</script>", "", "http://example.com/x"),
        ("<img src='http://example.com/x'>", "", "http://example.com/x"),
    ],
)
def test_browser_lists_errors_and_requests(browser: Browser, tmp_path: Path, body: str, error: str, request_: str):
    path = tmp_path / "page one & only.html"
    path.write_text(f"<!doctype html><meta charset=utf-8><title>Ünder test</title>{body}", encoding="utf-8")
    page = browser.open(path, width=640, height=480, dark=True)
    assert page.evaluate("[document.title, innerWidth, innerHeight]") == ["Ünder test", 640, 480]
    assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") is True
    with pytest.raises(BrowserError):
        page.evaluate("null.x")
    assert error in " ".join(page.console_errors)
    assert page.network_requests == ([request_] if request_ else [])
