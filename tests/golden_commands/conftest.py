"""One harness for all golden commands of a session."""

import pytest

from golden_commands.harness import Harness
from nursery import Nursery


@pytest.fixture(scope="session")
def harness(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Harness:
    return Harness(nursery, tmp_path_factory.mktemp("golden-commands"))
