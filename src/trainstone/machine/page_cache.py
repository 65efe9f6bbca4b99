"""Clear the page cache, so that a run reads its images from disk. Linux only, needs root."""

import os
import time
from pathlib import Path
from typing import NamedTuple

SWITCH = Path("/proc/sys/vm/drop_caches")


class CacheCleared(NamedTuple):
    done: bool
    message: str
    at_seconds: float | None = None  # Unix time; None if it was not requested


NOT_REQUESTED = CacheCleared(False, "page cache not cleared: not requested")


def clear_page_cache() -> CacheCleared:
    """Clear the page cache; a failure is returned as a message, not raised."""
    now = time.time()
    try:
        os.sync()  # dirty pages cannot be dropped
        SWITCH.write_text("3")  # pages, directory entries and inodes: man 5 proc
    except OSError as err:
        return CacheCleared(False, f"page cache not cleared: {SWITCH}: {err.strerror or err}", now)
    return CacheCleared(True, "page cache cleared", time.time())
