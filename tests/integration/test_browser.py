"""tests/browser.py on pages written here: what it reports is what the page did."""

import struct
from pathlib import Path

import pytest

from browser import Browser, BrowserError

pytestmark = pytest.mark.slow

BODY = "<!doctype html><meta charset=utf-8><title>Ünder test</title>"


@pytest.fixture
def write(tmp_path: Path):
    """Write a page and return its path."""

    def page(body: str, name: str = "page one & only.html") -> Path:
        path = tmp_path / name
        path.write_text(BODY + body, encoding="utf-8")
        return path

    return page


def png_size(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", head[16:24])


def test_evaluate_returns_values_awaits_promises_and_raises_what_a_script_throws(browser: Browser, write):
    page = browser.open(write("<script>console.log('a'); console.warn('b'); try { null.x } catch {}</script>"))
    assert (page.console_errors, page.network_requests) == ([], [])
    assert page.evaluate("document.title") == "Ünder test"
    assert page.evaluate("({a: [1, 'x', null]})") == {"a": [1, "x", None]}
    assert page.evaluate("new Promise(done => setTimeout(() => done('late'), 50))") == "late"
    assert page.evaluate("'x'.repeat(3000000).length + '…'") == "3000000…"
    for script in ("null.x", "Promise.reject(new Error('no'))", "("):
        with pytest.raises(BrowserError):
            page.evaluate(script)
    assert page.evaluate("2") == 2


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("<script>console.error('bad', 7)</script>", "bad 7"),
        ("<script>undefinedFunction()</script>", "undefinedFunction is not defined"),
        ("<script>Promise.reject(new Error('nobody caught it'))</script>", "nobody caught it"),
        ("<script src='not-there.js'></script>", "not-there.js"),
        ("<iframe srcdoc=\"<script>console.error('within')</script>\"></iframe>", "within"),
    ],
)
def test_console_errors_are_seen(browser: Browser, write, body: str, words: str):
    (error,) = browser.open(write(body)).console_errors
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
def test_every_request_is_listed(browser: Browser, write, body: str):
    page = browser.open(write(body))
    page.evaluate("new Promise(done => setTimeout(done, 300))")
    assert [url.partition("://")[2] for url in page.network_requests] == ["example.com/x"]


def test_theme_size_and_screenshot(browser: Browser, write, tmp_path: Path):
    page = browser.open(write("<body style='margin:0'><div style='height:2000px'>"), width=640, height=480, dark=True)
    assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") is True
    assert page.evaluate("[innerWidth, innerHeight]") == [640, 480]
    assert png_size(page.screenshot(tmp_path / "page.png")) == (640, 2000)
    assert browser.open(write("")).evaluate("matchMedia('(prefers-color-scheme: dark)').matches") is False


def test_keys_reach_the_page(browser: Browser, write):
    page = browser.open(write("<input id=a><button id=b onclick='window.clicked = true'>x</button>"))
    for key in ("Tab", "h", "i", "A", "Tab"):
        page.press(key)
    assert page.evaluate("a.value") == "hiA"
    page.press("Enter")
    assert page.evaluate("window.clicked") is True


def test_a_page_that_is_not_there_is_an_error(browser: Browser, tmp_path: Path):
    with pytest.raises(BrowserError, match="ERR_FILE_NOT_FOUND"):
        browser.open(tmp_path / "nowhere.html")


def test_a_browser_that_dies_says_so_and_leaves_nothing(write):
    with Browser() as mortal:
        page = mortal.open(write(""))
        profile = Path(mortal._profile.name)
        mortal._process.kill()
        with pytest.raises(BrowserError, match="the browser"):
            page.evaluate("new Promise(() => null)")
    assert mortal._process.returncode is not None
    assert not profile.exists()
