"""Memory that a process keeps, and clearing the page cache: never this machine's own."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from trainstone.machine import pagecache
from trainstone.machine.allocator import KEEP_TUNABLES, describe_allocator, keeping_environment, keeps_memory


def test_settings_are_added_and_what_the_user_set_stays():
    environment = keeping_environment({"A": "1"})
    assert (environment["GLIBC_TUNABLES"], environment["A"]) == (":".join(KEEP_TUNABLES), "1")
    assert keeps_memory(environment)
    assert "keeps freed memory" in describe_allocator(environment)
    theirs = keeping_environment({"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1:glibc.malloc.check=3"})
    tunables = ["glibc.malloc.mmap_threshold=1", "glibc.malloc.check=3", KEEP_TUNABLES[1]]
    assert theirs["GLIBC_TUNABLES"].split(":") == tunables
    assert not keeps_memory(theirs)  # theirs is smaller than ours
    assert not keeps_memory({})
    assert "default, LD_PRELOAD=libjemalloc.so" in describe_allocator({"LD_PRELOAD": "libjemalloc.so"})


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_a_process_restarts_once_and_keeps_its_arguments():
    code = (
        "import os, sys\nfrom trainstone.machine.allocator import restart_keeping_memory, keeps_memory\n"
        "print('start', flush=True)\nrestart_keeping_memory()\nprint(os.getpid(), keeps_memory(), sys.argv[1:])"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("GLIBC_TUNABLES", "TRAINSTONE_RESTARTED")}
    child = subprocess.Popen(
        [sys.executable, "-c", code, "x y", "--z"], stdout=subprocess.PIPE, text=True, env=environment
    )
    out, _ = child.communicate()
    assert out.splitlines() == ["start", "start", f"{child.pid} True ['x y', '--z']"]


def test_small_memory_is_kept_without_a_restart():
    """After a block of 30 MB was freed the process still has it; by default glibc would have given it back."""
    code = (
        "import psutil\nfrom trainstone.machine.allocator import keep_small_memory\nkeep_small_memory()\n"
        "before = psutil.Process().memory_info().rss\nblock = b'x' * (30 << 20)\ndel block\n"
        "print(psutil.Process().memory_info().rss - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    if platform.libc_ver()[0] == "glibc":
        assert int(done.stdout) > 25 << 20


def test_clear_page_cache_forgets_pages_and_names_and_describes_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    switch = tmp_path / "drop_caches"
    monkeypatch.setattr(pagecache, "SWITCH", switch)
    monkeypatch.setattr(pagecache.os, "sync", lambda: None)
    done, told, at_seconds = pagecache.clear_page_cache()
    assert (done, told, switch.read_text()) == (True, "page cache cleared", "3")
    assert at_seconds is not None
    switch.unlink()
    switch.mkdir()
    cleared = pagecache.clear_page_cache()
    assert not cleared.done
    assert cleared.told.endswith(f"{switch}: Is a directory")
