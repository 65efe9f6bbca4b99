"""What integration tests share: processes that start quickly."""

from collections.abc import Iterator

import pytest

from nursery import Nursery


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """One parent of all quick processes of this session."""
    with Nursery(tmp_path_factory.mktemp("nursery")) as started:
        yield started
