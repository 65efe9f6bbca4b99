"""Make glibc keep freed memory. By default it returns the activations to the kernel after every step, and the next step
has a page fault for each 4 KiB (ResNet-50, batch 16, two cores: 10 to 20 % of the speed).

GLIBC_TUNABLES is read when a process starts, so the process restarts once. No system setting is changed.
"""

import ctypes
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

from trainstone.machine.cpus import read_text

HUGE_PAGES = "glibc.malloc.hugetlb=1"
"""Request huge pages for all blocks, where the kernel gives them on request only (glibc 2.35, Linux)."""
KEEP_TUNABLES = ("glibc.malloc.mmap_threshold=4294967296", "glibc.malloc.trim_threshold=34359738368")
PAGE_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
RESTARTED = "TRAINSTONE_RESTARTED"
# Parameters of mallopt(3), and the largest threshold it takes on 64 bits.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
MAX_MMAP_THRESHOLD = 32 << 20


def describe_allocator(environment: Mapping[str, str] = os.environ) -> str:
    if keeps_memory(environment):
        return "glibc, keeps freed memory (GLIBC_TUNABLES)"
    preload = environment.get("LD_PRELOAD", "")
    return f"{platform.libc_ver()[0] or 'system'} default{', LD_PRELOAD=' + preload if preload else ''}"


def keeps_memory(environment: Mapping[str, str] = os.environ) -> bool:
    parts = environment.get("GLIBC_TUNABLES", "").split(":")
    current, required = (dict(part.partition("=")[::2] for part in texts) for texts in (parts, KEEP_TUNABLES))
    return all(
        current.get(name, "").isdecimal() and int(current[name]) >= int(value) for name, value in required.items()
    )


def add_tunables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with KEEP_TUNABLES added; a tunable that the user set is not changed."""
    parts = [part for part in environment.get("GLIBC_TUNABLES", "").split(":") if part]
    user_set = {part.partition("=")[0] for part in parts}
    wanted = [*KEEP_TUNABLES, HUGE_PAGES] if "[madvise]" in (read_text(PAGE_SETTING) or "") else KEEP_TUNABLES
    parts += [setting for setting in wanted if setting.partition("=")[0] not in user_set]
    return {**environment, "GLIBC_TUNABLES": ":".join(parts), RESTARTED: "1"}


def restart_keeping_memory() -> None:
    """Restart this process with KEEP_TUNABLES; return at once if they are set already or cannot be set."""
    if platform.libc_ver()[0] != "glibc" or keeps_memory() or RESTARTED in os.environ:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], add_tunables(os.environ))


def keep_small_memory() -> None:
    """Keep freed blocks of up to 32 MB, without a restart; this covers decoded images.

    Returning the memory of each image to the kernel costs a page fault per 4 KiB and, with threads, an interrupt of
    every core (20,000 images of 95 kB, two cores: 4 s of system time instead of 1.5 s).
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, MAX_MMAP_THRESHOLD)
        libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


def release_free_memory() -> None:
    """Return freed memory to the kernel, whatever the thresholds: that of trials is not the run's."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
