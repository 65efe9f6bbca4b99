"""One harness for all golden commands of a session."""

from collections.abc import Iterator

import pytest

from golden_commands.harness import Harness
from nursery import Nursery


@pytest.fixture(scope="session")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    with Nursery(tmp_path_factory.mktemp("nursery")) as nursery:
        yield Harness(nursery, tmp_path_factory.mktemp("golden-commands"))
