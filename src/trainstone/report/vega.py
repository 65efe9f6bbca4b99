"""The scripts that draw charts (Vega, Vega-Lite, vega-embed), as one text to put into a page.

They come with vl-convert-python, nothing is fetched. Bundling takes two seconds, so the text is kept in the cache
folder and made in a process of its own where it is not there yet, beside the loading of Altair and the charts. So this
file loads nothing heavy.
"""

import logging
import subprocess
import sys
from importlib.metadata import version
from types import TracebackType
from typing import Self

from trainstone.errors import ResultError
from trainstone.files import cache_folder

log = logging.getLogger(__name__)

MAKE = "import sys, vl_convert; sys.stdout.buffer.write(vl_convert.javascript_bundle().encode())"
TIMEOUT_SECONDS = 120


class Scripts:
    """Starts the bundling when made; `text()` waits for it. Used by `with`: what nobody waited for is ended."""

    def __init__(self) -> None:
        self._path = cache_folder() / f"vega-{version('vl-convert-python')}.js"
        self._maker: subprocess.Popen[bytes] | None = None
        self._text = self._read()
        if not self._text:
            self._maker = subprocess.Popen(
                [sys.executable, "-P", "-c", MAKE], stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._maker is not None:
            self._maker.kill()
            self._maker.communicate()

    def _read(self) -> str:
        try:
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return ""
        return text if is_whole(text) else ""

    def text(self) -> str:
        """Return the scripts, safe between <script> and </script>."""
        from trainstone.files import write_atomically

        if self._maker is not None:
            try:
                output, errors = self._maker.communicate(timeout=TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired as err:
                raise ResultError(f"the chart scripts were not made within {TIMEOUT_SECONDS} s") from err
            self._text, self._maker = output.decode("utf-8", "replace"), None
            if not is_whole(self._text):
                told = errors.decode("utf-8", "replace").strip()[-500:]
                raise ResultError(
                    f"vl-convert cannot make the chart scripts: {told}", hint="pip install --upgrade vl-convert-python"
                )
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self._path, self._text)
            except OSError as err:
                log.info("chart scripts not kept in %s: %s", self._path, err)
        return self._text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def is_whole(text: str) -> bool:
    """Say whether this is the bundle and all of it: it ends by handing out what a page calls."""
    return "window.vegaEmbed=" in text[-2000:]
