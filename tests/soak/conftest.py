"""Long trials: `make soak` runs them, everybody else names them as not run."""

import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "TRAINSTONE_SOAK" not in os.environ:
        for item in items:
            if item.path.parent.name == "soak":
                item.add_marker(pytest.mark.skip(reason="needs make soak"))
