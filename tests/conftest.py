"""What all tests share: a clean environment, the real command line, and an honest list of what was not run here."""

import functools
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from support.processes.command import LIMIT, Finished, command_line, copy_golden
from support.processes.forked import LAUNCHERS, Nursery, share_nursery
from support.servers.browser import Browser, find_chromium

SCRUBBED = (
    *(name for name in LAUNCHERS if name != "TRAINSTONE_"),
    "CUDA_",
    "NO_COLOR",
    "TRAINSTONE_CPUS",
    "TRAINSTONE_REST",
)
# A test that draws examples says what it checks, not how quick the machine is at that moment.
hypothesis.settings.register_profile("trainstone", deadline=None, max_examples=50)
hypothesis.settings.load_profile("trainstone")


def pytest_configure() -> None:
    """Let children take signals as commands of a terminal do, even where the tests run under nohup or in background."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # reset by exec


def pytest_unconfigure() -> None:
    if share_nursery.cache_info().currsize:
        share_nursery().close()


@pytest.fixture(autouse=True)
def scrubbed_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No launcher, scheduler or device variable of the machine reaches a test, and no test the user's cache."""
    monkeypatch.setenv("TRAINSTONE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    for name in list(os.environ):
        if name.startswith(SCRUBBED):
            monkeypatch.delenv(name)


@pytest.fixture
def trainstone(tmp_path: Path) -> Callable[..., Finished]:
    def run(*arguments: str, env: dict[str, str] | None = None) -> Finished:
        environment = {**os.environ, **(env or {})}
        done = subprocess.run(
            command_line(*arguments), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="session")
def nursery() -> Nursery:
    return share_nursery()


@pytest.fixture
def quick(nursery: Nursery, tmp_path: Path) -> Callable[..., Finished]:
    """Run the command line in an empty folder as `trainstone` does, but forked, with no peak and no page.

    For tests that need no interpreter of their own; `whole=True` measures the peak and draws the page.
    """

    def run(*arguments: str, env: dict[str, str] | None = None, whole: bool = False) -> Finished:
        environment = {"TRAINSTONE_CACHE": os.environ["TRAINSTONE_CACHE"], **(env or {})}
        return nursery.start(*arguments, env=environment, cwd=tmp_path, whole=whole).wait()

    return run


@pytest.fixture
def golden(tmp_path: Path) -> Callable[[str], Path]:
    """Copy a run of tests/golden by its name."""
    return functools.partial(copy_golden, tmp_path)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if find_chromium() is None:
        pytest.skip("needs chromium")
    with Browser() as started:
        yield started


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """GPU tests skip themselves where there is no GPU; asking costs an import of torch, so only if there are any."""
    marked = [(item, 2 if item.get_closest_marker("multigpu") else 1) for item in items]
    marked = [(i, n) for i, n in marked if i.get_closest_marker("gpu") or i.get_closest_marker("multigpu")]
    if not marked:
        return
    import torch

    here = torch.cuda.device_count()
    for item, needed in marked:
        if here < needed:
            item.add_marker(pytest.mark.skip(reason=f"needs {needed} CUDA device(s), {here} here"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        terminalreporter.section("not run here")
        for report in skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            terminalreporter.line(f"{report.nodeid}: {reason.removeprefix('Skipped: ')}")
