"""tests/browser.py on pages written here: what it reports is what the page did."""

import functools
import http.server
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import Browser, BrowserError

BODY = "<!doctype html><meta charset=utf-8><title>Ünder test</title>"


@pytest.fixture
def write(tmp_path: Path):
    """Write a page and return its path."""

    def page(body: str, name: str = "page one & only.html") -> Path:
        path = tmp_path / name
        path.write_text(BODY + body, encoding="utf-8")
        return path

    return page


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The folder over HTTP on this machine."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def png_size(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", head[16:24])


def test_a_quiet_page_has_no_errors_and_asks_nobody(browser: Browser, write):
    page = browser.open(write("<h1>hello</h1><img src='data:image/gif;base64,R0lGODlhAQABAAAAACw='>"))
    assert page.console_errors == []
    assert page.network_requests == []
    assert page.evaluate("document.title") == "Ünder test"


def test_evaluate_returns_values_and_awaits_promises(browser: Browser, write):
    page = browser.open(write(""))
    assert page.evaluate("1 + 1") == 2
    assert page.evaluate("({a: [1, 'x', null]})") == {"a": [1, "x", None]}
    assert page.evaluate("undefined") is None
    assert page.evaluate("new Promise(done => setTimeout(() => done('late'), 50))") == "late"
    assert page.evaluate("'x'.repeat(3000000).length + '…'") == "3000000…"


@pytest.mark.parametrize("script", ["null.x", "Promise.reject(new Error('no'))", "throw 1", "(", "throw 'text'"])
def test_a_script_that_throws_is_an_error(browser: Browser, write, script: str):
    page = browser.open(write(""))
    with pytest.raises(BrowserError):
        page.evaluate(script)
    assert page.evaluate("2") == 2


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("<script>console.error('bad', 7)</script>", "bad 7"),
        ("<script>undefinedFunction()</script>", "undefinedFunction is not defined"),
        ("<script>Promise.reject(new Error('nobody caught it'))</script>", "nobody caught it"),
        ("<script>console.assert(false, 'never')</script>", "never"),
        ("<script src='not-there.js'></script>", "not-there.js"),
        ("<iframe srcdoc=\"<script>console.error('within')</script>\"></iframe>", "within"),
    ],
)
def test_console_errors_are_seen(browser: Browser, write, body: str, words: str):
    errors = browser.open(write(body)).console_errors
    assert len(errors) == 1
    assert words in errors[0]


def test_what_is_only_said_is_no_error(browser: Browser, write):
    page = browser.open(write("<script>console.log('a'); console.warn('b'); try { null.x } catch {}</script>"))
    assert page.console_errors == []


@pytest.mark.parametrize(
    "body",
    [
        "<img src='http://example.com/x'>",
        "<script>fetch('http://example.com/x').catch(() => {})</script>",
        "<link rel=stylesheet href='http://example.com/x'>",
        "<iframe src='http://example.com/x'></iframe>",
        "<script>new WebSocket('ws://example.com/x')</script>",
        "<script>new Worker(URL.createObjectURL(new Blob([`fetch('http://example.com/x')`])))</script>",
    ],
)
def test_every_request_is_listed(browser: Browser, write, body: str):
    page = browser.open(write(body))
    page.evaluate("new Promise(done => setTimeout(done, 300))")
    assert [url.partition("://")[2] for url in page.network_requests] == ["example.com/x"]


def test_a_served_page_loads_its_parts(browser: Browser, write, served: str):
    write("<script src=part.js></script>", "index.html")
    write("", "favicon.ico")
    (write("", "unused").parent / "part.js").write_text("window.loaded = true")
    page = browser.open(f"{served}/index.html")
    assert page.evaluate("window.loaded") is True
    assert f"{served}/part.js" in page.network_requests


def test_theme_and_size_can_be_chosen_and_changed(browser: Browser, write):
    dark, wide = "matchMedia('(prefers-color-scheme: dark)').matches", "[innerWidth, innerHeight]"
    page = browser.open(write(""), width=700, height=500, dark=True)
    assert page.evaluate(dark) is True
    assert page.evaluate(wide) == [700, 500]
    page.set_theme(dark=False)
    page.resize(320, 640)
    assert page.evaluate(dark) is False
    assert page.evaluate(wide) == [320, 640]
    assert browser.open(write("")).evaluate(dark) is False


def test_a_screenshot_is_a_png_of_the_page_or_of_the_window(browser: Browser, write, tmp_path: Path):
    page = browser.open(write("<body style='margin:0'><div style='height:2000px'>"), width=640, height=480)
    assert png_size(page.screenshot(tmp_path / "full.png")) == (640, 2000)
    assert png_size(page.screenshot(tmp_path / "window.png", full=False)) == (640, 480)


def test_keys_reach_the_page(browser: Browser, write):
    page = browser.open(write("<input id=a><button id=b onclick='window.clicked = true'>x</button>"))
    page.press("Tab")
    for key in ("h", "i", "Backspace", "Space", "+", "A"):
        page.press(key)
    assert page.evaluate("a.value") == "h +A"
    page.press("Tab")
    assert page.evaluate("document.activeElement.id") == "b"
    page.press("Enter")
    assert page.evaluate("window.clicked") is True
    page.press("Shift+Tab")
    assert page.evaluate("document.activeElement.id") == "a"
    with pytest.raises(ValueError, match="unknown key"):
        page.press("Any")


def test_pages_know_nothing_of_each_other(browser: Browser, write):
    first = browser.open(write("<script>console.error('mine')</script>", "first.html"))
    second = browser.open(write("", "second.html"))
    assert second.console_errors == []
    assert len(first.console_errors) == 1
    first.close()
    assert second.evaluate("3") == 3


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
