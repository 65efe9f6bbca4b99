"""Where generated and downloaded things are kept."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """$TRAINSTONE_CACHE, else the user's cache folder."""
    chosen = os.environ.get("TRAINSTONE_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainstone"
