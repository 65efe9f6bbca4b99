"""Makes the system forget the files it has read, so that a run reads its pictures from the disk. Linux, as root."""

import os
import time
from pathlib import Path
from typing import NamedTuple

SWITCH = Path("/proc/sys/vm/drop_caches")
EVERYTHING = "3"  # pages, directory entries and inodes: man 5 proc


class CacheCleared(NamedTuple):
    """Whether it was done, and in words."""

    done: bool
    told: str
    at_seconds: float | None = None
    """When, since 1970; None where nothing was tried."""


NOT_ASKED = CacheCleared(False, "page cache not cleared: not asked for")


def clear_page_cache() -> CacheCleared:
    """Forget the files read so far; what stands in the way is told, not raised."""
    now = time.time()
    try:
        os.sync()  # pages not yet written cannot be forgotten
        SWITCH.write_text(EVERYTHING)
    except PermissionError:
        return CacheCleared(False, "page cache not cleared: not root", now)
    except FileNotFoundError:
        return CacheCleared(False, f"page cache not cleared: this system has no {SWITCH}", now)
    except OSError as err:
        return CacheCleared(False, f"page cache not cleared: {SWITCH}: {err.strerror or err}", now)
    return CacheCleared(True, "page cache cleared", time.time())
