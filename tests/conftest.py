"""Shared fixtures: a clean environment, the real command line, golden runs, a browser, and a list of skipped tests."""

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
    "TRAINSTONE_BOUND",
    "TRAINSTONE_REST",
)
# No deadline: property tests must not depend on the machine's speed.
hypothesis.settings.register_profile("trainstone", deadline=None, max_examples=50)
hypothesis.settings.load_profile("trainstone")


def pytest_configure() -> None:
    """Restore default signal handling in children, also if the tests run under nohup or in the background."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # reset by exec


def pytest_unconfigure() -> None:
    if share_nursery.cache_info().currsize:
        share_nursery().close()


@pytest.fixture(autouse=True)
def scrubbed_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Remove launcher, scheduler and device variables of the machine; use a temporary cache."""
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
    """Run the command line in an empty folder, in a forked process, without peak measurement and report page.

    It is faster than `trainstone`; `with_report=True` measures the peak and writes the page.
    """

    def run(*arguments: str, env: dict[str, str] | None = None, with_report: bool = False) -> Finished:
        environment = {"TRAINSTONE_CACHE": os.environ["TRAINSTONE_CACHE"], **(env or {})}
        return nursery.start(*arguments, env=environment, cwd=tmp_path, with_report=with_report).wait()

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
    """Skip GPU tests if there are too few GPUs; torch is imported only if GPU tests were collected."""
    marked = [(item, 2 if item.get_closest_marker("multigpu") else 1) for item in items]
    marked = [(i, n) for i, n in marked if i.get_closest_marker("gpu") or i.get_closest_marker("multigpu")]
    if not marked:
        return
    import torch

    available = torch.cuda.device_count()
    for item, needed in marked:
        if available < needed:
            item.add_marker(pytest.mark.skip(reason=f"needs {needed} CUDA device(s), found {available}"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        terminalreporter.section("not run here")
        for report in skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            terminalreporter.line(f"{report.nodeid}: {reason.removeprefix('Skipped: ')}")
