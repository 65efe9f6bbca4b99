"""The scripts that draw charts (Vega, Vega-Lite, vega-embed), as one text to put into a page.

They come with vl-convert-python, nothing is fetched. Bundling takes two seconds, so the text is kept
in the cache folder.
"""

import logging
from importlib.metadata import version

import vl_convert

from trainstone.errors import ResultError
from trainstone.files import cache_folder, write_atomically

log = logging.getLogger(__name__)


def load_scripts() -> str:
    """Return the scripts, safe between <script> and </script>."""
    path = cache_folder() / f"vega-{version('vl-convert-python')}.js"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = ""
    if not is_complete(text):
        text = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub lacks the default
        if not is_complete(text):
            raise ResultError("vl-convert made no chart scripts", hint="pip install --upgrade vl-convert-python")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text)
        except OSError as err:
            log.info("chart scripts not kept in %s: %s", path, err)
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def is_complete(text: str) -> bool:
    """Say whether this is the bundle and all of it: it ends by handing out what a page calls."""
    return "window.vegaEmbed=" in text[-2000:]
