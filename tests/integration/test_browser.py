"""tests/browser.py on pages written here: what it reports is what the page did."""

from pathlib import Path

import pytest

from browser import Browser, BrowserError, Page
from nursery import wait_until

pytestmark = pytest.mark.slow


def open_page(browser: Browser, folder: Path, body: str, **options: bool | int) -> Page:
    path = folder / "page one & only.html"
    path.write_text(f"<!doctype html><meta charset=utf-8><title>Ünder test</title>{body}", encoding="utf-8")
    return browser.open(path, **options)  # type: ignore[arg-type]


def test_evaluate_returns_values_awaits_promises_and_raises_what_a_script_throws(browser: Browser, tmp_path: Path):
    quiet = "<script>console.log('a'); console.warn('b'); try { null.x } catch {}</script>"
    page = open_page(browser, tmp_path, quiet, width=640, height=480, dark=True)
    assert (page.console_errors, page.network_requests) == ([], [])
    assert page.evaluate("[document.title, innerWidth, innerHeight]") == ["Ünder test", 640, 480]
    assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") is True
    assert page.evaluate("new Promise(done => setTimeout(() => done('late'), 50))") == "late"
    assert page.evaluate("'x'.repeat(3000000).length + '…'") == "3000000…"
    for script in ("null.x", "Promise.reject(new Error('no'))", "("):
        with pytest.raises(BrowserError):
            page.evaluate(script)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("<script>console.error('bad', 7)</script>", "bad 7"),
        ("<script>undefinedFunction()</script>", "undefinedFunction is not defined"),
        ("<script>Promise.reject(new Error('not caught'))</script>", "not caught"),
        ("<script src='not-there.js'></script>", "not-there.js"),
        ("<iframe srcdoc=\"<script>console.error('within')</script>\"></iframe>", "within"),
    ],
)
def test_console_errors_are_seen(browser: Browser, tmp_path: Path, body: str, words: str):
    (error,) = open_page(browser, tmp_path, body).console_errors
    assert words in error


@pytest.mark.parametrize(
    "body",
    [
        "<img src='http://example.com/x'>",
        "<script>fetch('http://example.com/x').catch(() => {})</script>",
        "<iframe src='http://example.com/x'></iframe>",
        "<script>new WebSocket('ws://example.com/x')</script>",
        "<script>new Worker(URL.createObjectURL(new Blob([`fetch('http://example.com/x')`])))</script>",
    ],
)
def test_every_request_is_listed(browser: Browser, tmp_path: Path, body: str):
    page = open_page(browser, tmp_path, body)
    wait_until(lambda: bool(page.network_requests))
    assert [url.partition("://")[2] for url in page.network_requests] == ["example.com/x"]


def test_keys_reach_the_page(browser: Browser, tmp_path: Path):
    page = open_page(browser, tmp_path, "<input id=a><button id=b onclick='window.clicked = true'>x</button>")
    for key in ("Tab", "h", "i", "A", "Tab", "Enter"):
        page.press(key)
    assert page.evaluate("[a.value, window.clicked]") == ["hiA", True]
