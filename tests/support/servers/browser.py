"""Drive a real headless Chromium with the DevTools protocol over a pipe, to test report pages.

Messages are JSON ended by a NUL byte, on file descriptors 3 (to the browser) and 4 (from it). No driver, no port.
Protocol: https://chromedevtools.github.io/devtools-protocol/
"""

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from support.processes.command import LIMIT

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--disable-dev-shm-usage", "--disable-breakpad", "--mute-audio", "--force-color-profile=srgb", "--lang=en-US"),
    # Block all external hosts; a page's requests are still recorded.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE localhost , EXCLUDE 127.0.0.1",
)
# Moves the pipes to file descriptors 3 and 4. A separate process: preexec_fn is unsafe with torch's threads.
LAUNCHER = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class BrowserError(Exception):
    """The browser did not start, did not answer or returned an error, or a script threw."""


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """Context manager of a Chromium process with an empty profile."""

    def __init__(self) -> None:
        self._sessions: dict[str, Page] = {}
        self._answers: dict[int, dict[str, Any]] = {}
        self._number = 0
        self._rest = b""

    def __enter__(self) -> Self:
        program = find_chromium()
        if program is None:
            raise BrowserError(f"none of {', '.join(NAMES)} is installed")
        self._profile = tempfile.TemporaryDirectory(prefix="trainstone-browser-", ignore_cleanup_errors=True)
        home = Path(self._profile.name)
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        launcher = [sys.executable, "-I", "-S", "-c", LAUNCHER, str(theirs_in), str(theirs_out), program]
        with (home / "stderr.txt").open("wb") as log:
            self._process = subprocess.Popen(
                [*launcher, *FLAGS, f"--user-data-dir={home / 'profile'}", "about:blank"],
                env={**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home), "XDG_CACHE_HOME": str(home)},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                pass_fds=(theirs_in, theirs_out), start_new_session=True,
            )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            self.version = self.call("Browser.getVersion")["product"]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BrowserError, OSError):
            self.send("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(ProcessLookupError):  # remaining helper processes of its own process group
            os.killpg(self._process.pid, signal.SIGKILL)
        os.close(self._to)
        os.close(self._from)
        self._profile.cleanup()

    def open(self, place: Path | str, *, width: int = 1400, height: int = 900, dark: bool = False) -> "Page":
        """Open a file or an address in a new page and return it when it is loaded and drawn."""
        url = place.absolute().as_uri() if isinstance(place, Path) else place
        context = self.call("Target.createBrowserContext", disposeOnDetach=True)["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target, url)
        self._sessions[session] = page
        page.load(width, height, dark=dark)
        return page

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events before it are passed to their pages."""
        number = self.send(method, session, **parameters)
        deadline = time.monotonic() + LIMIT
        while number not in self._answers:
            self.receive(deadline, method)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']['message']}")
        return answer.get("result", {})

    def send(self, method: str, session: str | None = None, **parameters: Any) -> int:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        data = json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0"
        try:
            while data:
                data = data[os.write(self._to, data) :]
        except BrokenPipeError as err:
            raise BrowserError(f"{method}: the browser is gone; {self._describe_end()}") from err
        return self._number

    def receive(self, deadline: float, waiting_for: str) -> None:
        ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise BrowserError(f"no answer to {waiting_for} within {LIMIT:.0f} s; {self._describe_end()}")
        chunk = os.read(self._from, 1 << 20)
        if not chunk:
            raise BrowserError(f"the browser ended while {waiting_for} waited; {self._describe_end()}")
        *messages, self._rest = (self._rest + chunk).split(b"\0")
        for text in messages:
            message = json.loads(text)
            page = self._sessions.get(message.get("sessionId", ""))
            if "id" in message:
                self._answers[message["id"]] = message
            elif page is not None:
                page.take_event(message["method"], message["params"])

    def _describe_end(self) -> str:
        errors = (Path(self._profile.name) / "stderr.txt").read_text(errors="replace").strip()
        return f"exit code {self._process.poll()}, stderr: {errors[-500:] or 'empty'}"


class Page:
    def __init__(self, browser: Browser, session: str, target: str, url: str) -> None:
        self._browser, self._session, self._target, self._url = browser, session, target, url
        self._errors: list[str] = []
        self._requests: list[str] = []
        self._loaded = False

    def load(self, width: int, height: int, *, dark: bool) -> None:
        """Load the address; wait until its fonts are loaded and two frames are drawn."""
        for domain in ("Runtime", "Log", "Network", "Page"):
            self._call(f"{domain}.enable")
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[feature])
        failure = self._call("Page.navigate", url=self._url).get("errorText")
        if failure:
            raise BrowserError(f"cannot open {self._url}: {failure}")
        deadline = time.monotonic() + LIMIT
        while not self._loaded:
            self._browser.receive(deadline, f"the end of loading {self._url}")
        self.evaluate("document.fonts.ready.then(() => null)")
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(null))))")

    @property
    def console_errors(self) -> list[str]:
        """Exceptions, console.error and log errors (such as a missing resource) so far."""
        self.evaluate("0")
        return list(self._errors)

    @property
    def network_requests(self) -> list[str]:
        """Every requested address except the page's own; data: and blob: addresses need no network."""
        self.evaluate("0")
        return list(self._requests)

    def evaluate(self, script: str) -> Any:
        """Evaluate an expression, await its promise, and return its JSON value; raise BrowserError if it throws."""
        answer = self._call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        if "exceptionDetails" in answer:
            raise BrowserError(f"{script[:200]}: {_describe_exception(answer['exceptionDetails'])}")
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """Save the visible window as PNG; for scripts/take-screenshots."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)

    def take_event(self, method: str, message: dict[str, Any]) -> None:
        """Record an event of the page; called by the browser."""
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self._errors.append(_describe_exception(message["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and message["type"] in ("error", "assert"):
            self._errors.append(" ".join(str(a.get("value", a.get("description", ""))) for a in message["args"]))
        elif method == "Log.entryAdded" and message["entry"]["level"] == "error":
            self._errors.append(f"{message['entry']['text']} {message['entry'].get('url', '')}".strip())
        elif method == "Network.requestWillBeSent":
            url = message["request"]["url"]
            if url != self._url and not url.startswith(("data:", "blob:")):
                self._requests.append(url)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)


def _describe_exception(details: dict[str, Any]) -> str:
    thrown = details.get("exception", {})
    return str(thrown.get("description") or thrown.get("value") or details["text"])
