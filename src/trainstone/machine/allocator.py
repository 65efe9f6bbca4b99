"""Tell glibc to keep freed memory: it otherwise returns the activations to the kernel after every step, and the next
step pays a page fault for each 4 KiB (ResNet-50, batch 16, two cores: 10 to 20 % of the speed).

GLIBC_TUNABLES is read when a process starts, hence one restart. Only this process is changed, no system setting.
"""

import ctypes
import os
import platform
import sys
from collections.abc import Mapping

KEEP_TUNABLES = ("glibc.malloc.mmap_threshold=4294967296", "glibc.malloc.trim_threshold=34359738368")
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
    set_to, wanted = (dict(part.partition("=")[::2] for part in texts) for texts in (parts, KEEP_TUNABLES))
    return all(set_to.get(name, "").isdecimal() and int(set_to[name]) >= int(value) for name, value in wanted.items())


def keeping_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with our settings added; a tunable that the user set stays as it is."""
    parts = [part for part in environment.get("GLIBC_TUNABLES", "").split(":") if part]
    theirs = {part.partition("=")[0] for part in parts}
    parts += [setting for setting in KEEP_TUNABLES if setting.partition("=")[0] not in theirs]
    return {**environment, "GLIBC_TUNABLES": ":".join(parts), RESTARTED: "1"}


def restart_keeping_memory() -> None:
    """Replace this process by itself with the settings; returns at once where they are set, or cannot be."""
    if platform.libc_ver()[0] != "glibc" or keeps_memory() or RESTARTED in os.environ:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], keeping_environment(os.environ))


def keep_small_memory() -> None:
    """Keep freed blocks of up to 32 MB, without a restart: enough for images, whose memory comes and goes.

    Returned to the kernel after each image it costs a page fault for each 4 KiB and, with threads, a call to every
    core (20,000 images of 95 kB, two cores: 4 s of system time instead of 1.5 s).
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, MAX_MMAP_THRESHOLD)
        libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
