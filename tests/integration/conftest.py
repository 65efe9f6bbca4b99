"""What integration tests share: processes that start quickly."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from command import Finished
from nursery import Nursery


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """One parent of all quick processes of this session."""
    with Nursery(tmp_path_factory.mktemp("nursery")) as started:
        yield started


@pytest.fixture
def quick(nursery: Nursery, tmp_path: Path) -> Callable[..., Finished]:
    """Run the command line in an empty folder as `trainstone` does, but forked, with no peak and no page.

    For tests that need no interpreter of their own; `whole=True` measures the peak and draws the page.
    """

    def run(*arguments: str, env: dict[str, str] | None = None, whole: bool = False) -> Finished:
        environment = {"TRAINSTONE_CACHE": os.environ["TRAINSTONE_CACHE"], **(env or {})}
        return nursery.start(*arguments, env=environment, cwd=tmp_path, whole=whole).wait()

    return run
