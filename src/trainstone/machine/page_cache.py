"""Clear the page cache, so that a run reads its images from the disk. Linux, as root."""

import os
import time
from pathlib import Path
from typing import NamedTuple

SWITCH = Path("/proc/sys/vm/drop_caches")


class CacheCleared(NamedTuple):
    done: bool
    message: str
    at_seconds: float | None = None  # when, since 1970; None where nothing was tried


NOT_REQUESTED = CacheCleared(False, "page cache not cleared: not requested")


def clear_page_cache() -> CacheCleared:
    """Forget the files read so far; a failure is described, not raised."""
    now = time.time()
    try:
        os.sync()  # pages not yet written cannot be forgotten
        SWITCH.write_text("3")  # pages, directory entries and inodes: man 5 proc
    except OSError as err:
        return CacheCleared(False, f"page cache not cleared: {SWITCH}: {err.strerror or err}", now)
    return CacheCleared(True, "page cache cleared", time.time())
