"""A local web server with configurable faults: broken connections, ignored ranges, changed files, wrong headers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Site:
    """Files of a server and its faults; each list is consumed by requests for files in `files`."""

    def __init__(self, **files: bytes) -> None:
        self.files = {name.replace("__", "/").replace("_zip", ".zip"): data for name, data in files.items()}
        self.requested: list[tuple[str, str | None]] = []
        self.statuses: list[int] = []
        self.cuts: list[int] = []
        self.ranges = True
        self.length: int | None = -1
        self.content_range: str | None = None
        self.redirect = ""
        self.surplus = b""


class Handler(BaseHTTPRequestHandler):
    """Serves the files and faults of its site; a subclass sets the site."""

    site: Site

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].removeprefix("/")
        if path not in self.site.files:
            self.send_error(404, "\x1b[31mgone")
            return
        wanted = self.headers.get("Range")
        self.site.requested.append((self.path, wanted))
        if self.site.statuses:
            self.send_error(self.site.statuses.pop(0))
        elif self.site.redirect:
            self.send_response(302)
            self.send_header("Location", self.site.redirect)
            self.end_headers()
        else:
            self.answer(self.site.files[path], wanted)

    def answer(self, data: bytes, wanted: str | None) -> None:
        start = 0
        if wanted and self.site.ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(data):
                self.send_error(416)
                return
            self.send_response(206)
            content_range = self.site.content_range or f"bytes {start}-{len(data) - 1}/{len(data)}"
            self.send_header("Content-Range", content_range)
        else:
            self.send_response(200)
        if self.site.length is not None:
            self.send_header("Content-Length", str(len(data) - start if self.site.length < 0 else self.site.length))
        self.end_headers()
        cut = self.site.cuts.pop(0) if self.site.cuts else len(data)
        self.wfile.write(data[start : start + cut] + self.site.surplus)

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def serve(site: Site) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("SiteHandler", (Handler,), {"site": site}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
